"""A linear chain over a sentence's tags: what a tag after another is worth (Lafferty et al. 2001).

A path's score is the sum of its emissions, of its transitions, and of the worth of its first and last tag. All
sums run over sentences padded to one length, in the emissions' precision. Ours, since no kept library has it:
pytorch-crf's last release is of 2019.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

FORBIDDEN = -1e6
"""What a transition that is not allowed is worth: the best path has one only where no other path exists."""


class Chain(NamedTuple):
    """start [K] or [B, K]: worth of each tag as the first; transitions [K, K]: of a tag (column) after a tag
    (row); end [K] or [B, K]: of each tag as the last."""

    start: Tensor
    transitions: Tensor
    end: Tensor


class Crf(nn.Module):
    """The parameters of a chain over K tags, 0 at first, by the names that pytorch-crf has for them.

    rate: a multiple of the run's learning rate. A fine-tuning rate would hardly move a transition from 0.
    """

    rate = 100.0

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.start_transitions = nn.Parameter(torch.zeros(tags))
        self.transitions = nn.Parameter(torch.zeros(tags, tags))
        self.end_transitions = nn.Parameter(torch.zeros(tags))

    def on(self, chain: Chain) -> Chain:
        """Its worth on top of another chain's."""
        return Chain(
            chain.start + self.start_transitions,
            chain.transitions + self.transitions,
            chain.end + self.end_transitions,
        )


def path_scores(emissions: Tensor, tags: Tensor, lengths: Tensor, chain: Chain) -> Tensor:
    """The score of one path a sentence: [B].

    emissions: [B, T, K]; tags: long [B, T], any value behind a sentence's end; lengths: long [B], at least 1."""
    inside = torch.arange(tags.shape[1], device=tags.device) < lengths[:, None]
    emitted = emissions.gather(2, tags[:, :, None])[:, :, 0]
    moved = chain.transitions[tags[:, :-1], tags[:, 1:]]
    last = tags.gather(1, lengths[:, None] - 1)
    start, end = (part.expand(len(tags), -1) for part in (chain.start, chain.end))
    ends = start.gather(1, tags[:, :1]) + end.gather(1, last)
    return (emitted * inside).sum(1) + (moved * inside[:, 1:]).sum(1) + ends[:, 0]


def log_partitions(emissions: Tensor, lengths: Tensor, chain: Chain) -> Tensor:
    """The logarithm of the sum of exp(score) over all paths of each sentence: [B]."""
    return torch.logsumexp(_forward(emissions, lengths, chain)[-1] + chain.end, 1)


def marginals(emissions: Tensor, lengths: Tensor, chain: Chain) -> Tensor:
    """The probability of each tag at each word over all paths: [B, T, K], anything behind a sentence's end."""
    alphas = _forward(emissions, lengths, chain)
    beta = chain.end.expand_as(alphas[0])
    betas = [beta]
    for t in range(emissions.shape[1] - 1, 0, -1):
        back = torch.logsumexp(chain.transitions + (emissions[:, t] + beta)[:, None, :], 2)
        beta = torch.where((t < lengths)[:, None], back, beta)
        betas.append(beta)
    return torch.softmax(torch.stack(alphas, 1) + torch.stack(betas[::-1], 1), 2)


def best_paths(emissions: Tensor, lengths: Tensor, chain: Chain) -> list[list[int]]:
    """The path of the highest score of each sentence, by Viterbi's algorithm; of equal ones that of the lowest ids
    from its end on. Only sums and maxima: no sentence depends on those beside it."""
    best = chain.start + emissions[:, 0]
    came: list[Tensor] = []
    for t in range(1, emissions.shape[1]):
        top, origin = (best[:, :, None] + chain.transitions).max(1)
        best = torch.where((t < lengths)[:, None], top + emissions[:, t], best)
        came.append(origin)
    lasts = (best + chain.end).argmax(1).tolist()
    origins = torch.stack(came, 1).tolist() if came else []
    paths = []
    for i, (tag, length) in enumerate(zip(lasts, lengths.tolist(), strict=True)):
        path = [tag]
        for t in range(length - 2, -1, -1):
            path.append(origins[i][t][path[-1]])
        paths.append(path[::-1])
    return paths


def _forward(emissions: Tensor, lengths: Tensor, chain: Chain) -> list[Tensor]:
    """For each word the logarithm of the sum over all paths up to it that end in each tag, [B, K]; behind a
    sentence's end, that of its last word."""
    alpha = chain.start + emissions[:, 0]
    alphas = [alpha]
    for t in range(1, emissions.shape[1]):
        further = torch.logsumexp(alpha[:, :, None] + chain.transitions, 1) + emissions[:, t]
        alpha = torch.where((t < lengths)[:, None], further, alpha)
        alphas.append(alpha)
    return alphas
