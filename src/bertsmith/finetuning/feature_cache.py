"""The hidden states of an encoder that is not trained, computed once and read from disk.

This is the feature-based approach (Devlin et al. 2019, section 5.3). The states are those of the encoder in
evaluation mode, without dropout, and a head on them trains many times faster.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith import console, hardware
from bertsmith.device import ComputeContext
from bertsmith.errors import MachineError, option
from bertsmith.io import atomic
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed
from bertsmith.tasks.batching import Item, TokenSequence, batches_within_budget, pack

FEATURES = "features"
"""The folder of the states in a run folder."""
_SUFFIX = ".f32"
_BYTES_PER_NUMBER = 4


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
        file = self._folder / f"{digest.hexdigest()[:32]}{_SUFFIX}"
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


def remove_features(folder: Path) -> None:
    """Remove a folder of states, which a finished run does not need."""
    for file in folder.glob(f"*{_SUFFIX}"):
        file.unlink()
    with suppress(OSError):  # it does not exist, or holds other files
        atomic.remove_abandoned(folder)
        folder.rmdir()


def _key(ids: NDArray[np.integer], segments: NDArray[np.integer]) -> bytes:
    """Return the key of a sequence: its tokens and their segments."""
    return ids.astype(np.int32).tobytes() + segments.astype(np.uint8).tobytes()
