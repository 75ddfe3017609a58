"""How good tags are: entities as conlleval counts them, whole ones as strictly, and the share of right words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.formatting import pluralize
from bertsmith.metrics.entities import count_entities, extract_entities, sum_counts
from bertsmith.metrics.precision_recall import Counts
from bertsmith.metrics.sufficient_statistics import (
    FloatArray,
    SufficientStatistics,
    count_statistics,
    f1,
    safe_divide,
)
from bertsmith.metrics.tagging_schemes import OUTSIDE, split_tag
from bertsmith.tasks.error_analysis import ErrorAnalysis, confusion, reliability
from bertsmith.tasks.results import Metrics, MetricTable
from bertsmith.tasks.tagging.tagging import Tagging


def scored(
    truth: Sequence[Sequence[str]],
    guess: Sequence[Sequence[str]],
    tagging: Tagging,
    notes: Sequence[str] = (),
) -> Metrics:
    """truth, guess: the tags of each sentence, by the file's names. Entities are scored where the tags have a
    scheme. notes: sentences to add to what is said of new tags."""
    pairs = [pair for a, b in zip(truth, guess, strict=True) for pair in zip(a, b, strict=True)]
    accuracy = sum(a == b for a, b in pairs) / max(1, len(pairs))
    sizes = {"words": len(pairs), "examples": len(truth)}
    if new := Counter(tag for tag, _ in pairs if tagging.is_new(tag)):
        said = f"{pluralize(new.total(), 'word has a tag', 'words have a tag')} that the model never saw"
        notes = [f"{said} ({', '.join(sorted(new)[:5])}); each counts as wrong", *notes]
    if tagging.scheme is None:
        return Metrics({"accuracy": accuracy, **sizes}, {}, (), notes)
    types = count_entities(truth, guess)
    whole, strict = sum_counts(types), sum_counts(count_entities(truth, guess, tagging.scheme))
    of_each = {kind: _figures(found) for kind, found in types.items()}
    rows = [
        [
            kind,
            *(f"{row[name]:.4f}" for name in ("precision", "recall", "f1")),
            *(f"{row[name]:,}" for name in ("support", "found")),
        ]
        for kind, row in of_each.items()
    ]
    table = MetricTable("", ["entity", "precision", "recall", "F1", "support", "found"], rows)
    numbers = {
        "precision": whole.precision,
        "recall": whole.recall,
        "f1": whole.f1,
        "strict_f1": strict.f1,
        "accuracy": accuracy,
    }
    return Metrics({**numbers, **sizes}, {"types": of_each}, (table,), notes)


def details_of(
    gold: Sequence[Sequence[str]], predictions: Sequence[Mapping[str, Any]], tagging: Tagging
) -> ErrorAnalysis:
    """What a report shows: which types (tags, where they have no scheme) words are taken for, and how often a tag
    of some probability is right. gold: the tags of each sentence, by the file's names."""
    words = [
        (truth, guess, float(score))
        for row, p in zip(gold, predictions, strict=True)
        for truth, guess, score in zip(row, p["tags"], p["scores"], strict=True)
    ]
    truth, guess = [_kind(a, tagging) for a, _, _ in words], [_kind(b, tagging) for _, b, _ in words]
    names = sorted({*truth, *guess}, key=lambda name: (name == OUTSIDE, name))
    sure = [(score, a == b) for a, b, score in words if score > 0]  # a word without a token has none
    return {
        "confusion": confusion("words", truth, guess, names),
        "reliability": reliability("words", [score for score, _ in sure], [right for _, right in sure]),
    }


def wrong_words(words: Sequence[str], gold: Sequence[str], guess: Sequence[str]) -> tuple[str, str]:
    """The words of a sentence whose tags are wrong, with the right ones and with the model's."""
    wrong = [row for row in zip(words, gold, guess, strict=True) if row[1] != row[2]]
    if not wrong:
        return "all tags are right", "all tags are right"
    right, said = (" ".join(f"{row[0]}/{row[i]}" for row in wrong) for i in (1, 2))
    return right, said


def _kind(tag: str, tagging: Tagging) -> str:
    return split_tag(tag)[1] or tag if tagging.scheme else tag


def tallied(
    truth: Sequence[Sequence[str]], guess: Sequence[Sequence[str]], tagging: Tagging
) -> SufficientStatistics:
    """The same scores, but the strict one, from each sentence's counts."""
    right, gold, found, words = [], [], [], []
    for wanted, given in zip(truth, guess, strict=True):
        of_truth, of_guess = set(extract_entities(wanted)), set(extract_entities(given))
        right.append([len(of_truth & of_guess)])
        gold.append([len(of_truth)])
        found.append([len(of_guess)])
        words.append([sum(a == b for a, b in zip(wanted, given, strict=True)), len(wanted)])

    def figures(
        right: FloatArray, gold: FloatArray, found: FloatArray, words: FloatArray
    ) -> dict[str, FloatArray]:
        accuracy = {"accuracy": safe_divide(words[..., 0], words[..., 1])}
        if tagging.scheme is None:
            return accuracy
        one = {
            "precision": safe_divide(right, found),
            "recall": safe_divide(right, gold),
            "f1": f1(right, gold, found),
        }
        return {**{name: value[..., 0] for name, value in one.items()}, **accuracy}

    return count_statistics(right, gold, found, words, figures)


def _figures(found: Counts) -> dict[str, float]:
    return {
        "precision": found.precision,
        "recall": found.recall,
        "f1": found.f1,
        "support": found.num_references,
        "found": found.num_predictions,
    }
