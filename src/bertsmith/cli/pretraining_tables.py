"""Tables and notes that print prepared data, training instances, and the reports of pre-training."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith import console
from bertsmith.formatting import format_percent, pluralize

if TYPE_CHECKING:
    from rich.text import Text

    from bertsmith.inference.model import Model
    from bertsmith.io.documents import Reading
    from bertsmith.tokenizer.tokenizer import Tokenizer

Report = Mapping[str, Any]

_ACRONYMS = ("mlm", "nsp", "sop", "lm", "f1")


def count_rows(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return a row for each count, named by its key."""
    return [(name.replace("_", " "), f"{count:,}") for name, count in counts.items()]


# Commands to run next


def prepare_hint(files: Sequence[str], reading: Reading, tokenizer: str) -> str:
    """Return the `data prepare` command for files that a vocabulary was trained on."""
    options = []
    for field in fields(reading):
        if (value := getattr(reading, field.name)) != field.default:
            options += [f"--{field.name.replace('_', '-')}", str(value).replace("blank_line", "blank-line")]
    words = ["bertsmith", "data", "prepare", *files, "--tokenizer", tokenizer, *options]
    return f"next: {shlex.join(words)} --output-dir DIR"


def pretrain_hint(data: str, settings: Mapping[str, str]) -> str:
    """Return the `pretrain` command for prepared data, with the settings that these need."""
    assignments = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    words = ["bertsmith", "pretrain", "--data", data, *assignments]
    return f"next: {shlex.join(words)} --output-dir RUN --minutes 30"


def _fill_mask_hint(run: str, tokenizer: Tokenizer) -> str:
    return f'next: bertsmith fill-mask {shlex.quote(run)} "TEXT WITH A {tokenizer.mask_token}"'


# Pre-training


def print_pretraining(model: Model, output_dir: str) -> None:
    """Print the report of a pre-training run."""
    from bertsmith.training.callbacks import last_loss

    report = model.report
    batches = report["batches"]
    rows = [
        ("updates", f"{report['steps']:,}"),
        ("tokens", f"{report['tokens']:,}"),
        ("time", console.format_duration(report["seconds"])),
        ("tokens per second", f"{report['tokens_per_second']:,.0f}"),
    ]
    validation_rows = _validation_rows(report["held_out"])
    if not validation_rows and (loss := last_loss(Path(output_dir))) is not None:
        validation_rows = [("last training loss", f"{loss:.3f} (without validation)")]
    rows += validation_rows
    full = f"{format_percent(batches['fill_mean'])} (least {format_percent(batches['fill_min'])}), no padding"
    rows.append(("batches filled to", full))
    console.print_table(output_dir, ["result", "value"], rows)
    if model.folder.has("masked") and not model.folder.config.causal:
        console.print_note(_fill_mask_hint(output_dir, model.tokenizer))


def _validation_rows(values: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the rows of the metrics on validation text: `long_mlm_loss` is the MLM loss of the second phase."""
    rows = []
    for name, value in values.items():
        part, _, metric = name.removeprefix("long_").rpartition("_")
        if part.startswith("unigram_"):  # a baseline
            continue
        baseline = values.get(name.replace(f"{part}_loss", f"unigram_{part}_loss"))
        if metric == "loss":
            text = f"{value:.3f}" + (
                "" if baseline is None else f" (by word frequencies alone: {baseline:.3f})"
            )
        else:
            text = f"{value:,.1f}" if metric == "perplexity" else format_percent(value)
        rows.append((f"validation {metric_name(name)}", text))
    return rows


def metric_name(name: str) -> str:
    """Return a metric's name for a table: `long_mlm_loss` is "MLM loss (long sequences)"."""
    if name == "pairs_accuracy":
        return "accuracy on minimal pairs"
    words = name.removeprefix("long_").split("_")
    title = " ".join(word.upper() if word in _ACRONYMS else word for word in words if word != "unigram")
    title += " by word frequencies alone" if words[0] == "unigram" else ""
    return title + (" (long sequences)" if name.startswith("long_") else "")


# Minimal pairs


def print_pairs(title: str, document: Report) -> None:
    """Print the report on minimal pairs."""
    rows = [("accuracy", _pairs_accuracy(document)), ("ties, counted as wrong", f"{document['ties']:,}")]
    for column, mean in document["mean_over"].items():
        groups = pluralize(len(document[f"by_{column}"]), "group")
        rows.append((f"mean over {groups} of {column}", format_percent(mean)))
    console.print_table(title, ["result", "value"], rows)
    _print_groups(document)


def _pairs_accuracy(document: Report) -> str:
    chance = f"chance: {100 * document['chance']:.0f} %"
    return f"{format_percent(document['accuracy'])} of {pluralize(document['pairs'], 'pair')} ({chance})"


def _print_groups(document: Report) -> None:
    """Print the accuracy of the coarsest groups of pairs, the best first."""
    column = next(iter(document["mean_over"]), None)
    if column is None:
        return
    groups = sorted(document[f"by_{column}"].items(), key=lambda item: -item[1]["accuracy"])
    console.print_table(
        f"accuracy on minimal pairs by {column}",
        [column, "pairs", "accuracy"],
        [(name or "–", f"{group['pairs']:,}", format_percent(group["accuracy"])) for name, group in groups],
    )


# Training instances

# kind → (style on a terminal, form elsewhere, meaning)
_MASK_KINDS = {
    "mask": ("bold white on red", "{{{token}←{original}}}", "predicted, replaced by the mask token"),
    "random": ("bold black on yellow", "{{{token}←{original}}}", "predicted, replaced by a random token"),
    "kept": ("bold black on green", "{{{token}=}}", "predicted, unchanged"),
}


def print_instance(instance: Report) -> None:
    """Print a training instance: colors on a terminal, marks elsewhere."""
    from rich.text import Text

    drawn_as, counts = instance["drawn_as_epoch"], instance["counts"]
    static = (
        f" (with the masks of epoch {drawn_as}, in another order)" if drawn_as != instance["epoch"] else ""
    )
    console.print_result(
        f"{instance['data']}: epoch {instance['epoch']}{static}, instance {instance['index']:,} of "
        f"{instance['instances_of_epoch']:,}; {instance['instances']}, {instance['masking']} masks, "
        f"seed {instance['seed']}"
    )
    if instance["label"] is not None:
        label = f"{instance['label']} {instance['label_name']}: {instance['label_means']}"
        console.print_result(f"label ({instance['sentence_task']}): {label}")
    kinds = dict(zip(instance["rows"], instance["kinds"], strict=True))
    tokens = zip(instance["tokens"], instance["original_tokens"], strict=True)
    console.print_result("")
    console.print_text(Text(" ").join(_token(kinds.get(i), *pair) for i, pair in enumerate(tokens)))
    console.print_result("")
    for kind, (_, _, meaning) in _MASK_KINDS.items():
        line = _token(kind, "[MASK]" if kind == "mask" else "token", "original")
        console.print_text(line.append(f"  {meaning}: {counts[kind]}"))
    console.print_result(
        f"{counts['predicted']} of {pluralize(counts['ordinary'], 'token')} predicted ({counts['share']:.1%}); "
        f"{counts['tokens']} with special tokens"
    )
    console.print_result("")
    for part in instance["parts"]:
        console.print_result(
            f"{part['name']}: document {part['document']:,}, {part['place']}, "
            f"{pluralize(part['tokens'], 'token')} from its token {part['first_token']:,} on"
        )
        console.print_result(f"   {part['text']}")


def _token(kind: str | None, token: str, original: str) -> Text:
    """Return a token; a predicted one in color with its original, or between marks."""
    from rich.text import Text

    if kind is None:
        return Text(token)
    style, form, _ = _MASK_KINDS[kind]
    if not console.has_colors():
        return Text(form.format(token=token, original=original))
    text = Text()
    text.append(token, style=style)
    return text.append(f"←{original}", style="dim") if "←" in form else text
