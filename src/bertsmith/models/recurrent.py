"""Recurrent encoders on packed token ids, with the interface of `Encoder`.

Layers are RNNs (Elman 1990) or LSTMs (Hochreiter and Schmidhuber 1997) for one direction or for both. In an ELMo
(Peters et al. 2018) the directions are separate from the first layer to the last; otherwise each layer reads both
directions of the layer below. A hidden state of both directions is [forward; backward], each of size H/2.

Layers are computed in fp32: rounding errors of lower precision would add up from token to token.

Shapes: N tokens in a packed batch, B sequences, T tokens of the longest one, H hidden size, E embedding size, C
units of a recurrent layer and direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertsmith.errors import InputError
from bertsmith.models.char_cnn import CharCnn
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Embedding, Embeddings, Encoder
from bertsmith.models.layers import Dropout, Linear
from bertsmith.packed import Packed, copy_to_device

LEFT_TO_RIGHT, RIGHT_TO_LEFT = "left_to_right", "right_to_left"


@dataclass(frozen=True)
class TimeSteps:
    """The tokens of a batch by time step, as recurrent layers read them.

    Attributes:
        rows: For each direction the rows of all first tokens, then of all second ones, …, long [N].
        inverse: For each direction the index of each row in `rows`, long [N].
        batch_sizes: The number of sequences with a token at each step, long [T], on the host.
    """

    rows: Mapping[str, Tensor]
    inverse: Mapping[str, Tensor]
    batch_sizes: Tensor

    @classmethod
    def of(cls, packed: Packed) -> TimeSteps:
        """Return the time steps of a batch, from the first token on and from the last token on."""
        lengths = packed.lengths
        longest_first = np.argsort(-lengths, kind="stable")
        starts = (np.cumsum(lengths) - lengths)[longest_first]
        sorted_lengths = lengths[longest_first]
        steps = np.arange(lengths.sum()) - np.repeat(
            np.cumsum(sorted_lengths) - sorted_lengths, sorted_lengths
        )
        order = np.argsort(steps, kind="stable")
        firsts, lasts = (
            np.repeat(starts, sorted_lengths),
            np.repeat(starts + sorted_lengths - 1, sorted_lengths),
        )
        rows = {LEFT_TO_RIGHT: (firsts + steps)[order], RIGHT_TO_LEFT: (lasts - steps)[order]}
        device = packed.tokens.device

        def to_device(indices: NDArray[np.int64]) -> Tensor:
            return copy_to_device(torch.from_numpy(indices), device)

        return cls(
            {direction: to_device(indices) for direction, indices in rows.items()},
            {direction: to_device(np.argsort(indices)) for direction, indices in rows.items()},
            torch.from_numpy(np.bincount(steps)),
        )

    def run(self, cell: nn.RNNBase, x: Tensor, direction: str) -> Tensor:
        """Run a recurrent layer of one direction over all sequences: [N, inputs] → [N, outputs]."""
        if not len(x):
            return x.new_zeros(0, cell.hidden_size)
        output, _ = cell(PackedSequence(x[self.rows[direction]], self.batch_sizes))
        states: Tensor = output.data[self.inverse[direction]]
        return states


class TokenEmbeddings(Embeddings):
    """Token embeddings without positions, segments, and LayerNorm, and dropout: [N] → [N, H].

    If each direction has its own layers, the output is the vectors for both, [forward; backward]; they are equal
    unless the directions have their own embeddings, too (`tie_directions`).
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        nn.Module.__init__(self)  # without the parts of BERT's embeddings

        def create() -> Any:
            if config.embedding_type == "char_cnn":
                return CharCnn(config, generator)
            return Embedding(config.vocab_size, config.embedding_dim, padding_idx=config.pad_token_id)

        self.token: Any = create()
        self.backward_token: Any = None if config.tie_directions else create()
        self.segment = None
        self.dropout = Dropout(config.hidden_dropout_prob, generator)
        self._is_repeated = config.embedding_dim < config.hidden_size

    @torch.no_grad()
    def init_fixed_weights(self, config: ModelConfig) -> None:
        """Set the padding vectors to 0, and draw the weights of vectors from characters."""
        for token in filter(None, (self.token, self.backward_token)):
            if isinstance(token, CharCnn):
                token.init_weights(self.dropout.generator)
            else:
                token.weight[config.pad_token_id].zero_()

    def set_tokens(self, tokens: Sequence[str]) -> None:
        """Set the strings of all tokens, from which vectors may be computed."""
        for token in (self.token, self.backward_token):
            if isinstance(token, CharCnn):
                token.set_tokens(tokens)

    def forward(self, packed: Packed) -> Tensor:
        """Return the input of the first layer for a batch's tokens, [N, H]."""
        x = self.token(packed.tokens)
        if self._is_repeated:
            second = x if self.backward_token is None else self.backward_token(packed.tokens)
            x = torch.cat([x, second], 1)
        embedded: Tensor = self.dropout(x).float()
        return embedded


class RecurrentLayer(nn.Module):
    """A recurrent layer for one direction or both, with dropout on its output: [N, H] → [N, H].

    The states of C units are projected to the layer's output if its size differs. The projection is above the
    recurrence, not in it as in Sak et al. 2014, for which torch trains three to five times as slowly on a CPU.

    Attributes:
        cells: One-layer RNNs or LSTMs by direction.
    """

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator,
        cell_type: type[nn.RNN] | type[nn.LSTM],
        *,
        separate_directions: bool = False,
        residual: bool = False,
    ) -> None:
        """Build a layer.

        Args:
            config: The model's sizes and switches.
            generator: Draws the weights and then dropout.
            cell_type: The layer of one direction.
            separate_directions: Each direction reads only its own half of the input.
            residual: Add the input to the output.
        """
        super().__init__()
        self._has_separate_directions, self._has_residual = separate_directions, residual
        count = len(directions(config))
        inputs = config.hidden_size // (count if separate_directions else 1)
        outputs, units = config.hidden_size // count, config.intermediate_size // count
        names = directions(config)
        self.cells = nn.ModuleDict({name: cell_type(inputs, units) for name in names})
        self.projections = nn.ModuleDict({name: Linear(units, outputs) for name in names if units != outputs})
        self.dropout = Dropout(config.hidden_dropout_prob, generator)
        for cell in self.cells.values():
            _init_cell(cell, generator)

    def forward(self, x: Tensor, steps: TimeSteps) -> Tensor:
        """Compute the states of all tokens."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            inputs = x.chunk(len(self.cells), 1) if self._has_separate_directions else [x] * len(self.cells)
            states = [
                self.project(name, steps.run(cell, part, name))  # type: ignore[arg-type]
                for (name, cell), part in zip(self.cells.items(), inputs, strict=True)
            ]
            output = self.dropout(torch.cat(states, 1))
            summed: Tensor = output + x if self._has_residual else output
            return summed

    def project(self, name: str, states: Tensor) -> Tensor:
        """Return a direction's output for the states of its cell, [N, C]."""
        projected: Tensor = self.projections[name](states) if name in self.projections else states
        return projected


def directions(config: ModelConfig) -> tuple[str, ...]:
    """Return the directions in which a model's layers read."""
    if not config.causal:
        return (LEFT_TO_RIGHT, RIGHT_TO_LEFT)
    return (RIGHT_TO_LEFT,) if config.backwards else (LEFT_TO_RIGHT,)


@torch.no_grad()
def _init_cell(cell: nn.Module, generator: torch.Generator) -> None:
    """Draw weights from torch's distribution, and set biases to 0, but an LSTM's forget gates to 1.

    A forget gate starts open, so that gradients reach distant tokens (Gers et al. 2000; Jozefowicz et al. 2015).
    """
    assert isinstance(cell, nn.RNNBase)
    if next(cell.parameters()).is_meta:
        return
    cell.to(generator.device)
    units = cell.hidden_size
    for name, parameter in cell.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.uniform_(parameter, -(units**-0.5), units**-0.5, generator=generator)
    if isinstance(cell, nn.LSTM):  # gates are input, forget, cell, output; torch adds two biases
        bias: Any = cell.bias_ih_l0
        bias[units : 2 * units] = 1.0


class RecurrentEncoder(Encoder):
    """Token embeddings and RNNs, with the interface of `Encoder`.

    Attributes:
        cell_type: The layer of one direction.
        separate_directions: Each direction has its own layers, of which all but the first have a residual
            connection (ELMo).
    """

    cell_type: ClassVar[type[nn.RNN] | type[nn.LSTM]] = nn.RNN
    separate_directions: ClassVar[bool] = False

    def _build_embeddings(self) -> Embeddings:
        return TokenEmbeddings(self.config, self._generator)

    def _build_blocks(self) -> list[nn.Module]:
        return [
            RecurrentLayer(
                self.config,
                self._generator,
                self.cell_type,
                separate_directions=self.separate_directions,
                residual=self.separate_directions and i > 0,
            )
            for i in range(self.config.num_hidden_layers)
        ]

    def hidden_states(self, packed: Packed) -> list[Tensor]:
        """Return the outputs of the embeddings and of each layer, L + 1 tensors [N, H], fp32."""
        self._check_length(packed.max_seqlen)
        with self.forward_context():
            states = [self.embeddings(packed)]
            layout = self._token_layout(packed)
            for layer in self.layers:
                states.append(layer(states[-1], layout))
        return states

    def attention_maps(self, packed: Packed) -> list[list[Tensor]]:
        """Raise InputError: there is no attention."""
        message = f"a model of the family {self.config.model_type} has no attention"
        raise InputError("no_attention", message, hint="choose a Transformer")

    def _last_hidden_state(self, packed: Packed, rows: Tensor | None) -> Tensor:
        state = self.hidden_states(packed)[-1]
        return state if rows is None else state[rows]

    def _token_layout(self, packed: Packed) -> Any:
        """Return the arrangement of the tokens that the layers read by."""
        return TimeSteps.of(packed)


class LstmEncoder(RecurrentEncoder):
    """Token embeddings and LSTMs."""

    cell_type = nn.LSTM


class ElmoEncoder(LstmEncoder):
    """Token embeddings, or vectors from characters, and separate LSTMs for each direction (Peters et al. 2018)."""

    separate_directions = True
