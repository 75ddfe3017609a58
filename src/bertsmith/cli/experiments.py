"""The commands that train several models to compare them: `ablate`, `adapt`, and `baselines`."""

from __future__ import annotations

from typing import Any

import rich_click as click

from bertsmith import console
from bertsmith.cli import options, tables
from bertsmith.cli.commands import Command
from bertsmith.cli.options import DIR, FILE, Integer
from bertsmith.errors import InputError, option


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


def _split_counts(_: click.Context, parameter: click.Parameter, value: str | None) -> list[int]:
    """Parse positive integers, separated by commas."""
    counts = (value or "").replace(",", " ").split()
    if not all(count.isdigit() and int(count) for count in counts):
        raise click.BadParameter("write positive numbers, such as 10,100,1000", param=parameter)
    return [int(count) for count in counts]


@click.command(cls=Command)
@click.option(
    "--corpus",
    required=True,
    multiple=True,
    type=FILE,
    help="Token shards of `bertsmith data prepare`, or text; can be repeated for text.",
)
@options.output_dir
@click.option("--recipe", type=FILE, help="A YAML file with the models; default: n-grams to BERT.")
@click.option(
    "--models", metavar="A,B", callback=options.split_names, help="Only these models; default: all."
)
@click.option("--task", metavar="TASK", help="A task to measure every model on, such as classify.")
@click.option("--train", type=FILE, help="Labeled examples of the task.")
@click.option("--validation", type=FILE, help="Examples of the task to score on.")
@click.option(
    "--task-set",
    "task_settings",
    metavar="NAME=VALUE",
    multiple=True,
    callback=options.parse_settings,
    help="Change a setting of the task, such as task.text_column; can be repeated.",
)
@click.option("--tasks", type=FILE, help="Several tasks instead: a YAML file, as for `bertsmith ablate`.")
@click.option("--pairs", type=FILE, help="Minimal pairs to score each model on.")
@click.option(
    "--word-pairs",
    multiple=True,
    type=FILE,
    help="Word pairs with similarities, such as WordSim-353; can be repeated.",
)
@click.option("--analogies", type=FILE, help="Analogies, four words per line.")
@click.option("--senses", type=FILE, help="A table with the columns word, text, and sense.")
@click.option(
    "--few-labels",
    metavar="N,M",
    callback=_split_counts,
    help="Numbers of examples per class with which the first task is repeated, such as 10,100,1000.",
)
@click.option(
    "--minutes",
    type=options.POSITIVE,
    help="Minutes of training of all models together; measuring comes on top; default: 30.",
)
@click.option("--tokens", type=Integer(1), help="Tokens that each model reads, instead of --minutes.")
@click.option("--seeds", type=Integer(1, 1000), default=1, help="Runs of each model.")
@click.option(
    "--jobs",
    type=Integer(1, 1024),
    help="Models to train at a time, each in a process; default: the number of cores.",
)
@options.run_options
def baselines(
    corpus: tuple[str, ...],
    output_dir: str,
    task: str | None,
    train: str | None,
    validation: str | None,
    task_settings: dict[str, Any],
    as_json: bool,
    **arguments: Any,
) -> None:
    """Compare the models that came before BERT with BERT, on your text.

    \b
    Example:
      bertsmith baselines --corpus shards --minutes 60 --output-dir history
      bertsmith baselines --corpus notes/ --task classify --train train.csv \\
        --validation validation.csv --minutes 30 --output-dir history
      bertsmith baselines … --models trigram,lstm,bert --pairs blimp.jsonl --seeds 3
      bertsmith baselines … --resume

    N-grams, NNLM, word2vec, RNN, LSTM, ELMo, GPT, BERT, and static vectors of BERT learn from one corpus. The
    minutes of training are divided equally among word2vec and the neural models, which have about the same number
    of parameters; measuring comes on top. Each neural model is an ordinary run, such as lstm/0/pretrain in the
    output folder; report.html has the tables and plots.
    """
    from bertsmith.experiments.baselines import baselines as compare_baselines

    if task is not None or train is not None or validation is not None or task_settings:
        arguments["tasks"] = _single_task(task, train, validation, task_settings, arguments["tasks"])
    sources = corpus[0] if len(corpus) == 1 else list(corpus)
    report = compare_baselines(sources, output_dir, **arguments)
    tables.show(
        {"output_dir": output_dir, **report.to_dict()}, as_json, lambda _: tables.print_baselines(report)
    )


def _single_task(
    task: str | None, train: str | None, validation: str | None, settings: dict[str, Any], tasks: str | None
) -> dict[str, dict[str, Any]]:
    """Return the mapping of tasks for --task, --train, --validation, and --task-set."""
    if tasks is not None:
        hint = "write the task into the file, or remove --tasks"
        raise InputError("task_twice", "--task and --tasks are given", argument="tasks", hint=hint)
    files = {"train": train or "", "validation": validation or ""}
    for name, value in {"task": task, **files}.items():
        if not value:
            message, hint = "--task, --train, and --validation go together", f"add {option(name)}"
            raise InputError("task_incomplete", message, argument=name, hint=hint)
    return {str(task): {"verb": str(task), **files, "settings": settings}}
