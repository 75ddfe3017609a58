"""The family of the original Transformer's encoder (Vaswani et al. 2017), which has a decoder in `translate`.

Embeddings are scaled, positions are sinusoids, there is no LayerNorm on their sum, and the activation is ReLU.
Hugging Face has no class for it: the names of classes and tensors are bertsmith's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bertsmith.models.config import ModelConfig, ParameterTerm, transformer_parameter_terms
from bertsmith.models.family import Family, model_sizes, task_architectures
from bertsmith.models.tensor_names import TASK_MODULES, NameTable, name_table

if TYPE_CHECKING:
    import torch

    from bertsmith.models.encoder import Encoder

_HEADS = {
    "pooler.linear": ("{base}.pooler",),
    "masked.transform": ("lm_head.dense",),
    "masked.norm": ("lm_head.layer_norm",),
    "masked": ("lm_head",),
    **TASK_MODULES,
}


def _names(config: ModelConfig) -> NameTable:
    table = name_table(config, "model", heads=_HEADS, decoder="lm_head.decoder")
    return table.without_part("encoder.embeddings.position").without_part("encoder.embeddings.norm")


def _encoder(config: ModelConfig, generator: torch.Generator) -> Encoder:
    from bertsmith.models.transformer_encoder import TransformerEncoder  # presets need no PyTorch

    return TransformerEncoder(config, generator)


def _terms(config: ModelConfig, *, biases: bool = True) -> list[ParameterTerm]:
    terms = transformer_parameter_terms(config, biases=biases)
    return [term for term in terms if term.name not in ("position embeddings", "embedding LayerNorm")]


def _sizes(layers: int, hidden: int, dropout: float = 0.1) -> dict[str, Any]:
    # Weights of deviation 1 / sqrt(H), so that scaled embeddings have deviation 1.
    return {
        **model_sizes(layers, hidden),
        "initializer_range": round(hidden**-0.5, 4),
        "hidden_dropout_prob": dropout,
    }


TRANSFORMER = Family(
    model_type="transformer",
    names=_names,
    architectures={
        **task_architectures("Transformer", pooled=("classifier", "chooser")),
        frozenset({"encoder", "pooler"}): "TransformerModel",
    },
    tokenizer="wordpiece",
    # With a decoder of as many layers: 63,082,496 (base) and 214,245,376 parameters (big). Mini is bertsmith's.
    presets={
        "transformer-mini": _sizes(3, 256),
        "transformer-base": _sizes(6, 512),
        "transformer-big": _sizes(6, 1024, 0.3),
    },
    structure={
        "embedding_size": None,
        "share": "none",
        "first_position": "zero",
        "position": "sinusoidal",
        "causal": False,
        "type_vocab_size": 0,
    },
    defaults={
        "vocab_size": 37_000,
        "hidden_act": "relu",
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-6,
    },
    pretraining={"instances": "full_sentences", "sentence_task": "none"},
    training={"adam_beta2": 0.98},
    encoder=_encoder,
    parameter_terms=_terms,
)
