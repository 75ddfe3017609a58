"""How much of the examples a model reads: how long they are, what truncation cuts, and what it would cut if there
were no windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from bertsmith.corpus.checks.histogram import Histogram
from bertsmith.formatting import format_percent, pluralize
from bertsmith.tasks.items import Item


class Coverage(NamedTuple):
    """How much of one example is read, in tokens without the special ones, and in what people gave it.

    tokens: of its texts; read: of these, in any window; at_once: in the first window alone. windows: how many.
    given: tags, answers or relations that hang on a place in the text; given_read and given_at_once: those that
    the model can learn from all windows, and from the first alone.
    """

    tokens: int
    read: int
    at_once: int
    windows: int = 1
    given: int = 0
    given_read: int = 0
    given_at_once: int = 0


@dataclass
class Account:
    """What truncation costs, over some examples.

    noun: what people gave, such as "tag"; "" where it hangs on no place in the text. limit: tokens that the model
    reads at a time, special ones included; special: of these in the first window of an example.
    """

    noun: str
    limit: int
    special: int = 0
    covered: list[Coverage] = field(default_factory=list)

    def add(self, other: Account) -> None:
        """With what another account has of more examples."""
        self.special = self.special or other.special
        self.covered += other.covered

    def document(self) -> dict[str, Any]:
        """As a report holds it: `cut` is what was; `without_windows`, what would have been."""
        given = {} if not self.noun else {f"{self.noun}s": sum(one.given for one in self.covered)}
        return {
            "limit": self.limit,
            "special_tokens": self.special,
            "texts": len(self.covered),
            "tokens": self._tokens,
            **given,
            "in_windows": self._in_windows,
            "cut": self._lost(at_once=False),
            "without_windows": self._lost(at_once=True),
        }

    def lengths(self) -> dict[str, Any]:
        """How long the examples are, in tokens without the special ones: quantiles and a histogram."""
        found = Histogram()
        found.add([one.tokens for one in self.covered])
        return found.summary()

    def told_of_cuts(self, remedy: str = "") -> list[str]:
        """A sentence on what was cut, where anything was, with `remedy`."""
        cut, texts = self._lost(at_once=False), pluralize(len(self.covered), "text")
        given = cut.get(f"{self.noun}s", 0)
        if not cut["texts"]:
            are = "is" if given == 1 else "are"
            return (
                [f"{pluralize(given, self.noun)} {are} whole in no window, and not learnt"] if given else []
            )
        are, lost = "is" if cut["texts"] == 1 else "are", self._in_words(cut)
        return [f"{cut['texts']:,} of {texts} {are} longer than the model reads; {lost} not seen{remedy}"]

    def told_of_windows(self) -> list[str]:
        """A sentence on what would have been cut, where windows have saved anything."""
        cut, at_once = self._lost(at_once=False), self._lost(at_once=True)
        if windows := self._in_windows:
            are, would = "is" if windows == 1 else "are", self._in_words(at_once, would=True)
            texts = pluralize(len(self.covered), "text")
            return [
                f"{windows:,} of {texts} {are} read in windows of {self.limit:,} tokens; without them {would} cut"
            ]
        saved = at_once[f"{self.noun}s"] - cut[f"{self.noun}s"] if self.noun else 0
        if not saved:
            return []
        beyond = f"beyond the first {self.limit:,} tokens of a text"
        return [f"{pluralize(saved, self.noun)} {beyond} {'is' if saved == 1 else 'are'} read all the same"]

    @property
    def _tokens(self) -> int:
        return sum(one.tokens for one in self.covered)

    @property
    def _in_windows(self) -> int:
        return sum(one.windows > 1 for one in self.covered)

    def _lost(self, *, at_once: bool) -> dict[str, int]:
        """Texts, tokens, and what people gave, that are not read: in the first window, or in any."""
        pairs = [
            (one.tokens - one.at_once, one.given - one.given_at_once)
            if at_once
            else (one.tokens - one.read, one.given - one.given_read)
            for one in self.covered
        ]
        lost = {"texts": sum(tokens > 0 for tokens, _ in pairs), "tokens": sum(tokens for tokens, _ in pairs)}
        return lost | ({f"{self.noun}s": sum(given for _, given in pairs)} if self.noun else {})

    def _in_words(self, lost: dict[str, int], *, would: bool = False) -> str:
        """1,234 tokens (2.3 %) and 5 answers are."""
        tokens, given = lost["tokens"], lost.get(f"{self.noun}s", 0)
        words = f"{pluralize(tokens, 'token')} ({format_percent(tokens / max(1, self._tokens))})"
        if given:
            words += f" and {pluralize(given, self.noun)}"
        return f"{words} {'would be' if would else 'is' if tokens == 1 and not given else 'are'}"


def by_example(items: Sequence[Item]) -> Iterator[list[Item]]:
    """The items of each example that has any, in order."""
    return (list(some) for _, some in groupby(items, key=lambda item: item.example))
