"""The commands that need no examples: `pretrain`, `distill`, `create`, and `quickstart`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from bertsmith import hardware
from bertsmith.cli import options, pretraining_tables, tables
from bertsmith.cli.commands import Command, Rows, SettingsCommand
from bertsmith.cli.options import DIR, FILE, MODEL, Integer

if TYPE_CHECKING:
    from bertsmith.inference.model import Model
    from bertsmith.settings import Settings


def _pretrain_settings() -> type[Settings]:
    from bertsmith.pretraining.settings import PretrainSettings

    return PretrainSettings


def _distill_settings() -> type[Settings]:
    from bertsmith.objectives.settings import DistillationSettings
    from bertsmith.pretraining.settings import with_objective

    return with_objective("distil", DistillationSettings)


def _start_time() -> float:
    """Return when the process started: importing torch is part of the minutes."""
    context = click.get_current_context()
    assert context is not None
    return float(context.obj)


def _presets() -> dict[str, Rows]:
    from bertsmith.models.family import FAMILIES, abbreviate_names, get_family

    rows = [(name, ", ".join(abbreviate_names(get_family(name).presets))) for name in FAMILIES]
    return {"Presets (--preset NAME), by family": rows}


@click.command(cls=SettingsCommand, settings_type=_pretrain_settings, sections=_presets)
@click.argument("recipe", required=False, type=FILE)
@click.option(
    "--preset", metavar="NAME", help="Model sizes; default: chosen by --minutes, or bert-mini-uncased."
)
@click.option(
    "--model", type=MODEL, help="Start from this model: a run, a model folder, or a published name."
)
@click.option("--data", type=DIR, required=True, help="Token shards of `bertsmith data prepare`.")
@click.option("--output-dir", type=DIR, help="Folder to write, empty or new.")
@click.option(
    "--plan", is_flag=True, help="Print the tokens, passes, hours, memory, and disk space; train nothing."
)
@options.minutes
@options.setting(
    "--validation-split",
    "data.validation_split",
    type=options.Fraction(),
    help="Fraction of the documents to validate on, such as 1%.",
)
@options.setting(
    "--evaluate-pairs",
    "evaluate.pairs",
    type=FILE,
    help="Minimal pairs to score at each evaluation, as `bertsmith score --pairs` does.",
)
@options.training
@options.run_options
def pretrain(data: str, output_dir: str | None, plan: bool, as_json: bool, **arguments: Any) -> None:
    """Pre-train a BERT on token shards.

    \b
    Example:
      bertsmith pretrain --data shards --output-dir bert --minutes 30
      bertsmith pretrain --preset bert-small-uncased --data shards \\
        --output-dir bert --minutes 600
      bertsmith pretrain recipe.yaml --data shards --output-dir bert --steps 10000
      bertsmith pretrain --data shards --output-dir bert --resume
      bertsmith pretrain recipes/bert-paper.yaml --data shards --plan
      torchrun --nproc-per-node 2 -m bertsmith pretrain --data shards \\
        --output-dir bert --minutes 60

    RECIPE is a YAML file of the settings below; --set overrides it. Ctrl-C and SIGTERM save and stop; the model
    is marked as unfinished. --resume continues exactly.

    Under torchrun, each process (one per GPU or core) trains on a part of each batch.

    With --minutes and no preset, recipe, or model, the model size fits this machine and the time. Without a
    recipe, tiny, mini, and small BERTs use settings that were measured for their size instead of the defaults
    below; settings.yaml has them.
    """
    if plan:
        _print_plan(data, as_json, **arguments)
        return
    if output_dir is None:
        raise click.UsageError("Missing option '--output-dir'.")
    from bertsmith.pretraining.run import pretrain as pretrain_model

    start_time = _start_time()
    print_training(pretrain_model(data, output_dir, start_time=start_time, **arguments), output_dir, as_json)


def _print_plan(data: str, as_json: bool, **arguments: Any) -> None:
    """Print the plan of a run; options that only a run has are refused."""
    from bertsmith.pretraining.plan import plan_pretraining

    for name in ("model", "evaluate_pairs", "resume", "overwrite"):
        if arguments.pop(name, None):
            raise click.UsageError(f"--plan and --{name.replace('_', '-')} exclude each other")
    plan = plan_pretraining(data, **arguments)
    tables.show(plan.to_dict(), as_json, pretraining_tables.print_plan)


@click.command(cls=Command)
@click.argument("preset_name", metavar="PRESET")
@click.option("--tokenizer", required=True, type=DIR, help="A tokenizer, or a run or model that has one.")
@options.output_dir
@options.random_seed
@options.settings
@options.as_json
def create(
    preset_name: str, output_dir: str, settings: dict[str, Any], as_json: bool, **arguments: Any
) -> None:
    """Write a model with random weights, for `finetune` without pre-training.

    \b
    Example:
      bertsmith create transformer-mini --tokenizer tokenizer --output-dir fresh
      bertsmith create bert-mini-uncased --tokenizer tokenizer \\
        --output-dir fresh --set model.num_hidden_layers=2
      bertsmith finetune translate --model fresh --train pairs.csv \\
        --validation-split 10% --output-dir run

    PRESET names the sizes, as in `bertsmith pretrain --preset`.
    """
    from bertsmith.pretraining.untrained_model import create_model

    sizes = {name.removeprefix("model."): value for name, value in settings.items()}
    model = create_model(preset_name, output_dir=output_dir, **arguments, **sizes)
    info = {"output_dir": output_dir, "parameters": model.info()["parameters"]}
    tables.show(info, as_json, lambda values: tables.print_values("model", values))


@click.command(cls=SettingsCommand, settings_type=_distill_settings)
@click.option("--teacher", required=True, type=MODEL, help="A run, a model folder, or a published name.")
@click.option("--data", type=DIR, help="Token shards, prepared with the teacher's tokenizer.")
@click.option("--train", type=FILE, help="For a fine-tuned teacher: labeled examples of its task.")
@click.option("--validation", type=FILE, help="With --train: labeled examples to choose the epoch by.")
@click.option("--model", type=MODEL, help="With --train: the student, with the teacher's vocabulary.")
@options.output_dir
@click.option(
    "--layers", type=Integer(1, 1000), help="Layers of the student; default: half of the teacher's."
)
@options.minutes
@options.training
@options.run_options
def distill(
    teacher: str, data: str | None, train: str | None, output_dir: str, as_json: bool, **arguments: Any
) -> None:
    """Train a smaller student of a model (Sanh et al. 2019).

    \b
    Example:
      bertsmith distill --teacher bert --data shards --output-dir student
      bertsmith distill --teacher bert --data shards --output-dir student \\
        --layers 2 --set objective.cosine_weight=0
      bertsmith distill --teacher moods --model student --train train.csv \\
        --validation validation.csv --output-dir small-moods

    The student has the teacher's hidden size, starts from some of its layers, and learns three things at once:
    the teacher's predictions for each mask, the masked tokens, and the direction of the hidden states. A BERT's
    student is a DistilBERT. Ctrl-C saves and stops; --resume continues exactly.

    For a fine-tuned teacher, the student (--model) learns the task from examples and from the teacher's
    predictions. teacher.temperature, teacher.soft_weight, and teacher.task_weight set the balance.
    """
    from bertsmith.experiments import distillation

    names = ("layers", "minutes") if train else ("model", "validation")
    unused = [name for name in names if arguments.pop(name) is not None]
    if (data is None) == (train is None) or unused or (train and None in arguments.values()):
        raise click.UsageError(
            "give --data DIR with --layers or --minutes; or for a fine-tuned teacher, --train FILE, "
            "--validation FILE, and --model DIR"
        )
    if data is None:
        student = distillation.distill_task(teacher, output_dir=output_dir, train=train, **arguments)
        tables.print_finetuning(output_dir, student.report, as_json)
    else:
        arguments["start_time"] = _start_time()
        print_training(distillation.distill(data, output_dir, teacher, **arguments), output_dir, as_json)


def print_training(model: Model, output_dir: str, as_json: bool) -> None:
    """Print the report of a pre-training run, in one of its processes."""
    if not hardware.rank_info().is_main:
        return
    document = {"run": output_dir, **model.report}
    tables.show(document, as_json, lambda _: pretraining_tables.print_pretraining(model, output_dir))


@click.command(cls=Command)
@click.option("--output-dir", type=DIR, default="quickstart", help="The folder to write.")
@options.random_seed
@click.option("--minutes", type=options.Number(0.5), help="Time limit of pre-training.")
@options.as_json
def quickstart(output_dir: str, as_json: bool, **arguments: Any) -> None:
    """Run all steps in minutes: text, vocabulary, BERT, and a task, without a download.

    \b
    Example:
      bertsmith quickstart
      bertsmith quickstart --output-dir /tmp/first --seed 1

    The text is the English documentation of this Python installation. The command ends with a table of the
    results, and with the commands for your own files.
    """
    from bertsmith.demo.quickstart import print_report
    from bertsmith.demo.quickstart import quickstart as run_quickstart

    report = run_quickstart(output_dir, **arguments)
    tables.show(report, as_json, print_report)
