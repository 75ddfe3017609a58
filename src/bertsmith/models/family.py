"""What a family is, and the table of families: a family is its differences from BERT, and nothing else."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.tensor_names import NameTable
from bertsmith.registry import entry

_FEATURES = ({"mix"}, {"joined"}, {"recurrent"}, {"mix", "recurrent"}, {"recurrent4"})
_UNNAMED: Mapping[frozenset[str], str] = {
    frozenset({"encoder", "relater"}): "ForEntityPairClassification",
    frozenset({"encoder", "classifier"}): "ForUnpooledSequenceClassification",
    frozenset({"encoder", "span", "span_transform"}): "ForTransformedQuestionAnswering",
    **{
        frozenset({"encoder", "tagger", *features, *crf}): "ForFeatureTagging"
        for features in _FEATURES
        for crf in ((), ("crf",))
    },
}
"""Heads that the field has a class for in no family of ours, by how its classes of other families are called, or
by what they do."""

_ON_A_BILSTM = frozenset({"classifier", "span", "chooser", "relater"})
"""Heads that may have a BiLSTM below them, besides a tagger: of these the field has no class, either."""


@dataclass(frozen=True)
class HeadShape:
    """Where a family's heads differ from BERT's.

    masked_act: activation of the masked head; none: the encoder's. pair_dropout: whether the pair head drops what
    it reads. dense_act: the classifier reads the first token through a layer of its own with this activation;
    none: it reads the pooler. dense_dropout: whether that layer drops what it reads. choice_act: as dense_act, of
    the head for multiple choice, which drops nothing before. token_dropout: whether heads on tokens drop as the
    encoder does, the span head too; else as the classifier, and the span head nothing.
    """

    masked_act: str | None = None
    pair_dropout: bool = False
    dense_act: str | None = None
    dense_dropout: bool = True
    choice_act: str | None = None
    token_dropout: bool = False


@dataclass(frozen=True)
class Family:
    """What differs from BERT.

    model_type: as the field's config.json has it. names: our tensors ↔ the field's. architectures: which parts of
    a model make which class of the field; causal: the same of models that read from left to right, where it is
    another. presets: published sizes. tokenizer: its usual kind. structure: the switches that every model of the
    family has in one position; needs: settings that it cannot do without. defaults: what a key that config.json
    leaves out means, where BERT's default is another. keys: our settings that have another name there; told: what
    it says of our settings in another way. fixed: keys that must have one value, some a function of the sizes.
    pretraining: settings of `data` that its paper pre-trains with, where these are not BERT's; training: such of
    `train`, for sizes that nothing was measured for; objective: what its text is asked; a preset brings them.
    """

    model_type: str
    names: Callable[[ModelConfig], NameTable]
    architectures: Mapping[frozenset[str], str]
    tokenizer: str
    causal: Mapping[frozenset[str], str] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    structure: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    told: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda raw: {}
    fixed: Mapping[str, Any | Callable[[ModelConfig], Any]] = field(default_factory=dict)
    also: Mapping[str, Callable[[ModelConfig], Any]] = field(default_factory=dict)
    none_where: Mapping[str, str] = field(default_factory=dict)
    heads: HeadShape = HeadShape()
    pretraining: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    objective: str = "mlm_nsp"
    encoder: Callable[[ModelConfig, torch.Generator], Encoder] = Encoder

    @property
    def class_prefix(self) -> str:
        """How the names of the field's classes begin: "Bert"."""
        return self.architectures[frozenset({"encoder"})].removesuffix("Model")

    @property
    def classes(self) -> Mapping[frozenset[str], str]:
        """`architectures`, and what stands in config.json for parts of which the field has no class."""
        unnamed = {parts: f"{self.class_prefix}{name}" for parts, name in _UNNAMED.items()}
        named = {**unnamed, **self.architectures}
        recurrent = {
            parts | {"recurrent"}: name.replace("For", "ForBiLstm", 1)
            for parts, name in named.items()
            if parts & _ON_A_BILSTM
        }
        both = {
            parts | {"beside"}: name.replace("For", "ForBothDirections", 1)
            for parts, name in named.items()
            if self.structure.get("causal", True)  # where a model may read one way
            and parts & (_ON_A_BILSTM | {"tagger"})
            and parts.isdisjoint(set().union(*_FEATURES))
        }
        return {**unnamed, **recurrent, **both, **self.architectures}

    def architecture(self, parts: Collection[str], *, causal: bool = False) -> str:
        """The class that has these parts and no other; InputError where there is none."""
        own = self.causal if causal else {}
        found = own.get(frozenset(parts)) or self.classes.get(frozenset(parts))
        if found is None:
            listed = ", ".join(sorted(set(parts) - {"encoder"}))
            raise InputError(
                f"{self.model_type} has no class with these heads: {listed}",
                "choose another sentence task or another family (model.model_type)",
            )
        return found

    def parts(self, architecture: str) -> frozenset[str] | None:
        """The parts of a class, None if it is none that we write."""
        every = (*self.classes.items(), *self.causal.items())
        makers = [parts for parts, name in every if name == architecture]
        return max(makers, key=len, default=None)

    def setting(self, name: str) -> Any:
        """What a setting is in this family where nobody says otherwise."""
        return {**self.defaults, **self.structure}.get(name, ModelConfig.model_fields[name].default)

    def check(self, config: ModelConfig) -> None:
        """Refuse a config whose switches are those of another family."""
        for name, value in self.structure.items():
            if (given := getattr(config, name)) != value:
                raise InputError(
                    f"model.{name} is {given}, but {value} in every {self.model_type}",
                    "start from a preset of the family that has it",
                )
        for name, other in self.none_where.items():
            if getattr(config, name) == getattr(config, other):
                raise InputError(
                    f"model.{name} is model.{other}, and no {self.model_type} has both",
                    f"set model.{name}=none",
                )
        for name in self.needs:
            if getattr(config, name) is None:
                raise InputError(
                    f"model.{name} is not set, and every {self.model_type} has one",
                    f"set it, or start from a preset: {', '.join(list(self.presets)[:3])}",
                )


def shape(layers: int, hidden: int, heads: int | None = None) -> dict[str, int]:
    """The sizes of a published model: heads are 64 wide where their number is not given, F is 4 H."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads or hidden // 64,
        "intermediate_size": 4 * hidden,
    }


FAMILIES: dict[str, str | Family] = {
    "bert": "bertsmith.models.families.bert:BERT",
    "roberta": "bertsmith.models.families.roberta:ROBERTA",
    "albert": "bertsmith.models.families.albert:ALBERT",
    "distilbert": "bertsmith.models.families.distilbert:DISTILBERT",
    "electra": "bertsmith.models.families.electra:ELECTRA",
}
"""Each family's model_type with its home, imported when asked for."""


def family(model_type: str) -> Family:
    """The family of this model_type; InputError if there is none."""
    return entry(FAMILIES, model_type, f"{model_type[:60]!r} is no family of models that is known here")


def build_encoder(config: ModelConfig, generator: torch.Generator) -> Encoder:
    """A new encoder of the config's family, its weights drawn from the generator and on its device.

    Raises InputError where the config's switches are not the family's.
    """
    kind = family(config.model_type)
    kind.check(config)
    return kind.encoder(config, generator)


def presets() -> dict[str, dict[str, Any]]:
    """The published models' names with their settings, where these are not ModelConfig's defaults."""
    return {
        name: {"model_type": kind.model_type, **kind.defaults, **kind.structure, **sizes}
        for kind in map(family, FAMILIES)
        for name, sizes in kind.presets.items()
    }


def braced(names: Iterable[str]) -> list[str]:
    """Names as shells shorten them: bert-{tiny,mini}-{uncased,cased} for the four."""
    ends: dict[tuple[str, str], list[str]] = {}  # (family, size) → its variants
    for name in names:
        first, size, end = (*name.split("-", 2), "", "")[:3]
        ends.setdefault((first, size), []).append(end)
    sizes: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (first, size), of_size in ends.items():
        sizes.setdefault((first, tuple(of_size)), []).append(size)
    return ["-".join(filter(None, (first, _one_of(of), _one_of(end)))) for (first, end), of in sizes.items()]


def _one_of(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{{{','.join(words)}}}"


def known_as(name: str) -> str | None:
    """The preset that a name stands for: its own, or of a name without its version (albert-base) the newest. None
    where there is none."""
    known = presets()
    if name in known:
        return name
    return max((one for one in known if one.rpartition("-v")[0] == name), default=None)


def near_presets(name: str, alike: float = 0.5) -> list[str]:
    """At most three presets that a name may have been meant for: those it is the beginning of, else those whose
    spelling is `alike`, from 0 to 1."""
    begun = [known for known in presets() if known.startswith(f"{name}-")]
    return begun[:3] or difflib.get_close_matches(name, presets(), n=3, cutoff=alike)


def preset(name: str, **changes: Any) -> ModelConfig:
    """The configuration of a published model by its name (see `known_as`), with changes.

    An unknown name or setting is an `InputError` that names the nearest known ones.
    """
    known = known_as(name)
    if known is None:
        near = near_presets(name)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        families = (", ".join(braced(family(kind).presets)) for kind in FAMILIES)
        hint += f"known presets: {'; '.join(families)}"
        raise InputError(f"{name}: there is no preset of this name", hint)
    return ModelConfig.of({**presets()[known], **changes}, f"preset {known}")
