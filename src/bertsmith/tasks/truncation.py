"""Statistics of what a model reads of the examples: lengths, truncation, and the effect of windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from bertsmith.corpus.checks.histogram import Histogram
from bertsmith.formatting import format_percent, pluralize
from bertsmith.tasks.batching import Item


class Coverage(NamedTuple):
    """The part of one example that is read, in tokens (special tokens excluded) and annotations.

    Attributes:
        tokens: The number of tokens of its texts.
        tokens_read: The number of these in any window.
        tokens_at_once: The number of these in the first window.
        windows: The number of windows.
        annotations: The number of tags, answers, or relations with a position in the text.
        annotations_read: The number of these that the model can learn from all windows.
        annotations_at_once: The number of these that it can learn from the first window.
    """

    tokens: int
    tokens_read: int
    tokens_at_once: int
    windows: int = 1
    annotations: int = 0
    annotations_read: int = 0
    annotations_at_once: int = 0


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
        """Return the statistics as in a report: `cut` is lost, `without_windows` would be."""
        annotations = (
            {f"{self.annotation_unit}s": sum(c.annotations for c in self.coverages)}
            if self.annotation_unit
            else {}
        )
        return {
            "limit": self.limit,
            "special_tokens": self.special,
            "texts": len(self.coverages),
            "tokens": self._num_tokens,
            **annotations,
            "in_windows": self._num_in_windows,
            "cut": self._lost(),
            "without_windows": self._lost_without_windows(),
        }

    def lengths(self) -> dict[str, Any]:
        """Return quantiles and a histogram of the examples' lengths in tokens, special tokens excluded."""
        histogram = Histogram()
        histogram.add([coverage.tokens for coverage in self.coverages])
        return histogram.summary()

    def truncation_messages(self, hint: str = "") -> list[str]:
        """Return a sentence about what is lost, which ends with `hint`; none if nothing is."""
        lost = self._lost()
        texts, annotations = lost["texts"], lost.get(f"{self.annotation_unit}s", 0)
        if not texts:
            are = "is" if annotations == 1 else "are"
            message = (
                f"{pluralize(annotations, self.annotation_unit)} {are} whole in no window, and not learnt"
            )
            return [message] if annotations else []
        are, of_texts = "is" if texts == 1 else "are", pluralize(len(self.coverages), "text")
        return [
            f"{texts:,} of {of_texts} {are} longer than the model reads; {self._describe(lost)} not seen{hint}"
        ]

    def window_messages(self) -> list[str]:
        """Return a sentence about what would be lost without windows; none if nothing would be."""
        lost, lost_without = self._lost(), self._lost_without_windows()
        if texts := self._num_in_windows:
            are, would_be = "is" if texts == 1 else "are", self._describe(lost_without, verb="would be")
            of_texts = pluralize(len(self.coverages), "text")
            in_windows = f"{are} read in windows of {self.limit:,} tokens"
            return [f"{texts:,} of {of_texts} {in_windows}; without them {would_be} cut"]
        unit = f"{self.annotation_unit}s"
        saved = lost_without[unit] - lost[unit] if self.annotation_unit else 0
        if not saved:
            return []
        beyond = f"beyond the first {self.limit:,} tokens of a text"
        are = "is" if saved == 1 else "are"
        return [f"{pluralize(saved, self.annotation_unit)} {beyond} {are} read all the same"]

    @property
    def _num_tokens(self) -> int:
        return sum(coverage.tokens for coverage in self.coverages)

    @property
    def _num_in_windows(self) -> int:
        return sum(coverage.windows > 1 for coverage in self.coverages)

    def _lost(self) -> dict[str, int]:
        return self._totals(
            [(c.tokens - c.tokens_read, c.annotations - c.annotations_read) for c in self.coverages]
        )

    def _lost_without_windows(self) -> dict[str, int]:
        return self._totals(
            [(c.tokens - c.tokens_at_once, c.annotations - c.annotations_at_once) for c in self.coverages]
        )

    def _totals(self, lost: Sequence[tuple[int, int]]) -> dict[str, int]:
        """Return the numbers of texts, tokens, and annotations that are lost."""
        texts, tokens = sum(tokens > 0 for tokens, _ in lost), sum(tokens for tokens, _ in lost)
        annotations = sum(annotations for _, annotations in lost)
        totals = {"texts": texts, "tokens": tokens}
        return totals | ({f"{self.annotation_unit}s": annotations} if self.annotation_unit else {})

    def _describe(self, lost: dict[str, int], verb: str = "") -> str:
        """Return for example "1,234 tokens (2.3 %) and 5 answers are"."""
        tokens, annotations = lost["tokens"], lost.get(f"{self.annotation_unit}s", 0)
        text = f"{pluralize(tokens, 'token')} ({format_percent(tokens / max(1, self._num_tokens))})"
        if annotations:
            text += f" and {pluralize(annotations, self.annotation_unit)}"
        return f"{text} {verb or ('is' if tokens == 1 and not annotations else 'are')}"


def group_by_example(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Yield the items of each example that has any, in order."""
    return (list(group) for _, group in groupby(items, key=lambda item: item.example))
