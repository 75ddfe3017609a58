"""Encoder and heads as a pre-training run begins with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.corpus.tokenized_corpus import IntArray
from bertsmith.errors import InputError, command, option
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder
from bertsmith.models.weight_init import (
    init_local_attention,
    init_sinusoidal_positions,
    init_token_embeddings,
)
from bertsmith.objectives.objective import GENERATOR, Objective, objective_type
from bertsmith.pretraining.settings import PretrainSettings


def first_weights(
    chosen: PretrainSettings,
    generator: torch.Generator,
    counts: IntArray | None = None,
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
    for name, value in kind.required_model_settings.items():
        if (given := getattr(encoder.config, name)) != value:
            raise InputError(
                "objective_not_applicable",
                f"the setting is {given}, and the objective '{kind.name}' needs {value}",
                argument=f"model.{name}",
                hint=f"remove it, or choose another {option('objective.name')}",
            )
    if not chosen.base and (beside := getattr(chosen.objective, GENERATOR, None)) is not None:
        raise InputError(
            "generator_without_model",
            f"the generator '{beside}' can only be used with the model that it was trained with",
            argument=f"objective.{GENERATOR}",
            hint=f"remove it, or continue from that model with {command('pretrain', model='MODEL')}",
        )
    objective = kind.from_settings(encoder, generator, chosen.data, chosen.objective)
    if chosen.objective.reduction == "sum":
        if any(weight != 1 for weight in objective.loss_weights.values()):
            raise InputError(
                "reduction_not_applicable",
                f"the objective '{kind.name}' weighs several losses, and each of them is a mean",
                argument="objective.reduction",
                hint=f"remove {option('objective.reduction', 'sum')}",
            )
        objective.summed_parts = kind.perplexity_parts
    table = encoder.embeddings.token.weight
    for of_width in vectors:
        init_token_embeddings(table, of_width(table.shape[1]), chosen.model.initializer_range)
    if chosen.start.positions == "sinusoidal":
        init_sinusoidal_positions(
            encoder.embeddings.position.weight, chosen.model.initializer_range, chosen.model.position_offset
        )
    if chosen.start.attention == "local":
        _look_near(encoder)
    if chosen.start.output_bias == "unigram" and counts is not None:
        objective.init_output_bias(counts)
    return encoder, objective


def _look_near(encoder: Encoder) -> None:
    """Let heads of the first layer look at what is near; InputError where positions reach it changed."""
    config = encoder.config
    if config.embedding_size is not None:
        raise InputError(
            "local_attention_not_applicable",
            "the value 'local' is for models without a projection between positions and layers, and this model "
            f"has model.embedding_size={config.embedding_size}",
            argument="start.attention",
            hint=f"set {option('start.attention', 'normal')}",
        )
    attention: Any = encoder.blocks[0].attention
    init_local_attention(attention.qkv.weight, config.num_attention_heads)
