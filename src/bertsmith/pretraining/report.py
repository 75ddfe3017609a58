"""The report of a pre-training run, and warnings about what the model has learned."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from bertsmith.formatting import pluralize
from bertsmith.pretraining.data import PretrainData
from bertsmith.pretraining.resolve_settings import measured_settings
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.run_folder import training_record
from bertsmith.training.callbacks import last_loss
from bertsmith.training.training_job import TrainOutput

logger = logging.getLogger(__name__)

_MANY_EPOCHS = 10.0  # of a planned run, from which on a warning is logged
_MIN_OVERFITTING_EPOCHS = 2.0
_OVERFITTING_NATS = 1.0  # by which the MLM loss is lower on the training text than on validation documents
_NUM_LOSSES = 10  # whose mean is the training loss


def log_settings(settings: PretrainSettings) -> None:
    """Log the settings that have other defaults for the size of the model than the paper's."""
    measured = PretrainSettings.dotted(measured_settings(settings.model.model_dump()))
    if not measured:
        logger.info("no settings were measured for a model of this size, so the defaults are used")
        return
    values = settings.flat()
    logger.info(
        "settings for a model of this size: %s; recipes/bert-paper.yaml has those of the paper",
        ", ".join(f"{name}={values[name]}" for name in measured),
    )


def log_epochs(num_updates: int, updates_per_epoch: float) -> None:
    """Log a warning if the run reads its text many times."""
    epochs = num_updates / max(1e-9, updates_per_epoch)
    if epochs >= _MANY_EPOCHS:
        logger.warning(
            "there is little text for %s: the run reads it about %s times, and a model that overfits it gets "
            "worse on other text; use more text, or a shorter run",
            pluralize(num_updates, "update"),
            f"{epochs:,.0f}",
        )


def run_report(
    settings: PretrainSettings, data: PretrainData, output: TrainOutput, metrics: dict[str, float], out: Path
) -> dict[str, Any]:
    """Return the content of report.json."""
    warning = _learning_warning(settings, data, output, metrics, out)
    return {
        "objective": settings.objective.name,
        **({"base": settings.base} if settings.base else {}),
        **training_record(settings.train, output),
        "processes": output.processes,
        "held_out": metrics,
        "remarks": [] if warning is None else [warning],
        "corpus": data.shards.counts,
        "first_epoch": data.streams[0].plan(0).counts,
        "batches": data.batch_report,
    }


def _learning_warning(
    settings: PretrainSettings, data: PretrainData, output: TrainOutput, metrics: dict[str, float], out: Path
) -> str | None:
    """Return a warning if the model overfits, or is no better than a unigram model; otherwise None."""
    loss, unigram_loss = metrics.get("mlm_loss"), metrics.get("unigram_mlm_loss")
    if loss is None or unigram_loss is None:
        return None
    updates = output.state.step
    epochs = updates / max(1e-9, data.updates_per_epoch)
    train_loss = last_loss(out, "mlm", _NUM_LOSSES)
    is_overfitting = train_loss is not None and loss - train_loss > _OVERFITTING_NATS
    if is_overfitting and epochs >= _MIN_OVERFITTING_EPOCHS:
        return (
            f"this model overfits its text: after {epochs:,.0f} passes its MLM loss is {train_loss:.2f} there and "
            f"{loss:.2f} on held-out documents. More text helps most; otherwise make fewer updates "
            f"(now {updates:,}), or use a smaller preset"
        )
    if loss < unigram_loss:
        return None
    return (
        f"this model has not learned to use the context yet: its held-out MLM loss is {loss:.2f}, and word "
        f"frequencies alone reach {unigram_loss:.2f}. Make more updates (now {updates:,}, {epochs:.2g} passes "
        f"over the data), change train.learning_rate (now {settings.train.learning_rate:g}), or use a smaller "
        "preset"
    )
