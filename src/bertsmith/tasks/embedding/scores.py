"""How good cosines are: correlations for graded pairs, a threshold for labelled ones, rankings for queries.

The same figures for a model's cosines and for those of TF-IDF, which never learns what means the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.metrics.ranking import METRIC_NAMES, query_metrics, ranking_metrics
from bertsmith.metrics.sufficient_statistics import FloatArray, SufficientStatistics, safe_divide
from bertsmith.tasks.embedding.matches import Match

_WORDS = (
    r"[^\W_\u3040-\u30ff\u3400-\u9fff]+|[\u3040-\u30ff\u3400-\u9fff]"  # a word, or a character that is one
)
_BEST = 10  # passages looked at for each query
_ROUNDING = 1e-9  # cosines of equal texts differ by less
_AT_ONCE = 512  # queries that TF-IDF compares at a time


class Figures(NamedTuple):
    """Scores by name, more for programs, and sentences for people."""

    numbers: dict[str, float]
    details: dict[str, Any]
    notes: list[str]


class Search(NamedTuple):
    """Queries, each once, the passages that are to be found among, each once, and for each query the numbers of
    those that answer it."""

    queries: list[str]
    passages: list[str]
    gold: list[set[int]]

    @classmethod
    def of(cls, matches: Sequence[Match]) -> Search:
        """Equal queries are one, with the passages of all; the negatives are passages as well."""
        queries: dict[str, int] = {}
        passages: dict[str, int] = {}
        gold: list[set[int]] = []
        for match in matches:
            if (number := queries.setdefault(match.query, len(queries))) == len(gold):
                gold.append(set())
            gold[number] |= {passages.setdefault(text, len(passages)) for text in match.positives}
        for match in matches:
            for text in match.negatives:
                passages.setdefault(text, len(passages))
        return cls([*queries], [*passages], gold)


def graded_figures(cosines: NDArray[np.float64], truth: NDArray[np.float64]) -> Figures:
    """Spearman's and Pearson's correlations of cosines with scores; 0 where one side is constant."""
    numbers, notes = {"spearman": 0.0, "pearson": 0.0}, []
    if len(truth) > 1 and np.ptp(truth) > 0 and np.ptp(cosines) > _ROUNDING:
        from scipy.stats import pearsonr, spearmanr

        numbers = {
            "spearman": float(spearmanr(truth, cosines)[0]),
            "pearson": float(pearsonr(truth, cosines)[0]),
        }
    else:
        notes = ["the scores or the cosines do not vary, so there is nothing to correlate: both are 0"]
    return Figures({**numbers, "examples": len(truth)}, {}, notes)


def labelled_figures(
    cosines: NDArray[np.float64], same: NDArray[np.bool_], threshold: float | None = None
) -> Figures:
    """Average precision, the area under the ROC curve, and the accuracy of calling pairs the same whose cosine is
    above the threshold; None: the one that is best here."""
    notes = []
    if threshold is None:
        threshold = best_threshold(cosines, same)[1]
        notes.append("the accuracy is that at the threshold which is best on these very pairs")
    numbers = {"average_precision": 0.0, "auc": 0.0}
    if same.any() and not same.all():
        from sklearn.metrics import average_precision_score, roc_auc_score

        numbers = {
            "average_precision": float(average_precision_score(same, cosines)),
            "auc": float(roc_auc_score(same, cosines)),
        }
    else:
        notes.append("all pairs have one label, so average precision and AUC say nothing: both are 0")
    accuracy = float(((cosines > threshold) == same).mean())
    return Figures({**numbers, "accuracy": accuracy, "examples": len(same)}, {"threshold": threshold}, notes)


def misses(cosines: Sequence[float], wanted: Sequence[float], threshold: float | None) -> list[float | None]:
    """How far each cosine is from what it should be: on the wrong side of the threshold, where wanted is 1 (the
    same) or 0; without a threshold the squared difference."""
    pairs = zip(cosines, wanted, strict=True)
    if threshold is None:
        return [(cosine - target) ** 2 for cosine, target in pairs]
    return [threshold - cosine if target else cosine - threshold for cosine, target in pairs]


def best_threshold(cosines: NDArray[np.float64], same: NDArray[np.bool_]) -> tuple[float, float]:
    """The highest accuracy of calling pairs the same whose cosine is above a threshold, and that threshold: half
    way between two cosines, the lowest of equally good ones; 1 or -1 where one answer is best for all."""
    order = np.argsort(cosines, kind="stable")
    at, truth = cosines[order], same[order]
    below = np.concatenate(
        [[0], np.cumsum(~truth)]
    )  # right answers among the i lowest, which are called others
    above = np.concatenate([np.cumsum(truth[::-1])[::-1], [0]])
    cuts = np.concatenate([[True], np.diff(at) > 0, [True]])  # equal cosines stay on one side
    right = np.where(cuts, below + above, -1)
    i = int(right.argmax())
    threshold = -1.0 if i == 0 else 1.0 if i == len(at) else float((at[i - 1] + at[i]) / 2)
    return float(right[i] / len(at)), threshold


def retrieval_figures(search: Search, rankings: Sequence[Sequence[int]], examples: int) -> Figures:
    """nDCG@10, MRR@10, recall@1 and @10: each query's passages among all of the file."""
    figures = ranking_metrics(rankings, search.gold)
    numbers = {**figures, "examples": examples}
    return Figures(numbers, {"queries": len(search.queries), "passages": len(search.passages)}, [])


def ranking_tallies(
    search: Search, rankings: Sequence[Sequence[int]], matches: Sequence[Match]
) -> SufficientStatistics:
    """The figures of `retrieval_figures` as sums over examples: a query's are with the first that asks it."""
    numbers = {query: number for number, query in enumerate(search.queries)}
    rows = np.zeros((len(matches), len(METRIC_NAMES) + 1))
    for row, match in zip(rows, matches, strict=True):
        number = numbers.pop(match.query, None)
        if number is not None and search.gold[number]:
            row[:] = [*query_metrics(rankings[number], search.gold[number]), 1.0]

    def figures(sums: FloatArray) -> dict[str, FloatArray]:
        return {name: safe_divide(sums[..., i], sums[..., -1]) for i, name in enumerate(METRIC_NAMES)}

    return SufficientStatistics(rows, figures)


class TfIdf:
    """Texts as weights of their words (scikit-learn's, with logarithms of the counts), a row a text."""

    def __init__(self, texts: Sequence[str]) -> None:
        """texts: all that are to be compared, each of which counts once in a word's rarity."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._known = TfidfVectorizer(token_pattern=_WORDS, sublinear_tf=True)
        try:
            self._known.fit(list(dict.fromkeys(texts)))
        except ValueError:  # there is no word in any of them
            self._known = None

    def cosines(self, firsts: Sequence[str], seconds: Sequence[str]) -> NDArray[np.float64]:
        """Of pairs: float64 [B]."""
        if self._known is None:
            return np.zeros(len(firsts))
        left, right = self._known.transform(firsts), self._known.transform(seconds)
        return np.asarray(left.multiply(right).sum(axis=1), dtype=np.float64).ravel()

    def rankings(self, search: Search) -> list[list[int]]:
        """The best passages of each query; of equal ones the earlier."""
        if self._known is None:
            return [[*range(min(_BEST, len(search.passages)))] for _ in search.queries]
        passages = self._known.transform(search.passages).T.tocsc()
        found: list[list[int]] = []
        for start in range(0, len(search.queries), _AT_ONCE):
            queries = self._known.transform(search.queries[start : start + _AT_ONCE])
            products = (queries @ passages).toarray()
            found += np.argsort(-products, axis=1, kind="stable")[:, :_BEST].tolist()
        return found


def tfidf_figures(
    kind: str,
    training: Sequence[Match],
    dev: Sequence[Match],
    figures: Callable[[NDArray[np.float64]], Figures],
) -> Figures:
    """What TF-IDF scores on dev; figures: of pairs' cosines."""
    known = TfIdf([text for match in (*training, *dev) for text in match.texts])
    if kind == "retrieval":
        search = Search.of(dev)
        return retrieval_figures(search, known.rankings(search), len(dev))
    return figures(known.cosines([m.query for m in dev], [m.positives[0] for m in dev]))
