"""Log-likelihood by a model that reads in one direction, in one pass: the sum over a text's tokens of
log p(token | those before it), or, backwards, of log p(token | those behind it)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.inference.pseudo_likelihood import PseudoLikelihood, Scorer, Variant
from bertsmith.packed import Packed
from bertsmith.tasks.batching import batches_within_budget
from bertsmith.tokenizer.tokenizer import Encoding


@dataclass(frozen=True)
class _Window:
    """Tokens that are read together, and which of them are predicted here: `last` is the first that is not. text:
    which one it is of."""

    text: int
    ids: list[int]
    first: int
    last: int


@dataclass(frozen=True)
class LeftToRight(Scorer):
    """The same scores of a model whose tokens see only those before them, or only those behind them.

    Of a text longer than the model each token has at least half of the model's length on that side.
    """

    variant: Variant = "left_to_right"

    def cost(self, texts: Sequence[str]) -> int:
        """Tokens that the model reads to score these texts: those of a long one in two windows."""
        return sum(size * (1 if size <= self.room else 2) + 1 for size in self._sizes(texts))

    def _scored(
        self,
        encodings: Sequence[Encoding],
        times: Sequence[int],
        progress: Callable[[int], None],
        before: int,
    ) -> list[PseudoLikelihood]:
        sums = np.zeros(len(encodings))
        windows = [window for i, one in enumerate(encodings) for window in self._windows(i, one)]
        lengths = [len(window.ids) for window in windows]
        by_length = sorted(range(len(windows)), key=lambda i: lengths[i])
        batches = [
            [windows[i] for i in some] for some in batches_within_budget(by_length, lengths, self.place)
        ]
        for batch, found in zip(batches, self.place.parallel_map(self._of_windows, batches), strict=True):
            sizes = [window.last - window.first for window in batch]
            np.add.at(sums, np.repeat([window.text for window in batch], sizes), found)
        progress(before + sum(times))
        return [self._copies(one).told(float(total)) for one, total in zip(encodings, sums, strict=True)]

    def _windows(self, text: int, encoding: Encoding) -> Iterator[_Window]:
        own = [row for row, source in enumerate(encoding.sequence_ids) if source is not None]
        if not own:
            return
        begin, end = own[0], own[-1] + 1
        before, ids, behind = encoding.ids[:begin], encoding.ids[begin:end], encoding.ids[end:]
        done, stride, number = 0, max(1, self.room // 2), len(ids)
        for start in range(0, number, stride):
            stop = min(start + self.room, number)
            if self.encoder.config.backwards:  # the same from the other end
                part = [*before, *ids[number - stop : number - start], *behind]
                yield _Window(text, part, len(before), len(before) + stop - done)
            else:
                part = [*before, *ids[start:stop]]
                yield _Window(text, part, len(before) + done - start, len(part))
            done = stop
            if done == number:
                return

    def _of_windows(self, windows: Sequence[_Window]) -> NDArray[np.float64]:
        """log p of each predicted token of each window, in order."""
        packed = Packed.from_lists([window.ids for window in windows], [[0] * len(w.ids) for w in windows])
        starts = np.cumsum(packed.lengths) - packed.lengths
        rows = np.concatenate(
            [start + np.arange(w.first, w.last) for start, w in zip(starts, windows, strict=True)]
        )
        wanted = torch.from_numpy(rows)
        labels = packed.tokens[wanted].to(self.place.device)
        seen = wanted + (1 if self.encoder.config.backwards else -1)
        with torch.inference_mode():
            hidden = self.place.autocast_encoder(self.encoder)(self.place.to_device(packed))[
                seen.to(self.place.device)
            ]
            return self._log_shares(hidden, labels).double().cpu().numpy()
