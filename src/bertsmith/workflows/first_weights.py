"""Encoder and heads as a pre-training run begins with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError
from bertsmith.instances.plan import Ints
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder
from bertsmith.models.start import start_from_sinusoids, start_from_vectors, start_looking_near
from bertsmith.objectives.objective import Objective, objective_type
from bertsmith.workflows.pretrain_settings import PretrainSettings


def first_weights(
    chosen: PretrainSettings,
    generator: torch.Generator,
    counts: Ints | None = None,
    base: ModelFolder | None = None,
    vectors: Callable[[int], NDArray[np.float32]] | None = None,
) -> tuple[Encoder, Objective]:
    """Encoder and heads before the first update: a function of the settings, of the generator's seed, and of the
    corpus, where they start from it.

    counts: of each token in it, [V]. base: gives the encoder its weights. vectors: of the tokens, by their width.
    """
    encoder = (
        build_encoder(chosen.model, generator) if base is None else base.encoder(generator, chosen.model)
    )
    kind = objective_type(chosen.objective.name)
    for name, value in kind.model.items():
        if (given := getattr(encoder.config, name)) != value:
            raise InputError(
                f"model.{name} is {given}, and the objective '{kind.name}' is for models where it is {value}",
                "leave it out, or choose another objective (objective.name)",
            )
    objective = kind.made(encoder, generator, chosen.data, chosen.objective)
    if chosen.start.tokens == "neighbours" and vectors is not None:
        table = encoder.embeddings.token.weight
        start_from_vectors(table, vectors(table.shape[1]), chosen.model.initializer_range)
    if chosen.start.positions == "sinusoidal":
        start_from_sinusoids(
            encoder.embeddings.position.weight, chosen.model.initializer_range, chosen.model.position_offset
        )
    if chosen.start.attention == "local":
        _look_near(encoder)
    if chosen.start.output_bias == "unigram" and counts is not None:
        objective.begin(counts)
    return encoder, objective


def _look_near(encoder: Encoder) -> None:
    """Let heads of the first layer look at what is near; InputError where positions reach it changed."""
    config = encoder.config
    if config.embedding_width != config.hidden_size:
        raise InputError(
            f"start.attention=local: this model's embeddings have {config.embedding_width} columns and its "
            f"layers {config.hidden_size}",
            "set start.attention=normal",
        )
    attention: Any = encoder.blocks[0].attention
    start_looking_near(attention.qkv.weight, config.num_attention_heads)
