"""Sizes and switches of a model, and where the encoder's parameters sit.

The names are those of the field's config.json, apart from the switches by which families differ (share,
first_position). Bounds are there so that an absurd size is refused with a sentence before anything is allocated
for it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from bertsmith.settings import ADDED_LATER, Settings

# More than four times the largest published encoder: what lies above is a mistake or an attack.
_MOST_PARAMETERS = 4_000_000_000
Sees = Literal["all", "before", "behind"]
"""Which tokens of its sequence a token sees besides itself."""
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
"""The settings of a model that no weight depends on."""


class ModelConfig(Settings):
    """What a model is made of (Devlin et al. 2018, section 3); the defaults are bert-base-uncased."""

    model_type: str = Field(
        "bert", description="the family: bert, roberta, albert, distilbert, electra; a preset sets it"
    )
    vocab_size: int = Field(30_522, ge=1, le=4_000_000, description="word pieces in the vocabulary")
    hidden_size: int = Field(768, ge=1, le=16_384, description="width of the hidden states, H")
    embedding_size: int | None = Field(
        None, ge=1, le=16_384, description="width of the embedding tables, E, projected to H; none: H itself"
    )
    num_hidden_layers: int = Field(12, ge=1, le=256, description="layers, L")
    num_attention_heads: int = Field(12, ge=1, le=1_024, description="attention heads per layer; divides H")
    intermediate_size: int = Field(
        3_072, ge=1, le=65_536, description="width inside the feed-forward part, F"
    )
    share: Literal["none", "all", "attention", "feed_forward"] = Field(
        "none", description="what all layers share: nothing, the whole block, or a part of it"
    )
    share_groups: int = Field(
        1,
        ge=1,
        description="groups of layers that follow each other, each of which shares within itself alone",
        json_schema_extra=ADDED_LATER,
    )
    hidden_act: Literal["gelu", "gelu_new", "relu"] = Field(
        "gelu", description="activation of the feed-forward part: exact GELU, its tanh form, or ReLU"
    )
    hidden_dropout_prob: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings and sub-layers")
    attention_probs_dropout_prob: float = Field(0.1, ge=0, lt=1, description="dropout on attention weights")
    classifier_dropout: float | None = Field(
        None, ge=0, lt=1, description="dropout in the heads of tasks; none: as hidden_dropout_prob"
    )
    max_position_embeddings: int = Field(
        512, ge=1, le=1_048_576, description="rows of the position table: the longest sequence, in tokens"
    )
    first_position: Literal["zero", "after_padding"] = Field(
        "zero", description="row of the first token's position: 0, or pad_token_id + 1 (RoBERTa)"
    )
    position: Literal["learned", "sinusoidal", "none"] = Field(
        "learned",
        description="what tells positions apart: a table that is trained, sinusoids that stay as they are, or "
        "nothing (a table of zeros)",
        json_schema_extra=ADDED_LATER,
    )
    norm: Literal["post", "pre"] = Field(
        "post",
        description="where LayerNorm stands in a layer: after the residual sum, as in BERT, or before each "
        "sub-layer, with one more after the last layer",
        json_schema_extra=ADDED_LATER,
    )
    causal: bool = Field(
        False,
        description="whether a token sees only those before it and itself: left to right, as GPT reads",
        json_schema_extra=ADDED_LATER,
    )
    tie_word_embeddings: bool = Field(
        True,
        description="whether the masked head compares with the token table itself, as in BERT, or with a table of "
        "its own",
        json_schema_extra=ADDED_LATER,
    )
    backwards: bool = Field(
        False,
        description="whether a causal model reads from right to left: a token sees those behind it and itself",
        json_schema_extra=ADDED_LATER,
    )
    type_vocab_size: int = Field(
        2, ge=0, le=1_024, description="segment ids; 1: the same vector for all, 0: none"
    )
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
                f"num_attention_heads {self.num_attention_heads}: make it a multiple of that"
            )
        if self.backwards and not self.causal:
            raise ValueError(
                "backwards turns the direction of a causal model, and this one sees both sides: set causal=true"
            )
        if self.share_groups > (1 if self.share == "none" else self.num_hidden_layers):
            raise ValueError(
                f"share_groups {self.share_groups}: "
                + (
                    "layers that share nothing have no groups: leave it at 1"
                    if self.share == "none"
                    else f"there are {self.num_hidden_layers} layers: give no more groups than that"
                )
            )
        if self.pad_token_id >= self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} is outside vocab_size {self.vocab_size}")
        if self.longest < 1:
            raise ValueError(
                f"max_position_embeddings {self.max_position_embeddings} leave no row for a token: positions "
                f"start at {self.position_offset}"
            )
        if (total := sum(term.size for term in encoder_terms(self))) > _MOST_PARAMETERS:
            raise ValueError(f"these sizes make {total:,} parameters; the limit is {_MOST_PARAMETERS:,}")
        return self

    @property
    def sees(self) -> Sees:
        """Which tokens of its sequence a token sees besides itself."""
        return ("behind" if self.backwards else "before") if self.causal else "all"

    @property
    def head_size(self) -> int:
        """Width of one attention head, H / heads."""
        return self.hidden_size // self.num_attention_heads

    def group_of(self, layer: int) -> int:
        """The group of layers, from 0, that a layer shares with."""
        return int(layer / (self.num_hidden_layers / self.share_groups))  # rounded as the reference rounds it

    def first_of_group(self, layer: int) -> int:
        """The first layer of its group, which owns what the group shares."""
        return next(i for i in range(layer + 1) if self.group_of(i) == self.group_of(layer))

    @property
    def embedding_width(self) -> int:
        """Width of the embedding tables, E."""
        return self.embedding_size or self.hidden_size

    @property
    def position_offset(self) -> int:
        """The row of the position table that the first token of a sequence gets."""
        return self.pad_token_id + 1 if self.first_position == "after_padding" else 0

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, special ones included."""
        return self.max_position_embeddings - self.position_offset

    @property
    def head_dropout(self) -> float:
        """Dropout in the heads of tasks."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout


class Term(NamedTuple):
    """One term of the parameter sum: what it is, how it is computed, how many numbers it holds."""

    term: str
    formula: str
    size: int


def encoder_terms(config: ModelConfig) -> list[Term]:
    """The encoder's parameter sum term by term, in the order data passes; what layers share counts once."""
    c = config
    e, h, f = c.embedding_width, c.hidden_size, c.intermediate_size
    width = "H" if c.embedding_size is None else "E"
    terms = [
        Term("token embeddings", f"V·{width}", c.vocab_size * e),
        Term("position embeddings", f"P·{width}", c.max_position_embeddings * e),
        Term("segment embeddings", f"S·{width}", c.type_vocab_size * e),
        Term("embedding LayerNorm", f"2{width}", 2 * e),
    ]
    if c.embedding_size is not None:
        terms.append(Term("projection", "E·H + H", e * h + h))
    shared = {"all": ("attention", "feed-forward"), "attention": ("attention",), "none": ()}.get(
        c.share, ("feed-forward",)
    )
    for layer in range(c.num_hidden_layers):
        own = ["attention", "feed-forward"]
        if layer != c.first_of_group(layer):
            own = [part for part in own if part not in shared]
        if "attention" in own:
            terms.append(Term(f"layer {layer} attention", "4(H² + H)", 4 * (h * h + h)))
        if "feed-forward" in own:
            terms.append(Term(f"layer {layer} feed-forward", "2HF + F + H", 2 * h * f + f + h))
        if own:
            terms.append(Term(f"layer {layer} LayerNorms", f"{2 * len(own)}H", 2 * len(own) * h))
    if c.norm == "pre":
        terms.append(Term("last LayerNorm", "2H", 2 * h))
    return terms
