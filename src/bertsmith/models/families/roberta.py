"""RoBERTa (Liu et al. 2019): BERT with positions that start after the padding id and one segment embedding.

It has no sentence-pair head, and its classifier has a dense layer on the first token.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from bertsmith.models.family import Family, HeadStructure, model_sizes, task_architectures
from bertsmith.models.tensor_names import TASK_MODULES, name_table

_HEADS = {
    "pooler.linear": ("{base}.pooler.dense",),
    "masked.transform": ("lm_head.dense",),
    "masked.norm": ("lm_head.layer_norm",),
    "masked": ("lm_head",),
    **TASK_MODULES,
    "classifier.dense": ("classifier.dense",),
    "classifier.linear": ("classifier.out_proj",),
}


def _sizes(layers: int, hidden: int) -> dict[str, Any]:
    return {
        **model_sizes(layers, hidden),
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }


ROBERTA = Family(
    model_type="roberta",
    names=partial(name_table, base="roberta", heads=_HEADS, decoder="lm_head.decoder"),
    architectures={
        **task_architectures("Roberta", pooled=("chooser",)),
        frozenset({"encoder", "pooler"}): "RobertaModel",
    },
    tokenizer="byte_level_bpe",
    presets={
        "roberta-mini": _sizes(4, 256),
        "roberta-small": _sizes(4, 512),
        "roberta-base": _sizes(12, 768),
        "roberta-large": _sizes(24, 1024),
        "distilroberta-base": _sizes(6, 768),
    },
    structure={"embedding_size": None, "share": "none", "first_position": "after_padding", "causal": False},
    defaults={"vocab_size": 50_265, "pad_token_id": 1},
    # Transformers' RobertaLMHead has GELU for any hidden_act.
    heads=HeadStructure(masked_act="gelu", dense_act="tanh"),
    pretraining={"instances": "full_sentences", "sentence_task": "none"},
    training={"adam_beta2": 0.98},
)
