"""The verbs that use a finished model: `evaluate`, `predict`, `fill-mask`, `info`."""

from __future__ import annotations

import sys
from typing import Any

import click

from bertsmith.cli import options

_CONFUSION = 8  # labels of which a confusion matrix fits a terminal


def _with_columns(command: Any) -> Any:
    """Options that say where texts and labels stand; by default as in the training file."""
    for name, text in (
        ("--delimiter", "What parts columns."),
        ("--second-column", "Column of a second text."),
        ("--text-column", "Column of the text."),
    ):
        command = click.option(name, metavar="C", help=f"{text} Default: as in training.")(command)
    return command


@click.command()
@click.argument("run")
@click.option("--data", required=True, metavar="FILE", help="Labelled examples: csv, tsv or jsonl.")
@_with_columns
@click.option("--label-column", metavar="C", help="Column of the label. Default: as in training.")
@options.as_json
def evaluate(run: str, data: str, as_json: bool, **columns: str | None) -> None:
    """Score the fine-tuned model of RUN on a labelled file.

    \b
    Example:
      bertsmith evaluate moods --data test.csv
      bertsmith evaluate moods --data test.csv --json
    """
    from bertsmith import console
    from bertsmith.workflows.predict import load

    _quiet_machine()
    scores = load(run).evaluate(data, **columns)
    if as_json:
        console.result_json(scores)
        return
    summary = ("accuracy", "macro_f1", "weighted_f1", "matthews")
    console.result_table(
        f"{run} on {data} ({scores['examples']:,} examples)",
        ["score", "value"],
        [(name, f"{scores[name]:.4f}") for name in summary],
    )
    console.result_table(
        "",
        ["label", "precision", "recall", "F1", "support"],
        [
            (label, *(f"{row[k]:.4f}" for k in ("precision", "recall", "f1")), f"{row['support']:,}")
            for label, row in scores["classes"].items()
        ],
    )
    labels = list(scores["classes"])
    if len(labels) <= _CONFUSION:
        rows = [(label, *map(str, row)) for label, row in zip(labels, scores["confusion"], strict=True)]
        console.result_table("", ["truth, down; prediction, across", *labels], rows)
    if scores["cut_texts"]:
        console.note(f"{scores['cut_texts']:,} texts were cut; {scores['cut_tokens']:,} tokens were not read")


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1)
@click.option("--file", metavar="FILE", help="A csv, tsv or jsonl file; or .txt, a text a line.")
@_with_columns
@options.as_json
def predict(run: str, texts: tuple[str, ...], file: str | None, as_json: bool, **columns: str | None) -> None:
    """Predict the labels of TEXTS, of a file, or of the lines of standard input.

    \b
    Example:
      bertsmith predict moods "what a day" "leave me alone"
      bertsmith predict moods --file texts.csv > predictions.jsonl
      cat texts.txt | bertsmith predict moods

    Prints one JSON object a text, in order: label, its probability, all probabilities, and how many of the
    text's tokens were read. With --json, all of them as one list.
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
    model = load(run)
    if file:
        answers = model.predict_file(file, **columns)
    elif texts:
        answers = iter(model.predict(texts))
    else:
        answers = model.predict_lines(sys.stdin.buffer, "standard input")
    if as_json:
        console.result_json(list(answers))
        return
    for answer in answers:
        console.result_json(answer)


@click.command("fill-mask")
@click.argument("run")
@click.argument("text")
@click.option("--top-k", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="K")
@options.as_json
def fill_mask(run: str, text: str, top_k: int, as_json: bool) -> None:
    """Guess the words behind each [MASK] of TEXT with the pre-trained model of RUN.

    \b
    Example:
      bertsmith fill-mask bert "Paris is the [MASK] of France." --top-k 3
    """
    from bertsmith import console
    from bertsmith.workflows.predict import load

    _quiet_machine()
    answers = load(run).fill_mask(text, top_k)
    if as_json:
        console.result_json(answers)
        return
    for number, answer in enumerate(answers, 1):
        title = text if len(answers) == 1 else f"{text} ({number} of {len(answers)})"
        console.result_table(
            title, ["token", "probability"], [(row["token"], f"{row['score']:.4f}") for row in answer]
        )


@click.command()
@click.argument("folder", required=False)
@options.as_json
def info(folder: str | None, as_json: bool) -> None:
    """What a model is made of; without FOLDER, what this machine is and how it would compute.

    \b
    Example:
      bertsmith info bert
      bertsmith info
    """
    from bertsmith import console

    if folder is None:
        document = _machine()
        if as_json:
            console.result_json(document)
        else:
            console.result_table("this machine", ["what", "is"], [(k, _line(v)) for k, v in document.items()])
        return
    from bertsmith.workflows.predict import load

    document = load(folder).info()
    if as_json:
        console.result_json(document)
        return
    config = document["config"]
    console.result_table(
        f"{document['path']}: {document['architecture']}, {document['parameters']:,} parameters",
        ["setting", "value"],
        list(config.items()),
    )
    console.result_table("parameters", ["term", "formula", "number"], _grouped(document["terms"]))
    hidden = ("weights_sha256", "settings", "numbered")
    record = {k: v for k, v in document["record"].items() if k not in hidden and v is not None}
    if document["labels"]:
        record = {"labels": ", ".join(document["labels"]), **record}
    if record:
        console.result_table("record", ["what", "is"], [(k, _line(v)) for k, v in record.items()])


def _grouped(terms: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The terms of the sum, equal layers in one line."""
    rows: dict[str, tuple[str, int, int]] = {}
    for term in terms:
        first, _, rest = term["term"].partition(" ")
        name = f"each layer's {rest.partition(' ')[2]}" if first == "layer" else term["term"]
        formula, times, size = rows.get(name, (term["formula"], 0, 0))
        rows[name] = (formula, times + 1, size + term["parameters"])
    listed = [
        (name, f"{times} × ({formula})" if times > 1 else formula, f"{size:,}")
        for name, (formula, times, size) in rows.items()
    ]
    return [*listed, ("sum", "", f"{sum(term['parameters'] for term in terms):,}")]


def _machine() -> dict[str, Any]:
    from bertsmith import machine

    machine.prepare_process()
    found = machine.describe()
    choice = machine.choose_precision()
    return {
        "system": found.system,
        "processor": found.processor,
        "cores": found.cores,
        "memory_gib": round(found.memory / 2**30, 1),
        "instruction_sets": list(found.instruction_sets),
        "gpus": [{"name": name, "memory_gib": round(size / 2**30, 1)} for name, size in found.gpus],
        "runs_on": "cpu",
        "precision": choice.precision,
        "reason": choice.reason,
    }


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_line(item) if isinstance(item, dict) else str(item) for item in value) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _quiet_machine() -> None:
    from bertsmith import machine

    machine.prepare_process()
