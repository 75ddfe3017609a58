"""The commands that train several models to compare them: `ablate` and `adapt`."""

from __future__ import annotations

from typing import Any

import rich_click as click

from bertsmith import console
from bertsmith.cli import options, tables
from bertsmith.cli.commands import Command
from bertsmith.cli.options import DIR, FILE, Integer


@click.command(cls=Command)
@click.argument("recipe", type=FILE)
@click.option(
    "--data", type=DIR, help="Token shards of `bertsmith data prepare`; default: those of the recipe."
)
@options.output_dir
@click.option(
    "--tasks",
    type=FILE,
    help="A YAML file with tasks to fine-tune for: a name, and below it verb, train, validation, and settings; "
    "default: those of the recipe.",
)
@click.option(
    "--pairs", type=FILE, help="Minimal pairs to score each model on; default: those of the recipe."
)
@click.option(
    "--rows", metavar="A,B", callback=options.split_names, help="Only these rows and the first; default: all."
)
@click.option("--seeds", type=Integer(1, 1000), default=3, help="Runs of each row.")
@click.option(
    "--jobs",
    type=Integer(1, 1024),
    help="Models to train at a time, each in a process; default: the number of cores for small models, else 1.",
)
@options.run_options
def ablate(recipe: str, output_dir: str, as_json: bool, **arguments: Any) -> None:
    """Repeat a paper's comparison at your size: pre-train each row with several seeds.

    \b
    Example:
      bertsmith ablate recipes/ablations/formats.yaml --data shards \\
        --tasks tasks.yaml --output-dir formats
      bertsmith ablate … --pairs blimp.jsonl --seeds 5 --set train.max_steps=2000
      bertsmith ablate … --resume

    RECIPE is a YAML file with rows, the settings that each changes, and the paper's scores; it can name data,
    tasks, and pairs. --set applies to all pre-training runs; all use one precision. A score is compared with the
    paper's score of the same name, or else with the orderings that all of the paper's scores share. Differences
    are paired by seed; with few seeds most are not significant, and the report says so. Each run is an ordinary
    one, such as static/0/pretrain in the output folder; plots are in figures/. With several jobs, the messages of
    a run are in a file such as static/0/output.txt.
    """
    from bertsmith.experiments.ablation import ablate as run_ablation

    report = run_ablation(recipe, output_dir, **arguments)
    tables.show({"output_dir": output_dir, **report.to_dict()}, as_json, tables.print_ablation)
    if not as_json:
        console.print_result(report.describe_orderings())


@click.command(cls=Command)
@options.base_model
@click.option(
    "--corpus", required=True, multiple=True, type=FILE, help="Text to pre-train on; can be repeated."
)
@click.option("--task", required=True, metavar="TASK", help="Task to measure the gain on, such as classify.")
@click.option("--train", required=True, type=FILE, help="Labeled examples of the task.")
@click.option(
    "--validation", required=True, type=FILE, help="Examples to choose the epoch by, and to compare on."
)
@options.output_dir
@click.option(
    "--words", type=Integer(0, 1_000_000), default=0, help="Add N words of the corpus to the vocabulary."
)
@click.option("--seeds", type=Integer(1, 1000), default=1, help="Fine-tuning runs of each model.")
@options.minutes
@click.option(
    "--task-set",
    "task_settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=options.parse_settings,
    help="Change a setting of fine-tuning, such as task.text_column=text; can be repeated.",
)
@options.run_options
def adapt(model: str, corpus: tuple[str, ...], output_dir: str, as_json: bool, **arguments: Any) -> None:
    """Pre-train a model further on your text, fine-tune it before and after, and compare.

    \b
    Example:
      bertsmith adapt --model bert --corpus notes/ --task tag --train train.conll \\
        --validation validation.conll --output-dir adapted
      bertsmith adapt … --minutes 60 --words 500 --seeds 3

    --set changes settings of pre-training, --task-set of fine-tuning. The adapted model is model/ in the output
    folder; before-0/ and after-0/ are ordinary fine-tuning runs. Runs with the same seed start from the same head
    and read the examples in the same order.
    """
    from bertsmith.experiments.adaptation import adapt as adapt_model

    report = adapt_model(model, list(corpus), output_dir, **arguments)
    tables.show({"output_dir": output_dir, **report.to_dict()}, as_json, tables.print_adaptation)
