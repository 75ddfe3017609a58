"""The families of left-to-right Transformers: GPT (Radford et al. 2018) and GPT-2 (Radford et al. 2019).

GPT is BERT's encoder with causal attention, without segments and without a LayerNorm on the embeddings. GPT-2 has
the LayerNorms before the sublayers and one at the end. The language-modeling head is the transposed token
embeddings alone, and task heads are one linear layer on the last token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertsmith.models.config import ModelConfig
from bertsmith.models.family import Family, HeadStructure, model_sizes
from bertsmith.models.tensor_names import TASK_MODULES, ModuleNames, NameTable, name_table

_GPT_EMBEDDINGS: ModuleNames = {
    "encoder.embeddings.token": ("{base}.tokens_embed",),
    "encoder.embeddings.position": ("{base}.positions_embed",),
}
_GPT2_EMBEDDINGS: ModuleNames = {
    "encoder.embeddings.token": ("{base}.wte",),
    "encoder.embeddings.position": ("{base}.wpe",),
}
_LAYER: ModuleNames = {
    "attention.qkv": ("attn.c_attn",),
    "attention.output": ("attn.c_proj",),
    "attention_norm": ("ln_1",),
    "feed_forward.inner": ("mlp.c_fc",),
    "feed_forward.output": ("mlp.c_proj",),
    "output_norm": ("ln_2",),
}
_BASE, _LAYER_NAME = "transformer", "h.{layer}"
_STRUCTURE: Mapping[str, Any] = {
    "embedding_size": None,
    "embedding_norm": False,
    "share": "none",
    "first_position": "zero",
    "position": "learned",
    "causal": True,
    "backwards": False,
    "type_vocab_size": 0,
    "pad_token_id": None,  # transformers' classes have no padding row
}
_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "layer_norm_eps": "layer_norm_epsilon",
}
_HEADS = HeadStructure(pooler=False, lm_transform=False, lm_bias=False)
_PRETRAINING = {"instances": "full_sentences", "sentence_task": "none"}


def _names(config: ModelConfig, embeddings: ModuleNames) -> NameTable:
    """Return the table of a GPT, whose linear layers are `Conv1D` in transformers."""
    table = name_table(
        config,
        base=_BASE,
        heads=TASK_MODULES,
        decoder="lm_head",
        embeddings=embeddings,
        layer=_LAYER,
        layer_name=_LAYER_NAME,
        last_norm="{base}.ln_f",
    )
    layers = [f"{_BASE}.{_LAYER_NAME.format(layer=layer)}" for layer in range(config.num_hidden_layers)]
    linear = tuple(f".{name}.weight" for name in _LAYER if "norm" not in name)
    return replace(
        table,
        transposed=frozenset(name for name in table.tensors if ".blocks." in name and name.endswith(linear)),
        buffers=frozenset(f"{layer}.attn.{name}" for layer in layers for name in ("bias", "masked_bias")),
    )


def _gpt_names(config: ModelConfig) -> NameTable:
    return _names(config, _GPT_EMBEDDINGS)


def _gpt2_names(config: ModelConfig) -> NameTable:
    return _names(config, _GPT2_EMBEDDINGS)


def _parse_intermediate_size(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return F, which is four times H where config.json omits it."""
    hidden_size = raw.get("n_embd")
    is_open = raw.get("n_inner") is None and raw.get("intermediate_size") is None
    return {"intermediate_size": 4 * hidden_size} if is_open and isinstance(hidden_size, int) else {}


def _architectures(prefix: str) -> dict[frozenset[str], str]:
    """Return transformers' classes of the encoder, and of the language model."""
    return {
        frozenset({"encoder"}): f"{prefix}Model",
        frozenset({"encoder", "masked"}): f"{prefix}LMHeadModel",
    }


def _token_architectures(prefix: str) -> dict[frozenset[str], str]:
    """Return the classes of heads that read every token, which transformers has for GPT-2 only."""
    return {
        frozenset({"encoder", "tagger"}): f"{prefix}ForTokenClassification",
        frozenset({"encoder", "tagger", "crf"}): f"{prefix}ForTokenClassification",
        frozenset({"encoder", "span"}): f"{prefix}ForQuestionAnswering",
    }


def _sequence_architectures(prefix: str) -> dict[frozenset[str], str]:
    """Return our classes of heads that read the last token; transformers' classifier has no bias."""
    return {
        frozenset({"encoder", "classifier"}): f"{prefix}ForLastTokenSequenceClassification",
        frozenset({"encoder", "chooser"}): f"{prefix}ForLastTokenMultipleChoice",
    }


# Radford et al. 2018, section 4.1. transformers' "gelu" of this family is the tanh approximation. The 40,478
# pieces of the released vocabulary are not byte-level, so its tokenizer is not read here.
OPENAI_GPT = Family(
    model_type="openai-gpt",
    names=_gpt_names,
    architectures=_architectures("OpenAIGPT"),
    causal={**_token_architectures("OpenAIGPT"), **_sequence_architectures("OpenAIGPT")},
    tokenizer="byte_level_bpe",
    presets={"gpt-mini": model_sizes(4, 256), "openai-gpt": model_sizes(12, 768)},
    structure={**_STRUCTURE, "norm": "post", "hidden_act": "gelu_new"},
    defaults={"vocab_size": 40_478, "layer_norm_eps": 1e-5},
    keys=_KEYS,
    parse_extra=_parse_intermediate_size,
    fixed={"afn": "gelu"},
    derived={"embd_pdrop": lambda config: config.hidden_dropout_prob},
    heads=_HEADS,
    pretraining=_PRETRAINING,
    objective="causal",
    lm_weight=0.5,
)

# Radford et al. 2019, table 2.
GPT2 = Family(
    model_type="gpt2",
    names=_gpt2_names,
    architectures={**_architectures("GPT2"), **_token_architectures("GPT2")},
    causal=_sequence_architectures("GPT2"),
    tokenizer="byte_level_bpe",
    presets={
        "gpt2-mini": model_sizes(4, 256),
        "gpt2": model_sizes(12, 768),
        "gpt2-medium": model_sizes(24, 1024),
        "gpt2-large": model_sizes(36, 1280),
        "gpt2-xl": model_sizes(48, 1600),
    },
    structure={**_STRUCTURE, "norm": "pre"},
    defaults={
        "vocab_size": 50_257,
        "max_position_embeddings": 1024,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
    },
    keys={**_KEYS, "intermediate_size": "n_inner", "hidden_act": "activation_function"},
    parse_extra=_parse_intermediate_size,
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    derived={"embd_pdrop": lambda config: config.hidden_dropout_prob},
    heads=_HEADS,
    pretraining=_PRETRAINING,
    objective="causal",
    lm_weight=0.5,
)
