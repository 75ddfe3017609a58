"""The verb `adapt`: a model pre-trained further on a corpus, and what that was worth on a task."""

from __future__ import annotations

from typing import Any

import click

from bertsmith.cli import options
from bertsmith.cli.verbs import Verb


@click.command(cls=Verb)
@click.option(
    "--model",
    required=True,
    metavar="DIR|NAME",
    help="The model to begin with: a run, a model folder or a published name.",
)
@click.option(
    "--corpus",
    required=True,
    multiple=True,
    metavar="FILE",
    help="Text to pre-train on, a file, folder or glob, as for `bertsmith data prepare`; may be repeated.",
)
@click.option("--task", required=True, metavar="TASK", help="What it is measured on: a verb of `finetune`.")
@click.option("--train", required=True, metavar="FILE", help="Labelled examples of the task.")
@click.option("--validation", required=True, metavar="FILE", help="Those that decide.")
@click.option(
    "--output-dir", "out", required=True, metavar="DIR", help="The folder for the runs and their report."
)
@click.option(
    "--words",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Add N words of the corpus that the vocabulary cuts into pieces [none].",
)
@click.option(
    "--seeds", type=click.IntRange(1), default=1, metavar="N", help="Fine-tune each of both N times [1]."
)
@click.option(
    "--minutes",
    type=options.FiniteRange(0, min_open=True),
    metavar="M",
    help="How long pre-training may take, as for `bertsmith pretrain`.",
)
@click.option(
    "--task-set",
    "task_settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=options.parse_changes,
    help="A setting of fine-tuning, such as train.num_train_epochs=2 or task.text_column=text; may be repeated.",
)
@options.changes
@options.resume
@options.as_json
def adapt(
    model: str,
    corpus: tuple[str, ...],
    task: str,
    train: str,
    validation: str,
    out: str,
    words: int,
    seeds: int,
    minutes: float | None,
    task_settings: dict[str, Any],
    changes: dict[str, Any],
    resume: bool,
    as_json: bool,
) -> None:
    """Pre-train a model further on your text, fine-tune it before and after, and compare.

    \b
    Example:
      bertsmith adapt --model bert --corpus notes/ --task tag --train a.conll --validation b.conll --output-dir
      adapted bertsmith adapt … --minutes 60 --words 500 --seeds 3 bertsmith adapt … --resume

    --set is for pre-training, --task-set for fine-tuning. The adapted model is OUT/model; OUT/before-0 and
    OUT/after-0 are ordinary fine-tuning runs. With the same seed both begin with the same head and see the
    examples in the same order.
    """
    from bertsmith import console
    from bertsmith.experiments.adaptation import adapt as run

    report = run(
        model,
        list(corpus),
        out,
        task=task,
        train=train,
        validation=validation,
        words=words,
        seeds=seeds,
        minutes=minutes,
        settings=changes,
        task_settings=task_settings,
        resume=resume,
    )
    if as_json:
        console.print_json({"output_dir": out, **report})
        return
    rows = [
        (str(row["seed"]), *(f"{row[name]:.4f}" for name in ("before", "after")), _apart(row))
        for row in report["runs"]
    ]
    if len(rows) > 1:
        gain = f"{report['gain']:+.4f} ± {report['deviation']:.4f}"
        rows.append(("mean", f"{report['before']:.4f}", f"{report['after']:.4f}", gain))
    console.print_table(
        f"{out}: {report['score']} on the validation data",
        ["seed", "before", "after", "gain, 95 % interval"],
        rows,
    )
    beside = report["runs"][0]["baseline"]
    if beside is not None:
        console.print_note(f"{report['baseline_name']}: {beside:.4f}")


def _apart(row: dict[str, Any]) -> str:
    """The gain of a seed, with its interval and p."""
    found = row["comparison"]
    return f"{found['difference']:+.4f} ({found['low']:+.4f} to {found['high']:+.4f}, p = {found['p']:.2g})"
