"""The verb `info`: what a folder is, or what this machine is, as tables."""

from __future__ import annotations

from typing import Any

import click

from bertsmith.cli import options
from bertsmith.cli.verbs import Verb
from bertsmith.formatting import format_percent, pluralize

_SHORT = ("mlm", "nsp", "sop", "lm", "f1")  # said in capitals
_FIELDS = {"base": "began from", "held_out": "scores on what was held out", "steps": "updates"}


@click.command(cls=Verb)
@click.argument("folder", required=False)
@click.option(
    "--diff",
    nargs=2,
    metavar="A B",
    help="In what two models differ: each a preset's name, a run or a model folder.",
)
@options.as_json
def info(folder: str | None, diff: tuple[str, str] | None, as_json: bool) -> None:
    """What FOLDER is: a run, a model, prepared data, a tokenizer or a published model's name; without one, what
    this machine is.

    \b
    Example:
      bertsmith info bert
      bertsmith info shards --json
      bertsmith info albert-base
      bertsmith info --diff bert-base-uncased roberta-base
      bertsmith info
    """
    from bertsmith import console

    if diff is not None:
        if folder is not None:
            raise click.UsageError("--diff names two models, and FOLDER is a third; leave one out")
        _show_difference(*diff, as_json)
        return
    from bertsmith.inspection.info import info as read

    document = read(folder)
    if as_json:
        console.print_json(document)
        return
    if document["kind"] == "runs":
        _show_runs(document)
        return
    if document["kind"] == "machine":
        rows = [(name, _line(value)) for name, value in document.items() if name != "kind"]
        console.print_table("this machine", ["what", "is"], rows)
    if "run" in document:
        _show_run(document["path"], document["run"])
    if "terms" in document:
        _show_model(document, of_run="run" in document)
    if document["kind"] == "tokenizer":
        rows = _tokenizer_rows(document)
        console.print_table(f"{document['path']}: a tokenizer", ["what", "is"], rows)
    if document["kind"] == "data":
        _show_data(document)


def _show_difference(a: str, b: str, as_json: bool) -> None:
    from bertsmith import console
    from bertsmith.inspection.diff import compare_models

    document = compare_models(a, b)
    if as_json:
        console.print_json(document)
        return
    titles = {
        "settings": "settings that differ",
        "family": "what their families do otherwise",
        "runs": "what the runs were trained with",
        "parameters": "parameters of the encoders",
    }
    for part, title in titles.items():
        rows = [(row["what"], *(_line(row[side]) for side in "ab")) for row in document[part]]
        if rows:
            console.print_table(title, ["", document["a"], document["b"]], rows)
    if not any(document[part] for part in ("settings", "family", "runs")):
        console.print_note("they have the same settings")


def _show_runs(document: dict[str, Any]) -> None:
    from bertsmith import console
    from bertsmith.cli.repeats_table import show_repeats

    if "unfinished" not in document:
        show_repeats(document["path"], document)
        return
    rows = [
        (row["run"], f"{row['step']:,}", "finished" if row["finished"] else "not finished")
        for row in document["unfinished"]
    ]
    title = f"{document['path']}: {pluralize(len(rows), 'run')}, not all finished"
    console.print_table(title, ["run", "updates", ""], rows)
    console.print_note("continue them: the command they were started with, and --resume")


def _show_run(path: str, run: dict[str, Any]) -> None:
    from bertsmith import console

    of = f" of {run['of']:,}" if run["of"] else ""
    state = "finished" if run["finished"] else f"not finished: step {run['step']:,}{of}"
    rows = [("updates", f"{run['step']:,}{of}"), ("tokens", _line(run["tokens"] or 0))]
    if run["seconds"] is not None:
        rows.append(("time", console.format_duration(run["seconds"])))
    if run["best_step"] is not None:
        rows.append(("best step", f"{run['best_step']:,}"))
    marked = f" (of step {run['model_of_step']:,})" if run["model_of_step"] is not None else ""
    rows.append(("model", f"{run['model']}{marked}" if run["model"] else "none yet"))
    console.print_table(f"{path}: {run['verb']}, {state}", ["what", "is"], rows)
    if run["scores"]:
        scores = [(_score_name(name), _score(name, value)) for name, value in run["scores"].items()]
        console.print_table("scores on what was held out", ["score", "value"], scores)
    if run["settings"]:
        settings = [(name, _line(value)) for name, value in run["settings"].items()]
        console.print_table("settings that are not the defaults", ["setting", "value"], settings)
    for remark in run["remarks"]:
        console.print_note(remark)
    if not run["finished"]:
        console.print_note("continue it: the command it was started with, and --resume")


def _score_name(name: str) -> str:
    """A figure's name as `pretrain` prints it: `long_mlm_loss` is "MLM loss (long sequences)"."""
    if name == "pairs_accuracy":
        return "accuracy on minimal pairs"
    at = " (long sequences)" if name.startswith("long_") else ""
    words = name.removeprefix("long_").split("_")
    by = " by word frequencies alone" if words[0] == "unigram" else ""
    return " ".join(w.upper() if w in _SHORT else w for w in words if w != "unigram") + by + at


def _score(name: str, value: float) -> str:
    """A figure, rounded: losses to three digits, shares as percentages."""
    if name.endswith("loss") or not 0 <= value <= 1:
        return f"{value:.3f}" if name.endswith("loss") else f"{value:,.1f}"
    return format_percent(value)


def _show_data(document: dict[str, Any]) -> None:
    from bertsmith import console

    files = document["files"]
    listed = ", ".join(files[:3]) + (f" and {len(files) - 3:,} more" if len(files) > 3 else "")
    counts = ("documents", "sentences", "tokens", "unknown", "characters", "bytes")
    rows = [(name, _line(document[name])) for name in counts if name in document]
    dropped = [(k.replace("_", " "), _line(v)) for k, v in document.items() if k.endswith("_dropped") and v]
    rows += dropped
    rows += [
        ("from", f"{pluralize(len(files), 'file')}: {listed}"),
        ("made", document["made"]),
        (
            "on disk",
            f"{pluralize(document['bytes_on_disk'], 'byte')} in {pluralize(document['shards'], 'shard')}",
        ),
        ("language", document["language"]),
    ]
    console.print_table(f"{document['path']}: prepared data", ["what", "is"], rows)
    console.print_table("its tokenizer", ["what", "is"], _tokenizer_rows(document["tokenizer"]))


def _tokenizer_rows(of: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("algorithm", of["algorithm"]),
        ("entries", f"{of['vocab_size']:,}"),
        ("letters", "lower-cased" if of["lowercase"] else "case is kept"),
        ("special tokens", ", ".join(f"{s['token']} {s['id']}" for s in of["specials"].values())),
        ("longest input", pluralize(of["max_length"], "token")),
        ("digest", of["digest"]),
    ]


def _show_model(document: dict[str, Any], *, of_run: bool) -> None:
    from bertsmith import console

    config = document["config"]
    console.print_table(
        f"{'the model' if of_run else document['path']}: {document['architecture']}, "
        f"{pluralize(document['parameters'], 'parameter')}",
        ["setting", "value"],
        [(name, _line(value)) for name, value in config.items()],
    )
    console.print_table("parameters", ["term", "formula", "number"], _grouped(document["terms"]))
    hidden = ("weights_sha256", "settings", "metadata", "decoder_state", "numbered")
    record = {k: v for k, v in document["record"].items() if k not in hidden and v is not None}
    if held := record.pop("held_out", None):  # a run's table has them
        scores = ", ".join(f"{_score_name(name)} {_score(name, value)}" for name, value in held.items())
        record |= {} if of_run else {"held_out": scores}
    if document["labels"]:
        record = {"labels": ", ".join(document["labels"]), **record}
    if record:
        rows = [(_FIELDS.get(k, k.replace("_", " ")), _line(v)) for k, v in record.items()]
        console.print_table("record", ["what", "is"], rows)


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


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_line(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_line(item) if isinstance(item, dict) else str(item) for item in value) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
