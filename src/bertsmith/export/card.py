"""The model card: what a model is, what it learned from, its scores, and its limits (Mitchell et al. 2019).

It has the metadata that the Hugging Face hub reads. Texts of the data and paths of this machine are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertsmith.errors import InputError
from bertsmith.formatting import escape_control_characters, format_number
from bertsmith.inference.model import Model, load
from bertsmith.models.family import get_family, predicts_from_both_sides, presets
from bertsmith.reports.page import render, score_name
from bertsmith.reports.run import score_rows
from bertsmith.tasks.registry import Task, get_task

_MAX_LABELS = 30  # that are listed
_HUB_NAME = re.compile(r"(?!.*(--|\.\.))\w([\w.-]*\w)?(/\w([\w.-]*\w)?(?<!\.git))?", re.ASCII)
_TRAIN_SETTINGS = {
    "num_train_epochs": "epochs",
    "learning_rate": "peak learning rate",
    "batch_size": "sequences or examples per batch",
    "optim": "optimizer",
    "seed": "seed",
}


def card(
    model: str | Path | Model,
    *,
    name: str | None = None,
    language: str | None = None,
    license: str | None = None,
) -> str:
    """Return the model card of a model in Markdown, with the metadata of the Hugging Face hub.

    Args:
        model: A run, a model folder, or a published name.
        name: The name of the model; None: that of its folder.
        language: The code of the language of the texts, such as "en"; None: it is left out.
        license: The license, as an identifier of the hub such as "cc-by-4.0"; None: it is left out.

    Raises:
        InputError: There is no model, or the name has characters that the hub does not allow.
    """
    model = load(model)
    name = model.path.resolve().name if name is None else name
    check_hub_name(name, "name")
    record, report, info = model.folder.record, model.report, model.info()
    task = get_task(record["task"]) if record.get("task") not in (None, "pretrain") else None
    scores = score_rows(report) if "validation" in report else []
    family = get_family(model.folder.config.model_type)
    metadata = _metadata(model, task, name, language, license)
    return f"---\n{metadata}\n---\n\n" + render(
        "card.md",
        name=name,
        title=name.rpartition("/")[2],
        task=task,
        base=_public_name(record.get("base")),
        info=info,
        is_standard=family.is_transformer and model.folder.architecture in family.architectures.values(),
        max_length=model.task.encoder.max_length if task else model.folder.config.max_length,
        has_windows=task is not None and getattr(model.task.settings, "stride", None) is not None,
        fills_masks=model.folder.has("masked") and predicts_from_both_sides(model.folder.config),
        labels=[_code_span(label) for label in (model.labels or [])[:_MAX_LABELS]],
        num_labels=len(model.labels or []),
        facts=_training_facts(record, report),
        scores=scores,
        report=report,
        recorded={score_name(k): format_number(v) for k, v in _recorded_scores(record).items()},
        best_baseline=_best_baseline(report),
    )


def check_hub_name(name: str, argument: str) -> None:
    """Raise InputError if a name has characters that the hub does not allow."""
    if not _HUB_NAME.fullmatch(name):
        message = f"{name!r} is no name of a model on the hub"
        raise InputError("invalid_hub_name", message, argument=argument, hint="use OWNER/NAME")


def _metadata(model: Model, task: Task | None, name: str, language: str | None, license: str | None) -> str:
    """Return the metadata in YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    report, base = model.report, _public_name(model.folder.record.get("base"))
    fills_masks = predicts_from_both_sides(model.folder.config)
    tag = task.pipeline_tag if task else "fill-mask" if fills_masks else "text-generation"
    results = [
        EvalResult(
            task_type=tag or "other",
            dataset_type="validation",
            dataset_name="validation examples of the run",
            metric_type=report["decided_by"],
            metric_value=round(report["validation"][report["decided_by"]], 4),
        )
    ] if "decided_by" in report else None  # fmt: skip
    data = ModelCardData(
        language=language,
        license=license,
        library_name="transformers",
        pipeline_tag=tag,
        base_model=base if base in presets() else None,
        tags=["bertsmith"],
        model_name=name.rpartition("/")[2],
        eval_results=results,
    )
    return str(data)


def _public_name(base: str | None) -> str | None:
    """Return the name of the base model, without the folders of this machine."""
    return Path(base).name if base else None


def _training_facts(record: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, str]:
    """Return what is known of the training, by name."""
    train, corpus = report.get("settings", {}).get("train", {}), report.get("corpus", {})
    numbers = {
        "training examples": report.get("train_examples"),
        "validation examples": report.get("validation", {}).get("examples"),
        "documents": corpus.get("documents"),
        "tokens of the corpus": corpus.get("tokens"),
        "updates": record.get("steps"),
        "tokens in all updates": record.get("tokens"),
        "tokens that the base model was pre-trained on": record.get("pretraining_tokens"),
    }
    settings = {label: train.get(setting) for setting, label in _TRAIN_SETTINGS.items()}
    machine = {name: report.get(name) for name in ("precision", "device")} | {
        "bertsmith": record.get("version")
    }
    facts = numbers | settings | machine
    return {name: _format_fact(value) for name, value in facts.items() if value is not None}


def _format_fact(value: object) -> str:
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    )


def _recorded_scores(record: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the scores on held-out text, or those of a model without its run's report."""
    scores: Mapping[str, float] = record.get("held_out") or record.get("validation") or {}
    return scores


def _best_baseline(report: Mapping[str, Any]) -> str | None:
    """Return the name of the baseline that the model does not exceed; None if it exceeds all."""
    baselines, metric = report.get("baselines", {}), report.get("decided_by")
    best = max(baselines, key=lambda name: baselines[name][metric], default=None)
    if best is None or report["validation"][metric] > baselines[best][metric]:
        return None
    return str(best)


def _code_span(text: str) -> Markup:
    """Return a text as code in Markdown, in which nothing is markup."""
    text = escape_control_characters(text, one_line=True)
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return Markup(f"{fence}{text}{fence}" if len(fence) == 1 else f"{fence} {text} {fence}")
