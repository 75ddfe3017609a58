"""The verbs that use a model: `evaluate`, `predict`, `fill-mask`."""

from __future__ import annotations

import codecs
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bertsmith import hardware, log_handlers
from bertsmith.cli import options, task_options
from bertsmith.cli.computing import On, computed
from bertsmith.cli.verbs import Verb
from bertsmith.formatting import pluralize

if TYPE_CHECKING:
    from bertsmith.inference.output import Answered
    from bertsmith.tasks.scores import Scores
    from bertsmith.tasks.task import Task


@click.command(cls=task_options.RunCommand)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--data", required=True, metavar="FILE", help="Labelled examples, as the task reads them.")
@click.option(
    "--report", metavar="DIR", help="Write a page (report.html), its numbers and plots to a new DIR."
)
@options.changes
@computed
@options.as_json
def evaluate(
    runs: tuple[str, ...],
    data: str,
    report: str | None,
    on: On,
    as_json: bool,
    changes: dict[str, Any],
    **own: Any,
) -> None:
    """Score the fine-tuned model of RUN on a labelled file; several as an ensemble, whose answers are averaged.

    \b
    Example:
      bertsmith evaluate moods --data test.csv
      bertsmith evaluate moods --data test.csv --report moods-test
      bertsmith evaluate moods --data test.csv --json
      bertsmith evaluate runs/seed-0 runs/seed-1 runs/seed-2 --data test.csv
    """
    from bertsmith import console
    from bertsmith.errors import InputError
    from bertsmith.inference.evaluation import evaluate as evaluated
    from bertsmith.inference.model import load

    hardware.configure_process()
    changes = task_options.task_changes(own, changes)
    if len(runs) > 1:
        if report is not None:
            raise InputError(
                "report_of_one_run",
                "--report is for one run",
                hint="evaluate each RUN by itself for its report",
            )
        _evaluate_together(runs, data, on, changes, as_json=as_json)
        return
    model = load(runs[0], **on)
    scores = evaluated(model.answering, data, changes, report, runs[0])
    if as_json:
        console.print_json(scores.document())
    else:
        _show_scores(runs[0], data, scores)


@log_handlers.without_repeats()
def _evaluate_together(
    runs: tuple[str, ...], data: str, on: On, changes: dict[str, Any], *, as_json: bool
) -> None:
    from bertsmith import console
    from bertsmith.inference.ensemble import Ensemble
    from bertsmith.inference.model import load

    together = Ensemble([load(run, **on) for run in runs])
    scores = together.scores(data, **changes)
    if as_json:
        alone = [{"run": run, **own.document()} for run, own in zip(runs, scores.alone, strict=True)]
        console.print_json({**scores.together.document(), "runs": alone})
        return
    names = list(dict.fromkeys((together.task.decides, *together.task.logged)))
    numbers = [own.numbers for own in scores.alone]
    rows = [
        *((run, *(f"{own[name]:.4f}" for name in names)) for run, own in zip(runs, numbers, strict=True)),
        ("mean", *(f"{sum(own[name] for own in numbers) / len(numbers):.4f}" for name in names)),
        ("ensemble", *(f"{scores.together.numbers[name]:.4f}" for name in names)),
    ]
    console.print_table("each run, and all together", ["run", *names], rows)
    _show_scores(f"ensemble of {len(runs)}", data, scores.together)


def _show_scores(what: str, data: str, scores: Scores) -> None:
    from bertsmith import console

    console.print_table(
        f"{what} on {data} ({pluralize(int(scores.numbers['examples']), 'example')})",
        ["score", "value"],
        [(name, f"{value:.4f}") for name, value in scores.numbers.items() if isinstance(value, float)],
    )
    for table in scores.tables:
        console.print_table(table.title, table.columns, [tuple(row) for row in table.rows])
    for note in scores.notes:
        console.print_note(note)


@click.command(cls=task_options.RunCommand)
@click.argument("run")
@click.argument("texts", nargs=-1)
@click.option(
    "--input", "file", metavar="FILE", help="A file as the task reads it; or .txt, one text per line."
)
@click.option("--output", "out", metavar="FILE", help="Write the answers here: .csv, .jsonl, .json or .txt.")
@click.option(
    "--format",
    "chosen",
    metavar="FORM",
    help="json: one object per line; csv: the file's rows, each with its answer; table: for reading; or the form "
    "of the task's field: conll, semeval, squad [json, or what --output ends with].",
)
@options.changes
@computed
@options.as_json
def predict(
    run: str,
    texts: tuple[str, ...],
    file: str | None,
    out: str | None,
    chosen: str | None,
    on: On,
    as_json: bool,
    changes: dict[str, Any],
    **own: Any,
) -> None:
    """Answer for TEXTS, a file or the lines of standard input, with the fine-tuned model of RUN.

    \b
    Example:
      bertsmith predict moods "what a day" "leave me alone"
      bertsmith predict moods "what a day" --format table
      bertsmith predict moods --input texts.csv --output predictions.csv
      cat texts.txt | bertsmith predict moods > predictions.jsonl

    Prints one JSON object per example, in order: its line in the file, the text, the answer with its score, and
    how many of the text's tokens were read. With --json, all of them as one list. --format csv gives the rows of
    the file, each with its prediction and score: what a spreadsheet opens. Tasks whose field has a form of its own
    for files of answers offer it, too. FILE has the columns of training;
    --text-column and the other settings of the task name others, and its labels are ignored. Empty texts
    are counted, not predicted. Pairs of texts, too, come from a file, or one per line with a tab between the two;
    questions with their passages come from a file.
    """
    from bertsmith import console
    from bertsmith.errors import InputError
    from bertsmith.inference import output
    from bertsmith.inference.model import load

    if as_json and (out or chosen not in (None, "json")):
        raise InputError(
            "single_json_document", "--json is one JSON document on standard output", hint="leave one out"
        )
    if out:
        output.refuse_existing(Path(out))
    if texts and file:
        raise InputError("texts_and_file", "both texts and a file are given", hint="give one of them")
    if not texts and not file and sys.stdin.isatty():
        raise InputError(
            "no_text",
            "there is no text to predict",
            hint="give texts, --input FILE, or pipe lines in: … | bertsmith predict",
        )
    hardware.configure_process()
    model = load(run, **on)
    form = output.format_of(out, chosen, model.task.answer_form)
    changes = task_options.task_changes(own, changes)
    if file:
        answered = model.answering.of_file(file, changes)
    elif texts:
        answered = model.answering.of_texts(texts, changes)
    else:
        answered = model.answering.of_lines(sys.stdin.buffer, "standard input", changes)
    if as_json:
        console.print_json(list(output.as_json(model.task, answered)))
        return
    delimiter = model.answering.delimiter_of(file, changes) if file else ","
    if out is None:
        _show_answers(
            model.task, answered, form, delimiter, marked=bool(file) and _is_marked(Path(str(file)))
        )
    else:
        number = output.write_answers(model.task, answered, form, delimiter, Path(out))
        console.print_note(f"{out}: {pluralize(number, 'prediction')}")


def _is_marked(file: Path) -> bool:
    """Whether a file begins with a byte order mark, as spreadsheets write and want it."""
    with file.open("rb") as begun:
        return begun.read(3) == codecs.BOM_UTF8


def _show_answers(
    task: Task, answered: Iterable[Answered], form: str, delimiter: str, *, marked: bool
) -> None:
    """On standard output: JSON and csv line by line, the form of the task's field as it is. marked: the file that
    was read begins with a byte order mark, and so do its rows with their answers."""
    from bertsmith import console
    from bertsmith.inference import output

    if form == "table":
        width = shutil.get_terminal_size((100, 24)).columns
        console.print_table("", *output.as_table(task, answered, width))
    elif form == "json":
        for answer in output.as_json(task, answered):
            console.print_json(answer)
    elif form != "csv":  # for the field's scripts: as it is
        sys.stdout.buffer.writelines(piece.encode("utf-8") for piece in task.answer_file(answered))
        sys.stdout.buffer.flush()
    elif sys.stdout.isatty():
        for line in output.as_csv(task, answered, delimiter):
            console.print_result(line.removesuffix("\n"))
    else:  # for a file or another program: as it is
        sys.stdout.buffer.write(codecs.BOM_UTF8 if marked else b"")
        for line in output.as_csv(task, answered, delimiter):
            sys.stdout.buffer.write(line.encode("utf-8"))
        sys.stdout.buffer.flush()


@click.command("fill-mask", cls=Verb)
@click.argument("run")
@click.argument("text")
@computed
@click.option(
    "--top-k",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    metavar="K",
    help="How many guesses to print for each mask.",
)
@click.option(
    "--max-length",
    type=click.IntRange(2),
    metavar="N",
    help="Tokens read around each mask of a longer text [what the model can take].",
)
@options.as_json
def fill_mask(run: str, text: str, on: On, top_k: int, max_length: int | None, as_json: bool) -> None:
    """Guess the words behind each [MASK] of TEXT with the pre-trained model of RUN.

    \b
    Example:
      bertsmith fill-mask bert "Paris is the [MASK] of France." --top-k 3
      bertsmith fill-mask bert-chinese "巴黎是[MASK]国的首都。"
    """
    from bertsmith import console
    from bertsmith.inference.model import load

    hardware.configure_process()
    answers = load(run, **on).fill_mask(text, top_k, max_length)
    if as_json:
        console.print_json(answers)
        return
    for number, answer in enumerate(answers, 1):
        title = text if len(answers) == 1 else f"{text} ({number} of {len(answers)})"
        console.print_table(
            title, ["token", "probability"], [(row["token"], f"{row['score']:.4f}") for row in answer]
        )
