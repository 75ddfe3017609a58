"""What an objective is: what a model is trained on, whoever wrote the answers (a person, or the text itself).

An objective is one file and one line in `OBJECTIVES`. It owns its heads, and any second encoder that it needs (a
generator, a teacher, a second tower), and answers sums and counts by part. Tasks are objectives too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bertsmith.device import Place
from bertsmith.errors import InputError
from bertsmith.instances.settings import DataSettings
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import ProblemType
from bertsmith.registry import entry
from bertsmith.settings import Settings

OBJECTIVES: dict[str, str | type[Objective]] = {
    "mlm_nsp": "bertsmith.objectives.masked_lm:MlmNsp",
    "causal": "bertsmith.objectives.causal_lm:Causal",
    "distil": "bertsmith.objectives.distillation:Distil",
    "replaced": "bertsmith.objectives.electra:Replaced",
}
"""Each objective's name with its home, imported when asked for; or with the class itself. The first is the
usual one."""

MODEL, GENERATOR = "model", "generator"
"""The folders that a run's model leaves in, and beside it ELECTRA's generator; an objective with another second
encoder has one of its own."""


@dataclass(frozen=True)
class Parts:
    """What leaves the house in one folder: a configuration and its modules by part.

    modules: "encoder" and any of `heads.PARTS`. labels: the names of the classes, where there are any.
    problem_type: as the field's config.json has it. files: further JSON files of the folder, by their paths in it.
    """

    config: ModelConfig
    modules: Mapping[str, nn.Module]
    labels: list[str] | None = None
    problem_type: ProblemType | None = None
    files: Mapping[str, Any] = field(default_factory=dict)


class Objective(nn.Module):
    """Heads and their loss. A subclass answers `loss`, and `folders` where more than the encoder leaves.

    name: in settings. shown_by: the part of a model that shows it was trained so, "" for none. settings_type: of
    the group `objective`, {} for most. model: settings that every model of it has. data: settings of `data` that
    it is trained with, where nobody says otherwise. weights: of the parts of the
    loss, 1 where none is given. perplexities: the parts whose mean is the logarithm of a perplexity. summed: the
    parts of which training minimises the sum, not the mean; figures are means all the same. frozen: names of
    modules that are not trained, and never saved (a teacher). starts: whether small models begin with what the
    corpus tells by itself (settings `start`), the output bias too, where nobody says otherwise. fills: whether
    batches can be filled up (`PairBatch.filled`), and nothing of the loss depends on what they are filled with.
    """

    name: ClassVar[str]
    shown_by: ClassVar[str] = ""
    settings_type: ClassVar[type[Settings]] = Settings
    model: ClassVar[Mapping[str, Any]] = {}
    data: ClassVar[Mapping[str, Any]] = {}
    weights: Mapping[str, float] = {}
    perplexities: ClassVar[tuple[str, ...]] = ()
    summed: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    starts: ClassVar[bool] = False
    fills: ClassVar[bool] = False

    @classmethod
    def made(cls, encoder: Encoder, generator: torch.Generator, data: Any, settings: Any) -> Objective:
        """The objective for a run on this encoder, whose tensors it may share. generator: draws first weights.
        data: how text becomes instances; settings: of `settings_type`."""
        raise NotImplementedError

    def bring(self, encoder: Encoder, *, fresh: bool) -> None:
        """Read what was trained elsewhere, such as a teacher. fresh: the weights of encoder and heads may be set
        by it; else those of a checkpoint take their place."""

    def fits(self, tokenizer: Any) -> None:
        """InputError where what the objective brought, such as a teacher, reads by another tokenizer than this."""

    @property
    def depends_on(self) -> tuple[str, ...]:
        """Digests of what the numbers of a run depend on besides its data, settings and base."""
        return ()

    def counts(self, batch: Any) -> Mapping[str, int]:
        """What each part of the loss of this batch is a mean over (tokens, pairs, words, choices): known before
        the forward pass, since an update divides by the sum over all its batches and ranks."""
        found: Mapping[str, int] = batch.counts
        return found

    def loss(self, encoder: Encoder, batch: Any) -> Loss:
        """Sums by part, and how many are right."""
        raise NotImplementedError

    def begin(self, tokens: Any) -> None:
        """Start the output bias from the corpus. tokens: how often each token occurs in it, int64 [V]. InputError
        where the objective has no such bias."""
        raise InputError(
            f"start.output_bias=unigram: the objective '{self.name}' has no output bias",
            "set start.output_bias=zero",
        )

    def by_frequency(self, tokens: Any, batches: Iterable[Any]) -> dict[str, float]:
        """What a model that never looks at the context would score on these batches, by name of the figure."""
        return {}

    def record(self) -> dict[str, Any]:
        """What bertsmith.json says of the training that no other file of the folder does."""
        return {}

    def folders(self, encoder: Encoder) -> dict[str, Parts]:
        """What leaves the house, folder by folder."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> Objective:
        """Train, but for what is frozen: that stays in evaluation."""
        super().train(mode)
        for name in self.frozen:
            self.get_submodule(name).eval()
        return self


@dataclass
class Measured:
    """Held-out figures as they come in: sums by part on the device, read by the host once at the end."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    right: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, loss: Loss) -> None:
        """Take in one batch."""
        for part, value in loss.sums.items():
            self.sums[part] = self.sums.get(part, 0) + value.double()
            self.counts[part] = self.counts.get(part, 0) + loss.counts[part]
        for part, value in loss.right.items():
            self.right[part] = self.right.get(part, 0) + value

    def figures(self, perplexities: Iterable[str] = ()) -> dict[str, float]:
        """Each part's mean loss, its accuracy where it has one, its perplexity where that means something."""
        found = {f"{part}_loss": float(v) / max(1, self.counts[part]) for part, v in self.sums.items()}
        found |= {f"{part}_accuracy": float(v) / max(1, self.counts[part]) for part, v in self.right.items()}
        for part in perplexities:
            if f"{part}_loss" in found:
                found[f"{part}_perplexity"] = math.exp(min(found[f"{part}_loss"], 700.0))
        return found


def refuse_pairs(data: DataSettings, name: str) -> None:
    """InputError where the data's settings ask of pairs what the objective of this name does not."""
    if data.sentence_task != "none":
        raise InputError(
            f"data.sentence_task={data.sentence_task}: the objective '{name}' asks nothing of pairs",
            "set data.sentence_task=none, and data.instances=full_sentences",
        )


def refuse_corruption(data: DataSettings, name: str, why: str, *kinds: str) -> None:
    """InputError where the data's settings insert or delete tokens, which the objective of this name rules out."""
    if data.corrupt in kinds:
        raise InputError(
            f"data.corrupt={data.corrupt}: the objective '{name}' {why}",
            "set data.corrupt=none, or another objective",
        )


def held_out_figures(
    objective: Objective, encoder: Encoder, batches: Iterable[Any], place: Place
) -> dict[str, float]:
    """The objective's own loss over held-out batches; there is no second implementation of it."""
    measured, reader = Measured(), place.reader(encoder)
    with torch.inference_mode():
        for batch in batches:
            measured.add(objective.loss(reader, place.send(batch)))
    return measured.figures(objective.perplexities)


def objective_of(config: ModelConfig, parts: Collection[str]) -> str:
    """The objective that a model with these parts was trained with, the usual one where nothing shows it."""
    for name in OBJECTIVES:
        kind = objective_type(name)
        if kind.shown_by in parts and all(getattr(config, key) == value for key, value in kind.model.items()):
            return name
    return next(iter(OBJECTIVES))


def objective_type(name: str) -> type[Objective]:
    """The objective of this name; InputError if there is none."""
    return entry(OBJECTIVES, name, f"objective: there is no objective '{name}'")
