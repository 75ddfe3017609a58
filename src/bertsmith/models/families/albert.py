"""ALBERT (Lan et al. 2020): small embeddings with a projection, and parameters that all layers share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from bertsmith.models.config import ModelConfig
from bertsmith.models.family import Family, HeadStructure, model_sizes, task_architectures
from bertsmith.models.tensor_names import TASK_MODULES, name_table

_LAYER = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "attention.output": ("attention.dense",),
    "attention_norm": ("attention.LayerNorm",),
    "feed_forward.inner": ("ffn",),
    "feed_forward.output": ("ffn_output",),
    "output_norm": ("full_layer_layer_norm",),
}
_HEADS = {
    "pooler.linear": ("{base}.pooler",),
    "masked.transform": ("predictions.dense",),
    "masked.norm": ("predictions.LayerNorm",),
    "masked": ("predictions",),
    "pair.linear": ("sop_classifier.classifier",),
    **TASK_MODULES,
}


def _groups(config: ModelConfig) -> int:
    """Return transformers' number of groups, which share whole layers; otherwise every layer is saved."""
    return config.share_groups if config.share == "all" else config.num_hidden_layers


def _parse_groups(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the groups of a config.json that shares whole layers."""
    groups = raw.get("num_hidden_groups")
    return {} if "share" in raw or groups is None else {"share_groups": groups}


_SHAPES = {
    "base": model_sizes(12, 768, 12),
    "large": model_sizes(24, 1024, 16),
    "xlarge": model_sizes(24, 2048, 16),
    "xxlarge": model_sizes(12, 4096, 64),
}
_DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}

ALBERT = Family(
    model_type="albert",
    names=partial(
        name_table,
        base="albert",
        heads=_HEADS,
        decoder="predictions.decoder",
        projection="{base}.encoder.embedding_hidden_mapping_in",
        layer=_LAYER,
        layer_name="encoder.albert_layer_groups.{layer}.albert_layers.0",
    ),
    architectures={
        **task_architectures("Albert", pooled=("classifier", "chooser")),
        frozenset({"encoder", "pooler"}): "AlbertModel",
        frozenset({"encoder", "pooler", "masked", "pair"}): "AlbertForPreTraining",
    },
    tokenizer="unigram",
    # Version 2 has the tanh GELU and, like the largest model of version 1, no dropout in the encoder.
    presets={
        f"albert-{size}-v1": {**shape, "hidden_act": "gelu", **({} if size == "xxlarge" else _DROPOUT)}
        for size, shape in _SHAPES.items()
    }
    | {f"albert-{size}-v2": shape for size, shape in _SHAPES.items()}
    | {"albert-mini": model_sizes(4, 256), "albert-small": model_sizes(4, 512)},
    structure={"first_position": "zero", "causal": False},
    required=("embedding_size",),
    defaults={
        "vocab_size": 30_000,
        "embedding_size": 128,
        "share": "all",
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": 0.1,
    },
    keys={"classifier_dropout": "classifier_dropout_prob"},
    parse_extra=_parse_groups,
    fixed={"num_hidden_groups": _groups, "inner_group_num": 1},
    heads=HeadStructure(pair_dropout=True),
    pretraining={
        "sentence_task": "sop",
        "masking": "span",
        "span_length_distribution": "harmonic",
        "max_span_length": 3,
    },
)
