"""The encoder on padded batches, for tools that do not know packed sequences.

A padded batch is packed without leaving anything out: its B sequences all have T tokens, padding included, and
attention hides padding. So layers and heads compute it as any other batch, and nothing depends on the lengths,
which a traced graph cannot know. Recurrent layers become operators of ONNX, which end at the length of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.kernels.reference import SequenceLayout
from bertsmith.models.attention import AttentionLayout, Bucket
from bertsmith.models.char_cnn import CharCnn
from bertsmith.models.config import ModelConfig
from bertsmith.models.cross_attention import PairBucket, PairLayout
from bertsmith.models.decoder import EncodedSource, TargetLSTM
from bertsmith.models.encoder import Embeddings, Encoder
from bertsmith.models.feature_extraction import BiLSTM
from bertsmith.models.recurrent import RIGHT_TO_LEFT, RecurrentEncoder, RecurrentLayer
from bertsmith.packed import Packed


@dataclass(frozen=True)
class PaddedBatch(Packed):
    """A batch of B sequences that are padded on the right to T tokens; all B · T tokens have a row.

    `lengths` is None, as code that needs them cannot be traced.

    Attributes:
        mask: True on tokens and False on padding, [B, T].
    """

    mask: Tensor

    @classmethod
    def create(
        cls, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None, config: ModelConfig
    ) -> PaddedBatch:
        """Return the batch of ids, each long [B, T], with the positions of transformers.

        Args:
            input_ids: Token ids.
            attention_mask: 1 on tokens and 0 on padding.
            token_type_ids: Segment ids; None: zeros.
            config: The model's sizes and switches.
        """
        sequences, length = input_ids.shape
        positions = torch.arange(length, device=input_ids.device).expand_as(input_ids)
        if config.first_position == "after_padding":
            is_token = input_ids.ne(config.position_offset - 1).long()
            positions = is_token.cumsum(1) * is_token - 1
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        starts = torch.arange(sequences + 1, device=input_ids.device) * length
        lengths: Any = None
        tokens, segments, positions = (ids.reshape(-1) for ids in (input_ids, segments, positions))
        return cls(tokens, segments, positions, starts, lengths, attention_mask.bool())

    @property
    def num_sequences(self) -> int:
        """The number of sequences, B."""
        return self.mask.shape[0]

    @cached_property
    def max_seqlen(self) -> int:
        """The number of tokens of each sequence, T."""
        return self.mask.shape[1]

    @property
    def last_token_rows(self) -> Tensor:
        """The row of each sequence's last token before the padding, long [B]."""
        return self.first_token_rows + self.mask.sum(1) - 1

    @property
    def row_bounds(self) -> tuple[Tensor, Tensor]:
        """The row of the first token of each row's sequence, and the row after its last token, long [B · T]."""
        starts, ends = self.first_token_rows, self.last_token_rows + 1
        starts, ends = (rows[:, None].expand(self.mask.shape).flatten() for rows in (starts, ends))
        return starts, ends

    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean of each sequence's tokens, [B · T, H] → [B, H]."""
        mask = self.mask[..., None].to(rows.dtype)
        return (rows.view(*self.mask.shape, -1) * mask).sum(1) / mask.sum(1)


class PaddedLayout(AttentionLayout):
    """The layout of a padded batch: one bucket, in which cell i holds row i."""

    @cached_property
    def sequence_layout(self) -> SequenceLayout:
        """Return the sequences in the form that kernels take."""
        batch = self.packed
        num_tokens = batch.num_sequences * batch.max_seqlen
        return SequenceLayout(batch.cu_seqlens, self.direction, batch.max_seqlen, num_tokens)

    @cached_property
    def _buckets_and_cells(self) -> tuple[tuple[Bucket, ...], Tensor | None, Tensor | None]:
        batch = self.packed
        assert isinstance(batch, PaddedBatch)
        is_hidden = ~batch.mask[:, None, None]
        if self.direction != "all":
            columns = torch.arange(batch.max_seqlen, device=batch.mask.device)
            distances = columns - columns[:, None]
            is_hidden = is_hidden | (distances > 0 if self.direction == "before" else distances < 0)
        bias = torch.zeros_like(is_hidden, dtype=torch.float32)
        bias = bias.masked_fill(is_hidden, torch.finfo(torch.float32).min)
        return (Bucket(batch.num_sequences, batch.max_seqlen, bias),), None, None


@dataclass(frozen=True)
class PaddedPairLayout(PairLayout):
    """The layout of padded targets and sources: one bucket, in which all rows are in order.

    Attributes:
        targets: The targets; what stands in their padding changes nothing before it.
        sources: The sources.
    """

    targets: PaddedBatch
    sources: PaddedBatch

    @cached_property
    def buckets(self) -> tuple[PairBucket, ...]:
        """The bucket."""
        target_rows, source_rows = (
            torch.arange(batch.mask.numel(), device=batch.mask.device).view(batch.mask.shape)
            for batch in (self.targets, self.sources)
        )
        is_source = self.sources.mask[:, None, None]
        bias = torch.zeros_like(is_source, dtype=torch.float32)
        bias = bias.masked_fill(~is_source, torch.finfo(torch.float32).min)
        return (PairBucket(target_rows, self.targets.mask, source_rows, bias),)

    def join(self, outputs: list[Tensor]) -> Tensor:
        """Return the rows of all target tokens."""
        return outputs[0].flatten(0, 1)


@dataclass(frozen=True)
class PaddedSource(EncodedSource):
    """The encoder's output for padded sources.

    Attributes:
        targets: The targets.
    """

    targets: PaddedBatch

    def layout(self, target_lengths: NDArray[np.int64]) -> PaddedPairLayout:
        """Return the layout of attention from the targets."""
        sources: Any = self.packed
        return PaddedPairLayout(
            target_lengths, target_lengths, self.states.device, True, self.targets, sources
        )

    def target_layout(self, targets: Packed) -> PaddedLayout:
        """Return the layout of the targets' attention to themselves."""
        return PaddedLayout(targets, "before")

    def repeat(self, x: Tensor, target_lengths: NDArray[np.int64]) -> Tensor:
        """Return the row of its source for each target token."""
        return x[:, None].expand(-1, self.targets.max_seqlen, -1).flatten(0, 1)


class PaddedRNN(nn.Module):
    """RNNs or LSTMs with the weights of a module, as operators of ONNX: [B · T, inputs] → [B · T, outputs].

    torch would trace them step by step, for one length. The operators read each sequence up to its last token, or
    from there. They can be traced, but PyTorch cannot compute them.
    """

    def __init__(self, rnn: nn.RNNBase, direction: str) -> None:
        """Copy the weights.

        Args:
            rnn: The module.
            direction: "forward", "reverse", or "bidirectional".
        """
        super().__init__()
        self._is_lstm = isinstance(rnn, nn.LSTM)
        self._direction = direction
        suffixes = ("", "_reverse") if rnn.bidirectional else ("",)
        self.weights = nn.ParameterList()  # of each layer three: for inputs and states, and biases
        for i in range(rnn.num_layers):
            input_weights, state_weights, input_biases, state_biases = (
                torch.stack([self._sort_gates(getattr(rnn, f"{name}_l{i}{suffix}")) for suffix in suffixes])
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            self.weights.extend([input_weights, state_weights, torch.cat([input_biases, state_biases], 1)])

    def _sort_gates(self, parameter: Tensor) -> Tensor:
        """Return a parameter with its gates in the order of ONNX."""
        if not self._is_lstm:
            return parameter.detach()
        input_gate, forget_gate, cell_gate, output_gate = parameter.detach().chunk(4)
        return torch.cat([input_gate, output_gate, forget_gate, cell_gate])

    def forward(
        self, x: Tensor, batch: PaddedBatch, initial_state: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Trace the layers on all tokens; a single layer may start from states, [B, outputs] each."""
        num_sequences, length = batch.mask.shape
        lengths = batch.mask.sum(1, dtype=torch.int32)
        initial = () if initial_state is None else tuple(state[None] for state in initial_state)
        x = x.view(num_sequences, length, -1).transpose(0, 1)
        for i in range(0, len(self.weights), 3):
            weights = [self.weights[j] for j in range(i, i + 3)]
            num_directions, _, size = weights[1].shape
            y = torch.onnx.ops.symbolic(
                "LSTM" if self._is_lstm else "RNN",
                (x, *weights, lengths, *initial),
                {"hidden_size": size, "direction": self._direction},
                dtype=x.dtype,
                shape=(length, num_directions, num_sequences, size),
            )
            x = y.transpose(1, 2).flatten(2)
        return x.transpose(0, 1).flatten(0, 1)


class PaddedSteps:
    """Runs the cells of a `RecurrentLayer` on a padded batch, in place of `TimeSteps`."""

    def __init__(self, batch: PaddedBatch) -> None:
        self._batch = batch

    def run(self, cell: PaddedRNN, x: Tensor, _: str) -> Tensor:
        """Run a cell, which knows its direction, over all sequences."""
        states: Tensor = cell(x, self._batch)
        return states


def replace_modules(module: nn.Module) -> None:
    """Replace the parts of a module that read `Packed` by those that read `PaddedBatch`, with the same weights.

    Vectors that are computed from bytes become a table of all vectors.
    """
    for name, part in list(module.named_children()):
        if isinstance(part, Encoder):
            setattr(module, name, PaddedEncoder(part))
        elif isinstance(part, BiLSTM):
            setattr(module, name, PaddedRNN(part.lstm, "bidirectional"))
        elif isinstance(part, TargetLSTM):
            setattr(module, name, PaddedRNN(part, "forward"))
        elif isinstance(part, CharCnn):
            vectors = part(torch.arange(len(part.characters)))
            setattr(module, name, nn.Embedding.from_pretrained(vectors.detach()))  # type: ignore[no-untyped-call]
        elif isinstance(part, RecurrentLayer):
            for direction, cell in part.cells.items():
                assert isinstance(cell, nn.RNNBase)
                part.cells[direction] = PaddedRNN(
                    cell, "reverse" if direction == RIGHT_TO_LEFT else "forward"
                )
        else:
            replace_modules(part)


class PaddedEncoder(nn.Module):
    """An encoder, with the same weights, that reads a `PaddedBatch` in place of `Packed`."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        replace_modules(encoder)
        self.encoder, self.config = encoder, encoder.config

    @property
    def embeddings(self) -> Embeddings:
        """The embeddings of the encoder."""
        return self.encoder.embeddings

    def forward(self, batch: PaddedBatch, rows: Tensor | None = None) -> Tensor:
        """Return the last hidden states, [B · T, H], or those of the tokens `rows`, long [M]: [M, H]."""
        return self._states(batch, rows)[-1]

    def hidden_states(self, batch: PaddedBatch) -> Sequence[Tensor]:
        """Return the outputs of the embeddings and of each layer, L + 1 tensors [B · T, H]."""
        return self._states(batch, None)

    def _states(self, batch: PaddedBatch, rows: Tensor | None) -> list[Tensor]:
        states = [self.encoder.embeddings(batch)]
        if isinstance(self.encoder, RecurrentEncoder):
            steps = PaddedSteps(batch)
            for layer in self.encoder.layers:
                states.append(layer(states[-1], steps))
            return states if rows is None else [state[rows] for state in states]
        layout = PaddedLayout(batch, self.config.attention_direction)
        *first_layers, last_layer = self.encoder.layers
        for layer in first_layers:
            states.append(layer(states[-1], layout))
        states.append(last_layer(states[-1], layout, rows))
        if self.encoder.norm is not None:
            states[-1] = self.encoder.norm(states[-1])
        return states
