"""Sizes and switches of a model, and the parameter counts of its encoder.

Settings have the names of Hugging Face's config.json, except for the switches by which families differ (share,
first_position). Sizes are bounded, so that an absurd one is an error before memory is allocated for it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from bertsmith.settings import Settings

# More than four times the largest published encoder: a larger one is a mistake or an attack.
_MAX_PARAMETERS = 4_000_000_000
AttentionDirection = Literal["all", "before", "behind"]
"""The tokens of its sequence that a token attends to besides itself."""
FAMILY_SETTINGS = ("context_size", "direct_connections", "embedding_type", "tie_directions")
"""Settings that only some families have (`Family.own_settings`); in the others they have their defaults."""
DROPOUT_SETTINGS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
"""The settings that may change after training, since no weight depends on them."""

Layers = Literal[
    "last",
    "second_to_last",
    "embeddings",
    "sum_last_four",
    "sum_all",
    "concat_last_four",
    "sum_with_embeddings",
]
"""The layers whose states are a head's input: the rows of table 7 of Devlin et al. 2019, the last layer first;
then all layers and the embeddings, which Peters et al. 2018 mix in an ELMo."""

Pooling = Literal["mean", "cls", "max"]
"""The mean or maximum of all tokens' states, special tokens included, or the first token's state."""

ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]
"""The problem types of sequence classification in Hugging Face's config.json."""


class ModelConfig(Settings):
    """The sizes and switches of a model (Devlin et al. 2019, section 3); the defaults are bert-base-uncased."""

    model_type: str = Field("bert", description="family of the model; a preset sets it")
    vocab_size: int = Field(30_522, ge=1, le=4_000_000, description="word pieces in the vocabulary")
    hidden_size: int = Field(768, ge=1, le=16_384, description="size of the hidden states, H")
    embedding_size: int | None = Field(
        None, ge=1, le=16_384, description="size of the embeddings, E, projected to H; none: H, not projected"
    )
    num_hidden_layers: int = Field(12, ge=1, le=256, description="layers, L")
    num_attention_heads: int = Field(12, ge=1, le=1_024, description="attention heads per layer; divides H")
    intermediate_size: int = Field(
        3_072, ge=1, le=65_536, description="inner size of feed-forward layers, F; units of recurrent layers"
    )
    share: Literal["none", "all", "attention", "feed_forward"] = Field(
        "none", description="parameters that all layers share: none, the whole layer, or a part of it"
    )
    share_groups: int = Field(
        1, ge=1, description="groups of consecutive layers; layers share parameters inside their group only"
    )
    hidden_act: Literal["gelu", "gelu_new", "relu"] = Field(
        "gelu",
        description="activation of the feed-forward layers: exact GELU, its tanh approximation, or ReLU",
    )
    hidden_dropout_prob: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings and sublayers")
    attention_probs_dropout_prob: float = Field(0.1, ge=0, lt=1, description="dropout on attention weights")
    classifier_dropout: float | None = Field(
        None, ge=0, lt=1, description="dropout in task heads; none: hidden_dropout_prob"
    )
    max_position_embeddings: int = Field(
        512,
        ge=1,
        le=1_048_576,
        description="rows of position embeddings; they, or this number alone, bound the sequence length",
    )
    first_position: Literal["zero", "after_padding"] = Field(
        "zero", description="position of the first token: 0, or pad_token_id + 1 (RoBERTa)"
    )
    position: Literal["learned", "sinusoidal", "none"] = Field(
        "learned", description="position embeddings: learned, fixed sinusoids, or none (zeros)"
    )
    embedding_norm: bool = Field(True, description="LayerNorm on the sum of the embeddings; GPT has none")
    norm: Literal["post", "pre"] = Field(
        "post",
        description="LayerNorm after each residual sum, as in BERT, or before each sublayer and at the end",
    )
    causal: bool = Field(
        False, description="causal attention: tokens attend only to themselves and earlier tokens, as in GPT"
    )
    tie_word_embeddings: bool = Field(
        True, description="use the token embeddings as the weights of the masked LM decoder, as in BERT"
    )
    backwards: bool = Field(
        False, description="causal attention from right to left: tokens attend to themselves and later tokens"
    )
    type_vocab_size: int = Field(
        2, ge=0, le=1_024, description="number of segment embeddings; 1: the same for all tokens, 0: none"
    )
    context_size: int = Field(
        4, ge=1, le=512, description="tokens of which an NNLM joins the vectors, n - 1 of an n-gram"
    )
    direct_connections: bool = Field(
        True, description="connect the joined vectors of an NNLM to its output without the hidden layer"
    )
    embedding_type: Literal["token", "char_cnn"] = Field(
        "token", description="vectors of an ELMo: one per token, or computed from its characters"
    )
    tie_directions: bool = Field(
        True, description="share the embeddings and the output of both directions of an ELMo"
    )
    initializer_range: float = Field(
        0.02, gt=0, le=10, description="standard deviation of initial weights, truncated at two deviations"
    )
    layer_norm_eps: float = Field(1e-12, gt=0, le=1, description="epsilon added to the variance in LayerNorm")
    pad_token_id: int | None = Field(
        0, ge=0, description="id of the padding token, whose embedding starts at zero; none: there is none"
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> ModelConfig:
        heads = self.num_attention_heads
        if self.hidden_size % heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {heads}"
            )
        if self.backwards and not self.causal:
            raise ValueError("backwards needs a causal model: set causal=true")
        if self.share_groups > (1 if self.share == "none" else self.num_hidden_layers):
            reason = f"the model has only {self.num_hidden_layers} layers"
            if self.share == "none":
                reason = "layers that share no parameters have no groups: set it to 1"
            raise ValueError(f"share_groups {self.share_groups}: {reason}")
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} is outside vocab_size {self.vocab_size}")
        if self.pad_token_id is None and self.first_position == "after_padding":
            raise ValueError("first_position after_padding needs a padding token: set pad_token_id")
        if self.max_length < 1:
            raise ValueError(
                f"max_position_embeddings {self.max_position_embeddings} is too small: positions start at "
                f"{self.position_offset}"
            )
        if (total := sum(term.size for term in transformer_parameter_terms(self))) > _MAX_PARAMETERS:
            raise ValueError(f"the model has {total:,} parameters; the limit is {_MAX_PARAMETERS:,}")
        return self

    @property
    def attention_direction(self) -> AttentionDirection:
        """Return the tokens that a token attends to besides itself."""
        return ("behind" if self.backwards else "before") if self.causal else "all"

    @property
    def head_dim(self) -> int:
        """Return the size of an attention head, H / heads."""
        return self.hidden_size // self.num_attention_heads

    def group_index(self, layer: int) -> int:
        """Return the index of a layer's group of shared parameters."""
        return int(layer / (self.num_hidden_layers / self.share_groups))  # rounded as in transformers

    def first_layer_of_group(self, layer: int) -> int:
        """Return the first layer of a layer's group, which owns the shared parameters."""
        return next(i for i in range(layer + 1) if self.group_index(i) == self.group_index(layer))

    @property
    def shared_submodules(self) -> tuple[str, ...]:
        """Return the submodules that the layers of a group share (Lan et al. 2020, section 3.1 and table 4)."""
        return {
            "none": (),
            "all": ("attention", "attention_norm", "feed_forward", "output_norm"),
            "attention": ("attention", "attention_norm"),
            "feed_forward": ("feed_forward", "output_norm"),
        }[self.share]

    @property
    def embedding_dim(self) -> int:
        """Return the size of the embeddings, E."""
        return self.embedding_size or self.hidden_size

    @property
    def position_offset(self) -> int:
        """Return the position of a sequence's first token."""
        if self.first_position == "zero" or self.pad_token_id is None:
            return 0
        return self.pad_token_id + 1

    @property
    def max_length(self) -> int:
        """Return the maximum sequence length in tokens, special tokens included."""
        return self.max_position_embeddings - self.position_offset

    @property
    def head_dropout(self) -> float:
        """Return the dropout probability of task heads."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout


class ParameterTerm(NamedTuple):
    """One term of a parameter count: its name, formula, and number of parameters."""

    name: str
    formula: str
    size: int


def transformer_parameter_terms(config: ModelConfig, *, biases: bool = True) -> list[ParameterTerm]:
    """Return a Transformer's parameter count term by term, in forward order; shared parameters count once.

    Args:
        config: The model's sizes and switches.
        biases: Count the biases of the layers.
    """
    e, h, f = config.embedding_dim, config.hidden_size, config.intermediate_size
    symbol = "H" if config.embedding_size is None else "E"
    terms = [
        ParameterTerm("token embeddings", f"V·{symbol}", config.vocab_size * e),
        ParameterTerm("position embeddings", f"P·{symbol}", config.max_position_embeddings * e),
        ParameterTerm("segment embeddings", f"S·{symbol}", config.type_vocab_size * e),
    ]
    if config.embedding_norm:
        terms.append(ParameterTerm("embedding LayerNorm", f"2{symbol}", 2 * e))
    if config.embedding_size is not None:
        terms.append(ParameterTerm("projection", "E·H + H", e * h + h))
    attention = ("4(H² + H)", 4 * (h * h + h)) if biases else ("4H²", 4 * h * h)
    feed_forward = ("2HF + F + H", 2 * h * f + f + h) if biases else ("2HF", 2 * h * f)
    for layer in range(config.num_hidden_layers):
        shared = () if layer == config.first_layer_of_group(layer) else config.shared_submodules
        parts = [part for part in ("attention", "feed_forward") if part not in shared]
        if "attention" in parts:
            terms.append(ParameterTerm(f"layer {layer} attention", *attention))
        if "feed_forward" in parts:
            terms.append(ParameterTerm(f"layer {layer} feed-forward", *feed_forward))
        if parts:
            terms.append(ParameterTerm(f"layer {layer} LayerNorms", f"{2 * len(parts)}H", 2 * len(parts) * h))
    if config.norm == "pre":
        terms.append(ParameterTerm("last LayerNorm", "2H", 2 * h))
    return terms
