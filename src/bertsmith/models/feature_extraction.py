"""What stands between the encoder and a head: a choice of layers, a BiLSTM on these, or another direction.

All three are ways of Devlin et al. 2019, sections 5.3 and 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from bertsmith.errors import InputError
from bertsmith.formatting import counted
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder
from bertsmith.models.layers import Linear
from bertsmith.models.weight_init import draw_weights
from bertsmith.packed import Packed

BETWEEN = frozenset({"mix", "joined", "recurrent", "recurrent4", "beside"})
"""The parts between encoder and head, by their names in a model folder."""

Layers = Literal["last", "second_to_last", "embeddings", "sum_last_four", "sum_all", "concat_last_four"]
"""The choices of table 7, by its order of rows but for the first."""

_NEVER = -1e4  # the logarithm of a weight that is 0


class LayerMix(nn.Module):
    """scale · Σ softmax(weights) · states, over the embeddings' output and each layer's (Peters et al. 2018,
    equation 1). A choice of one layer is a mix that is not trained."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(config.num_hidden_layers + 1))
        self.scale = nn.Parameter(torch.ones(1))

    def choose(self, layers: Sequence[int]) -> None:
        """Mix these, evenly at first; 0 is the embeddings' output."""
        with torch.no_grad():
            self.weights.fill_(_NEVER)
            self.weights[list(layers)] = 0.0
        self.requires_grad_(len(layers) > 1)

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """L + 1 tensors [N, H] → [N, H]."""
        shares = self.weights.softmax(0)
        return self.scale * torch.einsum("l,lnh->nh", shares, torch.stack(list(states)).float())


class BiLstm(nn.Module):
    """Two bidirectional layers of an LSTM over each sequence: [N, inputs] → [N, H], H/2 in each direction."""

    def __init__(self, config: ModelConfig, generator: torch.Generator, inputs: int) -> None:
        super().__init__()
        half, rest = divmod(config.hidden_size, 2)
        if rest:
            raise InputError(
                f"a BiLSTM gives half of the hidden size in each direction, and {config.hidden_size} is odd",
                "leave it out (task.head=linear), or take a model whose hidden size is even",
            )
        self.lstm = nn.LSTM(inputs, half, num_layers=2, bidirectional=True)
        if not self.lstm.weight_ih_l0.is_meta:
            self.to(generator.device)
            for parameter in self.lstm.parameters():  # as torch draws them, but from the run's own generator
                nn.init.uniform_(parameter, -(half**-0.5), half**-0.5, generator=generator)

    def forward(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """lengths: tokens of each sequence, which lie end to end in x. In fp32 whatever the encoder computes in:
        rounding adds up from token to token, and a machine without bf16 products has no such LSTM."""
        with torch.autocast(x.device.type, enabled=False):
            parts = list(torch.split(x.float(), list(lengths)))
            out, _ = self.lstm(nn.utils.rnn.pack_sequence(parts, enforce_sorted=False))
            return torch.cat(nn.utils.rnn.unpack_sequence(out))


class OtherDirection(nn.Module):
    """The same model read the other way, and a Linear from the states of both, side by side, to the width of one:
    [N, 2H] → [N, H]. Two directions that were trained apart and meet at the top (Peters et al. 2018, section 3.1;
    Devlin et al. 2019, section 5.1)."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        if not config.causal:
            raise InputError(
                "task.beside joins a model that reads the other way, and this one sees both sides",
                "fine-tune one that was pre-trained with objective.name=causal, or leave it out",
            )
        other = config.model_copy(update={"backwards": not config.backwards})
        self.encoder = build_encoder(other, generator)
        self.linear = Linear(2 * config.hidden_size, config.hidden_size)
        draw_weights(self.linear, config.initializer_range, generator)

    def forward(self, own: Tensor, other: Tensor) -> Tensor:
        """The states of both directions at the same tokens, [M, H] each → [M, H]."""
        found: Tensor = self.linear(torch.cat([own, other], 1))
        return found


class Features(nn.Module):
    """From the encoder to what a head reads: the states of `layers`, a BiLSTM's on these, or both directions'."""

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator,
        layers: Layers = "last",
        *,
        recurrent: bool = False,
        beside: bool = False,
    ) -> None:
        super().__init__()
        if beside and (recurrent or layers != "last"):
            raise InputError(
                "task.beside joins the last layers of two models, and nothing else stands below the head then",
                "leave task.head or task.layers out",
            )
        h, number = config.hidden_size, config.num_hidden_layers
        self._config = config
        self._layers: Layers = layers
        self._number, self._recurrent = number, recurrent
        if "four" in layers and number < 4:
            raise InputError(
                f"task.layers={layers}: the model has {counted(number, 'layer')}", "choose last or sum_all"
            )
        if layers == "concat_last_four" and not recurrent:
            self.joined = JoinedLayers(config, generator)
        elif layers == "concat_last_four":
            self.recurrent4 = BiLstm(config, generator, 4 * h)
        elif layers != "last":
            self.mix = LayerMix(config).to(generator.device)
            self.mix.choose(chosen(layers, number))
        if recurrent and layers != "concat_last_four":
            self.recurrent = BiLstm(config, generator, h)
        self._beside = beside
        if beside:
            self.beside = OtherDirection(config, generator)

    @property
    def layers(self) -> list[int]:
        """The layers that are read; 0 is the embeddings' output."""
        return chosen(self._layers, self._number)

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        """The modules by the names that a model folder has for them."""
        return dict(self.named_children())

    def of_sequences(self, encoder: Encoder, packed: Packed) -> Tensor:
        """What heads on sequences read of a batch, [B, H].

        Of the encoder one token's state: the first one's; where a token sees only those before it, the last one's
        (Radford et al. 2018). Of a BiLSTM the last state of each direction: the half that goes forward at the last
        token, the half that goes backward at the first. The paper does not say what its table 5 read; there alone
        each half has read the whole sequence, from left to right or both ways whichever the encoder does, while
        any single token's state has one half that has hardly begun where the other has ended. Of two directions
        each one's last state.
        """
        if self._beside:
            pairs = ((encoder, self._config), (self.beside.encoder, self.beside.encoder.config))
            ends = [one(packed, rows=_read_rows(config, packed)) for one, config in pairs]
            found: Tensor = self.beside(*ends)
            return found
        if not self._recurrent:
            return self(encoder, packed, _read_rows(self._config, packed))  # type: ignore[no-any-return]
        states: Tensor = self(encoder, packed)
        half = self._config.hidden_size // 2
        return torch.cat([states[packed.last_rows, :half], states[packed.first_rows, half:]], 1)

    def forward(self, encoder: Encoder, packed: Packed, rows: Tensor | None = None) -> Tensor:
        """What heads on tokens read of a batch, [N, H]. rows: long [M], of these tokens alone, [M, H]."""
        if self._beside:
            joined: Tensor = self.beside(*(one(packed, rows=rows) for one in (encoder, self.beside.encoder)))
            return joined
        if self._layers == "last" and not self._recurrent:
            return encoder(packed, rows=rows)  # type: ignore[no-any-return]
        x = self._of_layers(encoder, packed)
        return x if rows is None else x[rows]

    def _of_layers(self, encoder: Encoder, packed: Packed) -> Tensor:
        """Where more is read than the last layer, or read on: [N, H]."""
        lengths = packed.lengths.tolist()
        if self._layers == "concat_last_four":
            x = torch.cat(encoder.hidden_states(packed)[-4:], 1)
            return self.recurrent4(x, lengths) if self._recurrent else self.joined(x)  # type: ignore[no-any-return]
        x = encoder(packed) if self._layers == "last" else self.mix(encoder.hidden_states(packed))
        return self.recurrent(x, lengths) if self._recurrent else x  # type: ignore[no-any-return]


def _read_rows(config: ModelConfig, packed: Packed) -> Tensor:
    """The row of each sequence that has seen all that its model sees, long [B]."""
    found: Tensor = packed.last_rows if config.sees == "before" else packed.first_rows
    return found


class JoinedLayers(nn.Module):
    """Linear from four layers' states side by side to the width of one: [N, 4H] → [N, H]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = Linear(4 * config.hidden_size, config.hidden_size)
        draw_weights(self, config.initializer_range, generator)

    def forward(self, x: Tensor) -> Tensor:
        """No activation behind it: with a linear head it is one linear head on all four."""
        return self.linear(x)  # type: ignore[no-any-return]


def chosen(layers: Layers, number: int) -> list[int]:
    """The layers of a choice among `number`; 0 is the embeddings' output."""
    return {
        "last": [number],
        "second_to_last": [number - 1],
        "embeddings": [0],
        "sum_last_four": list(range(number - 3, number + 1)),
        "concat_last_four": list(range(number - 3, number + 1)),
        "sum_all": list(range(1, number + 1)),
    }[layers]
