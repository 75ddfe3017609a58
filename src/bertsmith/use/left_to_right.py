"""Log-likelihood by a model that reads from left to right: the sum over a text's tokens of log p(token | those
before it), in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.packed import Packed
from bertsmith.tasks.windows import UNCUT
from bertsmith.tokenizer.tokenizer import Encoding
from bertsmith.use.pseudo_likelihood import PseudoLikelihood, Scorer, Variant

_CHUNK = 1024  # texts that are encoded at a time
_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class _Window:
    """Tokens that are read together, and the first of them that is predicted here. text: which one it is of."""

    text: int
    ids: list[int]
    first: int


@dataclass(frozen=True)
class LeftToRight(Scorer):
    """The same scores of a model whose tokens see only those before them."""

    variant: Variant = "left_to_right"

    def scores(
        self, texts: Sequence[str], progress: Callable[[int], None] = lambda done: None
    ) -> list[PseudoLikelihood]:
        """One for each text, in order. progress: is told how many texts are done.

        Of a text longer than the model each token has at least half of the model's length before it.
        """
        found: list[PseudoLikelihood] = []
        for start in range(0, len(texts), _CHUNK):
            encodings = self.tokenizer.encode_many(texts[start : start + _CHUNK], max_length=UNCUT)
            sums = np.zeros(len(encodings))
            windows = [window for i, one in enumerate(encodings) for window in self._windows(i, one)]
            for batch in _batches(windows):
                logs = self._of_windows(batch)
                sizes = [len(window.ids) - window.first for window in batch]
                np.add.at(sums, np.repeat([window.text for window in batch], sizes), logs)
            found += [
                self._copies(one).told(float(total)) for one, total in zip(encodings, sums, strict=True)
            ]
            progress(start + len(encodings))
        return found

    def cost(self, texts: Sequence[str]) -> int:
        """Tokens that the model reads to score these texts."""
        sizes = [len(ids) for ids in self.tokenizer.pieces(texts)]
        return sum(size * (1 if size <= self.room else 2) + 1 for size in sizes)

    def _windows(self, text: int, encoding: Encoding) -> Iterator[_Window]:
        own = [row for row, source in enumerate(encoding.sources) if source is not None]
        if not own:
            return
        before, ids = encoding.ids[: own[0]], encoding.ids[own[0] : own[-1] + 1]
        done, stride = 0, max(1, self.room // 2)
        for start in range(0, len(ids), stride):
            part = ids[start : start + self.room]
            yield _Window(text, [*before, *part], len(before) + done - start)
            done = start + len(part)
            if done == len(ids):
                return

    def _of_windows(self, windows: Sequence[_Window]) -> NDArray[np.float64]:
        """log p of each predicted token of each window, in order."""
        packed = Packed.of_lists([window.ids for window in windows], [[0] * len(w.ids) for w in windows])
        starts = np.cumsum(packed.lengths) - packed.lengths
        rows = np.concatenate(
            [start + np.arange(w.first, len(w.ids)) for start, w in zip(starts, windows, strict=True)]
        )
        wanted = torch.from_numpy(rows)
        labels = packed.tokens[wanted].to(self.place.device)
        with torch.inference_mode():
            hidden = self.encoder(self.place.send(packed))[(wanted - 1).to(self.place.device)]
            return self._log_shares(hidden, labels).double().cpu().numpy()


def _batches(windows: Sequence[_Window]) -> Iterator[list[_Window]]:
    """Shorter ones first, a budget of tokens at a time."""
    some: list[_Window] = []
    left = _BATCH_TOKENS
    for window in sorted(windows, key=lambda window: len(window.ids)):
        if some and left < len(window.ids):
            yield some
            some, left = [], _BATCH_TOKENS
        some.append(window)
        left -= len(window.ids)
    if some:
        yield some
