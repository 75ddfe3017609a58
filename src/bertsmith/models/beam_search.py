"""Greedy decoding and beam search of the most probable target text (Sutskever et al. 2014, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bertsmith.models.decoder import DecoderState

Step = Callable[[Tensor, DecoderState], Tensor]
"""Adds a token, long [n], to each hypothesis of a state, and returns the log-probabilities [n, V] of the next."""


@dataclass(frozen=True)
class Hypothesis:
    """A target text, or the beginning of one.

    Attributes:
        tokens: The tokens after the start token; a complete text ends with the end token.
        log_probabilities: The log-probability of each token given those before it.
    """

    tokens: tuple[int, ...] = ()
    log_probabilities: tuple[float, ...] = ()

    @property
    def total(self) -> float:
        """The log-probability of all tokens together."""
        return sum(self.log_probabilities)

    @property
    def score(self) -> float:
        """The mean log-probability of the tokens, so that longer texts do not lose; 0 without tokens."""
        return self.total / max(1, len(self.tokens))

    def extend(self, token: int, log_probability: float) -> Hypothesis:
        """Return the hypothesis with one more token."""
        return Hypothesis((*self.tokens, token), (*self.log_probabilities, log_probability))


def search(
    step: Step,
    start: Callable[[], DecoderState],
    start_token: int,
    end_token: int,
    max_tokens: Sequence[int],
    num_beams: Sequence[int],
) -> list[Hypothesis]:
    """Return the text with the best score for each of B sources.

    Beam search can lose the greedy text, and end with a worse one. So the greedy text always takes part: the score
    is never below that of greedy decoding. No text depends on the other sources.

    Args:
        step: The decoder's step.
        start: Returns the state of one empty hypothesis for each source.
        start_token: The first token of each text, which is given.
        end_token: The last token of a complete text.
        max_tokens: The maximum number of tokens for each source; a text of that length need not be complete.
        num_beams: The number of hypotheses that are extended for each source; 1: greedy decoding.
    """
    best = _beam_search(step, start(), start_token, end_token, max_tokens, [1] * len(max_tokens))
    if max(num_beams, default=1) == 1:
        return best
    rivals = _beam_search(step, start(), start_token, end_token, max_tokens, num_beams)
    return [max(pair, key=lambda hypothesis: hypothesis.score) for pair in zip(best, rivals, strict=True)]


def _beam_search(
    step: Step,
    state: DecoderState,
    start_token: int,
    end_token: int,
    max_tokens: Sequence[int],
    num_beams: Sequence[int],
) -> list[Hypothesis]:
    """Extend the best hypotheses of each source until as many texts as beams are complete, and return the best."""
    beams = [[Hypothesis()] for _ in max_tokens]  # of each source
    complete: list[list[Hypothesis]] = [[] for _ in max_tokens]
    next_tokens = [start_token] * len(beams)
    device = state.source.states.device
    while next_tokens:
        log_probabilities = step(torch.tensor(next_tokens, device=device), state)
        width = min(max(num_beams), log_probabilities.shape[1])
        values, tokens = (t.tolist() for t in log_probabilities.topk(width))
        parents: list[int] = []
        next_tokens, first = [], 0
        for source, beam in enumerate(beams):
            candidates = [
                (hypothesis.extend(token, value), first + i)
                for i, hypothesis in enumerate(beam)
                for token, value in zip(tokens[first + i], values[first + i], strict=True)
            ]
            first += len(beam)
            candidates.sort(key=lambda candidate: -candidate[0].total)
            beams[source] = []
            for hypothesis, parent in candidates[: num_beams[source] - len(complete[source])]:
                if hypothesis.tokens[-1] == end_token or len(hypothesis.tokens) >= max_tokens[source]:
                    complete[source].append(hypothesis)
                else:
                    beams[source].append(hypothesis)
                    parents.append(parent)
                    next_tokens.append(hypothesis.tokens[-1])
        if parents != list(range(first)):
            counts = np.array([len(beam) for beam in beams], np.int64)
            state.select(torch.tensor(parents, dtype=torch.long, device=device), counts)
    return [max(texts, key=lambda hypothesis: hypothesis.score) for texts in complete]
