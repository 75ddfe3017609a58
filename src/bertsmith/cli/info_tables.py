"""Tables that print what `info` describes."""

from __future__ import annotations

from typing import Any

from bertsmith import console
from bertsmith.cli.pretraining_tables import metric_name
from bertsmith.cli.tables import print_repeats
from bertsmith.formatting import format_percent, pluralize

_FIELDS = {"base": "base model", "held_out": "validation scores", "steps": "updates"}
_HIDDEN_RECORDS = ("weights_sha256", "settings", "metadata", "decoder_state", "numbered")
_CONTINUE = "to continue, repeat the command of the run with --resume"


def print_info(document: dict[str, Any]) -> None:
    """Print the description of a folder, a model, or this machine."""
    match document["kind"]:
        case "runs":
            _print_runs(document)
        case "machine":
            rows = [(name, _format(value)) for name, value in document.items() if name != "kind"]
            console.print_table("this machine", ["property", "value"], rows)
        case "tokenizer":
            rows = _tokenizer_rows(document)
            console.print_table(f"{document['path']}: a tokenizer", ["property", "value"], rows)
        case "data":
            _print_data(document)
        case _:
            if "run" in document:
                _print_run(document["path"], document["run"])
            if "terms" in document:
                _print_model(document, is_run="run" in document)


def print_difference(document: dict[str, Any]) -> None:
    """Print the differences of two models."""
    titles = {
        "settings": "settings that differ",
        "family": "differences of their families",
        "runs": "training of the runs",
        "parameters": "parameters of the encoders",
    }
    for part, title in titles.items():
        rows = [(row["what"], *(_format(row[side]) for side in "ab")) for row in document[part]]
        if rows:
            console.print_table(title, ["", document["a"], document["b"]], rows)
    if not any(document[part] for part in ("settings", "family", "runs")):
        console.print_note("they have the same settings")


def _print_runs(document: dict[str, Any]) -> None:
    if "unfinished" not in document:
        print_repeats(document["path"], document)
        return
    rows = [
        (row["run"], f"{row['step']:,}", "finished" if row["finished"] else "not finished")
        for row in document["unfinished"]
    ]
    title = f"{document['path']}: {pluralize(len(rows), 'run')}, not all finished"
    console.print_table(title, ["run", "updates", ""], rows)
    console.print_note(_CONTINUE)


def _print_run(path: str, run: dict[str, Any]) -> None:
    total = f" of {run['of']:,}" if run["of"] else ""
    state = "finished" if run["finished"] else f"not finished: step {run['step']:,}{total}"
    model_step = f" (of step {run['model_of_step']:,})" if run["model_of_step"] is not None else ""
    rows = [("updates", f"{run['step']:,}{total}"), ("tokens", _format(run["tokens"] or 0))]
    if run["seconds"] is not None:
        rows.append(("time", console.format_duration(run["seconds"])))
    if run["best_step"] is not None:
        rows.append(("best step", f"{run['best_step']:,}"))
    rows.append(("model", f"{run['model']}{model_step}" if run["model"] else "none yet"))
    console.print_table(f"{path}: {run['verb']}, {state}", ["property", "value"], rows)
    if run["scores"]:
        rows = [(metric_name(name), _format_metric(name, value)) for name, value in run["scores"].items()]
        console.print_table("validation scores", ["score", "value"], rows)
    if run["settings"]:
        rows = [(name, _format(value)) for name, value in run["settings"].items()]
        console.print_table("settings that are not the defaults", ["setting", "value"], rows)
    for remark in run["remarks"]:
        console.print_note(remark)
    if not run["finished"]:
        console.print_note(_CONTINUE)


def _format_metric(name: str, value: float) -> str:
    """Format a loss with three digits, a fraction as a percentage."""
    if name.endswith("loss") or not 0 <= value <= 1:
        return f"{value:.3f}" if name.endswith("loss") else f"{value:,.1f}"
    return format_percent(value)


def _print_data(document: dict[str, Any]) -> None:
    files = document["files"]
    listed = ", ".join(files[:3]) + (f" and {len(files) - 3:,} more" if len(files) > 3 else "")
    counts = ("documents", "sentences", "tokens", "unknown", "characters", "bytes")
    size = f"{pluralize(document['bytes_on_disk'], 'byte')} in {pluralize(document['shards'], 'shard')}"
    dropped = [name for name, value in document.items() if name.endswith("_dropped") and value]
    rows = [
        *((name, _format(document[name])) for name in counts if name in document),
        *((name.replace("_", " "), _format(document[name])) for name in dropped),
        ("from", f"{pluralize(len(files), 'file')}: {listed}"),
        ("created", document["made"]),
        ("on disk", size),
        ("language", document["language"]),
    ]
    console.print_table(f"{document['path']}: prepared data", ["property", "value"], rows)
    console.print_table("its tokenizer", ["property", "value"], _tokenizer_rows(document["tokenizer"]))


def _tokenizer_rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("algorithm", document["algorithm"]),
        ("entries", f"{document['vocab_size']:,}"),
        ("case", "lower-cased" if document["lowercase"] else "kept"),
        ("special tokens", ", ".join(f"{s['token']} {s['id']}" for s in document["specials"].values())),
        ("maximum length", pluralize(document["max_length"], "token")),
        ("digest", document["digest"]),
    ]


def _print_model(document: dict[str, Any], *, is_run: bool) -> None:
    console.print_table(
        f"{'the model' if is_run else document['path']}: {document['architecture']}, "
        f"{pluralize(document['parameters'], 'parameter')}",
        ["setting", "value"],
        [(name, _format(value)) for name, value in document["config"].items()],
    )
    console.print_table("parameters", ["term", "formula", "number"], _parameter_rows(document["terms"]))
    record = {
        name: value
        for name, value in document["record"].items()
        if name not in _HIDDEN_RECORDS and value is not None
    }
    if (metrics := record.pop("held_out", None)) and not is_run:  # a run's table has them
        texts = (f"{metric_name(name)} {_format_metric(name, value)}" for name, value in metrics.items())
        record["held_out"] = ", ".join(texts)
    if document["labels"]:
        record = {"labels": ", ".join(document["labels"]), **record}
    if record:
        rows = [(_FIELDS.get(name, name.replace("_", " ")), _format(value)) for name, value in record.items()]
        console.print_table("record", ["property", "value"], rows)


def _parameter_rows(terms: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return the terms of the sum; equal layers share a row."""
    rows: dict[str, tuple[str, int, int]] = {}
    for term in terms:
        first, _, rest = term["term"].partition(" ")
        name = f"each layer's {rest.partition(' ')[2]}" if first == "layer" else term["term"]
        formula, times, size = rows.get(name, (term["formula"], 0, 0))
        rows[name] = (formula, times + 1, size + term["parameters"])
    formatted = [
        (name, f"{times} × ({formula})" if times > 1 else formula, f"{size:,}")
        for name, (formula, times, size) in rows.items()
    ]
    return [*formatted, ("sum", "", f"{sum(term['parameters'] for term in terms):,}")]


def _format(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_format(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_format(item) if isinstance(item, dict) else str(item) for item in value) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
