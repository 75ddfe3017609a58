"""Encoder and heads as a pre-training run begins with them."""

from __future__ import annotations

import torch

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.instances.plan import Ints
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder
from bertsmith.models.start import start_from_sinusoids
from bertsmith.objectives.objective import Objective, objective_type
from bertsmith.workflows.pretrain_settings import PretrainSettings


def first_weights(
    chosen: PretrainSettings,
    generator: torch.Generator,
    counts: Ints | None = None,
    base: ModelFolder | None = None,
) -> tuple[Encoder, Objective]:
    """Encoder and heads before the first update: a function of the settings, of the generator's seed, and of the
    corpus's token counts [V], where the output bias starts from them. base: gives the encoder its weights."""
    encoder = (
        build_encoder(chosen.model, generator) if base is None else base.encoder(generator, chosen.model)
    )
    kind = objective_type(chosen.objective.name)
    objective = kind.made(encoder, generator, chosen.data, chosen.objective)
    if chosen.start.positions == "sinusoidal":
        start_from_sinusoids(
            encoder.embeddings.position.weight, chosen.model.initializer_range, chosen.model.position_offset
        )
    if chosen.start.output_bias == "unigram" and counts is not None:
        objective.begin(counts)
    return encoder, objective
