"""Token vectors from the bytes of each token, by convolutions, highway layers, and a projection.

The source is Kim et al. 2016 and Peters et al. 2018, section 3.4, whose convolutions are larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.models.config import ModelConfig
from bertsmith.models.layers import Linear
from bertsmith.models.weight_init import init_weights

MAX_BYTES = 32
"""Bytes of a token that are read, with a mark at each end; further ones are ignored."""
_FIRST_BYTE, _BEGIN, _END, _NUM_SYMBOLS = 1, 257, 258, 259  # 0 is padding
_BYTE_SIZE = 16
_FILTERS = {1: 16, 2: 32, 3: 64, 4: 128, 5: 256}  # number by length in bytes
_NUM_HIGHWAYS = 2


class CharCnn(nn.Module):
    """Vectors of tokens from their bytes: ids [N] → [N, E].

    Attributes:
        characters: The bytes of each token [V, MAX_BYTES]: a weight that is saved and never trained, as numbers
            in fp32. They are zeros until `set_tokens`.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        size = sum(_FILTERS.values())
        table = torch.zeros(config.vocab_size, MAX_BYTES)
        self.characters = nn.Parameter(table, requires_grad=False)
        self.byte_vectors = nn.Parameter(torch.empty(_NUM_SYMBOLS, _BYTE_SIZE))
        self.convolutions = nn.ModuleDict(
            {str(length): Linear(length * _BYTE_SIZE, count) for length, count in _FILTERS.items()}
        )
        self.highways = nn.ModuleList(Linear(size, 2 * size) for _ in range(_NUM_HIGHWAYS))
        self.projection = Linear(size, config.embedding_dim)
        if not table.is_meta:
            self.to(generator.device)
            nn.init.normal_(self.byte_vectors, generator=generator)

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw weights whose outputs have about the deviation of their inputs."""
        for module in self.modules():
            if isinstance(module, Linear):
                init_weights(module, module.in_features**-0.5, generator)
        for highway in self.highways:  # gates start at the side of the input (Srivastava et al. 2015)
            gate = highway.bias[len(highway.bias) // 2 :]  # type: ignore[index,arg-type]
            nn.init.constant_(gate, 1.0)

    @torch.no_grad()
    def set_tokens(self, tokens: Sequence[str]) -> None:
        """Set the bytes of all tokens, in the order of their ids."""
        self.characters.copy_(byte_table(tokens, len(self.characters)))

    @contextmanager
    def tied_decoder_weight(self, is_tied: bool) -> Iterator[Tensor]:
        """Yield an empty tensor: no decoder can be tied to these vectors."""
        del is_tied
        yield self.weight

    @property
    def weight(self) -> Tensor:
        """Return an empty tensor: there are no vectors of the vocabulary."""
        return self.byte_vectors.new_empty(0)

    def forward(self, ids: Tensor) -> Tensor:
        """Compute the vectors of tokens; those of equal tokens once."""
        distinct, inverse = torch.unique(ids, return_inverse=True)
        symbols = self.characters[distinct].long()
        x = F.embedding(symbols, self.byte_vectors)  # [tokens, MAX_BYTES, size]
        features = []
        for length, convolution in self.convolutions.items():
            windows = x.unfold(1, int(length), 1).flatten(2)
            features.append(torch.relu(convolution(windows)).amax(1))
        y = torch.cat(features, 1)
        for highway in self.highways:
            candidate, gate = highway(y).chunk(2, 1)
            gate = torch.sigmoid(gate)
            y = gate * y + (1 - gate) * torch.relu(candidate)
        vectors: Tensor = self.projection(y)
        return vectors[inverse]


def byte_table(tokens: Sequence[str], vocab_size: int) -> Tensor:
    """Return the bytes of tokens between two marks, as numbers in fp32, [V, MAX_BYTES]; zeros are padding."""
    table = torch.zeros(vocab_size, MAX_BYTES)
    for row, token in zip(table, tokens, strict=False):
        content = token.encode("utf-8", "surrogatepass")[: MAX_BYTES - 2]
        symbols = [_BEGIN, *(_FIRST_BYTE + byte for byte in content), _END]
        row[: len(symbols)] = torch.tensor(symbols, dtype=torch.float32)
    return table


def num_parameters(config: ModelConfig) -> tuple[int, int]:
    """Return the numbers of the table of bytes, and of the trained parameters."""
    size = sum(_FILTERS.values())
    convolutions = sum(count * (length * _BYTE_SIZE + 1) for length, count in _FILTERS.items())
    highways = _NUM_HIGHWAYS * 2 * size * (size + 1)
    projection = config.embedding_dim * (size + 1)
    return config.vocab_size * MAX_BYTES, _NUM_SYMBOLS * _BYTE_SIZE + convolutions + highways + projection
