"""Measure the time of an update on random text, before there are shards."""

from __future__ import annotations

from bertsmith.device import ComputeContext
from bertsmith.instances.settings import MEAN_FILL_RATIO
from bertsmith.instances.synthetic_batches import SyntheticStream
from bertsmith.pretraining.model_init import first_weights
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.compute_setup import configs_to_measure
from bertsmith.training.autotune import ExecutionConfig, benchmark_configs, fastest_config
from bertsmith.training.data_loader import Phase
from bertsmith.training.train_step import TrainModule


def probe_speed(
    settings: PretrainSettings, context: ComputeContext, max_seconds: float
) -> tuple[float, ExecutionConfig]:
    """Return the seconds of an update, and the fastest configuration.

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
    seconds = benchmark_configs(
        TrainModule(encoder, objective),
        Phase(stream, 1.0, train.batch_size),
        train,
        context,
        configs_to_measure(train, context),
        lambda _: max_seconds,
    )
    config = fastest_config(seconds)
    return seconds.get(config, min(seconds.values())), config
