"""Minimal pairs: the accuracy of a model that should find the good one of two sentences more probable.

A pair is correct if the good sentence has the higher score. Chance is 50 % (Warstadt et al. 2020, "BLiMP").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertsmith import rng
from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.inference.scoring import Scorer, TextScore, score_messages
from bertsmith.io.sources import Source, to_source
from bertsmith.io.tables import Table, read_table
from bertsmith.io.values import is_blank

_COST_SAMPLE = 1000  # pairs from which the cost of all pairs is estimated
_GOOD_COLUMNS, _BAD_COLUMNS = ("good", "sentence_good"), ("bad", "sentence_bad")  # ours, and BLiMP's
_GROUP_COLUMNS = (("phenomenon", "linguistics_term"), ("paradigm", "UID"))


@dataclass(frozen=True)
class Pair:
    """Two sentences.

    Attributes:
        line: The line of the file.
        good: The good sentence.
        bad: The bad sentence.
        groups: The groups of the pair, by column.
    """

    line: int
    good: str
    bad: str
    groups: dict[str, str]


@dataclass(frozen=True)
class MinimalPairs:
    """The pairs of a file, or a sample of them.

    Attributes:
        path: The file.
        pairs: The pairs, in the order of the file.
        group_columns: The columns of groups, coarse ones first.
        total: The number of pairs in the file.
    """

    path: str
    pairs: Sequence[Pair]
    group_columns: tuple[str, ...]
    total: int

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def sentences(self) -> list[str]:
        """The good sentences, then the bad ones."""
        return [pair.good for pair in self.pairs] + [pair.bad for pair in self.pairs]

    def sample(self, size: int | None, seed: int = 0) -> MinimalPairs:
        """Return pairs in proportion to the groups, a function of the seed; all pairs for None."""
        if size is None or size >= len(self):
            return self
        if size < 1:
            message, hint = f"{size} is less than 1", "use the number of pairs to draw"
            raise InputError("sample_too_small", message, argument="sample", hint=hint)
        groups: dict[tuple[str, ...], list[int]] = {}
        for i in rng.permutation(seed, "minimal pairs", len(self)).tolist():
            groups.setdefault(tuple(self.pairs[i].groups.values()), []).append(i)
        # Evenly spaced pairs of the concatenated groups: each group has its share to within one pair.
        order = [i for group in groups.values() for i in group]
        start = int(rng.integers(seed, "minimal pairs, the first", len(self), 0))
        indices = sorted(order[(start + len(self) * k) // size] for k in range(size))
        return replace(self, pairs=[self.pairs[i] for i in indices])

    def cost(self, scorer: Scorer) -> int:
        """Estimate the number of tokens that the model reads to score the pairs, from a sample of them."""
        sample = self.sample(_COST_SAMPLE)
        return round(scorer.cost(sample.sentences) * len(self) / len(sample))


@dataclass(frozen=True)
class PairScores:
    """Minimal pairs with the scores of both sentences.

    Attributes:
        pairs: The pairs.
        good: The scores of the good sentences.
        bad: The scores of the bad sentences.
        variant: The variant of scoring.
    """

    pairs: MinimalPairs
    good: Sequence[TextScore]
    bad: Sequence[TextScore]
    variant: str

    @property
    def correct(self) -> list[bool]:
        """For each pair, True if both sentences have tokens and the good one has the higher score."""
        return [
            good.score is not None and bad.score is not None and good.score > bad.score
            for good, bad in zip(self.good, self.bad, strict=True)
        ]

    @property
    def accuracy(self) -> float:
        """The fraction of correct pairs."""
        return sum(self.correct) / len(self.correct)

    @property
    def ties(self) -> int:
        """The number of pairs whose sentences have the same score."""
        return sum(good.score == bad.score for good, bad in zip(self.good, self.bad, strict=True))

    def by_group(self, column: str) -> dict[str, dict[str, float]]:
        """Return the number of pairs and the accuracy of each group of a column, sorted by name."""
        groups: defaultdict[str, list[bool]] = defaultdict(list)
        for pair, is_correct in zip(self.pairs.pairs, self.correct, strict=True):
            groups[pair.groups[column]].append(is_correct)
        return {
            name: {"pairs": len(correct), "accuracy": sum(correct) / len(correct)}
            for name, correct in sorted(groups.items())
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the accuracy over all pairs, by each column (`by_phenomenon`), and its mean over groups."""
        by_column = {column: self.by_group(column) for column in self.pairs.group_columns}
        means = {
            column: sum(group["accuracy"] for group in groups.values()) / len(groups)
            for column, groups in by_column.items()
        }
        return {
            "file": self.pairs.path,
            "variant": self.variant,
            "pairs": len(self.pairs),
            "of": self.pairs.total,
            "accuracy": self.accuracy,
            "chance": 0.5,
            "ties": self.ties,
            "mean_over": means,
            **{f"by_{column}": groups for column, groups in by_column.items()},
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each pair, in order."""
        columns = (self.pairs.pairs, self.good, self.bad, self.correct)
        for pair, good, bad, is_correct in zip(*columns, strict=True):
            yield {
                "line": pair.line,
                "good": pair.good,
                "bad": pair.bad,
                **pair.groups,
                "good_score": good.score or 0.0,
                "bad_score": bad.score or 0.0,
                "right": is_correct,
            }

    def messages(self) -> Iterator[str]:
        """Yield messages on sampling, ties, sentences without tokens, and how texts were read."""
        pairs = self.pairs
        if len(pairs) < pairs.total:
            total = pluralize(pairs.total, "pair")
            yield f"{pairs.path}: scoring a sample of {len(pairs):,} of {total}, stratified by group"
        if self.ties:
            ties = pluralize(self.ties, "pair is a tie", "pairs are ties")
            yield f"{ties}: both sentences have the same score; ties count as wrong"
        scored_pairs = zip(pairs.pairs, self.good, self.bad, strict=True)
        if lines := [pair.line for pair, good, bad in scored_pairs if not (good.tokens and bad.tokens)]:
            locations = join_names(f"{pairs.path}:{line}" for line in lines)
            count = pluralize(len(lines), "pair has", "pairs have")
            yield f"{count} a sentence without tokens, which counts as wrong: {locations}"
        yield from score_messages([*self.good, *self.bad])


def read_pairs(
    file: Source,
    *,
    good_column: str | None = None,
    bad_column: str | None = None,
    group_columns: Sequence[str] = (),
    encoding: str | None = None,
) -> MinimalPairs:
    """Return the pairs of a table (.jsonl, .csv, .tsv) or of data in memory.

    Args:
        file: The table.
        good_column: The column of good sentences; None: "good" or "sentence_good".
        bad_column: The column of bad sentences; None: "bad" or "sentence_bad".
        group_columns: The columns to group by; empty: "phenomenon" and "paradigm" (or "linguistics_term" and
            "UID") if they exist.
        encoding: The encoding of a file that is not UTF-8.

    Raises:
        InputError: The table cannot be read, or a sentence is empty.
    """
    table = read_table(to_source(file, "pairs"), encoding=encoding)
    good_column = good_column or _column(table, _GOOD_COLUMNS)
    bad_column = bad_column or _column(table, _BAD_COLUMNS)
    if good_column == bad_column:
        message = f"'{good_column}' is named as the column of both sentences"
        hint = f"name another {option('bad_column')}"
        raise InputError("same_column", message, argument="bad_column", hint=hint)
    good, bad = table.texts(good_column, "good_column"), table.texts(bad_column, "bad_column")
    if group_columns:
        groups = {name: table.strings(name, "group_columns") for name in group_columns}
    else:
        names = [_column(table, candidates) for candidates in _GROUP_COLUMNS]
        groups = {name: [row.texts.get(name, "") for row in table] for name in names if name in table.columns}
    pairs = []
    for i, row in enumerate(table):
        for side, sentence in (("good", good[i]), ("bad", bad[i])):
            if is_blank(sentence):
                message, hint = f"the {side} sentence is empty", "fill it in, or remove the row"
                raise InputError("sentence_empty", message, location=row.location, hint=hint)
        pairs.append(Pair(row.line, good[i], bad[i], {name: values[i] for name, values in groups.items()}))
    return MinimalPairs(table.name, pairs, tuple(groups), len(pairs))


def _column(table: Table, names: Sequence[str]) -> str:
    """Return the first of the names that is a column, or the first name."""
    return next((name for name in names if name in table.columns), names[0])


def score_pairs(
    pairs: MinimalPairs, scorer: Scorer, progress: Callable[[int], None] = lambda done: None
) -> PairScores:
    """Score both sentences of each pair.

    Args:
        pairs: The pairs.
        scorer: Scores texts.
        progress: Receives the number of sentences that are done, two per pair.
    """
    scores = scorer.scores(pairs.sentences, progress)
    return PairScores(pairs, scores[: len(pairs)], scores[len(pairs) :], scorer.variant)
