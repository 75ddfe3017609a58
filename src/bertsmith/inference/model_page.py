"""What a notebook shows of a model: what it is, how it scored, the curve of its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.models.heads import PART_BUILDERS
from bertsmith.models.parameter_count import count_parameters
from bertsmith.notebook import render_page
from bertsmith.reports.loss_curve import plot_loss_curve


def model_page(path: Path, folder: ModelFolder) -> str:
    """HTML of a model that was loaded as `path`, which may be a run with a log."""
    config, record = folder.config, folder.record
    heads = [name for name in PART_BUILDERS if folder.has(name)]
    terms = count_parameters(config, heads, labels=len(folder.labels or []))
    facts: dict[str, Any] = {
        "path": str(path),
        "architecture": folder.architecture,
        "parameters": sum(term.size for term in terms),
        "layers": config.num_hidden_layers,
        "hidden size": config.hidden_size,
        "vocabulary": config.vocab_size,
        "task": record.get("task"),
        "labels": ", ".join(folder.labels) if folder.labels else None,
        "updates": record.get("steps"),
    }
    facts = {name: value for name, value in facts.items() if value is not None}
    scores = {name: record[name] for name in ("held_out", "dev") if isinstance(record.get(name), dict)}
    return render_page("Model", facts | scores, footer=plot_loss_curve(path / "log.jsonl") or "")
