"""The verb `finetune`: a command a task, with the task's own options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bertsmith.cli import options, task_options
from bertsmith.cli.verbs import Verbs

if TYPE_CHECKING:
    from bertsmith.tasks.task import Task

_LABEL_NAMES = click.option(
    "--label-names",
    metavar="FILE|A,B,C",
    help="Names for labels that are numbers, in their order; or a file of code,name rows.",
)
_DEVICE = click.option(
    "--device", metavar="D", help="Where to compute: cpu, cuda, cuda:1 [a GPU if there is one]."
)
_EVALUATIONS = 20  # that a terminal shows


class _Tasks(Verbs):
    """The tasks, each imported when it is called."""

    kind = "task"

    def list_commands(self, ctx: click.Context) -> list[str]:
        from bertsmith.tasks.task import TASKS

        return list(TASKS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        from bertsmith.tasks.task import task_type

        return _command(task_type(cmd_name))

    def summary(self, ctx: click.Context, verb: str) -> str:
        from bertsmith.tasks.task import task_type

        return task_type(verb).summary


@click.group(cls=_Tasks)
def finetune() -> None:
    """Fine-tune a model for a TASK; the weights of the best epoch on dev are kept.

    \b
    Example:
      bertsmith finetune classify --model bert --train train.csv --dev dev.csv --out moods
      bertsmith finetune classify --model bert --train all.csv --dev-share 0.2 --out moods
      bertsmith finetune classify --help
    """


def _command(kind: type[Task]) -> click.Command:
    """The command of a task: what all tasks take, and the task's settings as options."""
    from bertsmith.workflows.finetune_settings import settings_type

    def run(**arguments: Any) -> None:
        _finetune(kind, **arguments)

    run.__doc__ = f"""Fine-tune a model for `{kind.name}`, {kind.summary}.

    \b
    Example:
      bertsmith finetune {kind.name} --model bert --train {kind.example_file} --dev-share 10% --out run
    """
    for option in (
        options.as_json,
        options.resume,
        options.assignments,
        _DEVICE,
        options.short_forms,
        click.option("--recipe", metavar="FILE", help="YAML of the settings below; --set wins over it."),
        click.option(
            "--sample",
            type=click.IntRange(1),
            metavar="N",
            help="Use N examples of --train, drawn by files.seed.",
        ),
        *((_LABEL_NAMES,) if kind.may_name_labels else ()),
        click.option("--out", required=True, metavar="RUN", help="The run folder to write."),
        click.option(
            "--dev-share", type=options.Share(), metavar="SHARE", help="Without --dev: hold out this share."
        ),
        click.option("--dev", metavar="FILE", help="Examples that decide which epoch is kept."),
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
    command = click.command(kind.name, cls=options.command_with_settings(lambda: settings_type(kind)))(run)
    command.params += task_options.options_of(kind.settings_type)
    return command


def _finetune(
    kind: type[Task],
    *,
    model: str,
    train: str,
    dev: str | None,
    dev_share: float | None,
    out: str,
    sample: int | None,
    recipe: str | None,
    device: str | None,
    assignments: tuple[str, ...],
    resume: bool,
    as_json: bool,
    label_names: str | None = None,
    **own: Any,
) -> None:
    from bertsmith import console
    from bertsmith.wording import counted
    from bertsmith.workflows.finetune import finetune as run

    short = {**options.short_of(own), "train.device": device}
    of_task = {f"task.{name}": value for name, value in own.items()}
    model_run = run(
        kind.name,
        model,
        out,
        train=train,
        dev=dev,
        dev_share=dev_share,
        sample=sample,
        label_names=label_names,
        recipe=recipe,
        settings=options.as_assignments({**of_task, **short}, assignments),
        resume=resume,
        tell=console.note,
    )
    report = model_run.report
    if as_json:
        console.result_json({"run": out, **report})
        return
    _show_evaluations(report)
    decided, dev_scores, beside = report["decided_by"], report["dev"], report["baseline"]
    shown = [name for name, value in beside.items() if isinstance(value, float)]
    console.result_table(
        f"{out}: dev, the best epoch by {decided}",
        ["score", "this model", report.get("baseline_name", "without looking at the text")],
        [(name, f"{dev_scores[name]:.4f}", f"{beside[name]:.4f}") for name in shown],
    )
    console.note(
        f"{counted(report['train_examples'], 'example')} trained on, {dev_scores['examples']:,} of dev, "
        f"{console.duration(report['seconds'])}"
    )
    console.note(f"{Path(out) / 'report.html'}: all of it with plots; open it in a browser")
    console.note(f"next: bertsmith evaluate {out} --data FILE")


def _show_evaluations(report: dict[str, Any]) -> None:
    """Each evaluation's scores; of very many the last ones, and the one that was kept."""
    from bertsmith import console

    every = report["evaluations"]
    shown = [row for i, row in enumerate(every) if row["best"] or len(every) - i <= _EVALUATIONS]
    scores = [name for name in every[0] if name not in ("step", "epoch", "loss", "best")]
    rows = [
        (
            f"{row['epoch']:g}",
            f"{row['step']:,}",
            "–" if row["loss"] is None else f"{row['loss']:.4f}",
            *(f"{row[name]:.4f}" for name in scores),
            "← kept" if row["best"] else "",
        )
        for row in shown
    ]
    more = f" ({len(shown)} of {len(every):,}; all are in report.json)" if len(shown) < len(every) else ""
    console.result_table(f"evaluations on dev{more}", ["epoch", "step", "loss", *scores, ""], rows)
