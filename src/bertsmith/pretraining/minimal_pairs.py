"""Minimal pairs on a run's way: a fixed sample at each evaluation, all of them after the last update."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertsmith import console
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.inference.causal_scoring import create_scorer
from bertsmith.inference.minimal_pairs import MinimalPairs, read_pairs, score_pairs
from bertsmith.inference.scoring import Scorer
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedLMHead
from bertsmith.objectives.objective import MODEL, Objective
from bertsmith.pretraining.settings import EvaluateSettings
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.time_budget import Throughput, forward_updates

logger = logging.getLogger(__name__)

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
        return self.every.sample(self.settings.pairs_sample)

    @property
    def last(self) -> MinimalPairs:
        """Those that are scored after the last update."""
        return self.every.sample(self.settings.pairs_at_end)

    def measure(self) -> dict[str, float]:
        """The accuracy on the sample, by its name; the modules are in evaluation."""
        return {ACCURACY: score_pairs(self.sample, self.scorer).accuracy}

    def report(self) -> dict[str, Any]:
        """All figures of the pairs after the last update."""
        pairs = self.last
        logger.info("scoring %s ...", pluralize(len(pairs), "minimal pair"))
        with console.ProgressBar("minimal pairs", 2 * len(pairs), unit="sentences") as bar:
            scores = score_pairs(pairs, self.scorer, bar.update)
        for message in scores.messages():
            logger.info("%s", message)
        return scores.to_dict()


def pairs_of(settings: EvaluateSettings) -> MinimalPairs | None:
    """The minimal pairs that the settings name; None where they name none. InputError for a file that cannot be
    read."""
    if settings.pairs is None:
        return None
    if not Path(settings.pairs).exists():
        raise InputError(
            "not_found",
            "there is no such file of minimal pairs",
            location=settings.pairs,
            argument="evaluate_pairs",
            hint=f"check {option('evaluate_pairs')}, or set {option('evaluate.pairs', 'none')}",
        )
    try:
        return read_pairs(settings.pairs, encoding=settings.pairs_encoding)
    except InputError as error:
        # The encoding of this file is a setting, not the argument `encoding` that the hint refers to.
        if error.argument == "encoding":
            error.argument = "evaluate.pairs_encoding"
        if error.hint is not None:
            error.hint = error.hint.replace('"encoding"', '"evaluate.pairs_encoding"')
        raise


def pairs_on_the_way(
    pairs: MinimalPairs,
    settings: EvaluateSettings,
    encoder: Encoder,
    objective: Objective,
    tokenizer: Tokenizer,
    place: ComputeContext,
) -> PairsOnTheWay:
    """The pairs, put to this model. InputError for an objective without a masked-LM head."""
    head = objective.export(encoder)[MODEL].modules.get("masked")
    if not isinstance(head, MaskedLMHead):
        raise InputError(
            "objective_without_masked_head",
            f"minimal pairs are scored with a masked-LM head, and the objective '{objective.name}' has none",
            argument="evaluate_pairs",
            hint=f"remove {option('evaluate_pairs')}",
        )
    return PairsOnTheWay(pairs, settings, create_scorer(encoder, head, tokenizer, place))


def log_sample(pairs: PairsOnTheWay) -> None:
    """Log which pairs an evaluation scores, where these are not all."""
    number = len(pairs.sample)
    if number < len(pairs.every):
        logger.info(
            "each evaluation scores %s of %s, always the same ones (evaluate.pairs_sample)",
            f"{number:,}",
            pluralize(len(pairs.every), "minimal pair"),
        )


def expect_pairs(
    throughput: Throughput, pairs: PairsOnTheWay, tokens: float, minutes: float | None
) -> PairsOnTheWay:
    """Say what scoring pairs is worth in updates of so many tokens, at each evaluation and after the last update.

    minutes: the budget of a run that begins; where all pairs would take more than a tenth of it, fewer are scored
    at the end, and at most half as many at each evaluation, which is logged. Returns the pairs with that settled.
    """
    settings, number = pairs.settings, len(pairs.every)
    worth = forward_updates(pairs.every.cost(pairs.scorer), tokens)  # of all; a sample is alike
    seconds = worth * throughput.seconds_of_update(0)
    if minutes is not None and settings.pairs_at_end is None and seconds > (most := _AT_END * minutes * 60):
        some = max(2, int(number * most / seconds))
        sample = min(settings.pairs_sample or number, int(_EACH * some))
        bounded = settings.model_copy(update={"pairs_at_end": some, "pairs_sample": sample})
        pairs = PairsOnTheWay(pairs.every, bounded, pairs.scorer)
        logger.info(
            "scoring all %s would take about %s: %s of them are scored at the end (evaluate.pairs_at_end); "
            "`bertsmith score` scores all",
            pluralize(number, "minimal pair"),
            console.format_duration(seconds),
            f"{some:,}",
        )
    each, last = (worth * len(some) / number for some in (pairs.sample, pairs.last))
    if minutes is not None:
        one, other = (
            console.format_duration(part * throughput.seconds_of_update(0)) for part in (each, last)
        )
        logger.info("scoring minimal pairs takes about %s at each evaluation, and %s at the end", one, other)
    throughput.writing_seconds *= (
        2  # the model is written before the last pairs are scored, and with their figures
    )
    throughput.evaluation_updates += each
    throughput.final_evaluations += last / throughput.evaluation_updates
    return pairs
