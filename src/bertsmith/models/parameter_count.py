"""The parameter sum of a model with its heads, term by term, equal to the modules' own sizes; its operations."""

from __future__ import annotations

from collections.abc import Collection

from bertsmith.models.config import ModelConfig, Term, encoder_terms
from bertsmith.models.family import family


def count_parameters(
    config: ModelConfig,
    heads: Collection[str] = ("pooler",),
    labels: int = 2,
    *,
    biases: bool = True,
    pooler: bool = True,
) -> list[Term]:
    """The parameter sum term by term, in the order data passes.

    `heads` names the parts that stand on the encoder: "pooler", "masked" (MLM; a decoder that is the token table
    is not counted twice), "pair" (NSP, SOP), "detector" (replaced tokens), "classifier", "tagger", "crf" and
    "relater" (with `labels` classes), "span", "span_transform", "chooser", "mix", "joined", "recurrent",
    "recurrent4", "beside".

    biases, pooler: whether those of the layers, and the pooler among `heads`, are counted. A popular formula for
    BERT has neither: 108,808,704 for bert-base in place of 109,482,240. `terms_left_out` names what is missing.
    """
    v, e, h = config.vocab_size, config.embedding_width, config.hidden_size
    tied = config.tie_word_embeddings
    width = "H" if config.embedding_size is None else "E"
    outputs = Term("classifier", "KH + K", labels * h + labels)
    heads_of = family(config.model_type).heads
    dense = [Term("classifier transform", "H² + H", h * h + h)] if heads_of.dense_act else []
    choice = [Term("choice transform", "H² + H", h * h + h)] if heads_of.choice_act else []
    tops = {
        "pooler": [Term("pooler", "H² + H", h * h + h)],
        "masked": [
            Term("masked LM transform", f"H·{width} + {width}", h * e + e),
            Term("masked LM LayerNorm", f"2{width}", 2 * e),
            Term(f"masked LM bias{' (decoder tied)' * tied}", "V", v),
            *([] if tied else [Term("masked LM decoder", f"V·{width}", v * e)]),
        ],
        "pair": [Term("sentence pair", "2H + 2", 2 * h + 2)],
        "detector": [
            Term("replaced-token transform", "H² + H", h * h + h),
            Term("replaced token", "H + 1", h + 1),
        ],
        "classifier": [*dense, outputs],
        "mix": [Term("layer mix", "L + 2", config.num_hidden_layers + 2)],
        "joined": [Term("four layers joined", "4H² + H", 4 * h * h + h)],
        "beside": [
            Term(
                "the other direction",
                "encoder + 2H² + H",
                sum(t.size for t in encoder_terms(config)) + 2 * h * h + h,
            )
        ],
        "recurrent": [Term("BiLSTM", "12H² + 16H", 12 * h * h + 16 * h)],
        "recurrent4": [Term("BiLSTM on four layers", "24H² + 16H", 24 * h * h + 16 * h)],
        "tagger": [Term("token classifier", "KH + K", labels * h + labels)],
        "crf": [Term("transitions", "K² + 2K", labels * labels + 2 * labels)],
        "span": [Term("span", "2H + 2", 2 * h + 2)],
        "span_transform": [Term("span transform", "H² + H", h * h + h)],
        "chooser": [*choice, Term("choice", "H + 1", h + 1)],
        "relater": [Term("relation", "2KH + K", 2 * labels * h + labels)],
    }
    terms = (
        encoder_terms(config) if biases else [_without_bias(term, config) for term in encoder_terms(config)]
    )
    for head in heads:
        if head not in tops:
            raise ValueError(f"unknown head '{head}'; known are {', '.join(tops)}")
        if pooler or head != "pooler":
            terms += tops[head]
    return terms


def terms_left_out(config: ModelConfig, *, biases: bool = False, pooler: bool = False) -> list[Term]:
    """What `count_parameters` with these two leaves out of the encoder and its pooler."""
    h = config.hidden_size
    found: list[Term] = []
    if not biases:
        every = encoder_terms(config)
        attention, inner = (
            sum(term.term.startswith("layer ") and term.term.endswith(part) for term in every)
            for part in ("attention", "feed-forward")
        )
        size = sum(term.size - _without_bias(term, config).size for term in every)
        found.append(Term("biases of the layers", f"{attention}·4H + {inner}(F + H)", size))
    return found if pooler else [*found, Term("pooler", "H² + H", h * h + h)]


def _without_bias(term: Term, config: ModelConfig) -> Term:
    """A layer's term for its matrices alone; any other as it is."""
    h, f = config.hidden_size, config.intermediate_size
    first, _, part = term.term.rpartition(" ")
    bare = {"attention": ("4H²", 4 * h * h), "feed-forward": ("2HF", 2 * h * f)}.get(part)
    return Term(term.term, *bare) if bare and first.startswith("layer ") else term


def operations_per_token(config: ModelConfig, masked: float) -> float:
    """Floating-point operations of a training update, for each token: six for each weight that it meets.

    masked: share of the tokens that are predicted, for which the vocabulary's weights count. Attention's own
    products are left out: at 64 or 128 tokens they are few.
    """
    h, f = config.hidden_size, config.intermediate_size
    layers = config.num_hidden_layers * (4 * h * h + 2 * h * f)
    return 6 * (layers + masked * (config.vocab_size * h + h * h))
