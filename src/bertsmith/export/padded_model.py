"""A model as other tools call it: padded ids in, outputs with names out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.errors import InputError
from bertsmith.kernels.reference import REFERENCE, set_kernel_backend
from bertsmith.models.encoder import Encoder
from bertsmith.models.padded import PaddedBatch, PaddedEncoder, replace_modules
from bertsmith.tasks.base import TaskModel, WritingModel
from bertsmith.tasks.batching import TaskBatch

_TARGET_IDS = "decoder_input_ids"
_EXAMPLE_SIZES = {"batch": 2, "choices": 3, "sequence": 8, "target": 5}  # of the axes in the traced example


class PaddedModel(nn.Module):
    """An encoder on padded batches, with the heads of its task if there are any.

    Inputs and outputs have the names of transformers. Without heads the output is `last_hidden_state` [B, T, H].
    With heads it is `logits`: [B, K] for sequences, [B, T, K] for tokens, [B, C] for choices, whose inputs are
    [B, C, T]; and `start_logits` and `end_logits` [B, T] for spans. A model that writes text also reads the tokens
    of the target, `decoder_input_ids` [B, t], and its logits are [B, t, V]. Further inputs are the task's
    `TaskModel.token_inputs`, and further outputs the weights that decoding needs (`TaskModel.shared_outputs`).

    Attributes:
        input_names: The names of the inputs, in the order of `forward`.
        output_names: The names of the outputs, those of `shared_names` at the end.
        shared_names: The names of the outputs that are weights.
        token_inputs: The number of token indices of each further input by name.
        writes_text: True if the model writes text (`WritingModel`).
        has_choices: True if an item has several sequences, one per choice.
        is_per_token: True if there is an output per token.
    """

    def __init__(self, encoder: Encoder, model: TaskModel | None) -> None:
        """Create the module, which changes `encoder` and `model`: nobody else may use them.

        Args:
            encoder: The encoder, with the reference kernels.
            model: The model of the task; None for an encoder alone.

        Raises:
            InputError: The task has no `TaskModel.logits`.
        """
        super().__init__()
        self.encoder = PaddedEncoder(encoder)
        self.model = model if model is not None and model.heads else None
        self.token_inputs: Mapping[str, int] = {}
        self.shared_names: tuple[str, ...] = ()
        self.output_names: tuple[str, ...] = ("last_hidden_state",)
        if self.model is not None:
            if type(self.model).logits is TaskModel.logits:
                message = "the answers of this task are no logits of one graph"
                hint = "export a model of another task; a task of your own must define TaskModel.logits"
                raise InputError("export_without_logits", message, hint=hint)
            set_kernel_backend(self.model, REFERENCE)
            replace_modules(self.model)
            self.token_inputs = self.model.token_inputs
            self.shared_names = tuple(self.model.shared_outputs())
            self.output_names = (*self.model.logit_names, *self.shared_names)
        self.has_choices = self.model is not None and self.model.has_choices
        self.is_per_token = self.model is None or self.model.outputs_per_token
        self.writes_text = isinstance(self.model, WritingModel)
        segments = ("token_type_ids",) if encoder.config.type_vocab_size > 1 else ()
        targets = (_TARGET_IDS,) if self.writes_text else ()
        self.input_names = ("input_ids", "attention_mask", *segments, *targets, *self.token_inputs)
        self.requires_grad_(False).eval()

    @property
    def axes(self) -> dict[str, dict[int, str]]:
        """The names of the dynamic axes of each input."""
        names = ("batch", "choices", "sequence") if self.has_choices else ("batch", "sequence")
        axes = {name: dict(enumerate(names)) for name in self.input_names}
        axes |= {name: {0: "batch"} for name in self.token_inputs}
        return axes | ({_TARGET_IDS: {0: "batch", 1: "target"}} if self.writes_text else {})

    @property
    def needs_examples(self) -> bool:
        """True if inputs are more than a text."""
        return bool(self.token_inputs) or self.writes_text

    @property
    def example_inputs(self) -> tuple[Tensor, ...]:
        """Inputs to trace."""
        sizes = {
            **_EXAMPLE_SIZES,
            "sequence": min(_EXAMPLE_SIZES["sequence"], self.encoder.config.max_length),
        }
        inputs = {
            name: torch.zeros([sizes[axis] for axis in axes.values()], dtype=torch.long)
            for name, axes in self.axes.items()
        }
        for name, count in self.token_inputs.items():
            inputs[name] = torch.zeros(sizes["batch"], count, dtype=torch.long)
        inputs["attention_mask"].fill_(1)
        return tuple(inputs.values())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs of a batch, in the order of `output_names`."""
        values = dict(zip(self.input_names, inputs, strict=True))
        ids, mask, segments = (
            None if name not in values else values[name].flatten(0, -2)
            for name in ("input_ids", "attention_mask", "token_type_ids")
        )
        assert ids is not None
        assert mask is not None
        config = self.encoder.config
        packed = PaddedBatch.create(ids, mask, segments, config)
        if self.model is None:
            return (self.encoder(packed).view(*ids.shape, config.hidden_size),)
        first_rows = packed.first_token_rows[:, None]
        tensors = {name: first_rows + values[name] for name in self.token_inputs}
        if self.writes_text:
            tensors[_TARGET_IDS] = values[_TARGET_IDS]
        encoder: Any = self.encoder
        logits = self.model.logits(encoder, TaskBatch(packed, (), tensors, {}))
        shared = tuple(self.model.shared_outputs().values())
        if self.has_choices:
            return (logits.view(values["input_ids"].shape[:2]), *shared)
        if not self.is_per_token:
            return (logits, *shared)
        logits = logits.view(*tensors.get(_TARGET_IDS, ids).shape, logits.shape[-1])
        return (*(logits.unbind(-1) if len(self.model.logit_names) > 1 else [logits]), *shared)
