"""The model of a fine-tuning run: encoder, heads, second encoder, teacher, trained layers, and cached features.

Frozen layers keep the base's weights: they have no gradients and no optimizer state. Their dropout remains unless
the whole encoder is frozen: then its hidden states are computed once, in evaluation mode, and read from disk. This
is the feature-based approach (Devlin et al. 2019, section 5.3); a head on them trains many times faster.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith import console, hardware
from bertsmith.artifacts.folder import ModelFolder, read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, MachineError, option
from bertsmith.finetuning.settings import FinetuneSettings, FinetuneTrainSettings, TeacherSettings
from bertsmith.formatting import pluralize
from bertsmith.inference.model import Model, load
from bertsmith.io import atomic
from bertsmith.models.config import DROPOUT_SETTINGS, ModelConfig
from bertsmith.models.encoder import Embeddings, Encoder
from bertsmith.models.family import get_family
from bertsmith.models.feature_extraction import FEATURE_PARTS, SecondEncoder
from bertsmith.models.parameter_count import count_parameters, encoder_parameter_terms
from bertsmith.objectives.language_modeling import CausalLM
from bertsmith.objectives.objective import Objective
from bertsmith.packed import Packed
from bertsmith.tasks.auxiliary_lm import TaskWithLM
from bertsmith.tasks.base import Metadata, TaskModel
from bertsmith.tasks.batching import Item, TokenSequence, batches_within_budget, pack
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.registry import Task
from bertsmith.tasks.task_distillation import TaskDistillation, check_teacher

logger = logging.getLogger(__name__)

FEATURES = "features"
"""The folder of the states in a run folder."""
_NAME_LENGTH, _SUFFIX = 32, ".f32"
_BYTES_PER_NUMBER = 4


def create_context(train: FinetuneTrainSettings, base: ModelFolder) -> ComputeContext:
    """Create the compute context of a run, still without kernels.

    Raises:
        InputError: The device is unknown or missing, or the training of the base needs more memory than it has.
    """
    context = ComputeContext.for_training(train)
    num_parameters = sum(term.size for term in count_parameters(base.config))
    hardware.check_memory(num_parameters, hardware.memory_bytes(context.device))
    return context


def build_model(
    declaration: Task,
    base: ModelFolder,
    settings: FinetuneSettings,
    metadata: Metadata,
    context: ComputeContext,
) -> tuple[Encoder, FittedTask]:
    """Build the base's encoder and the task, whose heads are inherited from the base or drawn from the seed."""
    generator = context.init_generator
    config = settings.model.within(base.config)
    encoder = base.encoder(generator, config)
    task = FittedTask.create(declaration, encoder.config, generator, metadata, settings.task)
    feature_parts = list(task.model.features.parts)
    for term in count_parameters(config, feature_parts)[len(encoder_parameter_terms(config)) :]:
        logger.info("%s below the head: %s more parameters (%s)", term.name, f"{term.size:,}", term.formula)
    _load_inherited_heads(task.model, base)
    for part, base_part in task.model.head_init.items():
        _load_nsp_head(task.model, part, base, base_part)
    if name := getattr(settings.task, "second_encoder", ""):
        _load_second_encoder(task.model.features.beside, base, name, settings.train)
    context.prepare_modules(encoder, task.model)
    freeze_layers(encoder, task.model, declaration.name, settings.train)
    return encoder, task


def load_teacher(
    settings: TeacherSettings, base: Model, task: FittedTask, context: ComputeContext
) -> tuple[TaskDistillation, str]:
    """Return the distillation from the teacher of the settings, and a digest of the teacher's weights.

    Raises:
        InputError: The teacher has another task, other labels, or another tokenizer.
    """
    teacher = load(settings.model)
    if teacher.tokenizer.digest != base.tokenizer.digest:
        message = f"the teacher's tokenizer differs from that of {base.path}"
        hint = "choose a student with the teacher's vocabulary"
        raise InputError(
            "teacher_tokenizer_differs", message, location=teacher.path, argument="teacher.model", hint=hint
        )
    check_teacher(task, teacher.task, str(teacher.path), teacher.folder.config.max_length)
    distillation = TaskDistillation(
        task.model,
        teacher.encoder,
        teacher.task.model,
        temperature=settings.temperature,
        soft_weight=settings.soft_weight,
        task_weight=settings.task_weight,
    )
    context.prepare_modules(distillation)
    return distillation, teacher.folder.weights_digest()


def with_auxiliary_lm(
    objective: Objective, base: ModelFolder, train: FinetuneTrainSettings, context: ComputeContext
) -> Objective:
    """Return the objective with the auxiliary language-modeling loss that the settings or the family ask for.

    Raises:
        InputError: The base is no causal language model, or its encoder is not trained.
    """
    is_possible = base.config.causal and base.has("masked") and not train.freeze_encoder
    default_weight = get_family(base.config.model_type).lm_weight if is_possible else 0.0
    weight = default_weight if train.lm_weight is None else train.lm_weight
    if not weight:
        return objective
    if not is_possible:
        message = "an auxiliary language-modeling loss needs a causal language model whose encoder is trained"
        hint = (
            f"omit {option('train.lm_weight')}, or fine-tune a GPT without {option('train.freeze_encoder')}"
        )
        raise InputError(
            "auxiliary_lm_not_applicable", message, location=base.path, argument="train.lm_weight", hint=hint
        )
    lm = CausalLM(base.config, context.init_generator)
    base.load_into("masked", lm.masked)
    context.prepare_modules(lm)
    logger.info("the loss includes that of language modeling on the same texts, with weight %g", weight)
    return TaskWithLM(objective, lm, weight)


def freeze_layers(encoder: Encoder, model: TaskModel, task_name: str, train: FinetuneTrainSettings) -> None:
    """Freeze layers, and set the learning rates of layers as multiples of the layer above.

    With `layerwise_lr_decay` the top layer has 1, each layer below that multiple of the layer above, and the
    embeddings the lowest (Sun et al. 2019, after Howard and Ruder 2018, section 3.2).

    Raises:
        InputError: The model has no such layers, or nothing would be trained.
    """
    layers = encoder.layers
    num_frozen = len(layers) if train.freeze_encoder else train.freeze_layers
    _check_layer_settings(encoder, train, num_frozen)
    frozen = [encoder.embeddings] if train.freeze_embeddings or num_frozen else []
    last_norm = [encoder.norm] if encoder.norm is not None and num_frozen == len(layers) else []
    for module in [*frozen, *layers[:num_frozen], *last_norm]:
        module.requires_grad_(False)
    parameters = [*encoder.parameters(), *model.parameters()]
    num_trained = sum(p.numel() for p in parameters if p.requires_grad)
    if not num_trained:
        argument = "train.freeze_encoder" if train.freeze_encoder else "train.freeze_layers"
        message = f"with {argument} nothing would be trained, because the task '{task_name}' has no head"
        raise InputError("nothing_to_train", message, argument=argument, hint="freeze fewer layers")
    if frozen:
        layers_text = "the first layer" if num_frozen == 1 else f"the first {num_frozen} layers"
        also = f" and {layers_text}" if num_frozen else ""
        total = pluralize(sum(p.numel() for p in parameters), "parameter")
        logger.info("the embeddings%s are frozen: %s of %s are trained", also, f"{num_trained:,}", total)
    if train.layerwise_lr_decay < 1:
        for depth, module in enumerate(reversed([encoder.embeddings, *layers])):
            setattr(module, "lr_multiplier", train.layerwise_lr_decay**depth)  # noqa: B010  (Module lacks the attribute)


def unfreeze_steps(
    encoder: Encoder, model: TaskModel, train: FinetuneTrainSettings, updates_per_epoch: float
) -> dict[nn.Parameter, int]:
    """Return the first update of each parameter that is not trained from the start (gradual unfreezing).

    The head is trained first, then layer by layer from the top (Howard and Ruder 2018, section 3.3). Without a
    head the top layer is first.
    """
    if train.unfreeze_every is None:
        return {}
    interval = train.unfreeze_every
    updates = max(1, round(updates_per_epoch)) if interval == "epoch" else interval
    has_head = any(p.requires_grad for p in model.parameters())
    modules = reversed([encoder.embeddings, *encoder.layers])
    return {
        parameter: updates * index + 1
        for index, module in enumerate(modules, start=int(has_head))
        for parameter in module.parameters()
        if parameter.requires_grad and index
    }


def _load_inherited_heads(model: TaskModel, base: ModelFolder) -> None:
    has_same_features = not model.features.parts and FEATURE_PARTS.isdisjoint(base.parts)
    for part in model.inherited_heads:
        if (module := model.heads.get(part)) is None:
            continue
        if base.has(part) and has_same_features:
            base.load_into(part, module)
        else:
            reason = f"{part} of the base reads other states" if base.has(part) else f"base has no {part}"
            logger.info("%s: the %s, so a new one is trained", base.path, reason)


def _load_nsp_head(model: TaskModel, part: str, base: ModelFolder, base_part: str) -> None:
    """Initialize a head for two labels from the base's head for next sentence prediction."""
    if not base.has(base_part) or base.sentence_task != "nsp":
        message = "task.init_head_from=nsp needs a head for next sentence prediction, and this model has none"
        hint = "choose a base that was pre-trained with data.sentence_task=nsp, or omit task.init_head_from"
        raise InputError(
            "nsp_head_missing", message, location=base.path, argument="task.init_head_from", hint=hint
        )
    base.load_into(base_part, model.heads[part])
    is_next = (model.labels or [])[base.is_next_label]
    logger.info("the head is initialized from %s's for next sentences: '%s' is IsNext", base.path, is_next)


def _load_second_encoder(
    module: SecondEncoder, base: ModelFolder, name: str, train: FinetuneTrainSettings
) -> None:
    """Load the encoder that reads in the other direction.

    Raises:
        InputError: It differs from the base in more than the direction, or settings treat layers differently.
    """
    other = read_folder(locate(name))
    config, other_config = (
        {key: value for key, value in folder.config.model_dump().items() if key not in DROPOUT_SETTINGS}
        for folder in (base, other)
    )
    is_other_direction = other_config == {**config, "backwards": not config["backwards"]}
    if not is_other_direction or other.tokenizer().digest != base.tokenizer().digest:
        message = f"task.second_encoder={name} differs from the base in more than its direction, or not in it"
        hint = "choose a run with the base's tokenizer and settings, but for model.backwards"
        raise InputError("second_encoder_differs", message, argument="task.second_encoder", hint=hint)
    is_frozen = train.freeze_encoder or train.freeze_embeddings or train.freeze_layers
    if is_frozen or train.unfreeze_every is not None or train.layerwise_lr_decay < 1:
        message = "with task.second_encoder, settings of train cannot treat layers differently"
        hint = "omit it, or the settings that freeze or unfreeze layers and layerwise_lr_decay"
        raise InputError("layers_of_two_encoders", message, argument="task.second_encoder", hint=hint)
    other.load_into("encoder", module.encoder)


def _check_layer_settings(encoder: Encoder, train: FinetuneTrainSettings, num_frozen: int) -> None:
    num_layers = len(encoder.layers)
    if num_frozen > num_layers:
        message = f"train.freeze_layers={num_frozen}, and the model has {pluralize(num_layers, 'layer')}"
        hint, argument = f"give at most {num_layers}", "train.freeze_layers"
        raise InputError("freeze_layers_too_many", message, argument=argument, hint=hint)
    is_set = {
        "freeze_layers": 0 < train.freeze_layers < num_layers,
        "unfreeze_every": train.unfreeze_every is not None,
        "layerwise_lr_decay": train.layerwise_lr_decay < 1,
    }
    names = [name for name, value in is_set.items() if value]
    if not names:
        return
    argument, hint = f"train.{names[-1]}", "omit one of them"
    if train.freeze_encoder and names != ["freeze_layers"]:
        message = f"train.freeze_encoder and {argument} exclude each other, because no layer is trained"
        raise InputError("frozen_with_layer_settings", message, argument=argument, hint=hint)
    if encoder.config.share != "none":
        message = f"{argument} is impossible, because the layers of this model share their weights"
        hint = f"omit it, or freeze all {num_layers} layers with train.freeze_layers"
        raise InputError("layers_share_weights", message, argument=argument, hint=hint)


class CachedEncoder(nn.Module):
    """The hidden states of an encoder, looked up by sequence.

    The module has no weights, so that checkpoints hold only the heads. The states are in a file named by a digest
    of their inputs, float32 [tokens, layers, H].
    """

    def __init__(
        self, encoder: Encoder, layers: Sequence[int], context: ComputeContext, folder: Path
    ) -> None:
        """Create an empty cache.

        Args:
            encoder: The encoder.
            layers: The layers whose states are read; 0 is the output of the embeddings.
            context: The device of the encoder.
            folder: The folder of the file.
        """
        super().__init__()
        self._encoder = (encoder,)  # a tuple, so that the encoder is no submodule
        self._layers, self._context, self._folder = list(layers), context, folder
        self._starts: dict[bytes, int] = {}
        self._states: NDArray[np.float32] = np.empty((0, len(layers), encoder.config.hidden_size), np.float32)

    @property
    def config(self) -> ModelConfig:
        """The encoder's configuration."""
        return self._encoder[0].config

    @property
    def embeddings(self) -> Embeddings:
        """The encoder's embeddings, which a decoder shares."""
        return self._encoder[0].embeddings

    @property
    def generator(self) -> torch.Generator:
        """The encoder's random number generator."""
        return self._encoder[0].generator

    def fill(self, sequences: Sequence[TokenSequence], weights_digest: str) -> None:
        """Compute the states of these sequences, unless an earlier run on the same data wrote them.

        Args:
            sequences: The sequences; the states of equal ones are computed once.
            weights_digest: A digest of the encoder's weights.

        Raises:
            MachineError: The disk is full.
        """
        different = {_key(sequence.ids, sequence.segments): sequence for sequence in sequences}
        keys = sorted(different, key=lambda key: (len(different[key].ids), key))
        lengths = [len(different[key].ids) for key in keys]
        self._starts = dict(zip(keys, np.cumsum([0, *lengths])[:-1].tolist(), strict=True))
        shape = (sum(lengths), len(self._layers), self.config.hidden_size)
        digest = hashlib.sha256("\n".join([weights_digest, *map(str, (self._layers, shape))]).encode("ascii"))
        for key in keys:
            digest.update(key)
        file = self._folder / f"{digest.hexdigest()[:_NAME_LENGTH]}{_SUFFIX}"
        if not file.is_file() or file.stat().st_size != _BYTES_PER_NUMBER * math.prod(shape):
            with atomic.atomic_file(file) as temporary:
                self._write(temporary, [different[key] for key in keys])
        self._states = np.memmap(file, np.float32, "r", shape=shape)

    def forward(self, packed: Packed, *, rows: Tensor | None = None) -> Tensor:
        """Return the last layer's states [N, H], or those of these rows."""
        states = self._read(packed)[:, -1]
        return states if rows is None else states[rows]

    def hidden_states(self, packed: Packed) -> list[Tensor]:
        """Return the states of the embeddings and of each layer, [N, H]; zeros for layers that are not cached."""
        rows = self._read(packed)
        zeros = rows.new_zeros(()).expand(len(rows), rows.shape[2])
        states_of = dict(zip(self._layers, rows.unbind(1), strict=True))
        return [states_of.get(layer, zeros) for layer in range(self.config.num_hidden_layers + 1)]

    def _read(self, packed: Packed) -> Tensor:
        """Return the states [N, layers, H] of a batch."""
        ids, segments = packed.tokens.cpu().numpy(), packed.segments.cpu().numpy()
        ends = np.cumsum(packed.lengths)
        states = np.empty((len(ids), *self._states.shape[1:]), np.float32)
        for end, length in zip(ends.tolist(), packed.lengths.tolist(), strict=True):
            rows = slice(end - length, end)
            start = self._starts[_key(ids[rows], segments[rows])]
            states[rows] = self._states[start : start + length]
        return torch.from_numpy(states).to(packed.tokens.device)

    def _compute(self, batch: Sequence[TokenSequence]) -> NDArray[np.float32]:
        packed = self._context.to_device(pack([Item(i, (sequence,)) for i, sequence in enumerate(batch)]))
        encoder = self._context.autocast_encoder(self._encoder[0].eval())
        with torch.inference_mode():
            states = encoder.hidden_states(packed)
            rows = torch.stack([states[layer] for layer in self._layers], 1).float().cpu()
        result: NDArray[np.float32] = rows.numpy()
        return result

    def _write(self, file: Path, sequences: Sequence[TokenSequence]) -> None:
        """Write the states of all sequences, [tokens, layers, H]."""
        num_done, lengths = 0, [len(sequence.ids) for sequence in sequences]
        batches = list(batches_within_budget(range(len(sequences)), lengths, self._context))
        results = self._context.parallel_map(
            lambda indices: self._compute([sequences[i] for i in indices]), batches
        )
        try:
            with (
                file.open("wb") as stream,
                console.ProgressBar("hidden states", len(sequences), unit="texts") as bar,
            ):
                for indices, rows in zip(batches, results, strict=True):
                    stream.write(rows.tobytes())
                    num_done += len(indices)
                    bar.update(num_done)
        except OSError as error:
            if not hardware.is_disk_full(error):
                raise
            message = "the disk has no space for the hidden states"
            hint = f"free some space, use fewer layers (task.layers), or fewer examples ({option('sample')})"
            raise MachineError("disk_full", message, location=self._folder.parent, hint=hint) from None


def cached_encoder(
    base: ModelFolder,
    encoder: Encoder,
    task: FittedTask,
    items: Sequence[Item],
    context: ComputeContext,
    folder: Path,
) -> Encoder:
    """Return the hidden states of items, in a folder; the result is called as the base's encoder is."""
    cache = CachedEncoder(encoder, task.model.features.layers, context, folder)
    cache.fill([sequence for item in items for sequence in item.sequences], base.weights_digest())
    return cast("Encoder", cache)


def remove_features(folder: Path) -> None:
    """Remove a folder of states, which a finished run does not need."""
    for file in folder.glob(f"{'[0-9a-f]' * _NAME_LENGTH}{_SUFFIX}"):
        file.unlink()
    with suppress(OSError):  # it does not exist, or holds other files
        atomic.remove_abandoned(folder)
        folder.rmdir()


def _key(ids: NDArray[np.integer], segments: NDArray[np.integer]) -> bytes:
    """Return the key of a sequence: its tokens and their segments."""
    return ids.astype(np.int32).tobytes() + segments.astype(np.uint8).tobytes()
