"""The model families: for each one its differences from BERT. `family.FAMILIES` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from bertsmith.models.config import ModelConfig
from bertsmith.models.family import Family, HeadStructure, model_sizes, task_architectures
from bertsmith.models.tensor_names import TASK_MODULES, name_table

# BERT (Devlin et al. 2019), the family that the others are described by.

_BERT_HEADS = {
    "pooler.linear": ("{base}.pooler.dense",),
    "masked.transform": ("cls.predictions.transform.dense",),
    "masked.norm": ("cls.predictions.transform.LayerNorm",),
    "masked": ("cls.predictions",),
    "pair.linear": ("cls.seq_relationship",),
    **TASK_MODULES,
}


# Base and large: Devlin et al. 2019, section 3. The smaller ones: Turc et al. 2019 (arXiv 1908.08962).
_BERT_SHAPES = {
    "tiny": model_sizes(2, 128),
    "mini": model_sizes(4, 256),
    "small": model_sizes(4, 512),
    "medium": model_sizes(8, 512),
    "base": model_sizes(12, 768),
    "large": model_sizes(24, 1024),
}
# Sizes of the released vocabularies; training with another tokenizer overrides them.
_BERT_VOCABULARIES = {"uncased": 30_522, "cased": 28_996}
_BERT_OTHER_VOCABULARIES = {"chinese": 21_128, "multilingual-cased": 119_547, "multilingual-uncased": 105_879}

BERT = Family(
    model_type="bert",
    names=partial(name_table, base="bert", heads=_BERT_HEADS, decoder="cls.predictions.decoder"),
    architectures={
        **task_architectures("Bert", pooled=("classifier", "chooser")),
        frozenset({"encoder", "pooler"}): "BertModel",
        frozenset({"encoder", "pooler", "pair"}): "BertForNextSentencePrediction",
        frozenset({"encoder", "pooler", "masked", "pair"}): "BertForPreTraining",
    },
    # Transformers' sequence heads read the first token, which attends to no other in a causal model; ours read the
    # last one.
    causal={
        frozenset({"encoder", "masked"}): "BertLMHeadModel",
        frozenset({"encoder", "pooler", "classifier"}): "BertForLastTokenSequenceClassification",
        frozenset({"encoder", "classifier"}): "BertForUnpooledLastTokenSequenceClassification",
        frozenset({"encoder", "pooler", "chooser"}): "BertForLastTokenMultipleChoice",
    },
    tokenizer="wordpiece",
    presets={
        f"bert-{size}-{case}": {**shape, "vocab_size": vocabulary}
        for size, shape in _BERT_SHAPES.items()
        for case, vocabulary in _BERT_VOCABULARIES.items()
    }
    | {
        f"bert-{size}-chinese": {**_BERT_SHAPES[size], "vocab_size": _BERT_OTHER_VOCABULARIES["chinese"]}
        for size in ("tiny", "mini", "small")
    }
    | {
        f"bert-base-{name}": {**_BERT_SHAPES["base"], "vocab_size": size}
        for name, size in _BERT_OTHER_VOCABULARIES.items()
    },
    structure={"embedding_size": None, "share": "none", "first_position": "zero"},
)


# RoBERTa (Liu et al. 2019): BERT with positions that start after the padding id and one segment embedding.
# It has no sentence-pair head, and its classifier has a dense layer on the first token.

_ROBERTA_HEADS = {
    "pooler.linear": ("{base}.pooler.dense",),
    "masked.transform": ("lm_head.dense",),
    "masked.norm": ("lm_head.layer_norm",),
    "masked": ("lm_head",),
    **TASK_MODULES,
    "classifier.dense": ("classifier.dense",),
    "classifier.linear": ("classifier.out_proj",),
}


def _roberta_sizes(layers: int, hidden: int) -> dict[str, Any]:
    others: dict[str, Any] = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    return model_sizes(layers, hidden) | others


ROBERTA = Family(
    model_type="roberta",
    names=partial(name_table, base="roberta", heads=_ROBERTA_HEADS, decoder="lm_head.decoder"),
    architectures={
        **task_architectures("Roberta", pooled=("chooser",)),
        frozenset({"encoder", "pooler"}): "RobertaModel",
    },
    tokenizer="byte_level_bpe",
    presets={
        "roberta-mini": _roberta_sizes(4, 256),
        "roberta-small": _roberta_sizes(4, 512),
        "roberta-base": _roberta_sizes(12, 768),
        "roberta-large": _roberta_sizes(24, 1024),
        "distilroberta-base": _roberta_sizes(6, 768),
    },
    structure={"embedding_size": None, "share": "none", "first_position": "after_padding", "causal": False},
    defaults={"vocab_size": 50_265, "pad_token_id": 1},
    # Transformers' RobertaLMHead has GELU for any hidden_act.
    heads=HeadStructure(masked_act="gelu", dense_act="tanh"),
    pretraining={"instances": "full_sentences", "sentence_task": "none"},
    training={"adam_beta2": 0.98},
)


# ALBERT (Lan et al. 2020): small embeddings with a projection, and parameters that all layers share.

_ALBERT_LAYER = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "attention.output": ("attention.dense",),
    "attention_norm": ("attention.LayerNorm",),
    "feed_forward.inner": ("ffn",),
    "feed_forward.output": ("ffn_output",),
    "output_norm": ("full_layer_layer_norm",),
}
_ALBERT_HEADS = {
    "pooler.linear": ("{base}.pooler",),
    "masked.transform": ("predictions.dense",),
    "masked.norm": ("predictions.LayerNorm",),
    "masked": ("predictions",),
    "pair.linear": ("sop_classifier.classifier",),
    **TASK_MODULES,
}


def _albert_groups(config: ModelConfig) -> int:
    """Return transformers' number of groups, which share whole layers; otherwise every layer is saved."""
    return config.share_groups if config.share == "all" else config.num_hidden_layers


def _parse_albert_groups(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the groups of a config.json that shares whole layers."""
    groups = raw.get("num_hidden_groups")
    return {} if "share" in raw or groups is None else {"share_groups": groups}


_ALBERT_SHAPES = {
    "base": model_sizes(12, 768, 12),
    "large": model_sizes(24, 1024, 16),
    "xlarge": model_sizes(24, 2048, 16),
    "xxlarge": model_sizes(12, 4096, 64),
}
_ALBERT_DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}

ALBERT = Family(
    model_type="albert",
    names=partial(
        name_table,
        base="albert",
        heads=_ALBERT_HEADS,
        decoder="predictions.decoder",
        projection="{base}.encoder.embedding_hidden_mapping_in",
        layer=_ALBERT_LAYER,
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
        f"albert-{size}-v1": {**shape, "hidden_act": "gelu", **({} if size == "xxlarge" else _ALBERT_DROPOUT)}
        for size, shape in _ALBERT_SHAPES.items()
    }
    | {f"albert-{size}-v2": shape for size, shape in _ALBERT_SHAPES.items()}
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
    parse_extra=_parse_albert_groups,
    fixed={"num_hidden_groups": _albert_groups, "inner_group_num": 1},
    heads=HeadStructure(pair_dropout=True),
    pretraining={
        "sentence_task": "sop",
        "masking": "span",
        "span_length_distribution": "harmonic",
        "max_span_length": 3,
    },
)


# DistilBERT (Sanh et al. 2019): BERT with half the layers and without segments.
# A classifier with a dense layer on the first token replaces the pooler.

_DISTILBERT_LAYER = {
    "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attention.output": ("attention.out_lin",),
    "attention_norm": ("sa_layer_norm",),
    "feed_forward.inner": ("ffn.lin1",),
    "feed_forward.output": ("ffn.lin2",),
    "output_norm": ("output_layer_norm",),
}
_DISTILBERT_HEADS = {
    "masked.transform": ("vocab_transform",),
    "masked.norm": ("vocab_layer_norm",),
    "masked": ("vocab_projector",),
    **TASK_MODULES,
    "classifier.dense": ("pre_classifier",),
    "chooser.dense": ("pre_classifier",),
}


_DISTILBERT_VOCABULARIES = {"uncased": 30_522, "cased": 28_996, "multilingual-cased": 119_547}

DISTILBERT = Family(
    model_type="distilbert",
    names=partial(
        name_table,
        base="distilbert",
        heads=_DISTILBERT_HEADS,
        decoder="vocab_projector",
        layer=_DISTILBERT_LAYER,
        layer_name="transformer.layer.{layer}",
    ),
    architectures=task_architectures("DistilBert"),
    tokenizer="wordpiece",
    presets={
        f"distilbert-base-{name}": {**model_sizes(6, 768), "vocab_size": size}
        for name, size in _DISTILBERT_VOCABULARIES.items()
    }
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


# ELECTRA (Clark et al. 2020): BERT without a pooler, with smaller embeddings and a replaced-token head.

_ELECTRA_HEADS = {
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


def _electra_sizes(layers: int, hidden: int, embedding: int | None = None) -> dict[str, Any]:
    return {**model_sizes(layers, hidden), "embedding_size": embedding}


ELECTRA = Family(
    model_type="electra",
    names=partial(
        name_table,
        base="electra",
        heads=_ELECTRA_HEADS,
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
        "electra-mini-discriminator": _electra_sizes(4, 256, 128),
        "electra-mini-generator": _electra_sizes(4, 64, 128),
        "electra-small-discriminator": _electra_sizes(12, 256, 128),
        "electra-base-discriminator": _electra_sizes(12, 768),
        "electra-large-discriminator": _electra_sizes(24, 1024),
        "electra-small-generator": _electra_sizes(12, 256, 128),
        "electra-base-generator": _electra_sizes(12, 256, 768),
        "electra-large-generator": _electra_sizes(24, 256, 1024),
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
