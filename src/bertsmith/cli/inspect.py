"""The commands that describe and explain, `info`, `attention`, and `explain`, and their tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from bertsmith import console
from bertsmith.cli import options
from bertsmith.cli.commands import Command
from bertsmith.cli.options import FILE, MODEL, Integer
from bertsmith.cli.pretraining_tables import format_metrics
from bertsmith.cli.tables import format_value, print_repeats, print_rows, print_values, show
from bertsmith.formatting import format_bytes, format_number, format_percent, pluralize
from bertsmith.io import atomic

if TYPE_CHECKING:
    from bertsmith.explain.explanation import Explanation

_COLUMNS = {
    "entropy": "entropy",
    "distance": "distance",
    "cls": "[CLS]",
    "sep": "[SEP]",
    "punctuation": "punctuation",
    "previous": "previous",
    "next": "next",
}
_HIDDEN = ("weights_sha256", "settings", "metadata", "decoder_state", "numbered", "held_out", "validation")
_DIFFERENCES = {
    "settings": "settings that differ",
    "family": "differences of their families",
    "runs": "training of the runs",
    "parameters": "parameters of the encoders",
}
_CONTINUE = "to continue, repeat the command of the run with --resume"


@click.command(cls=Command)
@options.model
@click.argument("text")
@click.argument("second", required=False)
@click.option(
    "--layer", "layers", type=Integer(), multiple=True, help="Only this layer, from 0; can be repeated."
)
@click.option(
    "--head", "heads", type=Integer(), multiple=True, help="Only this head, from 0; can be repeated."
)
@click.option("--output", type=FILE, help="Write a page, .html, or a plot of at most 64 tokens, .png.")
@options.model_device
@options.as_json
def attention(
    model: str,
    text: str,
    second: str | None,
    layers: tuple[int, ...],
    heads: tuple[int, ...],
    output: str | None,
    device: str,
    as_json: bool,
) -> None:
    """Show where each attention head of MODEL looks in TEXT, or in the pair of TEXT and SECOND.

    \b
    Example:
      bertsmith attention bert "The river sings of rain." --output page.html
      bertsmith attention bert "The river sings of rain." --layer 0 --head 2 --output head.png

    The table has a row for each head (layer-head) with means over all tokens that are not special: the entropy of
    the weights in nats, the distance of the tokens attended to, and the weight on [CLS], [SEP], punctuation, and
    the previous and the next token. --json prints all weights; those of a page are rounded.
    """
    _check_output(output)
    weights = options.load_model(model, device).attention(text, second).select(layers or None, heads or None)
    if output is not None:
        _print_file(weights.save(output))
    if as_json:
        console.print_json_list({"tokens": weights.tokens}, "heads", weights.to_rows())
        return
    rows = [
        (f"{row['layer']}-{row['head']}", *(format_number(row[name], 2) for name in _COLUMNS))
        for row in weights.summary()
    ]
    console.print_table(" ".join(weights.tokens), ["head", *_COLUMNS.values()], rows)


def _check_output(output: str | None) -> None:
    """Raise InputError for a file to write whose name has the wrong ending, or that cannot be written."""
    from bertsmith.reports.page import check_suffix

    if output is not None:
        check_suffix(output)
        atomic.check_output_file(Path(output), overwrite=True)


def _print_file(file: Path) -> None:
    kind = "plot" if file.suffix.lower() == ".png" else "page"
    console.print_note(f"{kind}: {file} ({format_bytes(file.stat().st_size)})")


@click.command(cls=Command)
@options.model
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("--target", metavar="NAME", help="Output to explain; default: that of the answer.")
@click.option("--probability", is_flag=True, help="Explain the target's probability instead of its logit.")
@options.choice(
    "--baseline", "mask", "pad", "zero", default="mask", help="What words are replaced by: an embedding."
)
@click.option("--steps", type=Integer(1), help="Steps of the integral; default: as many as are needed.")
@click.option("--against", type=MODEL, metavar="OTHER", help="Explain the answer of this model, too.")
@click.option("--output", type=FILE, help="Write a page, .html, or plots of words and curves, .png.")
@click.option(
    "--attention/--no-attention", default=True, help="Whether the page shows attention weights, if any."
)
@options.model_device
@options.as_json
def explain(
    model: str,
    texts: tuple[str, ...],
    target: str | None,
    probability: bool,
    baseline: Any,
    steps: int | None,
    against: str | None,
    output: str | None,
    attention: bool,
    device: str,
    as_json: bool,
) -> None:
    """Explain the answer of MODEL for TEXT, or for several texts as in `predict`.

    \b
    Example:
      bertsmith explain moods "what a dull, lovely day"
      bertsmith explain moods "what a dull, lovely day" --target sad --output page.html
      bertsmith explain moods "what a dull, lovely day" --against moods-large
      bertsmith explain bert "Paris is the [MASK] of France."
      bertsmith explain quiz "What barks?" '["a dog", "a stone"]'

    The attribution of a word is the sum of the integrated gradients of its tokens; occlusion is what the output
    loses if the word is replaced by the baseline. The command also prints how far the attributions miss the
    difference of the outputs for text and baseline, divided by it (at least 0.001), and how faithful their order
    is, beside random orders. Choices are a list in JSON. A target is a label, none (no answer), the index of a
    choice, a token for [MASK], of tags the index of a word, from 0, also with a label: 2=B-PER, or the index of a
    token of a translation. With --against and without --target, each model explains its own answer.
    """
    from bertsmith.explain.page import save_explanations

    _check_output(output)
    has_attention = attention and output is not None and output.lower().endswith(".html")
    values: dict[str, Any] = {"target": target, "probability": probability}
    values |= {"baseline": baseline, "steps": steps}
    explanations = [
        options.load_model(name, device).explain(*texts, **values, attention=has_attention)
        for name in ([model] if against is None else [model, against])
    ]
    if output is not None:
        _print_file(save_explanations(output, explanations))
    if as_json:
        documents = [explanation.to_dict() for explanation in explanations]
        console.print_json(documents[0] if against is None else {"models": documents})
        return
    for explanation in explanations:
        _print_explanation(explanation, explanation.model if against else "")


def _print_explanation(explanation: Explanation, model: str) -> None:
    """Print an explanation, below the name of its model unless it is empty."""
    rows = [(w.word, f"{w.attribution:+.4f}", f"{w.occlusion:+.4f}") for w in explanation.words]
    title = f"{model}: why {explanation.target}" if model else f"why {explanation.target}"
    console.print_table(title, ["word", "attribution", "occlusion"], rows)
    console.print_note(
        f"output {explanation.output:.4f}, of the baseline ({explanation.baseline}) "
        f"{explanation.baseline_output:.4f}; completeness gap {format_percent(explanation.gap)} with "
        f"{pluralize(explanation.steps, 'step')}"
    )
    if (measured := explanation.faithfulness) is not None:
        console.print_note(
            f"comprehensiveness {measured.comprehensiveness:.4f} (random order "
            f"{measured.random_comprehensiveness:.4f}; {format_percent(measured.normalized_comprehensiveness)} of "
            f"what an order can reach), sufficiency {measured.sufficiency:.4f}; rank correlation with occlusion "
            f"{format_number(explanation.agreement, 2)}"
        )


@click.command(cls=Command)
@click.argument("folder", required=False, type=MODEL)
@click.option("--diff", nargs=2, metavar="A B", help="Compare two models: presets, runs, or model folders.")
@options.as_json
def info(folder: str | None, diff: tuple[str, str] | None, as_json: bool) -> None:
    """Describe FOLDER: a run, a model, data, a tokenizer, or a published name; without it, this machine.

    \b
    Example:
      bertsmith info bert
      bertsmith info albert-base
      bertsmith info --diff bert-base-uncased roberta-base
      bertsmith info
    """
    from bertsmith.inspection.info import compare_models
    from bertsmith.inspection.info import info as describe

    if diff is not None and folder is not None:
        raise click.UsageError("--diff compares two models; omit FOLDER")
    document = compare_models(*diff) if diff is not None else describe(folder)
    show(document, as_json, print_info)


def print_info(document: dict[str, Any]) -> None:
    """Print the description of a folder, a model, or this machine, or the differences of two models."""
    path = document.get("path", "")
    values = {name: value for name, value in document.items() if name not in ("kind", "path")}
    match document["kind"]:
        case "difference":
            for part, title in _DIFFERENCES.items():
                rows = [(row["what"], *(format_value(row[side]) for side in "ab")) for row in document[part]]
                if rows:
                    console.print_table(title, ["", document["a"], document["b"]], rows)
        case "runs" if "unfinished" in document:
            print_rows(f"{path}: runs, not all finished", document["unfinished"], ["run", "step", "finished"])
            console.print_note(_CONTINUE)
        case "runs":
            print_repeats(path, document)
        case "machine":
            print_values("this machine", values)
        case "tokenizer":
            _print_tokenizer(f"{path}: a tokenizer", values)
        case "data":
            _print_tokenizer(f"{path}: the tokenizer of the data", values.pop("tokenizer"))
            files = values["files"]
            values["files"] = f"{pluralize(len(files), 'file')}: {format_value(files[:3])}"
            print_values(f"{path}: prepared data", values)
        case _:
            if "run" in document:
                _print_run(path, document["run"])
            if "terms" in document:
                _print_model(document)


def _print_tokenizer(title: str, values: dict[str, Any]) -> None:
    special_tokens = ", ".join(f"{part['token']} {part['id']}" for part in values["specials"].values())
    print_values(title, {**values, "specials": special_tokens})


def _print_run(path: str, run: dict[str, Any]) -> None:
    total = f" of {run['of']:,}" if run["of"] else ""
    model_step = f" (of step {run['model_of_step']:,})" if run["model_of_step"] is not None else ""
    values = {
        "updates": f"{run['step']:,}{total}",
        "tokens": run["tokens"] or 0,
        "time": None if run["seconds"] is None else console.format_duration(run["seconds"]),
        "best step": run["best_step"],
        "model": f"{run['model']}{model_step}" if run["model"] else "none yet",
    }
    state = "finished" if run["finished"] else "not finished"
    print_values(f"{path}: {run['verb']}, {state}", values)
    if scores := run["scores"]:
        print_values("validation scores", format_metrics(scores))
    if run["settings"]:
        print_values("settings that are not the defaults", run["settings"])
    for remark in run["remarks"]:
        console.print_note(remark)
    if not run["finished"]:
        console.print_note(_CONTINUE)


def _print_model(document: dict[str, Any]) -> None:
    name = "the model" if "run" in document else document["path"]
    count = pluralize(document["parameters"], "parameter")
    print_values(f"{name}: {document['architecture']}, {count}", document["config"])
    print_rows("parameters", _parameter_rows(document["terms"]), ["term", "formula", "parameters"])
    records = document["record"].items()
    record = {name: value for name, value in records if name not in _HIDDEN and value is not None}
    if document["labels"]:
        record["labels"] = document["labels"]
    if record:
        print_values("record", record)


def _parameter_rows(terms: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the terms of the sum; equal layers share a row."""
    rows: dict[str, dict[str, Any]] = {}
    for term in terms:
        first, _, rest = term["term"].partition(" ")
        name = f"each layer's {rest.partition(' ')[2]}" if first == "layer" else term["term"]
        row = rows.setdefault(name, {"term": name, "formula": term["formula"], "parameters": 0, "times": 0})
        row["parameters"] += term["parameters"]
        row["times"] += 1
    for row in rows.values():
        if row["times"] > 1:
            row["formula"] = f"{row['times']} × ({row['formula']})"
    total = sum(term["parameters"] for term in terms)
    return [*rows.values(), {"term": "sum", "formula": "", "parameters": total}]
