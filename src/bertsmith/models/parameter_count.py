"""Parameter counts of a model with its heads, term by term, and operations per token."""

from __future__ import annotations

from collections.abc import Collection

from bertsmith.models.config import ModelConfig, ParameterTerm, transformer_parameter_terms
from bertsmith.models.family import get_family


def encoder_parameter_terms(config: ModelConfig, *, biases: bool = True) -> list[ParameterTerm]:
    """Return the encoder's parameter count term by term, in forward order; shared parameters count once.

    Args:
        config: The model's sizes and switches.
        biases: Count the biases of the layers.
    """
    terms = get_family(config.model_type).parameter_terms or transformer_parameter_terms
    return terms(config, biases=biases)


def count_parameters(
    config: ModelConfig,
    heads: Collection[str] = ("pooler",),
    labels: int = 2,
    *,
    biases: bool = True,
    pooler: bool = True,
) -> list[ParameterTerm]:
    """Return the parameter count term by term, in forward order.

    Args:
        config: The model's sizes and switches.
        heads: Parts besides the encoder: "pooler", "masked" (masked LM; a tied decoder is not counted twice),
            "masked_backward", "pair" (NSP, SOP), "detector" (replaced tokens), "classifier", "tagger", "crf",
            "relater", "span", "span_transform", "chooser", "mix", "joined", "recurrent", "recurrent4", "beside",
            "decoder", "recurrent_decoder", "bilinear_decoder", "concat_decoder", "additive_decoder".
        labels: Classes of the classifier, tagger, CRF, and relation head.
        biases: Count the biases of the layers. A popular formula for BERT counts neither these nor the pooler:
            108,808,704 instead of 109,482,240 for bert-base. `omitted_terms` returns the difference.
        pooler: Count the pooler if it is in `heads`.
    """
    head_terms = _head_terms(config, labels)
    terms = encoder_parameter_terms(config, biases=biases)
    for head in heads:
        if head not in head_terms:
            raise ValueError(f"unknown head '{head}'; use {', '.join(head_terms)}")
        if pooler or head != "pooler":
            terms += head_terms[head]
    return terms


def _head_terms(config: ModelConfig, labels: int) -> dict[str, list[ParameterTerm]]:
    """Return the terms of each part besides the encoder."""
    v, e, h = config.vocab_size, config.embedding_dim, config.hidden_size
    tied = config.tie_word_embeddings
    symbol = "H" if config.embedding_size is None else "E"
    structure = get_family(config.model_type).heads
    dense = [ParameterTerm("classifier transform", "H² + H", h * h + h)] if structure.dense_act else []
    choice = [ParameterTerm("choice transform", "H² + H", h * h + h)] if structure.choice_act else []
    decoder_size = structure.decoder_size(config) if structure.decoder_size else e
    decoder_symbol = symbol if decoder_size == e else str(decoder_size)
    transform = [
        ParameterTerm("masked LM transform", f"H·{symbol} + {symbol}", h * e + e),
        ParameterTerm("masked LM LayerNorm", f"2{symbol}", 2 * e),
    ]
    second_encoder = sum(term.size for term in encoder_parameter_terms(config))
    masked = [
        *(transform if structure.lm_transform else []),
        *([ParameterTerm(f"masked LM bias{' (decoder tied)' * tied}", "V", v)] if structure.lm_bias else []),
        *([] if tied else [ParameterTerm("masked LM decoder", f"V·{decoder_symbol}", v * decoder_size)]),
    ]
    return {
        "pooler": [ParameterTerm("pooler", "H² + H", h * h + h)],
        "masked": masked,
        "masked_backward": masked,
        "pair": [ParameterTerm("sentence pair", "2H + 2", 2 * h + 2)],
        "detector": [
            ParameterTerm("replaced-token transform", "H² + H", h * h + h),
            ParameterTerm("replaced token", "H + 1", h + 1),
        ],
        "classifier": [*dense, ParameterTerm("classifier", "KH + K", labels * h + labels)],
        "mix": [ParameterTerm("layer mix", "L + 2", config.num_hidden_layers + 2)],
        "joined": [ParameterTerm("four layers joined", "4H² + H", 4 * h * h + h)],
        "beside": [ParameterTerm("the other direction", "encoder + 2H² + H", second_encoder + 2 * h * h + h)],
        "recurrent": [ParameterTerm("BiLSTM", "12H² + 16H", 12 * h * h + 16 * h)],
        "recurrent4": [ParameterTerm("BiLSTM on four layers", "24H² + 16H", 24 * h * h + 16 * h)],
        "tagger": [ParameterTerm("token classifier", "KH + K", labels * h + labels)],
        "crf": [ParameterTerm("transitions", "K² + 2K", labels * labels + 2 * labels)],
        "span": [ParameterTerm("span", "2H + 2", 2 * h + 2)],
        "span_transform": [ParameterTerm("span transform", "H² + H", h * h + h)],
        "chooser": [*choice, ParameterTerm("choice", "H + 1", h + 1)],
        "relater": [ParameterTerm("relation", "2KH + K", 2 * labels * h + labels)],
        **_decoder_terms(config),
    }


def _decoder_terms(config: ModelConfig) -> dict[str, list[ParameterTerm]]:
    """Return the terms of each decoder, which shares the token embeddings of the encoder."""
    e, h, f, layers = (
        config.embedding_dim,
        config.hidden_size,
        config.intermediate_size,
        config.num_hidden_layers,
    )
    projection = [ParameterTerm("decoder projection", "HE + E", h * e + e)] if config.embedding_size else []
    layer = 8 * (h * h + h) + 2 * h * f + f + h + 6 * h
    norm = [ParameterTerm("decoder LayerNorm", "2H", 2 * h)] if config.norm == "pre" else []
    recurrent = [
        ParameterTerm("LSTM", "8H² + 8H", 8 * h * h + 8 * h),
        ParameterTerm("first state", "2H² + 2H", 2 * h * h + 2 * h),
        ParameterTerm("state and context", "2H² + H", 2 * h * h + h),
        *projection,
    ]
    scores = {
        "bilinear": ParameterTerm("bilinear score", "H²", h * h),
        "concat": ParameterTerm("score of the concatenation", "2H", 2 * h),
        "additive": ParameterTerm("additive score", "2H² + H", 2 * h * h + h),
    }
    formula = "L(8(H² + H) + 2HF + F + 7H)"
    return {
        "decoder": [ParameterTerm("decoder layers", formula, layers * layer), *norm, *projection],
        "recurrent_decoder": recurrent,
        **{f"{name}_decoder": [*recurrent, score] for name, score in scores.items()},
    }


def omitted_terms(config: ModelConfig, *, biases: bool = False, pooler: bool = False) -> list[ParameterTerm]:
    """Return the terms of the encoder and its pooler that `count_parameters` with these arguments omits."""
    h = config.hidden_size
    omitted: list[ParameterTerm] = []
    if not biases:
        terms = encoder_parameter_terms(config)
        attention, feed_forward = (
            sum(term.name.startswith("layer ") and term.name.endswith(part) for term in terms)
            for part in ("attention", "feed-forward")
        )
        matrices = encoder_parameter_terms(config, biases=False)
        size = sum(term.size for term in terms) - sum(term.size for term in matrices)
        formula = f"{attention}·4H + {feed_forward}(F + H)" if attention else "all"
        omitted.append(ParameterTerm("biases of the layers", formula, size))
    return omitted if pooler else [*omitted, ParameterTerm("pooler", "H² + H", h * h + h)]


def flops_per_token(config: ModelConfig, masked_fraction: float) -> float:
    """Return the floating-point operations of a training step per token.

    They are six per weight by which a token is multiplied: two in the forward and four in the backward pass. The
    products of queries, keys, and values are omitted: at 64 or 128 tokens they are few.

    Args:
        config: The model's sizes.
        masked_fraction: Fraction of the tokens that are predicted, and so multiplied by the output embeddings.
    """
    h = config.hidden_size
    terms = encoder_parameter_terms(config.model_copy(update={"share": "none"}), biases=False)
    layers = sum(
        term.size for term in terms if term.name.startswith("layer ") and "LayerNorm" not in term.name
    )
    return 6 * (layers + masked_fraction * (config.vocab_size * h + h * h))
