"""Distillation on a corpus: a student learns what a teacher expects behind each mask (Sanh et al. 2019).

Three parts, each with a weight and left out where that is 0: `soft`, how far the student's shares of the
vocabulary are from the teacher's, both softened by a temperature; `mlm`, the masked tokens themselves; `cosine`,
how far the directions of their last hidden states are apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from bertsmith.artifacts.folder import ModelFolder, read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.errors import InputError
from bertsmith.formatting import counted
from bertsmith.instances.batches import PairBatch
from bertsmith.instances.settings import DataSettings
from bertsmith.loss import Loss, far_apart
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Borrowed, Encoder, owner
from bertsmith.models.family import build_encoder
from bertsmith.models.heads import MaskedHead
from bertsmith.models.weight_init import start_from_unigrams, unigram_loss
from bertsmith.objectives.objective import MODEL, Objective, Parts, refuse_pairs
from bertsmith.settings import Settings
from bertsmith.tokenizer.tokenizer import Tokenizer


class DistilSettings(Settings):
    """Who is imitated, and how much of what. The defaults are those of the release's example."""

    teacher: str = Field(
        "", description="the model that is imitated: a run, a model folder or a published name"
    )
    temperature: float = Field(2.0, gt=0, description="what both models' logits are divided by in `soft`")
    soft_weight: float = Field(
        5.0, ge=0, description="weight of the distance to the teacher's shares; 0: without"
    )
    mlm_weight: float = Field(2.0, ge=0, description="weight of masked LM; 0: without")
    cosine_weight: float = Field(
        1.0, ge=0, description="weight of the distance to the teacher's hidden states; 0: without"
    )
    soft_on: Literal["masked", "all"] = Field(
        "masked",
        description="where shares are compared: on masked tokens, or on all, as in the release (slower)",
    )
    start: Literal["teacher", "drawn"] = Field(
        "teacher", description="first weights: the teacher's, of layers evenly chosen among its own, or drawn"
    )


class Distil(Objective):
    """A student's masked head, and a teacher that stays as it is."""

    name = "distil"
    settings_type = DistilSettings
    model = MappingProxyType({"causal": False})
    data = MappingProxyType({"instances": "full_sentences", "sentence_task": "none"})
    perplexities = ("mlm",)
    frozen = ("teacher", "teacher_masked")

    def __init__(
        self, encoder: Encoder, generator: torch.Generator, teacher: ModelFolder, settings: DistilSettings
    ) -> None:
        super().__init__()
        self.config = encoder.config
        self._folder, self._settings = teacher, settings
        weights = {"soft": settings.soft_weight, "mlm": settings.mlm_weight, "cosine": settings.cosine_weight}
        self.weights = {part: weight for part, weight in weights.items() if weight}
        self.masked = MaskedHead(self.config, generator)
        self.teacher = build_encoder(teacher.config, torch.Generator()).requires_grad_(False).eval()
        self.teacher_masked = MaskedHead(teacher.config, torch.Generator()).requires_grad_(False).eval()

    @classmethod
    def made(
        cls, encoder: Encoder, generator: torch.Generator, data: DataSettings, settings: DistilSettings
    ) -> Distil:
        """The student's head and the teacher. InputError for a teacher that cannot be imitated by this student."""
        if not settings.teacher:
            raise InputError("objective.teacher is not set", "name a run or a model folder there")
        refuse_pairs(data, cls.name)
        if not (settings.soft_weight or settings.mlm_weight or settings.cosine_weight):
            raise InputError("objective: all three weights are 0", "leave one of them above 0")
        teacher = read_folder(locate(settings.teacher))
        _check_fit(teacher, encoder.config, settings)
        return cls(encoder, generator, teacher, settings)

    def bring(self, encoder: Encoder, *, fresh: bool) -> None:
        """The teacher's weights, and the student's first ones."""
        self._folder.fill("encoder", self.teacher)
        self._folder.fill("masked", self.teacher_masked)
        if fresh and self._settings.start == "teacher":
            start_from_teacher(encoder, self.masked, self.teacher, self.teacher_masked)

    def fits(self, tokenizer: Tokenizer) -> None:
        """InputError where the teacher reads by another tokenizer."""
        check_tokenizer(self._folder, tokenizer)

    @property
    def depends_on(self) -> tuple[str, ...]:
        """The teacher's weights."""
        return (self._folder.weights_digest(),)

    def counts(self, batch: PairBatch) -> Mapping[str, int]:
        """Masked tokens, and all for the hidden states."""
        predicted = len(batch.rows)
        soft = predicted if self._settings.soft_on == "masked" else batch.tokens
        every = {"soft": soft, "mlm": predicted, "cosine": batch.tokens}
        return {part: every[part] for part in self.weights}

    def loss(self, encoder: Encoder, batch: PairBatch) -> Loss:
        """Sums: T² · KL(teacher ‖ student) over the rows of `soft_on`, cross-entropy over the masked ones, 1 - cos
        over all."""
        decodes = self.masked.tied and self.weights.keys() != {"cosine"}
        with encoder.embeddings.token.beside_decoder(decodes) as table:
            hidden = encoder(batch.packed)
        sums: dict[str, Tensor] = {}
        right: dict[str, Tensor] = {}
        if "mlm" in self.weights:
            sums["mlm"], right["mlm"] = self.masked.loss(hidden[batch.rows], table, batch.labels)
        if not self.weights.keys() & {"soft", "cosine"}:
            return Loss(sums, self.counts(batch), right)
        with torch.no_grad():
            wanted = self.teacher(batch.packed)
        if "soft" in self.weights:
            rows = slice(None) if self._settings.soft_on == "all" else batch.rows
            with torch.no_grad():
                its = self.teacher_masked(wanted[rows], self.teacher.embeddings.token.weight)
            sums["soft"] = far_apart(self.masked(hidden[rows], table), its, self._settings.temperature)
        if "cosine" in self.weights:
            sums["cosine"] = (1 - F.cosine_similarity(hidden.float(), wanted.float(), dim=-1)).sum()
        return Loss(sums, self.counts(batch), right)

    def begin(self, tokens: Any) -> None:
        """The student's bias becomes the logarithm of each token's share of the corpus."""
        start_from_unigrams(self.masked.bias, tokens)

    def by_frequency(self, tokens: NDArray[Any], batches: Iterable[PairBatch]) -> dict[str, float]:
        """What a unigram model of the corpus loses on the masked tokens."""
        if "mlm" not in self.weights:
            return {}
        return {"unigram_mlm_loss": unigram_loss(tokens, (batch.labels for batch in batches))}

    def record(self) -> dict[str, str]:
        """Whose student it is."""
        return {"teacher": str(self._folder.path)}

    def folders(self, encoder: Encoder) -> dict[str, Parts]:
        """The student."""
        return {MODEL: Parts(self.config, {"encoder": encoder, "masked": self.masked})}


_COPIED = (
    "hidden_size",
    "embedding_size",
    "intermediate_size",
    "num_attention_heads",
    "share",
    "share_groups",
    "first_position",
    "position",
    "norm",
    "tie_word_embeddings",
    "hidden_act",
)
"""What must be alike where weights are copied."""


def check_tokenizer(teacher: ModelFolder, tokenizer: Tokenizer) -> None:
    """InputError where the teacher reads by another tokenizer."""
    if teacher.tokenizer().digest != tokenizer.digest:
        raise InputError(
            f"{teacher.path}: the teacher's tokenizer is another than the data's",
            f"prepare the data with it: bertsmith data prepare FILES --tokenizer {teacher.path} --out SHARDS",
        )


def _check_fit(teacher: ModelFolder, config: ModelConfig, settings: DistilSettings) -> None:
    if not teacher.has("masked"):
        raise InputError(
            f"{teacher.path}: the teacher has no masked-LM head",
            "name its generator, which has one"
            if teacher.has("detector")
            else "take a pre-trained run, not a fine-tuned one",
        )
    if teacher.config.causal:
        raise InputError(
            f"{teacher.path}: the teacher reads in one direction, and expects nothing behind a mask",
            "take a run of masked LM",
        )
    if teacher.config.vocab_size != config.vocab_size:
        raise InputError(
            f"{teacher.path}: the teacher has {counted(teacher.config.vocab_size, 'entry', 'entries')} in its "
            f"vocabulary, the student {config.vocab_size:,}",
            "both need the same tokenizer",
        )
    if teacher.config.longest < config.longest:
        raise InputError(
            f"{teacher.path}: the teacher takes {counted(teacher.config.longest, 'token')}, the student "
            f"{config.longest:,}",
            f"set model.max_position_embeddings={teacher.config.longest + config.position_offset}",
        )
    if settings.cosine_weight and teacher.config.hidden_size != config.hidden_size:
        raise InputError(
            f"{teacher.path}: the teacher's hidden size is {teacher.config.hidden_size}, the student's "
            f"{config.hidden_size}: their hidden states have no common direction",
            "set objective.cosine_weight=0, or make them as wide",
        )
    if settings.start == "teacher":
        for name in _COPIED:
            if (its := getattr(teacher.config, name)) != (own := getattr(config, name)):
                raise InputError(
                    f"model.{name} is {own} and the teacher's is {its}: the student cannot begin with its layers",
                    "set objective.start=drawn, or make them alike",
                )


def layers_of_teacher(teacher: int, student: int) -> list[int]:
    """Which of the teacher's layers, from 0, the student begins with: evenly from the first to the last, as in the
    release (0, 2, 4, 7, 9, 11 of 12 for 6)."""
    if student == 1:
        return [0]
    return [round(i * (teacher - 1) / (student - 1)) for i in range(student)]


def start_from_teacher(
    encoder: Encoder, masked: MaskedHead, teacher: Encoder, teacher_masked: MaskedHead
) -> None:
    """Copy the teacher's tables, some of its layers and its head.

    A student without segments adds the vector of the first one to each position: so its embeddings of a single
    text are the teacher's. (The release leaves that vector away.)
    """
    with torch.no_grad():
        of_tables = teacher.embeddings.state_dict()
        for name, weight in encoder.embeddings.state_dict().items():
            weight.copy_(of_tables[name][: len(weight)])
        if encoder.embeddings.segment is None and teacher.embeddings.segment is not None:
            encoder.embeddings.position.weight += teacher.embeddings.segment.weight[0]
        chosen = layers_of_teacher(teacher.config.num_hidden_layers, encoder.config.num_hidden_layers)
        if teacher.config.share == "all":
            chosen = list(range(len(teacher.blocks)))
        for block, layer in zip(encoder.blocks, chosen, strict=True):
            for name, part in block.named_children():  # a part of an earlier block is that one's
                if not isinstance(part, Borrowed):
                    part.load_state_dict(owner(getattr(teacher.blocks[layer], name)).state_dict())
        if encoder.norm is not None and teacher.norm is not None:
            encoder.norm.load_state_dict(teacher.norm.state_dict())
        masked.load_state_dict(teacher_masked.state_dict())
