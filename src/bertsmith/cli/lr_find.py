"""The verb `lr-find`: a command a task, with the task's own options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bertsmith.cli import options, task_options
from bertsmith.cli.finetune import DEVICE, LABEL_NAMES, OfTasks

if TYPE_CHECKING:
    from bertsmith.cli.finetune import Kind
    from bertsmith.finetuning.lr_finder import RateTest

_ROWS = 22  # that a terminal shows of the rates


class _Tasks(OfTasks):
    """The tasks, each imported when it runs."""

    def command_of(self, name: str, kind: Kind) -> click.Command:
        return _command(name, kind)


@click.group(name="lr-find", cls=_Tasks)
def lr_find() -> None:
    """Find a learning rate for a TASK: at which rates the loss falls, and at which it diverges.

    \b
    Example:
      bertsmith lr-find classify --model bert --train train.csv --output rates.png
      bertsmith lr-find classify --help
    """


def _command(name: str, kind: Kind) -> click.Command:
    """The command of a task: what all tasks take, and the task's settings as options."""
    from bertsmith.finetuning.settings import settings_type

    def run(**arguments: Any) -> None:
        _find(name, **arguments)

    run.__doc__ = f"""Find a learning rate for `{name}`, {kind.summary}.

    \b
    Example:
      bertsmith lr-find {name} --model bert --train {kind.example_file} --output rates.png

    The rate rises from --low to --high, a little each update, on batches of --train (Smith 2017). The model
    stays as it is. A rate is suggested only where the loss of every seed falls clearly and then diverges, and
    where the seeds agree on the rate at which it is lowest, within half a decade: a tenth of that.
    """
    rate = options.FiniteRange(0, 10, min_open=True)
    for option in (
        options.as_json,
        options.changes,
        DEVICE,
        click.option("--threads", type=click.IntRange(1), metavar="N", help="Threads of computation."),
        click.option("--seed", type=click.IntRange(0), metavar="N", help="The first seed [0]."),
        click.option("--batch-size", type=click.IntRange(1), metavar="N", help="Examples in a batch."),
        click.option("--recipe", metavar="FILE", help="YAML of the settings below; --set wins over it."),
        click.option(
            "--sample",
            type=click.IntRange(1),
            metavar="N",
            help="Use N examples of --train, drawn by files.seed.",
        ),
        *((LABEL_NAMES,) if kind.may_name_labels else ()),
        click.option("--high", type=rate, default=1.0, metavar="RATE", help="The last rate [1]."),
        click.option("--low", type=rate, default=1e-7, metavar="RATE", help="The first rate [1e-7]."),
        click.option(
            "--steps", type=click.IntRange(1), default=100, metavar="N", help="Updates of each seed [100]."
        ),
        click.option(
            "--seeds",
            type=click.IntRange(1),
            default=3,
            metavar="N",
            help="How often, each time with a head, an order and dropout of its own [3].",
        ),
        click.option("--output", "out", metavar="FILE.png", help="A plot of the losses to write."),
        click.option(
            "--train",
            required=True,
            metavar="FILE",
            help="Examples to train on (.gz, .zst too; or hub:NAME:SPLIT).",
        ),
        click.option(
            "--model", required=True, metavar="DIR|NAME", help="A run, a model folder or a published name."
        ),
    ):
        option(run)
    command = click.command(name, cls=options.command_with_settings(lambda: settings_type(kind)))(run)
    command.params += task_options.options_of(kind.settings_type)
    return command


def _find(
    task: str,
    *,
    model: str,
    train: str,
    out: str | None,
    seeds: int,
    steps: int,
    low: float,
    high: float,
    sample: int | None,
    recipe: str | None,
    batch_size: int | None,
    seed: int | None,
    threads: int | None,
    device: str | None,
    changes: dict[str, Any],
    as_json: bool,
    label_names: str | None = None,
    **own: Any,
) -> None:
    from bertsmith import console
    from bertsmith.finetuning.lr_finder import find_rate

    given = {f"task.{name}": value for name, value in own.items()} | {
        "train.batch_size": batch_size,
        "train.seed": seed,
        "train.threads": threads,
        "train.device": device,
    }
    found = find_rate(
        task,
        model,
        train=train,
        seeds=seeds,
        steps=steps,
        low=low,
        high=high,
        output=out,
        sample=sample,
        label_names=label_names,
        recipe=recipe,
        settings=options.changes_of(given, changes),
    )
    if as_json:
        console.print_json({**found.document(), "plot": out})
        return
    _show(found)
    if out is not None:
        console.print_note(f"plot: {out}")


def _show(found: RateTest) -> None:
    """The smoothed loss of each seed at some of the rates, and the suggestion."""
    from bertsmith import console

    every = range(0, len(found.rates), max(1, len(found.rates) // _ROWS))
    rows = [
        (
            f"{found.rates[i]:.1e}",
            *(f"{r.smoothed[i]:.4f}" if i < len(r.smoothed) else "–" for r in found.readings.values()),
        )
        for i in every
    ]
    columns = ["rate", *(f"seed {seed}" for seed in found.readings)]
    console.print_table("training loss by learning rate, smoothed", columns, rows)
    console.print_result(found.said)
