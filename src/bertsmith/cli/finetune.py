"""The commands that need labeled examples: `finetune` and `lr-find`, with a command for each task."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import rich_click as click

from bertsmith import console
from bertsmith.cli import options, tables
from bertsmith.cli.commands import SettingsCommand, TaskGroup, task_settings
from bertsmith.cli.options import DIR, FILE, Integer

if TYPE_CHECKING:
    from bertsmith.tasks.registry import Task

_label_names = click.option(
    "--label-names",
    metavar="FILE|A,B,C",
    help="Names for labels that are numbers, in their order, or a file of code,name rows.",
)
_max_rows = click.option("--sample", type=Integer(1), help="Use N examples of --train, drawn by files.seed.")
_train = click.option(
    "--train", type=FILE, required=True, help="Examples to train on; also compressed, or hub:NAME:SPLIT."
)


class _FinetuneGroup(TaskGroup):
    def task_command(self, name: str, task: Task) -> click.Command:
        @click.command(name, cls=SettingsCommand, settings_type=partial(task_settings, task))
        @options.base_model
        @_train
        @click.option("--validation", type=FILE, help="Examples to choose the best epoch by.")
        @click.option(
            "--validation-split", type=options.Fraction(), help="Hold out this fraction of --train instead."
        )
        @click.option(
            "--test-split",
            type=options.Fraction(),
            help="Hold out this fraction of --train first, and score it once at the end.",
        )
        @options.output_dir
        @options.combine(*([_label_names] if task.accepts_label_names else []))
        @_max_rows
        @options.recipe
        @click.option("--restarts", type=Integer(2, 1000), help="Train N runs with different seeds.")
        @click.option(
            "--folds", type=Integer(2, 1000), help="Cross-validate: N runs, each with another held-out part."
        )
        @click.option(
            "--grid",
            multiple=True,
            metavar="NAME=A,B",
            help="Train a run with each value of a setting; repeat it for each combination of several settings.",
        )
        @options.setting(
            "--freeze-encoder",
            "train.freeze_encoder",
            is_flag=True,
            default=None,
            help="Train only the head, on hidden states that are computed once.",
        )
        @options.training
        @options.device
        @options.run_options
        def run(**arguments: Any) -> None:
            _finetune(name, **arguments)

        run.help = f"""Fine-tune a model for `{name}`: {task.summary}.

\b
Example:
  bertsmith finetune {name} --model bert --train {task.example_file} \\
    --validation-split 10% --output-dir run
  bertsmith finetune {name} --model bert --train {task.example_file} --folds 5 \\
    --output-dir runs"""
        return run


@click.group(cls=_FinetuneGroup)
def finetune() -> None:
    """Fine-tune a model for a TASK, and keep the weights of the best epoch.

    \b
    Example:
      bertsmith finetune classify --model bert --train train.csv \\
        --validation validation.csv --output-dir moods
      bertsmith finetune classify --help

    The Hugging Face names of tasks, such as text-classification or question-answering, are accepted, too.
    """


def _finetune(
    task: str,
    *,
    model: str,
    output_dir: str,
    as_json: bool,
    restarts: int | None,
    folds: int | None,
    grid: tuple[str, ...],
    **arguments: Any,
) -> None:

    if restarts or folds or grid:
        from bertsmith.experiments.multirun import finetune_repeatedly

        arguments |= {"restarts": restarts, "folds": folds, "grid": grid or None}
        report: dict[str, Any] = finetune_repeatedly(task, model, output_dir, **arguments).to_dict()
    else:
        from bertsmith.finetuning.run import finetune as finetune_model

        report = finetune_model(task, model, output_dir, **arguments).report
    tables.print_finetuning(output_dir, report, as_json)


@finetune.command("glue", short_help="The nine tasks of GLUE, as a table.")
@options.base_model
@click.option("--data", type=DIR, required=True, help="A folder with a folder for each task: CoLA, SST-2, ….")
@options.output_dir
@click.option("--tasks", metavar="A,B", callback=options.split_names, help="Only these tasks; default: all.")
@click.option("--sample", type=Integer(1), help="Use N training examples of each task, drawn by files.seed.")
@options.recipe
@options.training
@options.run_options
def glue(model: str, output_dir: str, as_json: bool, **arguments: Any) -> None:
    """Fine-tune a model for each task of GLUE, and print the benchmark's table.

    \b
    Example:
      bertsmith finetune glue --model bert --data glue --output-dir runs
      bertsmith finetune glue --model bert --data glue --output-dir runs \\
        --tasks cola,rte --epochs 5

    The folder of a task has the published files train and dev (.tsv, .csv, or .jsonl, also compressed; for MNLI
    dev_matched and dev_mismatched). Each run is an ordinary one, such as runs/CoLA. The scores are on dev.
    """
    from bertsmith.experiments.glue import finetune_glue

    report = finetune_glue(model, output_dir, **arguments)
    tables.show({"output_dir": output_dir, **report.to_dict()}, as_json, tables.print_glue)


class _RateGroup(TaskGroup):
    def task_command(self, name: str, task: Task) -> click.Command:
        @click.command(name, cls=SettingsCommand, settings_type=partial(task_settings, task))
        @options.base_model
        @_train
        @click.option("--output", type=FILE, metavar="FILE.png", help="A plot of the losses to write.")
        @click.option("--seeds", type=Integer(1, 1000), default=3, help="Number of repetitions.")
        @click.option("--steps", type=Integer(1, 1_000_000), default=100, help="Updates of each seed.")
        @click.option("--low", type=options.RATE, default=1e-7, help="First learning rate.")
        @click.option("--high", type=options.RATE, default=10.0, help="Last learning rate.")
        @options.combine(*([_label_names] if task.accepts_label_names else []))
        @_max_rows
        @options.recipe
        @options.batch_size
        @options.seed
        @options.threads
        @options.device
        @options.settings
        @options.as_json
        def run(model: str, output: str | None, as_json: bool, **arguments: Any) -> None:
            from bertsmith.finetuning.lr_finder import find_rate

            rates = find_rate(name, model, output=output, **arguments)
            if as_json:
                console.print_json({**rates.to_dict(), "plot": output})
                return
            tables.print_rates(rates)
            if output is not None:
                console.print_note(f"plot: {output}")

        run.help = f"""Find a learning rate for `{name}`: {task.summary}.

\b
Example:
  bertsmith lr-find {name} --model bert --train {task.example_file} \\
    --output rates.png

The rate rises from --low to --high over the updates, or until the mean loss is four times its lowest value
(Smith 2017). The model does not change. The command suggests a tenth of the rate with the lowest loss, and
the rate at which it falls fastest, if the loss of every seed falls clearly and then diverges, and the seeds
agree within half a decade."""
        return run


@click.group(name="lr-find", cls=_RateGroup)
def lr_find() -> None:
    """Find a learning rate for a TASK: the rates at which the loss falls and diverges.

    \b
    Example:
      bertsmith lr-find classify --model bert --train train.csv --output rates.png
      bertsmith lr-find classify --help
    """
