"""What a head may read besides the last layer's states: another layer's, several of them, a BiLSTM's on these.

The feature-based way of Devlin et al. 2019, section 5.3 and table 7, where the encoder itself stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.layers import Linear
from bertsmith.models.start import draw_weights
from bertsmith.packed import Packed
from bertsmith.wording import counted

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
            raise ValueError(
                f"a BiLSTM gives half of the states in each direction, and {config.hidden_size} is odd"
            )
        self.lstm = nn.LSTM(inputs, half, num_layers=2, bidirectional=True)
        if not self.lstm.weight_ih_l0.is_meta:
            self.to(generator.device)
            for parameter in self.lstm.parameters():  # as torch draws them, but from the run's own generator
                nn.init.uniform_(parameter, -(half**-0.5), half**-0.5, generator=generator)

    def forward(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """lengths: tokens of each sequence, which lie end to end in x."""
        rows = nn.utils.rnn.pack_sequence(list(torch.split(x, list(lengths))), enforce_sorted=False)
        out, _ = self.lstm(rows)
        return torch.cat(nn.utils.rnn.unpack_sequence(out))


class Features(nn.Module):
    """From the encoder to what a head reads, [N, H]: the states of `layers`, or a BiLSTM's on these."""

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator,
        layers: Layers = "last",
        *,
        recurrent: bool = False,
    ) -> None:
        super().__init__()
        h, number = config.hidden_size, config.num_hidden_layers
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

    @property
    def layers(self) -> list[int]:
        """The layers that are read; 0 is the embeddings' output."""
        return chosen(self._layers, self._number)

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        """The modules by the names that a model folder has for them."""
        return dict(self.named_children())

    def forward(self, encoder: Encoder, packed: Packed) -> Tensor:
        """[N, H] of a batch."""
        lengths = packed.lengths.tolist()
        if self._layers == "concat_last_four":
            x = torch.cat(encoder.hidden_states(packed)[-4:], 1)
            return self.recurrent4(x, lengths) if self._recurrent else self.joined(x)  # type: ignore[no-any-return]
        x = encoder(packed) if self._layers == "last" else self.mix(encoder.hidden_states(packed))
        return self.recurrent(x, lengths) if self._recurrent else x  # type: ignore[no-any-return]


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
