"""Defaults of a fine-tuning run by the size of the model and the number of examples.

Small models need higher rates than BERT-base, and three epochs of few examples are too few updates (Mosbach et al.
2021). The figures are in benchmarks/RESULTS.md, "Defaults of fine-tuning".
"""

from __future__ import annotations

import logging
import math

from bertsmith.finetuning.settings import FinetuneTrainSettings
from bertsmith.formatting import pluralize
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import get_family

logger = logging.getLogger(__name__)

_BASE_RATE, _BASE_HIDDEN_SIZE = 5e-5, 768  # Devlin et al. 2019, appendix A.3
_RATE_EXPONENT, _MAX_RATE = 1.5, 1e-3  # the exponent of the ratio of hidden sizes
_MIN_EPOCHS, _MAX_EPOCHS = 3, 20
_NUM_UPDATES = 400  # for which there are up to _MAX_EPOCHS; more for small models
_MIN_UPDATES = 50  # for which there are as many epochs as needed
_MAX_EVALUATIONS = 20
_PATIENCE = 10  # evaluations


def default_learning_rate(config: ModelConfig) -> float:
    """Return the peak learning rate of the family or else of the hidden size: 5e-5 from 768 on, 2.6e-4 at 256."""
    rate = get_family(config.model_type).finetuning_rate
    if rate is not None:
        return rate
    return float(f"{min(_MAX_RATE, _BASE_RATE * _size_ratio(config) ** _RATE_EXPONENT):.1e}")


def default_epochs(updates_per_epoch: float, config: ModelConfig) -> int:
    """Return the number of epochs: 3, or up to 20 for 400 updates, or as many as 50 updates need.

    Models of a hidden size below 768 get more updates, 1,200 at 256.
    """
    num_updates = _NUM_UPDATES * _size_ratio(config)
    max_epochs = max(_MAX_EPOCHS, math.ceil(_MIN_UPDATES / updates_per_epoch))
    return max(_MIN_EPOCHS, min(max_epochs, math.ceil(num_updates / updates_per_epoch)))


def _size_ratio(config: ModelConfig) -> float:
    """Return the ratio of BERT-base's hidden size to a smaller one; 1 for a larger one."""
    return max(1.0, _BASE_HIDDEN_SIZE / config.hidden_size)


def complete_length(
    train: FinetuneTrainSettings, config: ModelConfig, updates_per_epoch: float, *, can_probe: bool
) -> FinetuneTrainSettings:
    """Return settings with the number of epochs, the evaluations, and the head probe that the user left open.

    Args:
        train: The settings.
        config: The sizes of the encoder.
        updates_per_epoch: The number of updates in an epoch.
        can_probe: True if the head is new, and its features come from the encoder alone.
    """
    values = {"eval_steps": train.eval_steps or max(1, round(updates_per_epoch))}
    has_budget = train.max_steps or train.max_tokens or train.num_train_epochs
    if has_budget:
        return train.model_copy(update={**values, "head_probe": bool(train.head_probe and can_probe)})
    epochs = default_epochs(updates_per_epoch, config)
    num_updates = math.ceil(epochs * updates_per_epoch)
    if train.eval_steps is None:
        values["eval_steps"] = max(values["eval_steps"], math.ceil(num_updates / _MAX_EVALUATIONS))
        values["patience"] = train.patience or _PATIENCE
    values["num_train_epochs"] = epochs
    values["head_probe"] = can_probe and train.head_probe is not False
    logger.info(
        "%s (%s) at a learning rate of %g, by the number of examples and the size of the model",
        pluralize(epochs, "epoch"),
        pluralize(num_updates, "update"),
        train.learning_rate,
    )
    return train.model_copy(update=values)
