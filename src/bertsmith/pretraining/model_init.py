"""Encoder and heads as a pre-training run begins with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.corpus.tokenized_corpus import Ints
from bertsmith.errors import InputError
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder
from bertsmith.models.weight_init import start_from_sinusoids, start_from_vectors, start_looking_near
from bertsmith.objectives.objective import GENERATOR, Objective, objective_type
from bertsmith.pretraining.settings import PretrainSettings


def first_weights(
    chosen: PretrainSettings,
    generator: torch.Generator,
    counts: Ints | None = None,
    base: ModelFolder | None = None,
    vectors: Sequence[Callable[[int], NDArray[np.float32]]] = (),
) -> tuple[Encoder, Objective]:
    """Encoder and heads before the first update: a function of the settings, of the generator's seed, and of the
    corpus, where they start from it.

    counts: of each token in it, [V]. base: gives the encoder its weights. vectors: each makes vectors of all
    tokens by their width, [V, width]; tokens begin with them but where they are zeros, and the last one wins.
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
    if not chosen.base and (beside := getattr(chosen.objective, GENERATOR, None)) is not None:
        raise InputError(
            f"objective.{GENERATOR}={beside}: a generator goes on beside the model that it was trained with",
            "leave it out, or take that model further: bertsmith pretrain --model",
        )
    objective = kind.made(encoder, generator, chosen.data, chosen.objective)
    if chosen.objective.reduction == "sum":
        if any(weight != 1 for weight in objective.weights.values()):
            raise InputError(
                f"objective.reduction=sum: the objective '{kind.name}' weighs several losses against each other, "
                "each of them a mean",
                "leave it out",
            )
        objective.summed = kind.perplexities
    table = encoder.embeddings.token.weight
    for of_width in vectors:
        start_from_vectors(table, of_width(table.shape[1]), chosen.model.initializer_range)
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
    if config.embedding_size is not None:
        raise InputError(
            "start.attention=local: a projection stands between this model's positions and its layers "
            f"(model.embedding_size={config.embedding_size})",
            "set start.attention=normal",
        )
    attention: Any = encoder.blocks[0].attention
    start_looking_near(attention.qkv.weight, config.num_attention_heads)
