"""ELECTRA (Clark et al. 2020): BERT without a pooler, with smaller embeddings and a replaced-token head."""

from __future__ import annotations

from functools import partial
from typing import Any

from bertsmith.models.family import Family, HeadStructure, model_sizes, task_architectures
from bertsmith.models.tensor_names import TASK_MODULES, name_table

_HEADS = {
    "masked.transform": ("generator_predictions.dense",),
    "masked.norm": ("generator_predictions.LayerNorm",),
    "masked": ("generator_lm_head",),
    "detector.dense": ("discriminator_predictions.dense",),
    "detector.linear": ("discriminator_predictions.dense_prediction",),
    **TASK_MODULES,
    "classifier.dense": ("classifier.dense",),
    "classifier.linear": ("classifier.out_proj",),
    "chooser.dense": ("sequence_summary.summary",),
}


def _sizes(layers: int, hidden: int, embedding: int | None = None) -> dict[str, Any]:
    return {**model_sizes(layers, hidden), "embedding_size": embedding}


ELECTRA = Family(
    model_type="electra",
    names=partial(
        name_table,
        base="electra",
        heads=_HEADS,
        decoder="generator_lm_head",
        projection="{base}.embeddings_project",
    ),
    architectures={
        **task_architectures("Electra"),
        frozenset({"encoder", "detector"}): "ElectraForPreTraining",
    },
    tokenizer="wordpiece",
    # Released sizes: the small generator is as large as its discriminator, and the others have hidden size 256.
    # Mini is bertsmith's; its generator has a quarter of the hidden size, as in the paper.
    presets={
        "electra-mini-discriminator": _sizes(4, 256, 128),
        "electra-mini-generator": _sizes(4, 64, 128),
        "electra-small-discriminator": _sizes(12, 256, 128),
        "electra-base-discriminator": _sizes(12, 768),
        "electra-large-discriminator": _sizes(24, 1024),
        "electra-small-generator": _sizes(12, 256, 128),
        "electra-base-generator": _sizes(12, 256, 768),
        "electra-large-generator": _sizes(24, 256, 1024),
    },
    structure={"share": "none", "first_position": "zero", "causal": False},
    # transformers' defaults for keys that config.json omits
    defaults={"hidden_size": 256, "embedding_size": 128, "num_attention_heads": 4, "intermediate_size": 1024},
    fixed={"embedding_size": lambda config: config.embedding_dim},
    derived={"summary_last_dropout": lambda config: config.head_dropout},
    none_if_equal={"embedding_size": "hidden_size"},
    heads=HeadStructure(masked_act="gelu", dense_act="gelu", choice_act="gelu"),
    pretraining={
        "instances": "full_sentences",
        "sentence_task": "none",
        "replacement_probabilities": (0.85, 0.0, 0.15),
    },
    objective="replaced",
)
