"""The model families before the Transformer: NNLM, RNN, LSTM, and ELMo. `family.FAMILIES` lists them.

Hugging Face has no classes for them: the names of classes and tensors are bertsmith's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from bertsmith.errors import InputError, option
from bertsmith.models.config import ModelConfig, ParameterTerm
from bertsmith.models.family import Family, HeadStructure, task_architectures
from bertsmith.models.tensor_names import (
    TASK_MODULES,
    NameTable,
    decoder_modules,
    module_tensors,
    with_second_encoder,
)

if TYPE_CHECKING:
    import torch

    from bertsmith.models.encoder import Encoder

# Settings of parts that no family here has. Without position embeddings, max_position_embeddings only bounds the
# sequence length.
_STRUCTURE = {
    "num_attention_heads": 1,
    "share": "none",
    "first_position": "zero",
    "position": "none",
    "norm": "post",
    "type_vocab_size": 0,
}
_PRETRAINING = {"instances": "full_sentences", "sentence_task": "none"}
# No LayerNorm enlarges the states, so that embeddings as small as BERT's would learn slowly. As in the settings of
# small BERTs there is no dropout: a text is read about once.
_DEFAULTS = {"initializer_range": 0.1, "hidden_dropout_prob": 0.0}
_TRAINING = {"learning_rate": 5e-3, "warmup_steps": 0.05, "adam_beta2": 0.98}
_FINETUNING_RATE = 1e-3  # those of Transformers are too low; an RNN without gates learns less at this one
_RNN_TRAINING = {**_TRAINING, "learning_rate": 1e-3}  # 5e-3 saturates states that have no gates


def _build(name: str, config: ModelConfig, generator: torch.Generator) -> Encoder:
    """Build the encoder of a family; the modules are imported on first use, so that presets need no PyTorch."""
    from bertsmith.models import nnlm, recurrent

    encoders: Mapping[str, type[Encoder]] = {
        "nnlm": nnlm.NnlmEncoder,
        "rnn": recurrent.RecurrentEncoder,
        "lstm": recurrent.LstmEncoder,
        "elmo": recurrent.ElmoEncoder,
    }
    return encoders[name](config, generator)


def _names(base: str, config: ModelConfig) -> NameTable:
    """Return the tensors' names: bertsmith's own, with the family's prefix in place of "encoder"."""
    import torch

    with torch.device("meta"):
        encoder = _build(base, config, torch.Generator())
    heads = {"pooler.linear": (f"{base}.pooler",), "masked": ("lm_head",), **TASK_MODULES}
    heads |= {name: (name,) for name in decoder_modules(config)}
    if not config.tie_directions:
        heads["masked_backward"] = ("backward_lm_head",)
    if not config.tie_word_embeddings:
        for part, (name,) in [item for item in heads.items() if "lm_head" in item[1][0]]:
            heads[f"{part}.decoder"] = (f"{name}.decoder",)
    tensors = {f"encoder.{name}": (f"{base}.{name}",) for name in encoder.state_dict()}
    return NameTable(base, with_second_encoder(config, tensors | module_tensors(heads)))


def _architectures(prefix: str) -> dict[frozenset[str], str]:
    return {
        **task_architectures(prefix, pooled=("classifier", "chooser")),
        frozenset({"encoder", "pooler"}): f"{prefix}Model",
    }


def _causal_architectures(prefix: str, state: str = "LastToken") -> dict[frozenset[str], str]:
    return {
        frozenset({"encoder", "masked"}): f"{prefix}LMHeadModel",
        frozenset({"encoder", "pooler", "classifier"}): f"{prefix}For{state}SequenceClassification",
        frozenset({"encoder", "classifier"}): f"{prefix}ForUnpooled{state}SequenceClassification",
        frozenset({"encoder", "pooler", "chooser"}): f"{prefix}For{state}MultipleChoice",
    }


def _raise_size_error(name: str, message: str, hint: str) -> None:
    raise InputError("sizes_do_not_fit", message, argument=f"model.{name}", hint=hint)


def _embedding_terms(config: ModelConfig) -> list[ParameterTerm]:
    """Return the terms of the embeddings of one direction or both."""
    e, count = config.embedding_dim, 1 if config.tie_directions else 2
    if config.embedding_type == "token":
        symbol = "H" if config.embedding_size is None else "E"
        formula = f"V·{symbol}" if count == 1 else f"2V·{symbol}"
        return [ParameterTerm("token embeddings", formula, count * config.vocab_size * e)]
    from bertsmith.models.char_cnn import num_parameters

    table, trained = num_parameters(config)
    return [
        ParameterTerm("bytes of the tokens, not trained", "V·bytes", count * table),
        ParameterTerm("character CNN", "convolutions, highways, and projection", count * trained),
    ]


# Recurrent language models (Mikolov et al. 2010; Sundermeyer et al. 2012), and bidirectional recurrent encoders
# (Schuster and Paliwal 1997).


def _recurrent_terms(
    config: ModelConfig, *, biases: bool = True, gates: int = 1, separate_directions: bool = False
) -> list[ParameterTerm]:
    """Return the parameters of embeddings and recurrent layers.

    Args:
        config: The model's sizes and switches.
        biases: Count the biases of the layers.
        gates: 4 for LSTMs, 1 for RNNs.
        separate_directions: Each direction reads only its own half of the layer below.
    """
    directions = 1 if config.causal else 2
    outputs, units = config.hidden_size // directions, config.intermediate_size // directions
    inputs = outputs if separate_directions else config.hidden_size
    size = gates * units * (inputs + units + (2 if biases else 0))
    formula = f"{gates}C(I + C + 2)" if biases else f"{gates}C(I + C)"
    if units != outputs:
        size += units * outputs + (outputs if biases else 0)
        formula += " + CO + O" if biases else " + CO"
    name = "LSTM" if gates > 1 else "RNN"
    return [
        *_embedding_terms(config),
        *(
            ParameterTerm(
                f"layer {i} {name}", formula if directions == 1 else f"2({formula})", directions * size
            )
            for i in range(config.num_hidden_layers)
        ),
    ]


def _check_recurrent(config: ModelConfig) -> None:
    """Raise InputError if the directions cannot have equal sizes."""
    for name in ("hidden_size", "intermediate_size"):
        if not config.causal and (size := getattr(config, name)) % 2:
            message = f"each direction has half of it, and {size} is odd"
            _raise_size_error(name, message, "use an even number")


def _recurrent_family(
    name: str, prefix: str, gates: int, presets: Mapping[str, Mapping[str, Any]], training: Mapping[str, Any]
) -> Family:
    return Family(
        model_type=name,
        names=partial(_names, name),
        architectures=_architectures(prefix),
        causal=_causal_architectures(prefix),
        tokenizer="wordpiece",
        presets=presets,
        structure={**_STRUCTURE, "embedding_size": None},
        defaults={"causal": True, **_DEFAULTS},
        heads=HeadStructure(
            lm_transform=False, decoder_size=lambda config: config.hidden_size, direction_halves=True
        ),
        pretraining=_PRETRAINING,
        training=training,
        finetuning_rate=_FINETUNING_RATE if gates > 1 else None,
        objective="causal",
        check_sizes=_check_recurrent,
        encoder=partial(_build, name),
        parameter_terms=partial(_recurrent_terms, gates=gates),
        is_transformer=False,
    )


def _sizes(layers: int, hidden: int, units: int) -> dict[str, int]:
    return {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": units}


# The minis have 10,963,968 and 11,059,968 parameters with 30,522 pieces; bert-mini-uncased has 11,104,768 without
# its pooler.
_RNN_SIZES = {"rnn-mini": _sizes(2, 256, 1024), "rnn-small": _sizes(2, 512, 2048)}
_LSTM_SIZES = {"lstm-mini": _sizes(2, 256, 496), "lstm-small": _sizes(2, 512, 992)}
RNN = _recurrent_family("rnn", "Rnn", 1, _RNN_SIZES, _RNN_TRAINING)
LSTM = _recurrent_family("lstm", "Lstm", 4, _LSTM_SIZES, _TRAINING)


# ELMo (Peters et al. 2018): forward and backward LSTM language models that share embeddings and output.


def _check_elmo(config: ModelConfig) -> None:
    """Raise InputError for sizes that the directions cannot have, or a decoder without vectors to be tied to."""
    _check_recurrent(config)
    if 2 * config.embedding_dim != config.hidden_size:
        half = config.hidden_size / 2
        message = f"embeddings have the size of a direction, {half:g}, and this is {config.embedding_dim}"
        _raise_size_error("embedding_size", message, f"use {option('model.embedding_size', f'{half:g}')}")
    if config.embedding_type == "char_cnn" and config.tie_word_embeddings:
        message = "there are no vectors of the vocabulary: they are computed from characters"
        hint = f"use {option('model.tie_word_embeddings', False)}"
        _raise_size_error("tie_word_embeddings", message, hint)


ELMO = Family(
    model_type="elmo",
    names=partial(_names, "elmo"),
    architectures={
        **_architectures("Elmo"),
        frozenset({"encoder", "masked"}): "ElmoForBidirectionalLM",
        frozenset({"encoder", "masked", "masked_backward"}): "ElmoForUntiedBidirectionalLM",
    },
    tokenizer="wordpiece",
    # elmo-mini has 11,101,696 parameters with 30,522 pieces.
    presets={
        "elmo-mini": {**_sizes(2, 512, 640), "embedding_size": 256},
        "elmo-small": {**_sizes(2, 1024, 1280), "embedding_size": 512},
    },
    structure={**_STRUCTURE, "causal": False},
    required=("embedding_size",),
    defaults=_DEFAULTS,
    heads=HeadStructure(
        lm_transform=False,
        decoder_size=lambda config: config.hidden_size // 2,
        lm_directions=2,
        direction_halves=True,
    ),
    pretraining=_PRETRAINING,
    training=_TRAINING,
    finetuning_rate=_FINETUNING_RATE,
    objective="bilm",
    own_settings=("embedding_type", "tie_directions"),
    check_sizes=_check_elmo,
    encoder=partial(_build, "elmo"),
    parameter_terms=partial(_recurrent_terms, gates=4, separate_directions=True),
    is_transformer=False,
)


# NNLM (Bengio et al. 2003): a feed-forward model of n-grams. Its head has the weights [U W] and the bias b.


def _check_nnlm(config: ModelConfig) -> None:
    """Raise InputError if the hidden size is not that of [tanh(d + H x); x]."""
    size = config.intermediate_size + config.context_size * config.embedding_dim
    if config.hidden_size != size:
        message = (
            f"a state has model.intermediate_size + model.context_size · model.embedding_size = {size} numbers, "
            f"and this is {config.hidden_size}"
        )
        _raise_size_error("hidden_size", message, f"use {option('model.hidden_size', size)}")


def _nnlm_terms(config: ModelConfig, *, biases: bool = True) -> list[ParameterTerm]:
    """Return the parameters of embeddings and hidden layer; the decoder's are those of the head."""
    units, inputs = config.intermediate_size, config.context_size * config.embedding_dim
    size = units * (inputs + (1 if biases else 0))
    formula = "F(1 + (n - 1)E)" if biases else "F(n - 1)E"
    return [*_embedding_terms(config), ParameterTerm("layer 0 hidden", formula, size)]


def _nnlm_decoder_size(config: ModelConfig) -> int:
    return config.hidden_size if config.direct_connections else config.intermediate_size


NNLM = Family(
    model_type="nnlm",
    names=partial(_names, "nnlm"),
    architectures=_architectures("Nnlm"),
    causal=_causal_architectures("Nnlm", "MeanState"),
    tokenizer="wordpiece",
    # With its decoder, which is not tied, 11,287,322 parameters for 30,522 pieces.
    presets={"nnlm-mini": {**_sizes(1, 320, 128), "embedding_size": 48}},
    structure={**_STRUCTURE, "num_hidden_layers": 1, "causal": True, "tie_word_embeddings": False},
    required=("embedding_size",),
    defaults=_DEFAULTS,
    heads=HeadStructure(lm_transform=False, decoder_size=_nnlm_decoder_size, mean_state=True),
    pretraining=_PRETRAINING,
    training=_TRAINING,
    finetuning_rate=_TRAINING["learning_rate"],
    objective="causal",
    own_settings=("context_size", "direct_connections"),
    check_sizes=_check_nnlm,
    encoder=partial(_build, "nnlm"),
    parameter_terms=_nnlm_terms,
    is_transformer=False,
)
