"""Sizes and switches of a model, the published presets, and where its parameters sit.

The names are those of the field's config.json. Bounds are there so that an absurd size is refused with a
sentence before anything is allocated for it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from bertsmith.errors import InputError
from bertsmith.settings import Settings

# More than four times the largest published encoder: what lies above is a mistake or an attack.
_MOST_PARAMETERS = 4_000_000_000


class ModelConfig(Settings):
    """What a BERT is made of (Devlin et al. 2018, section 3); the defaults are bert-base-uncased."""

    vocab_size: int = Field(30_522, ge=1, le=4_000_000, description="word pieces in the vocabulary")
    hidden_size: int = Field(768, ge=1, le=16_384, description="width of the hidden states, H")
    num_hidden_layers: int = Field(12, ge=1, le=256, description="layers, L")
    num_attention_heads: int = Field(12, ge=1, le=1_024, description="attention heads a layer; divides H")
    intermediate_size: int = Field(
        3_072, ge=1, le=65_536, description="width inside the feed-forward part, F"
    )
    hidden_act: Literal["gelu", "gelu_new", "relu"] = Field(
        "gelu", description="activation of the feed-forward part: exact GELU, its tanh form, or ReLU"
    )
    hidden_dropout_prob: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings and sub-layers")
    attention_probs_dropout_prob: float = Field(0.1, ge=0, lt=1, description="dropout on attention weights")
    max_position_embeddings: int = Field(
        512, ge=1, le=1_048_576, description="the longest sequence, in tokens"
    )
    type_vocab_size: int = Field(2, ge=1, le=1_024, description="segment ids")
    initializer_range: float = Field(
        0.02, gt=0, le=10, description="sigma of the initial weights, a normal cut at two sigma"
    )
    layer_norm_eps: float = Field(1e-12, gt=0, le=1, description="added to the variance in LayerNorm")
    pad_token_id: int = Field(0, ge=0, description="id of the padding token, whose vector starts as zero")

    @model_validator(mode="after")
    def _sizes_fit(self) -> ModelConfig:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} cannot be shared out evenly over "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.pad_token_id >= self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} is outside vocab_size {self.vocab_size}")
        if (total := sum(term.size for term in count_parameters(self))) > _MOST_PARAMETERS:
            raise ValueError(f"these sizes make {total:,} parameters; the limit is {_MOST_PARAMETERS:,}")
        return self

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that the model can take."""
        return self.max_position_embeddings

    @property
    def head_size(self) -> int:
        """Width of one attention head, H / heads."""
        return self.hidden_size // self.num_attention_heads


def _shape(layers: int, hidden: int) -> dict[str, int]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
    }


# Base and large: Devlin et al. 2018, section 3. The smaller ones: Turc et al. 2019 (arXiv 1908.08962).
_SHAPES = {
    "tiny": _shape(2, 128),
    "mini": _shape(4, 256),
    "small": _shape(4, 512),
    "medium": _shape(8, 512),
    "base": _shape(12, 768),
    "large": _shape(24, 1024),
}
# Sizes of the released vocabularies; a vocabulary of one's own overrides them.
_VOCABULARIES = {"uncased": 30_522, "cased": 28_996}

PRESETS: dict[str, dict[str, Any]] = {
    f"bert-{size}-{case}": {**shape, "vocab_size": vocabulary}
    for size, shape in _SHAPES.items()
    for case, vocabulary in _VOCABULARIES.items()
} | {"bert-base-chinese": {**_SHAPES["base"], "vocab_size": 21_128}}


def preset(name: str, **changes: Any) -> ModelConfig:
    """The configuration of a published model by its name, with changes.

    An unknown name or setting is an `InputError` that names the nearest known ones.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "known presets: " + ", ".join(PRESETS)
        raise InputError(f"{name}: there is no preset of this name", hint)
    return ModelConfig.of({**PRESETS[name], **changes}, f"preset {name}")


class Term(NamedTuple):
    """One term of the parameter sum: what it is, how it is computed, how many numbers it holds."""

    term: str
    formula: str
    size: int


def count_parameters(config: ModelConfig, heads: Sequence[str] = ("pooler",), labels: int = 2) -> list[Term]:
    """The parameter sum term by term, in the order data passes.

    `heads` names what stands on the encoder: "pooler", "masked" (MLM; its decoder is the token table and is
    not counted twice), "pair" (NSP), "classifier" (with `labels` classes). Checked against the modules'
    own sizes in the tests.
    """
    c = config
    v, h, f = c.vocab_size, c.hidden_size, c.intermediate_size
    tops = {
        "pooler": [Term("pooler", "H² + H", h * h + h)],
        "masked": [
            Term("masked LM transform", "H² + H", h * h + h),
            Term("masked LM LayerNorm", "2H", 2 * h),
            Term("masked LM bias (decoder tied)", "V", v),
        ],
        "pair": [Term("next sentence", "2H + 2", 2 * h + 2)],
        "classifier": [Term("classifier", "KH + K", labels * h + labels)],
    }
    terms = [
        Term("token embeddings", "V·H", v * h),
        Term("position embeddings", "P·H", c.max_position_embeddings * h),
        Term("segment embeddings", "S·H", c.type_vocab_size * h),
        Term("embedding LayerNorm", "2H", 2 * h),
    ]
    for layer in range(c.num_hidden_layers):
        terms += [
            Term(f"layer {layer} attention", "4(H² + H)", 4 * (h * h + h)),
            Term(f"layer {layer} feed-forward", "2HF + F + H", 2 * h * f + f + h),
            Term(f"layer {layer} LayerNorms", "4H", 4 * h),
        ]
    for head in heads:
        if head not in tops:
            raise ValueError(f"unknown head '{head}'; known are {', '.join(tops)}")
        terms += tops[head]
    return terms
