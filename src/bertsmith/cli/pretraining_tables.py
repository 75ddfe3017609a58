"""Tables and notes that print training instances and the reports of pre-training."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith import console
from bertsmith.cli.tables import print_values
from bertsmith.formatting import format_bytes, format_percent, pluralize
from bertsmith.models.family import predicts_from_both_sides

if TYPE_CHECKING:
    from bertsmith.inference.model import Model
    from bertsmith.io.documents import Reading

Report = Mapping[str, Any]

_ACRONYMS = ("mlm", "nsp", "sop", "lm", "f1")


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


# Pre-training


def print_pretraining(model: Model, output_dir: str) -> None:
    """Print the report of a pre-training run."""
    from bertsmith.training.callbacks import last_loss

    report = model.report
    batches = report["batches"]
    values = {
        "updates": report["steps"],
        "tokens": report["tokens"],
        "time": console.format_duration(report["seconds"]),
        "tokens per second": f"{report['tokens_per_second']:,.0f}",
    }
    if report["held_out"]:
        values |= {f"validation {name}": value for name, value in format_metrics(report["held_out"]).items()}
    elif (loss := last_loss(Path(output_dir))) is not None:
        values["last training loss"] = f"{loss:.3f} (without validation)"
    full, least = (format_percent(batches[name]) for name in ("fill_mean", "fill_min"))
    values["batches filled to"] = f"{full} (least {least}), no padding"
    print_values(output_dir, values)
    if model.folder.has("masked") and predicts_from_both_sides(model.folder.config):
        example = f'"TEXT WITH A {model.tokenizer.mask_token}"'
        console.print_note(f"next: bertsmith fill-mask {shlex.quote(output_dir)} {example}")


def print_plan(plan: Report) -> None:
    """Print the plan of a pre-training run."""
    rows = [
        (
            f"{phase['sequence_length']:,}",
            "–" if phase["sequences"] is None else f"{phase['sequences']:,}",
            f"{phase['tokens_per_update']:,}",
            f"{phase['updates']:,}",
            _format_tokens(phase["tokens"]),
        )
        for phase in plan["phases"]
    ]
    columns = ["length", "sequences", "tokens per update", "updates", "tokens in all"]
    console.print_table("phases; tokens if all sequences are full", columns, rows)
    values = {
        "tokens": _format_tokens(plan["tokens"]),
        "tokens of this corpus": plan["corpus_tokens"],
        "passes over it": f"{plan['epochs']:,.3g}",
        "trained parameters": plan["parameters"],
        "memory": f"about {format_bytes(plan['memory_bytes'])}",
        "disk": f"at most {format_bytes(plan['disk_bytes'])}",
    }
    if plan["seconds"] is not None:
        values["time on this machine"] = f"{console.format_duration(plan['seconds'])}, without evaluations"
    print_values("the run", values)
    console.print_note(f"time: {plan['seconds_are']}")


def _format_tokens(tokens: int) -> str:
    """Return a count in full, or from a billion on as the paper prints it, such as 1.31e+11."""
    return f"{tokens:,}" if tokens < 10**9 else f"{tokens:.3g}"


def format_metrics(metrics: Mapping[str, float]) -> dict[str, str]:
    """Return names and values of metrics for a table: `long_mlm_loss` is "MLM loss (long sequences)"."""
    formatted = {}
    for name, value in metrics.items():
        words = name.removeprefix("long_").split("_")
        title = " ".join(word.upper() if word in _ACRONYMS else word for word in words if word != "unigram")
        title += " by word frequencies alone" if words[0] == "unigram" else ""
        title += " (long sequences)" if name.startswith("long_") else ""
        is_fraction = 0 <= value <= 1 and not name.endswith("loss")
        formatted[title] = format_percent(value) if is_fraction else f"{value:,.3f}"
    return formatted


# Minimal pairs


def print_pairs(title: str, document: Report) -> None:
    """Print the report on minimal pairs, and the accuracy of the coarsest groups, the best first."""
    accuracy, count = format_percent(document["accuracy"]), pluralize(document["pairs"], "pair")
    values = {
        "accuracy": f"{accuracy} of {count} (chance: {100 * document['chance']:.0f} %)",
        "ties, counted as wrong": document["ties"],
    }
    for column, mean in document["mean_over"].items():
        count = pluralize(len(document[f"by_{column}"]), "group")
        values[f"mean over {count} of {column}"] = format_percent(mean)
    print_values(title, values)
    for column in list(document["mean_over"])[:1]:
        groups = sorted(document[f"by_{column}"].items(), key=lambda item: -item[1]["accuracy"])
        rows = [
            (name or "–", f"{part['pairs']:,}", format_percent(part["accuracy"])) for name, part in groups
        ]
        console.print_table(f"accuracy on minimal pairs by {column}", [column, "pairs", "accuracy"], rows)


# Training instances

_MASKED_TOKENS = {
    "mask": ("{{{token}←{original}}}", "predicted, replaced by the mask token"),
    "random": ("{{{token}←{original}}}", "predicted, replaced by a random token"),
    "kept": ("{{{token}=}}", "predicted, unchanged"),
}
"""The form and the meaning of a predicted token, by its kind."""


def print_instance(instance: Report) -> None:
    """Print a training instance; predicted tokens are in braces, with the original."""
    drawn_as, counts = instance["drawn_as_epoch"], instance["counts"]
    static = f" (with the masks of epoch {drawn_as})" if drawn_as != instance["epoch"] else ""
    console.print_result(
        f"{instance['data']}: epoch {instance['epoch']}{static}, instance {instance['index']:,} of "
        f"{instance['instances_of_epoch']:,}; {instance['instances']}, {instance['masking']} masks, "
        f"seed {instance['seed']}"
    )
    if instance["label"] is not None:
        label = f"{instance['label']} {instance['label_name']}: {instance['label_means']}"
        console.print_result(f"label ({instance['sentence_task']}): {label}")
    kinds = dict(zip(instance["rows"], instance["kinds"], strict=True))
    tokens = list(instance["tokens"])
    for i, kind in kinds.items():
        tokens[i] = _MASKED_TOKENS[kind][0].format(token=tokens[i], original=instance["original_tokens"][i])
    console.print_result(f"\n{' '.join(tokens)}\n")
    for kind, (form, meaning) in _MASKED_TOKENS.items():
        token = form.format(token="[MASK]" if kind == "mask" else "token", original="original")
        console.print_result(f"{token}  {meaning}: {counts[kind]}")
    console.print_result(
        f"{counts['predicted']} of {pluralize(counts['ordinary'], 'token')} predicted ({counts['share']:.1%}); "
        f"{counts['tokens']} with special tokens\n"
    )
    for part in instance["parts"]:
        console.print_result(
            f"{part['name']}: document {part['document']:,}, {part['place']}, "
            f"{pluralize(part['tokens'], 'token')} from its token {part['first_token']:,} on\n   {part['text']}"
        )
