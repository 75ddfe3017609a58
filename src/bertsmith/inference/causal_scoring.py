"""Log-likelihood by a causal model: the sum over a text's tokens of log p(token | those before it).

A model that reads from right to left predicts each token from those after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.device import ComputeContext
from bertsmith.inference.scoring import Scorer, Variant, _Text
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedLMHead
from bertsmith.packed import Packed
from bertsmith.tasks.batching import batches_within_budget
from bertsmith.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class _Window:
    """Tokens that are read together.

    Attributes:
        text: The index of the text.
        ids: Token ids.
        start: The first row that is predicted here.
        stop: The end of these rows.
    """

    text: int
    ids: list[int]
    start: int
    stop: int


@dataclass(frozen=True)
class CausalScorer(Scorer):
    """Scores texts by a causal model, in one pass.

    Each token of a text that is longer than the model's maximum length has at least half of that as context.
    """

    variant: Variant = "left_to_right"

    def cost(self, texts: Sequence[str]) -> int:
        """Return the number of tokens that the model reads to score texts; it reads long ones twice."""
        return sum(size * (1 if size <= self.max_tokens else 2) + 1 for size in self._sizes(texts))

    def _sums(self, texts: Sequence[_Text], counts: Sequence[int]) -> NDArray[np.float64]:
        sums = np.zeros(len(texts))
        windows = [window for i, text in enumerate(texts) for window in self._windows(i, text)]
        lengths = [len(window.ids) for window in windows]
        order = sorted(range(len(windows)), key=lengths.__getitem__)
        batches = [
            [windows[i] for i in indices] for indices in batches_within_budget(order, lengths, self.context)
        ]
        results = self.context.parallel_map(self._window_log_probabilities, batches)
        for batch, values in zip(batches, results, strict=True):
            np.add.at(sums, np.repeat([w.text for w in batch], [w.stop - w.start for w in batch]), values)
        self.progress.add(sum(counts))
        return sums

    def _windows(self, index: int, text: _Text) -> Iterator[_Window]:
        ids = text.ids.tolist()
        before, own_ids, after = ids[: text.start], ids[text.start : text.end], ids[text.end :]
        done, stride, size = 0, max(1, self.max_tokens // 2), text.num_tokens
        for start in range(0, size, stride):
            stop = min(start + self.max_tokens, size)
            if self.encoder.config.backwards:  # windows from the end of the text
                window_ids = [*before, *own_ids[size - stop : size - start], *after]
                yield _Window(index, window_ids, len(before), len(before) + stop - done)
            else:
                window_ids = [*before, *own_ids[start:stop]]
                yield _Window(index, window_ids, len(before) + done - start, len(window_ids))
            done = stop
            if done == size:
                return

    def _window_log_probabilities(self, windows: Sequence[_Window]) -> NDArray[np.float64]:
        """Return log p of each predicted token of each window, in order."""
        packed = Packed.from_lists([w.ids for w in windows], [[0] * len(w.ids) for w in windows])
        starts = np.cumsum(packed.lengths) - packed.lengths
        rows = torch.from_numpy(
            np.concatenate(
                [start + np.arange(w.start, w.stop) for start, w in zip(starts, windows, strict=True)]
            )
        )
        device, neighbor = self.context.device, 1 if self.encoder.config.backwards else -1
        labels = packed.tokens[rows].to(device)
        with torch.inference_mode():
            hidden = self.context.autocast_encoder(self.encoder)(self.context.to_device(packed))
            return self._label_log_probabilities(hidden[(rows + neighbor).to(device)], labels)


def create_scorer(
    encoder: Encoder,
    head: MaskedLMHead,
    tokenizer: Tokenizer,
    context: ComputeContext,
    variant: Variant | None = None,
) -> Scorer:
    """Return the scorer of a masked or causal model, by default with "within_word" or "left_to_right"."""
    if encoder.config.causal:
        return CausalScorer(encoder, head, tokenizer, context, variant or "left_to_right")
    return Scorer(encoder, head, tokenizer, context, variant or "within_word")
