"""Evaluation on minimal pairs: on a fixed sample during the run, and on all pairs after the last update."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bertsmith import console
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.inference.minimal_pairs import MinimalPairs, read_pairs, score_pairs
from bertsmith.inference.scoring import Scorer, default_variant
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedLMHead
from bertsmith.objectives.objective import MODEL, Objective
from bertsmith.pretraining.settings import EvaluateSettings
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.time_budget import Throughput, forward_updates

logger = logging.getLogger(__name__)

ACCURACY = "pairs_accuracy"
_MAX_FINAL_RATIO = 0.1  # of a time budget, for the pairs after the last update
_MAX_SAMPLE_RATIO = 0.5  # of these pairs, in each evaluation


def read_evaluation_pairs(settings: EvaluateSettings) -> MinimalPairs | None:
    """Read the minimal pairs of the settings, if there are any."""
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


@dataclass(frozen=True)
class PairsEvaluation:
    """The minimal pairs of a run, and the model in training.

    Attributes:
        pairs: All pairs of the file.
        settings: The numbers of pairs.
        scorer: Scores sentences with the model.
    """

    pairs: MinimalPairs
    settings: EvaluateSettings
    scorer: Scorer

    @classmethod
    def create(
        cls,
        pairs: MinimalPairs,
        settings: EvaluateSettings,
        encoder: Encoder,
        objective: Objective,
        tokenizer: Tokenizer,
        context: ComputeContext,
    ) -> PairsEvaluation:
        """Create the evaluation; raise InputError if the objective has no masked-LM head."""
        head = objective.export(encoder)[MODEL].modules.get("masked")
        if not isinstance(head, MaskedLMHead):
            raise InputError(
                "objective_without_masked_head",
                f"minimal pairs are scored with a masked-LM head, and the objective '{objective.name}' has none",
                argument="evaluate_pairs",
                hint=f"remove {option('evaluate_pairs')}",
            )
        scorer = Scorer(encoder, head, tokenizer, context, default_variant(encoder))
        return cls(pairs, settings, scorer)

    @cached_property
    def sample(self) -> MinimalPairs:
        """The pairs of each evaluation during the run."""
        return self.pairs.sample(self.settings.pairs_sample)

    @property
    def final_pairs(self) -> MinimalPairs:
        """The pairs that are scored after the last update."""
        return self.pairs.sample(self.settings.pairs_at_end)

    def evaluate(self) -> dict[str, float]:
        """Return the accuracy on the sample, by name."""
        return {ACCURACY: score_pairs(self.sample, self.scorer).accuracy}

    def final_report(self) -> dict[str, Any]:
        """Return all metrics of the final pairs, and log what limits them."""
        pairs = self.final_pairs
        logger.info("scoring %s ...", pluralize(len(pairs), "minimal pair"))
        with console.ProgressBar("minimal pairs", 2 * len(pairs), unit="sentences") as bar:
            scores = score_pairs(pairs, self.scorer, bar.update)
        for sentence in scores.messages():
            logger.info("%s", sentence)
        return scores.to_dict()

    def log_sample(self) -> None:
        """Log the size of the sample, if it is not all pairs."""
        if len(self.sample) < len(self.pairs):
            logger.info(
                "each evaluation scores %s of %s, always the same ones (evaluate.pairs_sample)",
                f"{len(self.sample):,}",
                pluralize(len(self.pairs), "minimal pair"),
            )

    def within_budget(
        self, throughput: Throughput, tokens_per_update: float, minutes: float | None
    ) -> PairsEvaluation:
        """Add the time of scoring to the throughput; return an evaluation of fewer pairs if the budget is short.

        Args:
            throughput: The measured speed of the run.
            tokens_per_update: The number of tokens in an update.
            minutes: The time budget of a new run.
        """
        evaluation, num_pairs = self, len(self.pairs)
        updates = forward_updates(self.pairs.cost(self.scorer), tokens_per_update)  # the cost of all pairs
        update_seconds = throughput.seconds_of_update(0)
        seconds = updates * update_seconds
        if minutes is not None and self.settings.pairs_at_end is None:
            max_seconds = _MAX_FINAL_RATIO * minutes * 60
            if seconds > max_seconds:
                evaluation = self._with_at_most(max(2, int(num_pairs * max_seconds / seconds)))
                logger.info(
                    "scoring all %s would take about %s: %s of them are scored at the end "
                    "(evaluate.pairs_at_end); `bertsmith score` scores all",
                    pluralize(num_pairs, "minimal pair"),
                    console.format_duration(seconds),
                    f"{evaluation.settings.pairs_at_end:,}",
                )
        sample_updates, final_updates = (
            updates * len(pairs) / num_pairs for pairs in (evaluation.sample, evaluation.final_pairs)
        )
        if minutes is not None:
            logger.info(
                "scoring minimal pairs takes about %s at each evaluation, and %s at the end",
                console.format_duration(sample_updates * update_seconds),
                console.format_duration(final_updates * update_seconds),
            )
        # The model is written before the final pairs are scored, and again with their metrics.
        throughput.writing_seconds *= 2
        throughput.evaluation_updates += sample_updates
        throughput.final_evaluations += final_updates / throughput.evaluation_updates
        return evaluation

    def _with_at_most(self, num_pairs: int) -> PairsEvaluation:
        sample = min(self.settings.pairs_sample or len(self.pairs), int(_MAX_SAMPLE_RATIO * num_pairs))
        numbers = {"pairs_at_end": num_pairs, "pairs_sample": sample}
        return replace(self, settings=self.settings.model_copy(update=numbers))
