"""The verbs that train: `pretrain`, `finetune`, `quickstart`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from bertsmith.cli import options

if TYPE_CHECKING:
    from bertsmith.settings import Settings


def _pretrain_settings() -> type[Settings]:
    from bertsmith.workflows.pretrain_settings import PretrainSettings

    return PretrainSettings


def _finetune_settings() -> type[Settings]:
    from bertsmith.tasks.task import task_type
    from bertsmith.workflows.finetune import settings_type

    return settings_type(task_type("classify"))


@click.command(cls=options.command_with_settings(_pretrain_settings))
@click.argument("recipe", required=False)
@click.option("--preset", metavar="NAME", help="Sizes of the model [bert-mini-uncased].")
@click.option("--tokenizer", metavar="DIR", help="Checked against the data's own tokenizer.")
@click.option("--data", required=True, metavar="DIR", help="Token shards, from `bertsmith data prepare`.")
@click.option("--out", required=True, metavar="RUN", help="The run folder to write.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    metavar="M",
    help="How long to train; evaluations come on top.",
)
@click.option(
    "--held-out", type=options.Share(), metavar="SHARE", help="Documents kept for evaluation: 1%, 0.01."
)
@options.assignments
@options.resume
@options.as_json
def pretrain(
    recipe: str | None,
    preset: str | None,
    tokenizer: str | None,
    data: str,
    out: str,
    minutes: float | None,
    held_out: float | None,
    assignments: tuple[str, ...],
    resume: bool,
    as_json: bool,
) -> None:
    """Pre-train a BERT on token shards with masked LM and next sentence.

    \b
    Example:
      bertsmith pretrain --preset bert-mini-uncased --data shards --out bert --minutes 30
      bertsmith pretrain recipe.yaml --data shards --out bert --set train.max_steps=10000
      bertsmith pretrain --data shards --out bert --resume

    RECIPE: YAML of the settings below; --set wins over it. Ctrl-C or SIGTERM saves and stops; --resume goes
    on as if nothing had happened.
    """
    from bertsmith import console
    from bertsmith.workflows.pretrain import pretrain as run

    model = run(
        data,
        out,
        preset=preset,
        recipe=recipe,
        tokenizer=tokenizer,
        minutes=minutes,
        settings=[*assignments, *([f"data.held_out={held_out}"] if held_out is not None else [])],
        resume=resume,
        tell=console.note,
    )
    report = model.report
    if as_json:
        console.result_json({"run": out, **report})
        return
    held: dict[str, Any] = report["held_out"]
    rows = [
        ("updates", f"{report['steps']:,}"),
        ("tokens", f"{report['tokens']:,}"),
        ("time", console.duration(report["seconds"])),
        ("tokens/s", f"{report['tokens_per_second']:,.0f}"),
    ]
    if "mlm_loss" in held:
        rows += [
            (
                "held-out MLM loss",
                f"{held['mlm_loss']:.3f} (a unigram model: {held['unigram_mlm_loss']:.3f})",
            ),
            ("held-out MLM accuracy", f"{held['mlm_accuracy']:.1%}"),
        ]
        rows += [
            (f"held-out {task.upper()} accuracy", f"{held[f'{task}_accuracy']:.1%}")
            for task in ("nsp", "sop")
            if f"{task}_accuracy" in held
        ]
    batches = report["batches"]
    filled = f"{batches['fill_mean']:.1%} (least {batches['fill_min']:.1%}), no padding"
    rows.append(("batches filled to", filled))
    console.result_table(out, ["what", "figure"], rows)
    mask = model.tokenizer.mask_token
    console.note(f'next: bertsmith fill-mask {out} "Paris is the {mask} of France."')


@click.command(cls=options.command_with_settings(_finetune_settings))
@click.argument("task", metavar="TASK")
@click.option("--model", required=True, metavar="DIR|NAME", help="A run, a model folder or a published name.")
@click.option(
    "--train", required=True, metavar="FILE", help="Labelled examples: csv, tsv or jsonl (.gz, .zst)."
)
@click.option("--dev", metavar="FILE", help="Examples that decide which epoch is kept.")
@click.option(
    "--dev-share", type=options.Share(), metavar="SHARE", help="Without --dev: hold out this share."
)
@click.option("--out", required=True, metavar="RUN", help="The run folder to write.")
@click.option("--text-column", metavar="C", help="Column of the text [text].")
@click.option("--second-column", metavar="C", help="Column of a second text, for pairs.")
@click.option("--label-column", metavar="C", help="Column of the label [label].")
@click.option("--delimiter", metavar="D", help="What parts columns; default: by the file's suffix.")
@click.option("--no-header", is_flag=True, help="The first line is data; columns are called 1, 2, …")
@click.option(
    "--label-names", metavar="FILE|A,B,C", help="Names for labels that are numbers, in their order."
)
@click.option(
    "--sample", type=click.IntRange(1), metavar="N", help="Use N examples of --train, drawn by the seed."
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed of everything random [0].")
@options.assignments
@options.resume
@options.as_json
def finetune(
    task: str,
    model: str,
    train: str,
    dev: str | None,
    dev_share: float | None,
    out: str,
    label_names: str | None,
    sample: int | None,
    seed: int | None,
    no_header: bool,
    assignments: tuple[str, ...],
    resume: bool,
    as_json: bool,
    **columns: str | None,
) -> None:
    """Fine-tune a model for a TASK and keep the best epoch. Tasks: classify.

    \b
    Example:
      bertsmith finetune classify --model bert --train train.csv --dev dev.csv --out moods
      bertsmith finetune classify --model bert --train all.csv --dev-share 0.2 --seed 42 --out moods
    """
    from bertsmith import console
    from bertsmith.workflows.finetune import finetune as run

    model_run = run(
        task,
        model,
        out,
        train=train,
        dev=dev,
        dev_share=dev_share,
        sample=sample,
        label_names=_names(label_names),
        settings=[
            *_columns(columns, no_header),
            *([f"train.seed={seed}"] if seed is not None else []),
            *assignments,
        ],
        resume=resume,
        tell=console.note,
    )
    report = model_run.report
    if as_json:
        console.result_json({"run": out, **report})
        return
    dev_scores = report["dev"]
    console.result_table(
        f"{out}: dev, the best epoch",
        ["what", "figure"],
        [
            ("accuracy", f"{dev_scores['accuracy']:.4f}"),
            ("macro F1", f"{dev_scores['macro_f1']:.4f}"),
            ("majority's accuracy", f"{report['majority']['accuracy']:.4f}"),
            ("examples", f"{report['train_examples']:,} train, {dev_scores['examples']:,} dev"),
            ("time", console.duration(report["seconds"])),
        ],
    )
    console.note(f'next: bertsmith predict {out} "some text"')


def _columns(columns: dict[str, str | None], no_header: bool) -> list[str]:
    """Options that name columns, as assignments; quoted, since a column may be called 1 or yes."""
    import json

    given = [f"task.{name}={json.dumps(value)}" for name, value in columns.items() if value is not None]
    return [*given, *(["task.header=false"] if no_header else [])]


def _names(text: str | None) -> list[str] | None:
    """--label-names: a file with a name a line, or names parted by commas."""
    import os

    from bertsmith.errors import InputError
    from bertsmith.files.files import read_lines

    if text is None:
        return None
    if os.path.isfile(text):
        names = [line.strip() for _, line in read_lines(text) if line.strip()]
    elif "," in text:
        names = [name.strip() for name in text.split(",")]
    else:
        raise InputError(f"--label-names {text}: there is no such file", "name a file, or the labels: a,b,c")
    if len(names) < 2 or not all(names):
        raise InputError(f"--label-names {text}: two names or more are needed", "a name a line, or a,b,c")
    return names


@click.command()
@click.option(
    "--out", default="quickstart", show_default=True, metavar="DIR", help="Where everything is written."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N")
@click.option(
    "--minutes", type=click.FloatRange(0.5), metavar="M", help="About how long pre-training may take."
)
@options.as_json
def quickstart(out: str, seed: int, minutes: float | None, as_json: bool) -> None:
    """The whole way in five minutes: text → vocabulary → BERT → a task, with nothing to download.

    \b
    Example:
      bertsmith quickstart
      bertsmith quickstart --out /tmp/first --seed 1

    The text is the English documentation that this Python installation carries. It ends with a table of what
    was measured, and with the commands to go on with files of your own.
    """
    from bertsmith import console
    from bertsmith.workflows.quickstart import quickstart as run
    from bertsmith.workflows.quickstart import show

    report = run(out, seed=seed, minutes=minutes, tell=console.note)
    if as_json:
        console.result_json(report)
    else:
        show(report)
    sys.stdout.flush()
