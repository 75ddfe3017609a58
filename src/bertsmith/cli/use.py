"""The verbs that use a model: `evaluate`, `predict`, `fill-mask`."""

from __future__ import annotations

import json
import sys
from copy import copy
from pathlib import Path
from typing import Any

import click

from bertsmith.cli import options, task_options

_DEVICE = click.option("--device", default="auto", metavar="D", help="Where to compute: cpu, cuda, auto.")


class _OfRun(click.Command):
    """A command on a finished RUN, which also takes the settings of the run's task as options."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with_task = copy(self)
        with_task.params = [*self.params, *_options_for(args)]
        return super(_OfRun, with_task).make_context(info_name, args, parent, **extra)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text(
            "The settings of RUN's task are options, too (--text-column and others): `--help` after a RUN lists "
            "them. Their defaults are those of training."
        )


def _options_for(args: list[str]) -> list[click.Parameter]:
    """The options of the task of the first run among a verb's arguments; none where there is no run."""
    name = next((found for word in args if (found := _task_name(word))), None)
    if name is None:
        return []
    from bertsmith.tasks.task import TASKS, task_type

    return task_options.options_of(task_type(name).settings_type, defaults=False) if name in TASKS else []


def _task_name(word: str) -> str | None:
    """The task of a run or model folder, as its record names it, or the heads of another tool's model."""
    for folder in (Path(word) / "model", Path(word)):
        if (folder / "config.json").is_file():
            try:
                record = json.loads((folder / "bertsmith.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return _foreign_task(folder)
            return str(record.get("task")) if isinstance(record, dict) else None
    return None


def _foreign_task(folder: Path) -> str | None:
    from bertsmith.artifacts.folder import read_folder
    from bertsmith.errors import InputError
    from bertsmith.tasks.task import task_of

    try:
        return task_of(read_folder(folder), str(folder))[0].name
    except InputError:  # told when the model is loaded
        return None


@click.command(cls=_OfRun)
@click.argument("run")
@click.option("--data", required=True, metavar="FILE", help="Labelled examples, as the task reads them.")
@options.assignments
@_DEVICE
@options.as_json
def evaluate(
    run: str, data: str, device: str, as_json: bool, assignments: tuple[str, ...], **own: Any
) -> None:
    """Score the fine-tuned model of RUN on a labelled file.

    \b
    Example:
      bertsmith evaluate moods --data test.csv
      bertsmith evaluate moods --data test.csv --json
    """
    from bertsmith import console
    from bertsmith.workflows.predict import load

    _quiet_machine()
    scores = load(run, device, console.note).scores(data, **task_options.as_settings(own, assignments))
    if as_json:
        console.result_json(scores.document())
        return
    console.result_table(
        f"{run} on {data} ({scores.numbers['examples']:,} examples)",
        ["score", "value"],
        [(name, f"{value:.4f}") for name, value in scores.numbers.items() if isinstance(value, float)],
    )
    for table in scores.tables:
        console.result_table(table.title, table.columns, [tuple(row) for row in table.rows])
    for note in scores.notes:
        console.note(note)


@click.command(cls=_OfRun)
@click.argument("run")
@click.argument("texts", nargs=-1)
@click.option("--file", metavar="FILE", help="A file as the task reads it; or .txt, a text a line.")
@options.assignments
@_DEVICE
@options.as_json
def predict(
    run: str,
    texts: tuple[str, ...],
    file: str | None,
    device: str,
    as_json: bool,
    assignments: tuple[str, ...],
    **own: Any,
) -> None:
    """Answer for TEXTS, for a file, or for the lines of standard input.

    \b
    Example:
      bertsmith predict moods "what a day" "leave me alone"
      bertsmith predict moods --file texts.csv > predictions.jsonl
      cat texts.txt | bertsmith predict moods

    Prints one JSON object an example, in order: the answer, its score, and how many of the text's tokens were
    read. With --json, all of them as one list. A task on several texts (pairs; a question and its passage)
    takes a file.
    """
    from bertsmith import console
    from bertsmith.errors import InputError
    from bertsmith.workflows.predict import load

    if texts and file:
        raise InputError("both texts and a file are given", "give one of them")
    if not texts and not file and sys.stdin.isatty():
        raise InputError(
            "there is no text to predict", "give texts, --file FILE, or pipe lines in: … | bertsmith predict"
        )
    _quiet_machine()
    model = load(run, device, console.note)
    changes = task_options.as_settings(own, assignments)
    if file:
        answers = model.predict_file(file, **changes)
    elif texts:
        answers = iter(model.predict(texts, **changes))
    else:
        answers = model.predict_lines(sys.stdin.buffer, "standard input", **changes)
    if as_json:
        console.result_json(list(answers))
        return
    for answer in answers:
        console.result_json(answer)


@click.command("fill-mask")
@click.argument("run")
@click.argument("text")
@_DEVICE
@click.option("--top-k", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="K")
@click.option(
    "--max-length",
    type=click.IntRange(2),
    metavar="N",
    help="Tokens read around each mask of a longer text [what the model can take].",
)
@options.as_json
def fill_mask(run: str, text: str, device: str, top_k: int, max_length: int | None, as_json: bool) -> None:
    """Guess the words behind each [MASK] of TEXT with the pre-trained model of RUN.

    \b
    Example:
      bertsmith fill-mask bert "Paris is the [MASK] of France." --top-k 3
    """
    from bertsmith import console
    from bertsmith.workflows.predict import load

    _quiet_machine()
    answers = load(run, device, console.note).fill_mask(text, top_k, max_length, console.note)
    if as_json:
        console.result_json(answers)
        return
    for number, answer in enumerate(answers, 1):
        title = text if len(answers) == 1 else f"{text} ({number} of {len(answers)})"
        console.result_table(
            title, ["token", "probability"], [(row["token"], f"{row['score']:.4f}") for row in answer]
        )


def _quiet_machine() -> None:
    from bertsmith import machine

    machine.prepare_process()
