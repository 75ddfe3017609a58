"""Model families, each described by its differences from BERT, and their presets."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from bertsmith.errors import InputError, option
from bertsmith.models.config import FAMILY_SETTINGS, ModelConfig, ParameterTerm
from bertsmith.models.tensor_names import NameTable
from bertsmith.registry import lookup

if TYPE_CHECKING:
    import torch

    from bertsmith.models.encoder import Encoder

# The sets of parts between encoder and head of a choice of layers (`feature_extraction`).
_LAYER_FEATURES = ({"mix"}, {"joined"}, {"recurrent"}, {"mix", "recurrent"}, {"recurrent4"})
_CUSTOM_CLASSES: Mapping[frozenset[str], str] = {
    frozenset({"encoder", "relater"}): "ForEntityPairClassification",
    frozenset({"encoder", "classifier"}): "ForUnpooledSequenceClassification",
    frozenset({"encoder", "span", "span_transform"}): "ForTransformedQuestionAnswering",
    frozenset({"encoder", "decoder"}): "ForConditionalGeneration",
    **{
        frozenset({"encoder", f"{name.lower()}_decoder"}): f"For{name}ConditionalGeneration"
        for name in ("Recurrent", "Bilinear", "Concat", "Additive")
    },
    **{
        frozenset({"encoder", "tagger", *features, *crf}): "ForFeatureTagging"
        for features in _LAYER_FEATURES
        for crf in ((), ("crf",))
    },
}
"""Class names, without the family's prefix, of parts for which transformers has no class in any family."""

_RECURRENT_HEADS = frozenset({"classifier", "span", "chooser", "relater"})
"""Heads besides the tagger that may have a BiLSTM below them, for which transformers has no class either."""


class ParameterTerms(Protocol):
    """A function that returns an encoder's parameter count term by term."""

    def __call__(self, config: ModelConfig, *, biases: bool = True) -> list[ParameterTerm]: ...


@dataclass(frozen=True)
class HeadStructure:
    """Differences of a family's heads from BERT's.

    Attributes:
        masked_act: Activation of the masked LM head; None: the encoder's.
        pair_dropout: True if the sentence-pair head has dropout on its input.
        dense_act: Activation of a dense layer between the first token and the classifier; None: a pooler instead,
            which `architectures` and `names` must have.
        dense_dropout: True if that dense layer has dropout on its input.
        choice_act: Like `dense_act`, of the multiple-choice head, which has no dropout on its input.
        token_dropout: True if token heads, the span head too, have the encoder's dropout. Otherwise token heads
            have the classifier's, and the span head has none.
        lm_transform: True if the masked LM head transforms hidden states from H to E before the decoder. Otherwise
            the decoder reads the first `decoder_size` numbers of a hidden state.
        decoder_size: The size of the decoder's input; None: E.
        lm_bias: True if the decoder has a bias.
        pooler: True if heads that read one token have a pooler, unless they have a dense layer (`dense_act`).
        lm_directions: 2 if a model predicts the next token from the first half of a hidden state, and the previous
            one from the second half.
        direction_halves: True if, in a model that is not causal, the first half of a hidden state depends on the
            tokens before it only, and the second half on those after it, so that sequence heads read the first
            half of the last token and the second half of the first one.
        mean_state: True if no hidden state depends on the whole sequence, so that sequence heads read their mean.
    """

    masked_act: str | None = None
    pair_dropout: bool = False
    dense_act: str | None = None
    dense_dropout: bool = True
    choice_act: str | None = None
    token_dropout: bool = False
    lm_transform: bool = True
    decoder_size: Callable[[ModelConfig], int] | None = None
    lm_bias: bool = True
    pooler: bool = True
    lm_directions: int = 1
    direction_halves: bool = False
    mean_state: bool = False


@dataclass(frozen=True)
class Family:
    """The differences of a model family from BERT.

    Attributes:
        model_type: config.json's name of the family.
        names: Returns bertsmith's and Hugging Face's names of all tensors of encoder and heads, for a config.
        architectures: The Hugging Face class for each set of parts (keys of `task_heads.PART_BUILDERS`); that of
            {"encoder"} ends in "Model". `task_architectures` returns the usual ones.
        tokenizer: The usual tokenizer algorithm.
        causal: The classes of causal models where they differ from `architectures`.
        presets: The settings of published models.
        structure: Settings that are the same in every model of the family, in presets too. "causal": False if
            the family has no causal models.
        required: Settings that must not be None.
        defaults: Values of settings that a preset or config.json omits, where BERT's default differs.
        keys: The key in config.json of settings that have another one: {"num_hidden_layers": "n_layers"}.
        parse_extra: Reads settings that config.json expresses in another way.
        fixed: Keys of config.json that must have one value, or one computed from the config.
        derived: Keys of config.json that are written, computed from the config, and not read.
        none_if_equal: Settings that are None in a model if they equal another setting.
        heads: Differences of the heads.
        pretraining: `data` settings of the paper's pre-training where they differ from BERT's; presets set them.
        training: `train` settings for presets without measured ones.
        finetuning_rate: The default learning rate of fine-tuning; None: that of the hidden size.
        objective: The pre-training objective; presets set it.
        lm_weight: The default weight of an auxiliary language-modeling loss in fine-tuning.
        own_settings: Those of `config.FAMILY_SETTINGS` that the family has.
        check_sizes: Raises an InputError for sizes that do not fit together.
        encoder: Builds the encoder; None: `Encoder` does.
        parameter_terms: Returns the encoder's parameter count term by term, with or without the layers' biases;
            None: that of `Encoder`.
        is_transformer: True if the encoder has Transformer layers, False if recurrent ones or others.
    """

    model_type: str
    names: Callable[[ModelConfig], NameTable]
    architectures: Mapping[frozenset[str], str]
    tokenizer: str
    causal: Mapping[frozenset[str], str] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    structure: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    parse_extra: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda raw: {}
    fixed: Mapping[str, Any | Callable[[ModelConfig], Any]] = field(default_factory=dict)
    derived: Mapping[str, Callable[[ModelConfig], Any]] = field(default_factory=dict)
    none_if_equal: Mapping[str, str] = field(default_factory=dict)
    heads: HeadStructure = HeadStructure()
    pretraining: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    finetuning_rate: float | None = None
    objective: str = "mlm_nsp"
    lm_weight: float = 0.0
    own_settings: tuple[str, ...] = ()
    check_sizes: Callable[[ModelConfig], None] = lambda config: None
    encoder: Callable[[ModelConfig, torch.Generator], Encoder] | None = None
    parameter_terms: ParameterTerms | None = None
    is_transformer: bool = True

    @property
    def class_prefix(self) -> str:
        """Return the prefix of the family's Hugging Face classes, such as "Bert"."""
        return self.architectures[frozenset({"encoder"})].removesuffix("Model")

    @property
    def classes(self) -> Mapping[frozenset[str], str]:
        """Return `architectures` and the class names of parts for which transformers has no class."""
        custom = {parts: f"{self.class_prefix}{name}" for parts, name in _CUSTOM_CLASSES.items()}
        classes = {**custom, **self.architectures}
        recurrent = {
            parts | {"recurrent"}: name.replace("For", "ForBiLstm", 1)
            for parts, name in classes.items()
            if parts & _RECURRENT_HEADS
        }
        features = {
            parts | feature_parts: name.replace("For", "ForFeature", 1)
            for parts, name in classes.items()
            for feature_parts in _LAYER_FEATURES
            if parts & _RECURRENT_HEADS
        }
        bidirectional = {
            parts | {"beside"}: name.replace("For", "ForBothDirections", 1)
            for parts, name in classes.items()
            if self.structure.get("causal", True)  # the family has causal models
            and parts & (_RECURRENT_HEADS | {"tagger"})
            and parts.isdisjoint(set().union(*_LAYER_FEATURES))
        }
        return {**custom, **features, **recurrent, **bidirectional, **self.architectures}

    def architecture(self, parts: Collection[str], *, causal: bool = False) -> str:
        """Return the class with exactly these parts; InputError if there is none."""
        is_causal = causal or self.structure.get("causal", False)
        causal_class = self.causal.get(frozenset(parts)) if is_causal else None
        architecture = causal_class or self.classes.get(frozenset(parts))
        if architecture is None:
            heads = ", ".join(sorted(set(parts) - {"encoder"}))
            message = f"{self.model_type} has no class with these heads: {heads}"
            hint = (
                f"choose other heads ({option('data.sentence_task', 'none')} in pre-training, "
                f"{option('pooler', False)} in fine-tuning), or another family"
            )
            raise InputError("no_class_for_heads", message, argument="model.model_type", hint=hint)
        return architecture

    def default_of(self, name: str) -> Any:
        """Return the family's default of a setting."""
        return {**self.defaults, **self.structure}.get(name, ModelConfig.model_fields[name].default)

    def check_config(self, config: ModelConfig) -> None:
        """Raise an InputError if a config has a setting of another family."""
        others = {
            name: ModelConfig.model_fields[name].default
            for name in FAMILY_SETTINGS
            if name not in self.own_settings
        }
        for name, value in {**others, **self.structure}.items():
            if (actual := getattr(config, name)) != value:
                message = f"{actual} is not supported: it is {value} in every {self.model_type}"
                hint = "start from a preset of another family"
                raise InputError("not_in_family", message, argument=f"model.{name}", hint=hint)
        for name, other in self.none_if_equal.items():
            if getattr(config, name) == getattr(config, other):
                message = f"it equals model.{other}; no {self.model_type} has both"
                hint = f"use {option(f'model.{name}', 'none')}"
                raise InputError("redundant_size", message, argument=f"model.{name}", hint=hint)
        for name in self.required:
            if getattr(config, name) is None:
                message = f"every {self.model_type} has this setting"
                hint = f"set it, or start from a preset: {', '.join(list(self.presets)[:3])}"
                raise InputError("setting_required", message, argument=f"model.{name}", hint=hint)
        self.check_sizes(config)
        size = self.heads.decoder_size(config) if self.heads.decoder_size else config.embedding_dim
        if config.tie_word_embeddings and size != config.embedding_dim:
            message = f"the decoder reads {size} numbers, and token embeddings have {config.embedding_dim}"
            hint = f"use {option('model.tie_word_embeddings', False)}, or equal sizes"
            raise InputError("tied_decoder_size", message, argument="model.tie_word_embeddings", hint=hint)


def task_architectures(prefix: str, *, pooled: Collection[str] = ()) -> dict[frozenset[str], str]:
    """Return the classes that all families have, by their parts.

    Args:
        prefix: The prefix of the family's classes, such as "Bert".
        pooled: The heads that have a pooler: "classifier", "chooser".
    """
    heads = {
        "masked": "ForMaskedLM",
        "classifier": "ForSequenceClassification",
        "tagger": "ForTokenClassification",
        "span": "ForQuestionAnswering",
        "chooser": "ForMultipleChoice",
    }
    return {
        frozenset({"encoder"}): f"{prefix}Model",
        **{
            frozenset({"encoder", head, *(("pooler",) if head in pooled else ())}): f"{prefix}{name}"
            for head, name in heads.items()
        },
        frozenset({"encoder", "tagger", "crf"}): f"{prefix}ForTokenClassification",
    }


def model_sizes(layers: int, hidden: int, heads: int | None = None) -> dict[str, int]:
    """Return the sizes of a published model; by default heads have size 64, and F is 4 H."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads or hidden // 64,
        "intermediate_size": 4 * hidden,
    }


FAMILIES: dict[str, str | Family] = {
    "bert": "bertsmith.models.families:BERT",
    "roberta": "bertsmith.models.families:ROBERTA",
    "albert": "bertsmith.models.families:ALBERT",
    "distilbert": "bertsmith.models.families:DISTILBERT",
    "electra": "bertsmith.models.families:ELECTRA",
    "openai-gpt": "bertsmith.models.gpt_families:OPENAI_GPT",
    "gpt2": "bertsmith.models.gpt_families:GPT2",
    "transformer": "bertsmith.models.transformer_family:TRANSFORMER",
    "nnlm": "bertsmith.models.recurrent_families:NNLM",
    "rnn": "bertsmith.models.recurrent_families:RNN",
    "lstm": "bertsmith.models.recurrent_families:LSTM",
    "elmo": "bertsmith.models.recurrent_families:ELMO",
}
"""The module and attribute of each family, imported on first use."""


def get_family(model_type: str) -> Family:
    """Return the family of a model type; InputError if there is none."""
    return lookup(FAMILIES, model_type, f"{model_type[:60]!r} is no family of models that is known here")


def predicts_from_both_sides(config: ModelConfig) -> bool:
    """Return True if a language model predicts tokens from those before and after them, and so fills masks."""
    return not config.causal and get_family(config.model_type).heads.lm_directions == 1


def build_encoder(config: ModelConfig, generator: torch.Generator) -> Encoder:
    """Build an encoder of the config's family with random weights.

    Args:
        config: The model's sizes and switches.
        generator: Draws the weights and then dropout; the encoder is on its device.

    Raises:
        InputError: The config has a setting of another family.
    """
    from bertsmith.models.encoder import Encoder  # so that presets are listed without PyTorch

    model_family = get_family(config.model_type)
    model_family.check_config(config)
    return (model_family.encoder or Encoder)(config, generator)


def presets() -> dict[str, dict[str, Any]]:
    """Return the settings of all presets where they are not ModelConfig's defaults."""
    return {
        name: {"model_type": family.model_type, **family.defaults, **family.structure, **sizes}
        for family in map(get_family, FAMILIES)
        for name, sizes in family.presets.items()
    }


def abbreviate_names(names: Iterable[str]) -> list[str]:
    """Abbreviate preset names as shells do: bert-{tiny,mini}-{uncased,cased} for four names."""
    variants: dict[tuple[str, str], list[str]] = {}  # by family and size
    for name in names:
        prefix, size, variant = (*name.split("-", 2), "", "")[:3]
        variants.setdefault((prefix, size), []).append(variant)
    sizes: dict[tuple[str, tuple[str, ...]], list[str]] = {}  # by family and variants
    for (prefix, size), size_variants in variants.items():
        if size:
            sizes.setdefault((prefix, tuple(size_variants)), []).append(size)
    return [prefix for prefix, size in variants if not size] + [
        "-".join(filter(None, (prefix, _in_braces(group_sizes), _in_braces(group_variants))))
        for (prefix, group_variants), group_sizes in sizes.items()
    ]


def _in_braces(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{{{','.join(words)}}}"


def resolve_preset(name: str) -> str | None:
    """Return the preset of this name, or the newest one if the name lacks its version (albert-base)."""
    names = presets()
    if name in names:
        return name
    return max((versioned for versioned in names if versioned.rpartition("-v")[0] == name), default=None)


def similar_presets(name: str, cutoff: float = 0.5) -> list[str]:
    """Return at most three presets that start with a name, or else that resemble it by a ratio above `cutoff`."""
    completions = [candidate for candidate in presets() if candidate.startswith(f"{name}-")]
    return completions[:3] or difflib.get_close_matches(name, presets(), n=3, cutoff=cutoff)


def preset(name: str, **changes: Any) -> ModelConfig:
    """Return the configuration of a published model.

    Args:
        name: A preset, with or without its version (albert-base).
        changes: Settings to change.

    Raises:
        InputError: There is no such preset or setting.
    """
    preset_name = resolve_preset(name)
    if preset_name is None:
        near = similar_presets(name)
        suggestion = f"did you mean {' or '.join(near)}? " if near else ""
        families = (", ".join(abbreviate_names(get_family(model_type).presets)) for model_type in FAMILIES)
        message = "there is no preset of this name"
        hint = f"{suggestion}presets: {'; '.join(families)}"
        raise InputError("unknown_preset", message, location=name, hint=hint)
    return ModelConfig.of({**presets()[preset_name], **changes}, f"preset {preset_name}")
