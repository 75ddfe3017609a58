"""DistilBERT (Sanh et al. 2019): BERT with half the layers and without segments.

A classifier with a dense layer on the first token replaces the pooler.
"""

from __future__ import annotations

from functools import partial

from bertsmith.models.family import Family, HeadStructure, model_sizes, task_architectures
from bertsmith.models.tensor_names import TASK_MODULES, name_table

_LAYER = {
    "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attention.output": ("attention.out_lin",),
    "attention_norm": ("sa_layer_norm",),
    "feed_forward.inner": ("ffn.lin1",),
    "feed_forward.output": ("ffn.lin2",),
    "output_norm": ("output_layer_norm",),
}
_HEADS = {
    "masked.transform": ("vocab_transform",),
    "masked.norm": ("vocab_layer_norm",),
    "masked": ("vocab_projector",),
    **TASK_MODULES,
    "classifier.dense": ("pre_classifier",),
    "chooser.dense": ("pre_classifier",),
}


_BASE = model_sizes(6, 768)
_VOCABULARIES = {"uncased": 30_522, "cased": 28_996, "multilingual-cased": 119_547}

DISTILBERT = Family(
    model_type="distilbert",
    names=partial(
        name_table,
        base="distilbert",
        heads=_HEADS,
        decoder="vocab_projector",
        layer=_LAYER,
        layer_name="transformer.layer.{layer}",
    ),
    architectures=task_architectures("DistilBert"),
    tokenizer="wordpiece",
    presets={f"distilbert-base-{name}": {**_BASE, "vocab_size": size} for name, size in _VOCABULARIES.items()}
    | {"distilbert-mini-uncased": model_sizes(2, 256), "distilbert-small-uncased": model_sizes(2, 512)},
    structure={
        "embedding_size": None,
        "share": "none",
        "first_position": "zero",
        "causal": False,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-12,
    },
    defaults={"num_hidden_layers": 6, "classifier_dropout": 0.2},
    keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    },
    derived={"qa_dropout": lambda config: config.hidden_dropout_prob},
    heads=HeadStructure(dense_act="relu", dense_dropout=False, choice_act="relu", token_dropout=True),
    pretraining={"instances": "full_sentences", "sentence_task": "none"},
)
