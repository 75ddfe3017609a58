"""BERT (Devlin et al. 2019), the family that the others are described by."""

from __future__ import annotations

from functools import partial

from bertsmith.models.family import Family, model_sizes, task_architectures
from bertsmith.models.tensor_names import TASK_MODULES, name_table

_HEADS = {
    "pooler.linear": ("{base}.pooler.dense",),
    "masked.transform": ("cls.predictions.transform.dense",),
    "masked.norm": ("cls.predictions.transform.LayerNorm",),
    "masked": ("cls.predictions",),
    "pair.linear": ("cls.seq_relationship",),
    **TASK_MODULES,
}


# Base and large: Devlin et al. 2019, section 3. The smaller ones: Turc et al. 2019 (arXiv 1908.08962).
_SHAPES = {
    "tiny": model_sizes(2, 128),
    "mini": model_sizes(4, 256),
    "small": model_sizes(4, 512),
    "medium": model_sizes(8, 512),
    "base": model_sizes(12, 768),
    "large": model_sizes(24, 1024),
}
# Sizes of the released vocabularies; training with another tokenizer overrides them.
_VOCABULARIES = {"uncased": 30_522, "cased": 28_996}
_CHINESE = 21_128
_OTHER_VOCABULARIES = {"chinese": _CHINESE, "multilingual-cased": 119_547, "multilingual-uncased": 105_879}

BERT = Family(
    model_type="bert",
    names=partial(name_table, base="bert", heads=_HEADS, decoder="cls.predictions.decoder"),
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
        for size, shape in _SHAPES.items()
        for case, vocabulary in _VOCABULARIES.items()
    }
    | {
        f"bert-{size}-chinese": {**_SHAPES[size], "vocab_size": _CHINESE}
        for size in ("tiny", "mini", "small")
    }
    | {
        f"bert-base-{name}": {**_SHAPES["base"], "vocab_size": size}
        for name, size in _OTHER_VOCABULARIES.items()
    },
    structure={"embedding_size": None, "share": "none", "first_position": "zero"},
)
