"""The figures of an ablation's rows, paired by seed, and which of the paper's orderings hold here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean, stdev
from typing import Any

from scipy.stats import false_discovery_control, ttest_rel

from bertsmith.experiments.ablation import AblationRecipe
from bertsmith.formatting import pluralize

_APART = 0.05  # the largest adjusted p at which two rows are said to be told apart


def report_of(
    recipe: AblationRecipe, found: Mapping[str, Mapping[int, Mapping[str, float]]]
) -> dict[str, Any]:
    """The table. found: of each row the figures of each seed that is done; the first row has one at least."""
    rows = [row for row in found if found[row]]
    first = rows[0]
    names = list(next(iter(found[first].values())))
    having = {
        name: [row for row in rows if all(name in one for one in found[row].values())] for name in names
    }
    figures = {
        name: {row: _figure(name, found[row], found[first]) for row in having[name]}
        for name in names
        if len(having[name]) > 1 or len(rows) == 1
    }
    return {
        "title": recipe.title,
        "source": recipe.source,
        "baseline": first,
        "seeds": min(len(found[row]) for row in rows),
        "figures": figures,
        "paper": {name: {row: of[row] for row in rows if row in of} for name, of in recipe.paper.items()},
        "beside": {name: its for name in names if (its := _paper_name(recipe.paper, name)) is not None},
        "orderings": _judged(list(_compared(recipe, having, found))),
    }


def _paired(
    name: str, a: Mapping[int, Mapping[str, float]], b: Mapping[int, Mapping[str, float]]
) -> tuple[list[float], list[float]]:
    """A figure of two rows, with the seeds that both have."""
    seeds = sorted(a.keys() & b.keys())
    return [a[seed][name] for seed in seeds], [b[seed][name] for seed in seeds]


def _figure(
    name: str, row: Mapping[int, Mapping[str, float]], first: Mapping[int, Mapping[str, float]]
) -> dict[str, Any]:
    """Mean and deviation, and the difference from the first row's, paired by seed."""
    values = [row[seed][name] for seed in sorted(row)]
    own, others = _paired(name, row, first)
    gains = [value - other for value, other in zip(own, others, strict=True)]
    return {
        "mean": fmean(values),
        "deviation": stdev(values) if len(values) > 1 else None,
        "values": values,
        "difference": fmean(gains) if gains else None,
        "p": _p(own, others),
    }


def _p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Of a paired t-test, two-sided; None where it says nothing: of one seed, or of equal differences."""
    gains = [x - y for x, y in zip(a, b, strict=True)]
    if len(gains) < 2 or max(gains) == min(gains):
        return None
    return float(ttest_rel(a, b).pvalue)


def is_better_low(name: str) -> bool:
    """Whether less of a figure is better."""
    return name.endswith(("loss", "perplexity"))


def _compared(
    recipe: AblationRecipe,
    having: Mapping[str, Sequence[str]],
    found: Mapping[str, Mapping[int, Mapping[str, float]]],
) -> Iterator[dict[str, Any]]:
    """Of each two rows that the paper orders: by how much the better one is ahead here, figure by figure."""
    for a, b in combinations([row for row in found if found[row]], 2):
        for name in [name for name, rows in having.items() if a in rows and b in rows]:
            order = _order(recipe.paper, name, a, b)
            if not order:
                continue
            better, worse = (a, b) if order > 0 else (b, a)
            mine, theirs = _paired(name, found[better], found[worse])
            if mine:
                sign = -1 if is_better_low(name) else 1
                gain = sign * fmean(x - y for x, y in zip(mine, theirs, strict=True))
                yield {
                    "better": better,
                    "worse": worse,
                    "figure": name,
                    "gain": gain,
                    "p": _p(mine, theirs),
                }


def _order(paper: Mapping[str, Mapping[str, float]], name: str, a: str, b: str) -> int:
    """1 where the paper has a above b, -1 where below, 0 where it does not say. Its figure of this name decides;
    for a figure that it does not have, all of its figures, where they agree."""
    own = _paper_name(paper, name)
    said = paper.values() if own is None else [paper[own]]
    signs = {(of[a] > of[b]) - (of[a] < of[b]) for of in said if a in of and b in of}
    return signs.pop() if len(signs) == 1 else 0


def _paper_name(paper: Mapping[str, Any], name: str) -> str | None:
    """The paper's name of a figure: the same but for capitals and signs (sst2, SST-2)."""
    return next((known for known in paper if _plain(known) == _plain(name)), None)


def _plain(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _judged(comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With a verdict each. Of many comparisons some have a small p by chance: they are adjusted, so that of those
    said to be apart no more than a twentieth is expected not to be (Benjamini and Hochberg 1995)."""
    tested = [one for one in comparisons if one["p"] is not None]
    adjusted = false_discovery_control([one["p"] for one in tested]).tolist() if tested else []
    for one in comparisons:
        one["adjusted_p"] = adjusted.pop(0) if one["p"] is not None else None
        apart = one["adjusted_p"] is not None and one["adjusted_p"] < _APART
        one["verdict"] = "cannot be told" if not apart else "holds" if one["gain"] > 0 else "is reversed"
    return comparisons


def told(report: Mapping[str, Any]) -> str:
    """What came of the paper's orderings, in a sentence."""
    orderings = report["orderings"]
    if not orderings:
        return "no ordering of the paper is checked: its figures order none of these rows, or disagree"
    times = Counter(one["verdict"] for one in orderings)
    pairs = {(one["better"], one["worse"]) for one in orderings}
    return (
        f"{pluralize(len(pairs), 'pair')} of rows that the paper orders, "
        f"{pluralize(len(orderings), 'comparison')} "
        f"with {pluralize(report['seeds'], 'seed')}: {times['holds']} held, {times['is reversed']} reversed, "
        f"{times['cannot be told']} not to be told from chance (paired t-tests, p < {_APART} when adjusted for "
        "their number)"
    )
