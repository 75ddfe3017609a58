"""An encoder that is not trained: its hidden states are computed once, kept on disk, and read from there.

That is the feature-based way (Devlin et al. 2019, section 5.3). It answers as the encoder in evaluation does,
without dropout, and a head on it is trained many times faster.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

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
from bertsmith.tasks.batching import TokenSequence, batches_within_budget

FEATURES = "features"  # of a run folder
_SUFFIX = ".f32"
_BYTES = 4  # of a number
_BLOCK = 2**20  # bytes written at a time


class Frozen(nn.Module):
    """An encoder's hidden states, looked up by the sequence that they are of.

    It has no weights of its own, so that checkpoints hold the heads alone. layers: those that are asked for, by
    number; 0 is the embeddings' output. folder: where the states lie, in a file named by a digest of their inputs,
    float32 [tokens, layers, H].
    """

    def __init__(self, encoder: Encoder, layers: Sequence[int], place: ComputeContext, folder: Path) -> None:
        super().__init__()
        self._encoder = (encoder,)  # in a tuple, so that torch does not count it among this module's own
        self._layers, self._place, self._folder = list(layers), place, folder
        self._starts: dict[bytes, int] = {}
        self._wanted: tuple[list[TokenSequence], str] | None = None
        self._one_at_a_time = Lock()  # several threads may ask first
        self._states: NDArray[np.float32] = np.empty((0, len(layers), encoder.config.hidden_size), np.float32)

    @property
    def config(self) -> ModelConfig:
        """The encoder's."""
        return self._encoder[0].config

    @property
    def generator(self) -> torch.Generator:
        """The encoder's."""
        return self._encoder[0].generator

    def remember_when_asked(self, sequences: Iterable[TokenSequence], weights: str) -> None:
        """The same as `remember`, when the first state is asked for: of a run that has finished, none is."""
        self._wanted = (list(sequences), weights)

    def remember(self, sequences: Iterable[TokenSequence], weights: str) -> None:
        """Compute the states of these sequences, of equal ones once; or find them on disk, where another run on
        them, or an earlier part of this one, computed them. weights: a digest of the encoder's. MachineError
        where the disk is full."""
        self._wanted = None
        different = {_key(one.ids, one.segments): one for one in sequences}
        keys = sorted(different, key=lambda key: (len(different[key].ids), key))
        lengths = [len(different[key].ids) for key in keys]
        self._starts = dict(zip(keys, np.cumsum([0, *lengths])[:-1].tolist(), strict=True))
        shape = (sum(lengths), len(self._layers), self.config.hidden_size)
        whole = hashlib.sha256("\n".join([weights, *map(str, (self._layers, shape))]).encode("ascii"))
        for key in keys:
            whole.update(key)
        file = self._folder / f"{whole.hexdigest()[:32]}{_SUFFIX}"
        if not file.is_file() or file.stat().st_size != _BYTES * math.prod(shape):
            with atomic.atomic_file(file) as beside:
                self._write(_allocated(beside, shape), [different[key] for key in keys])
        self._states = np.memmap(file, np.float32, "r", shape=shape)

    def forward(self, packed: Packed, *, rows: Tensor | None = None) -> Tensor:
        """The last layer's states [N, H], or those of these rows."""
        found = self._read(packed)[:, -1]
        return found if rows is None else found[rows]

    def hidden_states(self, packed: Packed) -> list[Tensor]:
        """The embeddings' output and each layer's, [N, H] each; zeros for a layer that was not asked for."""
        rows = self._read(packed)
        nothing = rows.new_zeros(()).expand(len(rows), rows.shape[2])
        known = dict(zip(self._layers, rows.unbind(1), strict=True))
        return [known.get(layer, nothing) for layer in range(self.config.num_hidden_layers + 1)]

    def _read(self, packed: Packed) -> Tensor:
        """[N, layers, H] of a batch, from the file."""
        with self._one_at_a_time:
            if self._wanted is not None:
                self.remember(*self._wanted)
        ids, segments = packed.tokens.cpu().numpy(), packed.segments.cpu().numpy()
        ends = np.cumsum(packed.lengths)
        found = np.empty((len(ids), *self._states.shape[1:]), np.float32)
        for end, length in zip(ends.tolist(), packed.lengths.tolist(), strict=True):
            here = slice(end - length, end)
            start = self._starts[_key(ids[here], segments[here])]
            found[here] = self._states[start : start + length]
        return torch.from_numpy(found).to(packed.tokens.device)

    def _computed(self, some: Sequence[TokenSequence]) -> NDArray[np.float32]:
        lengths = np.array([len(one.ids) for one in some], dtype=np.int64)
        ids, segments = (
            np.concatenate([getattr(one, name) for one in some]).astype(np.int64)
            for name in ("ids", "segments")
        )
        packed = self._place.to_device(Packed.from_arrays(ids, segments, lengths))
        encoder = self._place.autocast_encoder(self._encoder[0].eval())
        with torch.inference_mode():
            states = encoder.hidden_states(packed)
            rows = torch.stack([states[layer] for layer in self._layers], 1).float().cpu()
        found: NDArray[np.float32] = rows.numpy()
        return found

    def _write(
        self, states: np.memmap[Any, np.dtype[np.float32]], different: Sequence[TokenSequence]
    ) -> None:
        """The states of all sequences, one after the other. states: [tokens, layers, H]."""
        row = done = 0
        with console.ProgressBar("hidden states", len(different), unit="texts") as bar:
            passes = list(
                batches_within_budget(range(len(different)), [len(one.ids) for one in different], self._place)
            )
            computed = self._place.parallel_map(
                lambda some: self._computed([different[i] for i in some]), passes
            )
            for some, rows in zip(passes, computed, strict=True):
                states[row : row + len(rows)] = rows
                row, done = row + len(rows), done + len(some)
                bar.update(done)
        states.flush()


def forget_states(folder: Path) -> None:
    """Remove a folder of states: what has finished does not need them."""
    for file in folder.glob(f"*{_SUFFIX}"):
        file.unlink()
    with suppress(OSError):  # it was never made, or somebody put something else there
        atomic.remove_abandoned(folder)
        folder.rmdir()


def _allocated(file: Path, shape: tuple[int, ...]) -> np.memmap[Any, np.dtype[np.float32]]:
    """A file of that size, all of it written: a mapped file that outgrows a full disk kills the process."""
    size = _BYTES * math.prod(shape)
    try:
        with file.open("wb") as opened:
            for begin in range(0, size, _BLOCK):
                opened.write(bytes(min(_BLOCK, size - begin)))
    except OSError as error:
        if not hardware.is_disk_full(error):
            raise
        raise MachineError(
            "disk_full",
            f"the disk has no space for {size / 1e9:.1f} GB of hidden states",
            location=file.parent.parent,
            hint=f"free some space, use fewer layers (task.layers), or fewer examples ({option('sample')})",
        ) from None
    return np.memmap(file, np.float32, "r+", shape=shape)


def _key(ids: NDArray[np.integer], segments: NDArray[np.integer]) -> bytes:
    """Return the key of a sequence: its tokens and their segments."""
    return ids.astype(np.int32).tobytes() + segments.astype(np.uint8).tobytes()
