"""Statistics of what a model reads of the examples: their lengths, and what truncation loses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertsmith.corpus.checks.histogram import Histogram
from bertsmith.formatting import format_percent, pluralize


class Coverage(NamedTuple):
    """The part of one example that is read, in tokens (special tokens excluded) and annotations.

    Attributes:
        tokens: The number of tokens of its texts.
        tokens_read: The number of these in any window.
        annotations: The number of tags, answers, or relations with a position in the text.
        annotations_read: The number of these that the model can learn from the windows.
    """

    tokens: int
    tokens_read: int
    annotations: int = 0
    annotations_read: int = 0


@dataclass
class TruncationStats:
    """Statistics of what truncation loses of some examples.

    Attributes:
        annotation_unit: The unit of annotations, such as "tag"; "" if labels concern the whole text.
        limit: The largest number of tokens of a sequence, special tokens included.
        special: The number of special tokens in the first window of an example.
        coverages: The coverage of each example.
    """

    annotation_unit: str
    limit: int
    special: int = 0
    coverages: list[Coverage] = field(default_factory=list)

    def add(self, other: TruncationStats) -> None:
        """Add the statistics of more examples."""
        self.special = self.special or other.special
        self.coverages += other.coverages

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as in a report; `cut` is what is lost."""
        tokens, _, annotations, _ = self._totals()
        texts, lost_tokens, lost_annotations = self._lost()
        unit = f"{self.annotation_unit}s"
        values = {"texts": len(self.coverages), "tokens": tokens, unit: annotations}
        lost = {"texts": texts, "tokens": lost_tokens, unit: lost_annotations}
        if not self.annotation_unit:
            del values[unit], lost[unit]
        return {"limit": self.limit, "special_tokens": self.special, **values, "cut": lost}

    def lengths(self) -> dict[str, Any]:
        """Return quantiles and a histogram of the examples' lengths in tokens, special tokens excluded."""
        histogram = Histogram()
        histogram.add([coverage.tokens for coverage in self.coverages])
        return histogram.summary()

    def messages(self, hint: str = "") -> list[str]:
        """Return a sentence for tokens that are not read, which ends with `hint`, and one for lost annotations."""
        texts, tokens, annotations = self._lost()
        messages = []
        if texts:
            ratio = format_percent(tokens / max(1, self._totals().tokens))
            of_texts = f"{texts:,} of {pluralize(len(self.coverages), 'text')}"
            messages.append(f"{of_texts} truncated: {pluralize(tokens, 'token')} ({ratio}) not read{hint}")
        if annotations:
            messages.append(f"{pluralize(annotations, self.annotation_unit)} in no window, so not learned")
        return messages

    def _totals(self) -> Coverage:
        return Coverage(*(sum(counts) for counts in zip(Coverage(0, 0), *self.coverages, strict=True)))

    def _lost(self) -> tuple[int, int, int]:
        """Return the numbers of truncated texts, and of tokens and annotations that are not read."""
        total = self._totals()
        texts = sum(coverage.tokens > coverage.tokens_read for coverage in self.coverages)
        return texts, total.tokens - total.tokens_read, total.annotations - total.annotations_read
