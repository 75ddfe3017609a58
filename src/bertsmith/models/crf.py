"""A linear-chain conditional random field over a sentence's tags (Lafferty et al. 2001).

The score of a path is the sum of its emissions (scores of each tag at each word, from the token classifier), its
transitions, and the scores of its first and last tag. All functions take B sentences padded to T words, with K
tags, and compute in the precision of the emissions. pytorch-crf is not used: its last release is of 2019.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

FORBIDDEN_SCORE = -1e6
"""Score of a forbidden transition: the best path has one only if no other path exists."""


class ChainScores(NamedTuple):
    """The scores of a chain over K tags.

    Attributes:
        start: [K] or [B, K], of each tag as the first.
        transitions: [K, K], of a tag (column) after a tag (row).
        end: [K] or [B, K], of each tag as the last.
    """

    start: Tensor
    transitions: Tensor
    end: Tensor


class Crf(nn.Module):
    """Learned scores of a chain over K tags, initially 0, with pytorch-crf's parameter names.

    Attributes:
        lr_multiplier: Factor of the run's learning rate for these scores; a fine-tuning rate would hardly change
            them from 0.
    """

    lr_multiplier = 100.0

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.start_transitions = nn.Parameter(torch.zeros(tags))
        self.transitions = nn.Parameter(torch.zeros(tags, tags))
        self.end_transitions = nn.Parameter(torch.zeros(tags))

    def add_to(self, chain: ChainScores) -> ChainScores:
        """Return the sum of the learned scores and those of another chain."""
        return ChainScores(
            chain.start + self.start_transitions,
            chain.transitions + self.transitions,
            chain.end + self.end_transitions,
        )


def path_scores(emissions: Tensor, tags: Tensor, lengths: Tensor, chain: ChainScores) -> Tensor:
    """Return the score of one path per sentence, [B].

    Args:
        emissions: Scores of each tag at each word, [B, T, K].
        tags: The path, long [B, T]; any value after the end of a sentence.
        lengths: Words of each sentence, long [B], at least 1.
        chain: The scores of the chain.
    """
    mask = torch.arange(tags.shape[1], device=tags.device) < lengths[:, None]
    emission_scores = emissions.gather(2, tags[:, :, None])[:, :, 0]
    transition_scores = chain.transitions[tags[:, :-1], tags[:, 1:]]
    last_tags = tags.gather(1, lengths[:, None] - 1)
    start, end = (scores.expand(len(tags), -1) for scores in (chain.start, chain.end))
    end_scores = start.gather(1, tags[:, :1]) + end.gather(1, last_tags)
    return (emission_scores * mask).sum(1) + (transition_scores * mask[:, 1:]).sum(1) + end_scores[:, 0]


def log_partitions(emissions: Tensor, lengths: Tensor, chain: ChainScores) -> Tensor:
    """Return the logarithm of the sum of exp(score) over all paths of each sentence, [B]."""
    return torch.logsumexp(_forward(emissions, lengths, chain)[-1] + chain.end, 1)


def marginals(emissions: Tensor, lengths: Tensor, chain: ChainScores) -> Tensor:
    """Return the marginal probability of each tag at each word, [B, T, K], by the forward-backward algorithm.

    Values after a sentence's end are undefined.
    """
    alphas = _forward(emissions, lengths, chain)
    beta = chain.end.expand_as(alphas[0])
    betas = [beta]
    for t in range(emissions.shape[1] - 1, 0, -1):
        previous = torch.logsumexp(chain.transitions + (emissions[:, t] + beta)[:, None, :], 2)
        beta = torch.where((t < lengths)[:, None], previous, beta)
        betas.append(beta)
    return torch.softmax(torch.stack(alphas, 1) + torch.stack(betas[::-1], 1), 2)


def viterbi_decode(emissions: Tensor, lengths: Tensor, chain: ChainScores) -> list[list[int]]:
    """Return the best path of each sentence by the Viterbi algorithm.

    Among equal scores the path with the lowest ids, compared from the end, wins. No sentence depends on the rest
    of the batch.
    """
    best = chain.start + emissions[:, 0]
    backpointers: list[Tensor] = []
    for t in range(1, emissions.shape[1]):
        scores, origins = (best[:, :, None] + chain.transitions).max(1)
        best = torch.where((t < lengths)[:, None], scores + emissions[:, t], best)
        backpointers.append(origins)
    last_tags = (best + chain.end).argmax(1).tolist()
    origin_lists = torch.stack(backpointers, 1).tolist() if backpointers else []
    paths = []
    for i, (tag, length) in enumerate(zip(last_tags, lengths.tolist(), strict=True)):
        path = [tag]
        for t in range(length - 2, -1, -1):
            path.append(origin_lists[i][t][path[-1]])
        paths.append(path[::-1])
    return paths


def _forward(emissions: Tensor, lengths: Tensor, chain: ChainScores) -> list[Tensor]:
    """Return for each word the log-sum over all paths up to it that end in each tag, [B, K].

    After a sentence's end the values of its last word repeat.
    """
    alpha = chain.start + emissions[:, 0]
    alphas = [alpha]
    for t in range(1, emissions.shape[1]):
        extended = torch.logsumexp(alpha[:, :, None] + chain.transitions, 1) + emissions[:, t]
        alpha = torch.where((t < lengths)[:, None], extended, alpha)
        alphas.append(alpha)
    return alphas
