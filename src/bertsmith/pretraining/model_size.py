"""Measure the speed of updates on this machine, and choose the size of a new model that a time budget allows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from bertsmith.console import format_duration
from bertsmith.device import ComputeContext
from bertsmith.instances.batches import SyntheticStream
from bertsmith.instances.settings import MEAN_FILL_RATIO
from bertsmith.models.family import preset
from bertsmith.pretraining.model import first_weights
from bertsmith.pretraining.resolve_settings import SIZES, MeasuredSize, new_settings
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.compute_setup import measure_update_seconds
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.data_loader import Phase
from bertsmith.training.train_step import TrainModule

logger = logging.getLogger(__name__)

_MAX_PROBE_RATIO, _MAX_PROBE_SECONDS = 0.005, 2.0  # of the time budget, for each size
_SIZE_SETTINGS = {
    "model.num_hidden_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.intermediate_size",
    "objective.name",
}


def probe_speed(settings: PretrainSettings, context: ComputeContext, max_seconds: float) -> float:
    """Return the seconds of an update on random text.

    Args:
        settings: The settings of the run.
        context: The compute context.
        max_seconds: The seconds that may be spent.
    """
    data, train = settings.data, settings.train
    encoder, objective = first_weights(settings, context.init_generator)
    context.prepare_modules(encoder, objective)
    length = round(data.sequence_length * MEAN_FILL_RATIO)
    stream = SyntheticStream(settings.model.vocab_size, length, data.mlm_probability, data.sentence_task)
    phase = Phase(stream, 1.0, train.batch_size)
    return measure_update_seconds(TrainModule(encoder, objective), phase, train, context, max_seconds)


def choose_preset(changes: Mapping[str, Any], tokenizer: Tokenizer) -> str | None:
    """Return the preset of the size that the time budget allows, and log it.

    It is None without a time budget, and if the changes name the sizes.
    """
    minutes = new_settings(None, None, changes, tokenizer).train.max_minutes
    if minutes is None or not changes.keys().isdisjoint(_SIZE_SETTINGS):
        return None
    seconds = 60 * minutes
    size, tokens = largest_size(lambda size: _num_tokens(size, seconds, changes, tokenizer))
    sizes = preset(size.preset)
    logger.info(
        "for %s on this machine: %d layers of %d, as in %s, which will see about %s million tokens",
        format_duration(seconds),
        sizes.num_hidden_layers,
        sizes.hidden_size,
        size.preset,
        f"{tokens / 1e6:.2g}",
    )
    return size.preset


def largest_size(num_tokens: Callable[[MeasuredSize], float]) -> tuple[MeasuredSize, float]:
    """Return the largest size that is trained on enough tokens, and their number.

    Args:
        num_tokens: Returns the number of training tokens of a size in the time budget. It is called from the
            smallest size on, up to the first one with too few.
    """
    largest, tokens = SIZES[0], num_tokens(SIZES[0])
    for size in SIZES[1:]:
        if (tokens_of_size := num_tokens(size)) < size.min_tokens:
            break
        largest, tokens = size, tokens_of_size
    return largest, tokens


def _num_tokens(
    size: MeasuredSize, seconds: float, changes: Mapping[str, Any], tokenizer: Tokenizer
) -> float:
    """Return the number of training tokens of a size in a time, measured on a few updates."""
    settings = new_settings(size.preset, None, changes, tokenizer)
    train = settings.train
    context = ComputeContext.for_training(train).with_kernels(
        train, settings.model.hidden_size, train.max_steps
    )
    update_seconds = probe_speed(settings, context, min(_MAX_PROBE_SECONDS, _MAX_PROBE_RATIO * seconds))
    updates = min(seconds / update_seconds, train.max_steps or math.inf)
    sequences = updates * train.batch_size * train.gradient_accumulation_steps
    return sequences * settings.data.sequence_length * MEAN_FILL_RATIO
