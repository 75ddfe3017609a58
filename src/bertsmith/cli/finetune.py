"""The verb `finetune`: a command a task, with the task's own options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bertsmith.cli import options, task_options
from bertsmith.cli.glue import glue
from bertsmith.cli.repeats_table import show_repeats
from bertsmith.cli.verbs import Verbs

if TYPE_CHECKING:
    from bertsmith.tasks.registry import TaskEntry
    from bertsmith.tasks.task import Task

    Kind = type[Task] | TaskEntry

LABEL_NAMES = click.option(
    "--label-names",
    metavar="FILE|A,B,C",
    help="Names for labels that are numbers, in their order; or a file of code,name rows.",
)
DEVICE = click.option(
    "--device", metavar="D", help="Where to compute: cpu, cuda, cuda:1 [a GPU if there is one]."
)
_REPEATS = (
    click.option(
        "--restarts",
        type=click.IntRange(2, 1000),
        metavar="N",
        help="Train N runs with seeds of their own, from --seed on; --output-dir holds them all.",
    ),
    click.option(
        "--folds",
        type=click.IntRange(2, 1000),
        metavar="K",
        help="Without --validation: train K runs, each without another K-th of --train, which validates it.",
    ),
    click.option(
        "--grid",
        multiple=True,
        metavar="NAME=A,B",
        help="Train a run with each of these values of a setting; of several, with each combination.",
    ),
)
_EVALUATIONS = 20  # that a terminal shows
_OF_THE_PAGE = (
    "answers",
    "curve",
    "lengths",
    "findings",
    "settings",
)  # of a report: for looking at, and large


class OfTasks(Verbs):
    """A command a task, each imported when it runs."""

    kind = "task"

    def list_commands(self, ctx: click.Context) -> list[str]:
        from bertsmith.tasks.registry import TASKS

        return list(TASKS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from bertsmith.tasks.registry import TASKS

        return self.command_of(cmd_name, TASKS[cmd_name]) if cmd_name in TASKS else None

    def command_of(self, name: str, kind: Kind) -> click.Command:
        """The command of a task."""
        return _command(name, kind)

    def summary(self, ctx: click.Context, verb: str) -> str:
        from bertsmith.tasks.registry import TASKS

        return TASKS[verb].summary


class _OrGlue(OfTasks):
    """The tasks, and a benchmark of several."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "glue"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return glue if cmd_name == "glue" else super().get_command(ctx, cmd_name)

    def summary(self, ctx: click.Context, verb: str) -> str:
        return "the nine tasks of GLUE, as a table" if verb == "glue" else super().summary(ctx, verb)


@click.group(cls=_OrGlue)
def finetune() -> None:
    """Fine-tune a model for a TASK; the weights of the best epoch by the validation data are kept.

    \b
    Example:
      bertsmith finetune classify --model bert --train train.csv --validation dev.csv --output-dir moods
      bertsmith finetune classify --model bert --train all.csv --validation-split 0.2 --output-dir moods
      bertsmith finetune classify --help
    """


def _command(name: str, kind: Kind) -> click.Command:
    """The command of a task: what all tasks take, and the task's settings as options."""
    from bertsmith.finetuning.settings import settings_type

    def run(**arguments: Any) -> None:
        _finetune(name, **arguments)

    run.__doc__ = f"""Fine-tune a model for `{name}`, {kind.summary}.

    \b
    Example:
      bertsmith finetune {name} --model bert --train {kind.example_file} --validation-split 10% --output-dir run
      bertsmith finetune {name} --model bert --train {kind.example_file} --folds 5 --output-dir runs
    """
    for option in (
        options.as_json,
        options.resume,
        options.changes,
        DEVICE,
        options.short_forms,
        click.option(
            "--freeze-encoder",
            is_flag=True,
            default=None,
            help="Train the head alone, on hidden states that are computed once.",
        ),
        click.option("--recipe", metavar="FILE", help="YAML of the settings below; --set wins over it."),
        click.option(
            "--sample",
            type=click.IntRange(1),
            metavar="N",
            help="Use N examples of --train, drawn by files.seed.",
        ),
        *reversed(_REPEATS),
        *((LABEL_NAMES,) if kind.may_name_labels else ()),
        click.option("--output-dir", "out", required=True, metavar="RUN", help="The run folder to write."),
        click.option(
            "--validation-split",
            type=options.Share(),
            metavar="SHARE",
            help="Without --validation: hold out this share.",
        ),
        click.option("--validation", metavar="FILE", help="Examples that decide which epoch is kept."),
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
    with_settings = options.command_with_settings(lambda: settings_type(kind))
    command = click.command(name, cls=_with_grid(with_settings))(run)
    command.params += task_options.options_of(kind.settings_type)
    return command


def _with_grid(kind: type[click.Command]) -> type[click.Command]:
    """A command whose --grid takes several words: --grid learning_rate=5e-5,3e-5 batch_size=16,32."""

    class WithGrid(kind):  # type: ignore[valid-type,misc]
        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            words: list[str] = []
            of_grid = False
            for word in args:
                if of_grid and words[-1] != "--grid" and "=" in word and not word.startswith("-"):
                    words.append("--grid")
                elif word.startswith("--"):
                    of_grid = word == "--grid" or word.startswith("--grid=")
                words.append(word)
            parsed: list[str] = super().parse_args(ctx, words)
            return parsed

    return WithGrid


def _finetune(
    task: str,
    *,
    model: str,
    train: str,
    validation: str | None,
    validation_split: float | None,
    out: str,
    sample: int | None,
    recipe: str | None,
    device: str | None,
    changes: dict[str, Any],
    resume: bool,
    as_json: bool,
    freeze_encoder: bool | None,
    restarts: int | None,
    folds: int | None,
    grid: tuple[str, ...],
    label_names: str | None = None,
    **own: Any,
) -> None:
    short = {**options.short_of(own), "train.device": device, "train.freeze_encoder": freeze_encoder}
    of_task = {f"task.{name}": value for name, value in own.items()}
    given: dict[str, Any] = {
        "train": train,
        "validation": validation,
        "validation_split": validation_split,
        "sample": sample,
        "label_names": label_names,
        "recipe": recipe,
        "settings": options.changes_of({**of_task, **short}, changes),
        "resume": resume,
    }
    if restarts or folds or grid:
        from bertsmith.experiments.multirun import finetune_repeatedly

        given |= {"restarts": restarts, "folds": folds, "grid": grid or None}
        report: dict[str, Any] = finetune_repeatedly(task, model, out, **given)
        show = show_repeats
    else:
        from bertsmith.finetuning.run import finetune as run

        report, show = run(task, model, out, **given).report, _show_run
    show_report(out, report, as_json=as_json, show=show)


def show_report(
    out: str,
    report: dict[str, Any],
    *,
    as_json: bool,
    show: Callable[[str, dict[str, Any]], None] | None = None,
) -> None:
    """What a run came to. show: as a table; that of one run if none is given."""
    from bertsmith import console

    if as_json:
        told = {name: value for name, value in report.items() if name not in _OF_THE_PAGE}
        console.print_json({"run": out, **told, "report": str(Path(out) / "report.json")})
    else:
        (show or _show_run)(out, report)


def _show_run(out: str, report: dict[str, Any]) -> None:
    from bertsmith import console
    from bertsmith.formatting import pluralize

    _show_evaluations(report)
    if report.get("stopped_early"):
        console.print_result(f"{out}: {report['stopped_early']}")
    decided, dev_scores, beside = report["decided_by"], report["dev"], report["baseline"]
    shown = [name for name, value in beside.items() if isinstance(value, float)]
    console.print_table(
        f"{out}: validation, the best epoch by {decided}",
        ["score", "this model", report.get("baseline_name", "without looking at the text")],
        [(name, f"{dev_scores[name]:.4f}", f"{beside[name]:.4f}") for name in shown],
    )
    for name, value in report.get("chosen_on_dev", {}).items():
        console.print_note(
            f"{name.replace('_', ' ')} {value:.4g}, chosen on the validation data and kept with the model"
        )
    console.print_note(
        f"{pluralize(report['train_examples'], 'example')} trained on, {dev_scores['examples']:,} for validation, "
        f"{console.format_duration(report['seconds'])}"
    )
    console.print_note(f"{Path(out) / 'report.html'}: all of it with plots; open it in a browser")
    console.print_note(f"next: bertsmith evaluate {out} --data FILE")


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
    console.print_table(
        f"evaluations on the validation data{more}", ["epoch", "step", "loss", *scores, ""], rows
    )
