"""The verbs that train on text alone: `pretrain`, `quickstart`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bertsmith import hardware
from bertsmith.cli import options
from bertsmith.cli.score import accuracy_of_pairs, show_groups
from bertsmith.cli.verbs import Verb
from bertsmith.formatting import format_percent

if TYPE_CHECKING:
    from bertsmith.inference.model import Model
    from bertsmith.settings import Settings


def _pretrain_settings() -> type[Settings]:
    from bertsmith.pretraining.settings import PretrainSettings

    return PretrainSettings


def _presets() -> list[tuple[str, list[tuple[str, str]]]]:
    from bertsmith.models.family import FAMILIES, abbreviate_names, get_family

    listed = [(name, ", ".join(abbreviate_names(get_family(name).presets))) for name in FAMILIES]
    return [("Presets (--preset NAME), by family", listed)]


@click.command(cls=options.command_with_settings(_pretrain_settings, _presets))
@click.argument("recipe", required=False)
@click.option("--preset", metavar="NAME", help="Sizes of the model [for the time; bert-mini-uncased].")
@click.option(
    "--model",
    metavar="DIR|NAME",
    help="Start from this model instead of new weights: a run, a model folder or a published name.",
)
@click.option("--tokenizer", metavar="DIR", help="Checked against the data's own tokenizer.")
@click.option("--data", required=True, metavar="DIR", help="Token shards, from `bertsmith data prepare`.")
@click.option("--output-dir", "out", required=True, metavar="RUN", help="The run folder to write.")
@click.option(
    "--minutes",
    type=options.FiniteRange(0, min_open=True),
    metavar="M",
    help="How long the run may take in all: measuring, evaluations, checkpoints and the model included. With "
    "--resume the earlier parts count.",
)
@click.option(
    "--validation-split",
    type=options.Share(),
    metavar="FRACTION",
    help="Fraction of the documents to validate on: 1%, 0.01.",
)
@click.option(
    "--evaluate-pairs",
    metavar="FILE",
    help="Minimal pairs on which each evaluation reports the accuracy, as `bertsmith score --pairs` does.",
)
@options.short_forms
@options.changes
@options.resume
@options.as_json
def pretrain(
    recipe: str | None,
    preset: str | None,
    model: str | None,
    tokenizer: str | None,
    data: str,
    out: str,
    minutes: float | None,
    validation_split: float | None,
    evaluate_pairs: str | None,
    changes: dict[str, Any],
    resume: bool,
    as_json: bool,
    **short: Any,
) -> None:
    """Pre-train a BERT on token shards.

    \b
    Example:
      bertsmith pretrain --data shards --output-dir bert --minutes 30
      bertsmith pretrain --preset bert-small-uncased --data shards --output-dir bert --minutes 600
      bertsmith pretrain recipe.yaml --data shards --output-dir bert --steps 10000
      bertsmith pretrain --data shards --output-dir bert --resume
      bertsmith pretrain --model bert-base-uncased --data shards --output-dir domain-bert --minutes 60
      torchrun --nproc-per-node 2 -m bertsmith pretrain --data shards --output-dir bert --minutes 60

    RECIPE: YAML of the settings below; --set wins over it. Ctrl-C or SIGTERM saves and stops, and leaves a
    model marked as unfinished; --resume continues as if nothing had happened.

    Several processes that torchrun starts, one a GPU or a core, share out each batch.

    With --minutes and neither a preset, a recipe nor a model, the size of the model is chosen for this machine and
    the time. Without a recipe, tiny, mini and small BERTs learn with settings measured for their size in place of
    the defaults below; they are told, and written into settings.yaml.
    """
    from bertsmith.pretraining.run import pretrain as run

    given = {**options.short_of(short), "data.validation_split": validation_split}
    options.refuse_twice({**given, "train.max_minutes": minutes, "evaluate.pairs": evaluate_pairs}, changes)
    trained = run(
        data,
        out,
        preset=preset,
        recipe=recipe,
        model=model,
        tokenizer=tokenizer,
        minutes=minutes,
        evaluate_pairs=evaluate_pairs,
        settings=options.changes_of(given, changes),
        resume=resume,
        begun=click.get_current_context().obj,  # loading torch takes some of the minutes
    )
    show_result(trained, out, as_json=as_json)


def show_result(trained: Model, out: str, *, as_json: bool) -> None:
    """What came of the run, as a table or as JSON; once, where several processes made it."""
    from bertsmith import console

    if not hardware.rank_info().is_main:
        return
    if as_json:
        console.print_json({"run": out, **trained.report})
    else:
        _show_run(trained, out)


def _show_run(trained: Model, out: str) -> None:
    from bertsmith import console
    from bertsmith.cli.hints import fill_mask_hint

    report = trained.report
    held: dict[str, Any] = report["held_out"]
    rows = [
        ("updates", f"{report['steps']:,}"),
        ("tokens", f"{report['tokens']:,}"),
        ("time", console.format_duration(report["seconds"])),
        ("tokens/s, all in all", f"{report['tokens_per_second']:,.0f}"),
    ]
    rows += _held_out_rows(held) or _last_training_loss(out)
    batches = report["batches"]
    filled = (
        f"{format_percent(batches['fill_mean'])} (least {format_percent(batches['fill_min'])}), no padding"
    )
    rows.append(("batches filled to", filled))
    if pairs := report.get("pairs"):
        rows.append(("accuracy on minimal pairs", accuracy_of_pairs(pairs)))
    console.print_table(out, ["what", "figure"], rows)
    if pairs:
        show_groups(pairs)
    if trained.folder.has("masked") and not trained.folder.config.causal:
        console.print_note(fill_mask_hint(out, trained.tokenizer))


def _last_training_loss(out: str) -> list[tuple[str, str]]:
    """What stands in for figures of held-out text where none was held out."""
    from bertsmith.training.metric_logger import last_loss

    loss = last_loss(Path(out))
    return [] if loss is None else [("training loss, the last", f"{loss:.3f} (no text was held out)")]


_SHORT = ("mlm", "nsp", "sop", "lm")  # parts of a loss that are said in capitals


def _held_out_rows(held: dict[str, float]) -> list[tuple[str, str]]:
    """Each figure by its name: `mlm_loss` is the held-out MLM loss, `long_mlm_loss` that of the second phase."""
    rows = []
    for name, value in held.items():
        part, _, what = name.removeprefix("long_").rpartition("_")
        if part.startswith("unigram_") or part == "pairs":  # the pairs have a row and a table of their own
            continue
        at = " (long sequences)" if name.startswith("long_") else ""
        title = f"held-out {part.upper() if part in _SHORT else part} {what}{at}"
        beside = held.get(name.replace(f"{part}_loss", f"unigram_{part}_loss"))
        if what == "loss" and beside is not None:
            rows.append((title, f"{value:.3f} (by word frequencies alone: {beside:.3f})"))
        elif what in ("loss", "perplexity"):
            rows.append((title, f"{value:.3f}" if what == "loss" else f"{value:,.1f}"))
        else:
            rows.append((title, format_percent(value)))
    return rows


@click.command(cls=Verb)
@click.option(
    "--output-dir",
    "out",
    default="quickstart",
    show_default=True,
    metavar="DIR",
    help="Where everything is written.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="The seed of everything random.",
)
@click.option("--minutes", type=options.FiniteRange(0.5), metavar="M", help="How long pre-training may take.")
@options.as_json
def quickstart(out: str, seed: int, minutes: float | None, as_json: bool) -> None:
    """The whole way in minutes: text → vocabulary → BERT → a task, with nothing to download.

    \b
    Example:
      bertsmith quickstart
      bertsmith quickstart --output-dir /tmp/first --seed 1

    The text is the English documentation that this Python installation carries. It ends with a table of what
    was measured, and with the commands to continue with files of your own.
    """
    from bertsmith import console
    from bertsmith.quickstart.quickstart import print_report
    from bertsmith.quickstart.quickstart import quickstart as run

    report = run(out, seed=seed, minutes=minutes)
    if as_json:
        console.print_json(report)
    else:
        print_report(report)
    sys.stdout.flush()
