"""How long an update takes on this machine: a few are made on random text, before there are shards."""

from __future__ import annotations

from bertsmith.device import ComputeContext
from bertsmith.instances.settings import MEAN_FILL_RATIO
from bertsmith.instances.synthetic_batches import SyntheticStream
from bertsmith.pretraining.model_init import first_weights
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.compute_setup import ways_of
from bertsmith.training.data_loader import Phase
from bertsmith.training.execution_benchmark import Way, best_way, tried
from bertsmith.training.train_step import Trained


def timed_on_random_text(
    chosen: PretrainSettings, place: ComputeContext, seconds: float
) -> tuple[float, Way]:
    """Seconds of an update of a run with these settings on random text, in the quickest way here, and that way.

    seconds: that may be spent on it.
    """
    data, train = chosen.data, chosen.train
    encoder, objective = first_weights(chosen, place.init_generator)
    place.prepare_modules(encoder, objective)
    length = round(data.sequence_length * MEAN_FILL_RATIO)
    pairs = SyntheticStream(chosen.model.vocab_size, length, data.mlm_probability, data.sentence_task)
    phase = Phase(pairs, 1.0, train.batch_size)
    trained = Trained(encoder, objective)
    found = tried(trained, phase, train, place, ways_of(train, place), lambda _: seconds)
    way = best_way(found)
    return found.get(way, min(found.values())), way
