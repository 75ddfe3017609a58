"""Minimal pairs on a run's way: a fixed sample at each evaluation, all of them after the last update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertsmith import console
from bertsmith.device import Place
from bertsmith.errors import InputError
from bertsmith.formatting import counted
from bertsmith.inference.causal_scoring import LeftToRight
from bertsmith.inference.minimal_pairs import MinimalPairs, read_pairs, score_pairs, told_of_pairs
from bertsmith.inference.pseudo_likelihood import Scorer
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedHead
from bertsmith.objectives.objective import MODEL, Objective
from bertsmith.pretraining.settings import EvaluateSettings
from bertsmith.runs.compute_setup import forward
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.autotune import Speeds

ACCURACY = "pairs_accuracy"
"""The figure's name in log.jsonl and among the held-out figures."""
_AT_END = 0.1  # of a budget of minutes: what scoring pairs after the last update may take
_EACH = 0.5  # of that: what an evaluation may take


@dataclass(frozen=True)
class PairsOnTheWay:
    """The pairs of a run, and the model under training that they are put to. every: all of the file's."""

    every: MinimalPairs
    settings: EvaluateSettings
    scorer: Scorer

    @cached_property
    def sample(self) -> MinimalPairs:
        """Those of each evaluation."""
        return self.every.sampled(self.settings.pairs_sample)

    @property
    def last(self) -> MinimalPairs:
        """Those that are scored after the last update."""
        return self.every.sampled(self.settings.pairs_at_end)

    def measure(self) -> dict[str, float]:
        """The accuracy on the sample, by its name; the modules are in evaluation."""
        return {ACCURACY: score_pairs(self.sample, self.scorer).accuracy}

    def report(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """All figures of the pairs after the last update."""
        pairs = self.last
        tell(f"scoring {counted(len(pairs), 'minimal pair')} ...")
        with console.Bar("minimal pairs", 2 * len(pairs), unit="sentences") as bar:
            scores = score_pairs(pairs, self.scorer, bar.advance_to)
        for sentence in told_of_pairs(scores):
            tell(sentence)
        return scores.document()


def pairs_of(settings: EvaluateSettings) -> MinimalPairs | None:
    """The minimal pairs that the settings name; None where they name none. InputError for a file that cannot be
    read."""
    if settings.pairs is None:
        return None
    if not Path(settings.pairs).exists():
        raise InputError(
            f"{settings.pairs}: there is no such file of minimal pairs",
            "give it with --evaluate-pairs, or go without: --set evaluate.pairs=none",
        )
    try:
        return read_pairs(settings.pairs, encoding=settings.pairs_encoding)
    except InputError as error:
        remedy = (error.remedy or "").replace("--encoding ", "--set evaluate.pairs_encoding=")
        raise InputError(error.sentence, remedy or None) from None


def pairs_on_the_way(
    pairs: MinimalPairs,
    settings: EvaluateSettings,
    encoder: Encoder,
    objective: Objective,
    tokenizer: Tokenizer,
    place: Place,
) -> PairsOnTheWay:
    """The pairs, put to this model. InputError for an objective without a masked-LM head."""
    head = objective.folders(encoder)[MODEL].modules.get("masked")
    if not isinstance(head, MaskedHead):
        raise InputError(
            f"the objective '{objective.name}' has no masked-LM head, which minimal pairs are scored with",
            "leave --evaluate-pairs out",
        )
    kind = LeftToRight if encoder.config.causal else Scorer
    return PairsOnTheWay(pairs, settings, kind(encoder, head, tokenizer, place))


def tell_of_sample(pairs: PairsOnTheWay, tell: Callable[[str], None]) -> None:
    """Say which pairs an evaluation scores, where these are not all."""
    number = len(pairs.sample)
    if number < len(pairs.every):
        tell(
            f"each evaluation scores {number:,} of {counted(len(pairs.every), 'minimal pair')}, always the same "
            "ones (evaluate.pairs_sample)"
        )


def expect_pairs(
    speeds: Speeds, pairs: PairsOnTheWay, tokens: float, minutes: float | None, tell: Callable[[str], None]
) -> PairsOnTheWay:
    """Say what scoring pairs is worth in updates of so many tokens, at each evaluation and after the last update.

    minutes: the budget of a run that begins; where all pairs would take more than a tenth of it, fewer are scored
    at the end, and at most half as many at each evaluation, which is told. Returns the pairs with that settled.
    """
    settings, number = pairs.settings, len(pairs.every)
    worth = forward(pairs.every.cost(pairs.scorer), tokens)  # of all; a sample is alike
    seconds = worth * speeds.of(0)
    if minutes is not None and settings.pairs_at_end is None and seconds > (most := _AT_END * minutes * 60):
        some = max(2, int(number * most / seconds))
        sample = min(settings.pairs_sample or number, int(_EACH * some))
        bounded = settings.model_copy(update={"pairs_at_end": some, "pairs_sample": sample})
        pairs = PairsOnTheWay(pairs.every, bounded, pairs.scorer)
        tell(
            f"scoring all {counted(number, 'minimal pair')} would take about {console.duration(seconds)}: "
            f"{some:,} of them are scored at the end (evaluate.pairs_at_end); bertsmith score RUN --pairs FILE "
            "scores all"
        )
    each, last = (worth * len(some) / number for some in (pairs.sample, pairs.last))
    if minutes is not None:
        one, other = (console.duration(part * speeds.of(0)) for part in (each, last))
        tell(f"scoring minimal pairs takes about {one} at each evaluation, and {other} at the end")
    speeds.writing *= 2  # the model is written before the last pairs are scored, and with their figures
    speeds.evaluated += each
    speeds.at_end += last / speeds.evaluated
    return pairs
