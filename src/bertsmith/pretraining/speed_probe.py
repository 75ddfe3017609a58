"""The time of an update on this machine, measured on random text, or estimated for models that take long."""

from __future__ import annotations

import logging

import torch

from bertsmith import hardware
from bertsmith.device import ComputeContext
from bertsmith.formatting import format_percent, pluralize
from bertsmith.instances.batches import SyntheticStream
from bertsmith.instances.settings import MEAN_FILL_RATIO
from bertsmith.models.parameter_count import flops_per_token
from bertsmith.pretraining.model import first_weights
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.compute_setup import measure_update_seconds
from bertsmith.training.data_loader import Phase
from bertsmith.training.train_step import TrainModule

logger = logging.getLogger(__name__)

_BENCHMARK_SECONDS = 3.0
_MAX_MEASURED_SECONDS = 5.0  # the time of longer updates is computed from that of a matrix product
_MATMUL_UTILIZATION = 0.45  # FLOP/s of an update relative to those of a large matrix product
_MATMUL_SIZE, _MATMUL_SECONDS = 1024, 0.2


def probe_speed(
    settings: PretrainSettings,
    context: ComputeContext,
    max_seconds: float,
    fill_ratio: float = MEAN_FILL_RATIO,
) -> float:
    """Return the seconds of an update on random text.

    Args:
        settings: The settings of the run; the length is that of the first phase.
        context: The compute context.
        max_seconds: The seconds that may be spent.
        fill_ratio: The mean length of an instance, as a ratio of the maximum length.
    """
    data, train = settings.data, settings.train
    encoder, objective = first_weights(settings, context.init_generator)
    context.prepare_modules(encoder, objective)
    length = max(1, round(data.sequence_length * fill_ratio))
    stream = SyntheticStream(settings.model.vocab_size, length, data.mlm_probability, data.sentence_task)
    phase = Phase(stream, 1.0, train.batch_size)
    return measure_update_seconds(TrainModule(encoder, objective), phase, train, context, max_seconds)


def estimate_update_seconds(
    settings: PretrainSettings, fill_ratio: float = MEAN_FILL_RATIO
) -> tuple[float, str]:
    """Return the seconds of an update of the first phase, and a description of their measurement.

    A few updates on random text are measured; the time of long updates is computed from that of a matrix product.
    The mean length of an instance is `fill_ratio` of the maximum length.
    """
    train, data, config = settings.train, settings.data, settings.model
    context = ComputeContext.for_training(train).with_kernels(train, config.hidden_size, 0)
    flops = _measure_flops(context)
    tokens = train.batch_size * train.gradient_accumulation_steps * data.sequence_length * fill_ratio
    seconds = tokens * flops_per_token(config, data.mlm_probability) / (flops * _MATMUL_UTILIZATION)
    if seconds > _MAX_MEASURED_SECONDS:
        return seconds, (
            f"seconds per update computed from a matrix product of {flops / 1e9:,.0f} GFLOP/s, of which training "
            f"reaches about {format_percent(_MATMUL_UTILIZATION)}, in {context.precision} on "
            f"{hardware.device_name(context.device)} under its current load"
        )
    logger.info("measuring the speed of an update ...")
    seconds = probe_speed(settings, context, _BENCHMARK_SECONDS, fill_ratio)
    return seconds, (
        f"seconds per update measured for {_BENCHMARK_SECONDS:g} s on random text, in {context.precision} on "
        f"{pluralize(hardware.num_threads(), 'thread')} of this machine under its current load"
    )


def _measure_flops(context: ComputeContext) -> float:
    """Return the FLOP/s of a product of two square matrices in the precision of the context."""
    dtype = torch.bfloat16 if context.precision == "bf16" else torch.float32
    x = torch.ones(_MATMUL_SIZE, _MATMUL_SIZE, dtype=dtype, device=context.device)
    torch.mm(x, x)[0, 0].item()
    num_products, start = 0, hardware.clock()
    while not num_products or hardware.clock() - start < _MATMUL_SECONDS:
        torch.mm(x, x)[0, 0].item()  # `item` waits for devices that compute asynchronously
        num_products += 1
    return num_products * 2 * _MATMUL_SIZE**3 / (hardware.clock() - start)
