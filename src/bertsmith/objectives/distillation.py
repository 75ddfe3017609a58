"""Distillation (DistilBERT, Sanh et al. 2019): a student learns a teacher's predictions of masked tokens.

The loss has three parts, each with a weight; a part with the weight 0 is not computed. `soft` is the KL divergence
between the teacher's and the student's distributions over the vocabulary, both softened by a temperature; `mlm` is
the cross-entropy of the masked tokens; `cosine` is the cosine distance of the models' last hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.artifacts.folder import ModelFolder, read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.errors import InputError, command, option
from bertsmith.formatting import pluralize
from bertsmith.instances.batches import MaskedBatch
from bertsmith.instances.settings import DataSettings
from bertsmith.loss import Loss, distillation_kl
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder
from bertsmith.models.layers import SharedModule, unwrap_shared
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.objectives.objective import Objective, check_data_settings
from bertsmith.objectives.settings import DistillationSettings
from bertsmith.tokenizer.tokenizer import Tokenizer


class Distillation(Objective):
    """A student's masked-LM head, and a frozen teacher with its masked-LM head."""

    name = "distil"
    settings_type = DistillationSettings
    required_model_settings = MappingProxyType({"causal": False})
    default_data_settings = MappingProxyType({"instances": "full_sentences", "sentence_task": "none"})
    perplexity_parts: tuple[str, ...] = ("mlm",)
    frozen_modules = ("teacher", "teacher_masked")

    def __init__(
        self,
        encoder: Encoder,
        generator: torch.Generator,
        teacher: ModelFolder,
        settings: DistillationSettings,
    ) -> None:
        super().__init__()
        self._folder, self._settings = teacher, settings
        weights = {"soft": settings.soft_weight, "mlm": settings.mlm_weight, "cosine": settings.cosine_weight}
        self.loss_weights = {part: weight for part, weight in weights.items() if weight}
        if not settings.mlm_weight:
            self.perplexity_parts = ()
        self.masked = MaskedLMHead(encoder.config, generator)
        self.teacher = build_encoder(teacher.config, torch.Generator()).requires_grad_(False).eval()
        self.teacher_masked = MaskedLMHead(teacher.config, torch.Generator()).requires_grad_(False).eval()

    @classmethod
    def from_settings(
        cls, encoder: Encoder, generator: torch.Generator, data: DataSettings, settings: DistillationSettings
    ) -> Distillation:
        """Build the student's head and the teacher.

        Raises:
            InputError: The settings are invalid, or the student cannot learn from the teacher.
        """
        if not settings.teacher:
            message = "no teacher is set"
            hint = "set it to a run or a model folder"
            raise InputError("teacher_missing", message, argument="objective.teacher", hint=hint)
        check_data_settings(data, cls.name)
        if not (settings.soft_weight or settings.mlm_weight or settings.cosine_weight):
            message = "all three weights of the objective are 0"
            hint = "set one of them above 0"
            raise InputError("all_weights_zero", message, argument="objective.mlm_weight", hint=hint)
        teacher = read_folder(locate(settings.teacher))
        _check_teacher(teacher, encoder.config, settings)
        return cls(encoder, generator, teacher, settings)

    def load_teacher(self, encoder: Encoder, *, fresh: bool) -> None:
        """Load the teacher, and initialize a new student from it."""
        self._folder.load_into("encoder", self.teacher)
        self._folder.load_into("masked", self.teacher_masked)
        if fresh and self._settings.start == "teacher":
            init_from_teacher(encoder, self.masked, self.teacher, self.teacher_masked)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise InputError if the teacher has a different tokenizer."""
        if self._folder.tokenizer().digest != tokenizer.digest:
            prepare = command("data prepare", "FILES", tokenizer=self._folder.path, output_dir="SHARDS")
            raise InputError(
                "teacher_tokenizer_differs",
                "the teacher's tokenizer differs from that of the data",
                location=self._folder.path,
                argument="objective.teacher",
                hint=f"prepare the data with the teacher's: {prepare}",
            )

    @property
    def input_digests(self) -> tuple[str, ...]:
        """The digest of the teacher's weights."""
        return (self._folder.weights_digest(),)

    def counts(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Return the number of tokens that each part sums over: the masked ones, or all."""
        num_masked = len(batch.rows)
        num_soft = num_masked if self._settings.soft_on == "masked" else batch.tokens
        counts = {"soft": num_soft, "mlm": num_masked, "cosine": batch.tokens}
        return {part: counts[part] for part in self.loss_weights}

    def loss(self, encoder: Encoder, batch: MaskedBatch) -> Loss:
        """Return the sums of T² · KL(teacher ‖ student), of masked cross-entropies, and of 1 - cosine."""
        uses_decoder = self.loss_weights.keys() != {"cosine"}
        is_tied = self.masked.tied and uses_decoder
        with encoder.embeddings.token.tied_decoder_weight(is_tied) as decoder_weight:
            hidden = encoder(batch.packed)
        sums: dict[str, Tensor] = {}
        num_correct: dict[str, Tensor] = {}
        if "mlm" in self.loss_weights:
            mlm_hidden = hidden[batch.rows]
            sums["mlm"], num_correct["mlm"] = self.masked.loss(mlm_hidden, decoder_weight, batch.labels)
        if not self.loss_weights.keys() & {"soft", "cosine"}:
            return Loss(sums, self.counts(batch), num_correct)
        with torch.no_grad():
            teacher_hidden = self.teacher(batch.packed)
        if "soft" in self.loss_weights:
            rows = slice(None) if self._settings.soft_on == "all" else batch.rows
            with torch.no_grad():
                embedding = self.teacher.embeddings.token.weight
                teacher_logits = self.teacher_masked(teacher_hidden[rows], embedding)
            student_logits = self.masked(hidden[rows], decoder_weight)
            sums["soft"] = distillation_kl(student_logits, teacher_logits, self._settings.temperature)
        if "cosine" in self.loss_weights:
            cosines = F.cosine_similarity(hidden.float(), teacher_hidden.float(), dim=-1)
            sums["cosine"] = (1 - cosines).sum()
        return Loss(sums, self.counts(batch), num_correct)

    def training_record(self) -> dict[str, str]:
        """Return the path of the teacher."""
        return {"teacher": str(self._folder.path)}


_COPIED_SETTINGS = (
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
"""Settings of `model` that must be equal if the student is initialized with the teacher's layers."""


def _check_teacher(teacher: ModelFolder, config: ModelConfig, settings: DistillationSettings) -> None:
    """Raise InputError if a student of this configuration cannot learn from the teacher."""
    path = teacher.path
    if not teacher.has("masked") or teacher.config.causal:
        message, argument = "the teacher does not predict masked tokens", "objective.teacher"
        hint = "use its generator" if teacher.has("detector") else "use a model pre-trained with masked LM"
        raise InputError("teacher_without_masked_lm", message, location=path, argument=argument, hint=hint)
    if (size := teacher.config.vocab_size) != config.vocab_size:
        entries = pluralize(size, "entry", "entries")
        message = f"the teacher's vocabulary has {entries}, the student's {config.vocab_size:,}"
        hint = "use the same tokenizer for both"
        raise InputError("vocab_size_differs", message, location=path, argument="model.vocab_size", hint=hint)
    if (length := teacher.config.max_length) < config.max_length:
        argument = "model.max_position_embeddings"
        message = f"the teacher takes {pluralize(length, 'token')}, the student {config.max_length:,}"
        hint = f"use {option(argument, length + config.position_offset)}"
        raise InputError("student_longer_than_teacher", message, location=path, argument=argument, hint=hint)
    if settings.cosine_weight and (size := teacher.config.hidden_size) != config.hidden_size:
        message = (
            f"the teacher's hidden size is {size}, the student's {config.hidden_size}: they have no cosine"
        )
        hint = f"use {option('objective.cosine_weight', '0')}, or the same hidden size"
        raise InputError(
            "hidden_size_differs", message, location=path, argument="model.hidden_size", hint=hint
        )
    if settings.start == "teacher":
        for name in _COPIED_SETTINGS:
            teacher_value, student_value = getattr(teacher.config, name), getattr(config, name)
            if teacher_value != student_value:
                message = (
                    f"it is {student_value} for the student and {teacher_value} for the teacher, so that the "
                    "teacher's layers cannot be copied"
                )
                hint = f"use {option('objective.start', 'drawn')}, or the same value for both"
                raise InputError("student_differs_from_teacher", message, argument=f"model.{name}", hint=hint)


def copied_layers(num_teacher_layers: int, num_student_layers: int) -> list[int]:
    """Return the indices of the teacher's layers to copy, evenly spaced from the first to the last.

    As in the release: 0, 2, 4, 7, 9, 11 for 6 of 12.
    """
    if num_student_layers == 1:
        return [0]
    return [round(i * (num_teacher_layers - 1) / (num_student_layers - 1)) for i in range(num_student_layers)]


def init_from_teacher(
    encoder: Encoder, masked: MaskedLMHead, teacher: Encoder, teacher_masked: MaskedLMHead
) -> None:
    """Copy the teacher's embeddings, evenly spaced layers, and head to a student.

    If only the teacher has segment embeddings, its first one is added to each of the student's position
    embeddings, so that the embeddings of a single text are equal. (The release omits that vector.)
    """
    with torch.no_grad():
        teacher_embeddings = teacher.embeddings.state_dict()
        for name, weight in encoder.embeddings.state_dict().items():
            weight.copy_(teacher_embeddings[name][: len(weight)])
        if encoder.embeddings.segment is None and teacher.embeddings.segment is not None:
            encoder.embeddings.position.weight += teacher.embeddings.segment.weight[0]
        layers = copied_layers(teacher.config.num_hidden_layers, encoder.config.num_hidden_layers)
        if teacher.config.share == "all":
            # A block is then a group of layers, and both models have equally many.
            layers = list(range(len(teacher.blocks)))
        for block, layer in zip(encoder.blocks, layers, strict=True):
            for name, module in block.named_children():
                # A shared module is copied with the layer that owns it.
                if not isinstance(module, SharedModule):
                    teacher_module = unwrap_shared(getattr(teacher.blocks[layer], name))
                    module.load_state_dict(teacher_module.state_dict())
        if encoder.norm is not None and teacher.norm is not None:
            encoder.norm.load_state_dict(teacher.norm.state_dict())
        masked.load_state_dict(teacher_masked.state_dict())
