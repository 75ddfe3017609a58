"""Minimal pairs: of two sentences that differ in as little as can be, does the model find the good one likelier?

Pairs come from a table; a pair is right where the good sentence's pseudo-log-likelihood is the greater one. Chance
is 50 % (Warstadt et al. 2020, "BLiMP").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bertsmith import rng
from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.inference.pseudo_likelihood import PseudoLikelihood, Scorer
from bertsmith.io.sources import Source, to_source
from bertsmith.io.tables import Table, read_table, text_of

_GOOD, _BAD = ("good", "sentence_good"), ("bad", "sentence_bad")  # ours, and those of BLiMP's own files
_GROUPS = (("phenomenon", "linguistics_term"), ("paradigm", "UID"))
CHANCE = 0.5


@dataclass(frozen=True)
class Pair:
    """Two sentences, the line that they came from, and the groups that they belong to, by column."""

    line: int
    good: str
    bad: str
    groups: dict[str, str]


@dataclass(frozen=True)
class MinimalPairs:
    """Pairs of a file, in its order. group_columns: what they are counted by, the coarsest first. of: how many
    pairs the file has, these among them."""

    path: str
    pairs: Sequence[Pair]
    group_columns: tuple[str, ...]
    of: int

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def goods(self) -> list[str]:
        """The good sentences."""
        return [pair.good for pair in self.pairs]

    @property
    def bads(self) -> list[str]:
        """The bad sentences."""
        return [pair.bad for pair in self.pairs]

    def sampled(self, number: int | None, seed: int = 0) -> MinimalPairs:
        """So many of them (None: all), each group with its share to within one pair; a function of the seed."""
        if number is None or number >= len(self):
            return self
        groups: dict[tuple[str, ...], list[int]] = {}
        for i in rng.permutation(seed, "minimal pairs", len(self)).tolist():
            groups.setdefault(tuple(self.pairs[i].groups.values()), []).append(i)
        # One group behind the other, and of these pairs some that stand equally far apart.
        lined_up = [i for group in groups.values() for i in group]
        begin = int(rng.integers(seed, "minimal pairs, the first", len(self), 0))
        drawn = (lined_up[(begin + len(self) * k) // number] for k in range(number))
        return replace(self, pairs=[self.pairs[i] for i in sorted(drawn)])

    def cost(self, scorer: Scorer) -> int:
        """Tokens that the model reads to score them."""
        return scorer.cost(self.goods) + scorer.cost(self.bads)


@dataclass(frozen=True)
class PairScores:
    """Minimal pairs with what a model says of both sides. A tie is wrong."""

    pairs: MinimalPairs
    good: Sequence[PseudoLikelihood]
    bad: Sequence[PseudoLikelihood]
    variant: str

    @cached_property
    def right(self) -> list[bool]:
        """Of each pair, whether the good sentence has the higher score; one without a token has none."""
        return [
            good.score > bad.score and bool(good.tokens) and bool(bad.tokens)
            for good, bad in zip(self.good, self.bad, strict=True)
        ]

    @property
    def accuracy(self) -> float:
        """The share of the pairs that are right."""
        return sum(self.right) / len(self.right)

    @property
    def unread(self) -> list[int]:
        """The lines of pairs of which a sentence has no token."""
        both = zip(self.pairs.pairs, self.good, self.bad, strict=True)
        return [pair.line for pair, good, bad in both if not (good.tokens and bad.tokens)]

    @property
    def ties(self) -> int:
        """Pairs whose sentences have the same score."""
        return sum(good.score == bad.score for good, bad in zip(self.good, self.bad, strict=True))

    def by(self, column: str) -> dict[str, dict[str, float]]:
        """Of each group of a column the number of pairs and the accuracy, in order of their names."""
        found: defaultdict[str, list[bool]] = defaultdict(list)
        for pair, right in zip(self.pairs.pairs, self.right, strict=True):
            found[pair.groups[column]].append(right)
        return {
            name: {"pairs": len(found[name]), "accuracy": sum(found[name]) / len(found[name])}
            for name in sorted(found)
        }

    def document(self) -> dict[str, Any]:
        """All figures: over all pairs, by each column of groups (`by_phenomenon`), the mean over its groups."""
        by = {column: self.by(column) for column in self.pairs.group_columns}
        return {
            "file": self.pairs.path,
            "variant": self.variant,
            "pairs": len(self.pairs),
            "of": self.pairs.of,
            "accuracy": self.accuracy,
            "chance": CHANCE,
            "ties": self.ties,
            "mean_over": {
                column: sum(group["accuracy"] for group in groups.values()) / len(groups)
                for column, groups in by.items()
            },
            **{f"by_{column}": groups for column, groups in by.items()},
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each pair, in order."""
        for pair, good, bad, right in zip(self.pairs.pairs, self.good, self.bad, self.right, strict=True):
            yield {
                "line": pair.line,
                "good": pair.good,
                "bad": pair.bad,
                **pair.groups,
                "good_score": good.score,
                "bad_score": bad.score,
                "right": right,
            }


def read_pairs(
    file: Source,
    *,
    good_column: str | None = None,
    bad_column: str | None = None,
    group_columns: Sequence[str] = (),
    encoding: str | None = None,
) -> MinimalPairs:
    """The pairs of a table (.jsonl, .csv, .tsv, packed or not) or of data in memory.

    good_column, bad_column: "good" and "bad" if not given, or "sentence_good" and "sentence_bad". group_columns:
    what to count by; "phenomenon" and "paradigm" (or "linguistics_term" and "UID") where they are there. encoding:
    of a file that is not UTF-8.
    InputError with file:line for what the table's reader refuses, and for a sentence that is empty.
    """
    table = read_table(to_source(file, "pairs"), encoding=encoding)
    good_column, bad_column = _column(table, good_column, _GOOD), _column(table, bad_column, _BAD)
    if good_column == bad_column:
        raise InputError(
            "same_column",
            f"'{good_column}' is named as the column of both sentences",
            argument="bad_column",
            hint=f"name another {option('bad_column')}",
        )
    goods = table.texts(good_column, "good_column")
    bads = table.texts(bad_column, "bad_column")
    if group_columns:
        groups = {name: table.texts(name, "group_columns") for name in group_columns}
    else:
        known = [next((name for name in names if name in table.columns), None) for names in _GROUPS]
        groups = {
            name: [text_of(row.values.get(name)) for row in table] for name in known if name is not None
        }
    for side, sentences in (("good", goods), ("bad", bads)):
        for row, sentence in zip(table, sentences, strict=True):
            if not sentence.strip():
                raise InputError(
                    "sentence_empty",
                    f"the {side} sentence is empty",
                    location=row.location,
                    hint="fill it in, or remove the row",
                )
    pairs = [
        Pair(row.line, good, bad, {name: values[i] for name, values in groups.items()})
        for i, (row, good, bad) in enumerate(zip(table, goods, bads, strict=True))
    ]
    return MinimalPairs(table.name, pairs, tuple(groups), len(pairs))


def _column(table: Table, given: str | None, known: Sequence[str]) -> str:
    return given or next((name for name in known if name in table.columns), known[0])


def score_pairs(
    pairs: MinimalPairs, scorer: Scorer, progress: Callable[[int], None] = lambda done: None
) -> PairScores:
    """Both sides of each pair scored. progress: receives how many sentences are done, two per pair."""
    found = scorer.scores([*pairs.goods, *pairs.bads], progress)
    return PairScores(pairs, found[: len(pairs)], found[len(pairs) :], scorer.variant)


def told_of_pairs(scores: PairScores) -> Iterator[str]:
    """What there is to know of the figures, in sentences: which pairs they are of, ties, how texts were read."""
    pairs = scores.pairs
    if len(pairs) < pairs.of:
        yield (
            f"{pairs.path}: scoring a sample of {len(pairs):,} of "
            f"{pluralize(pairs.of, 'pair')}, stratified by group"
        )
    if scores.ties:
        yield (
            f"{pluralize(scores.ties, 'pair is a tie', 'pairs are ties')}: both "
            "sentences have the same score; ties "
            "count as wrong"
        )
    if scores.unread:
        places = join_names(f"{pairs.path}:{line}" for line in scores.unread)
        yield (
            f"{pluralize(len(scores.unread), 'pair has', 'pairs have')} a sentence "
            "without tokens, which counts as "
            f"wrong: {places}"
        )
    yield from told_of_scores([*scores.good, *scores.bad])


def told_of_scores(found: Sequence[PseudoLikelihood]) -> Iterator[str]:
    """What there is to know of scores, in sentences: unknown tokens, texts longer than the model."""
    tokens, unknown = sum(one.tokens for one in found), sum(one.unknown for one in found)
    if unknown:
        yield (
            f"{unknown:,} of {pluralize(tokens, 'token')} {'is' if unknown == 1 else 'are'} not in the vocabulary "
            "and scored as the unknown token"
        )
    if long := sum(not one.whole for one in found):
        yield (
            f"{pluralize(long, 'text is', 'texts are')} longer than the model's maximum length: each token is "
            "predicted from the text around it"
        )
