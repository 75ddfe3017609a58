"""The chain over tags, against every path written out: sums, best paths, probabilities, gradients."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.models.crf import (
    FORBIDDEN,
    Chain,
    Crf,
    best_paths,
    log_partitions,
    marginals,
    path_scores,
)

SIZES = st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 4), st.integers(0, 99))


def drawn(lengths: list[int], tags: int, seed: int) -> tuple[Tensor, Tensor, Chain]:
    """Emissions padded with numbers that would show, lengths, a chain; fp64."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    emissions = normal(len(lengths), max(lengths), tags)
    for i, length in enumerate(lengths):
        emissions[i, length:] = 1e3
    return emissions, torch.tensor(lengths), Chain(normal(tags), normal(tags, tags), normal(tags))


def score(path: tuple[int, ...], emissions: Tensor, chain: Chain) -> Tensor:
    total = chain.start[path[0]] + chain.end[path[-1]]
    for t, tag in enumerate(path):
        total = total + emissions[t, tag]
    for a, b in pairwise(path):
        total = total + chain.transitions[a, b]
    return total


def paths(length: int, tags: int) -> list[tuple[int, ...]]:
    return list(product(range(tags), repeat=length))


@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_sums_best_paths_and_probabilities_are_those_of_all_paths(sizes: tuple[list[int], int, int]) -> None:
    lengths, tags, seed = sizes
    emissions, ends, chain = drawn(lengths, tags, seed)
    found = log_partitions(emissions, ends, chain)
    best, shares = best_paths(emissions, ends, chain), marginals(emissions, ends, chain)
    for i, length in enumerate(lengths):
        every = paths(length, tags)
        scores = torch.stack([score(path, emissions[i], chain) for path in every])
        torch.testing.assert_close(found[i], scores.logsumexp(0))
        assert tuple(best[i]) == every[int(scores.argmax())]
        weights = scores.softmax(0)
        for t in range(length):
            for tag in range(tags):
                wanted = sum(w for w, path in zip(weights.tolist(), every, strict=True) if path[t] == tag)
                assert float(shares[i, t, tag]) == pytest.approx(wanted)
        some = every[seed % len(every)]
        row = torch.tensor([[*some, *[0] * (emissions.shape[1] - length)]])
        told = path_scores(emissions[i : i + 1], row, ends[i : i + 1], chain)
        torch.testing.assert_close(told[0], score(some, emissions[i], chain))


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_all_paths(seed: int) -> None:
    emissions, ends, chain = drawn([3, 1, 4], 3, seed)
    golds = torch.tensor([[0, 2, 1, 0], [1, 0, 0, 0], [2, 2, 0, 1]])

    def gradients(total: Tensor, leaves: list[Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad(total, leaves))

    leaves = [part.clone().requires_grad_() for part in (emissions, *chain)]
    own = Chain(*leaves[1:])
    loss = (log_partitions(leaves[0], ends, own) - path_scores(leaves[0], golds, ends, own)).sum()
    found = gradients(loss, leaves)
    total = torch.zeros((), dtype=torch.float64)
    for i, length in enumerate(ends.tolist()):
        every = torch.stack([score(path, leaves[0][i], own) for path in paths(length, 3)])
        total = total + every.logsumexp(0) - score(tuple(golds[i, :length].tolist()), leaves[0][i], own)
    for a, b in zip(found, gradients(total, leaves), strict=True):
        torch.testing.assert_close(a, b)
    assert found[0][1, 1:].abs().max() == 0  # nothing behind a sentence's end matters


def test_what_is_forbidden_has_no_share_and_no_gradient() -> None:
    """fp32, as in training: exp of it is exactly 0, and nothing becomes a NaN."""
    draw = torch.Generator().manual_seed(0)
    emissions = torch.randn(2, 30, 3, generator=draw)
    crf = Crf(3)
    legal = Chain(
        torch.tensor([0.0, FORBIDDEN, 0.0]), torch.zeros(3, 3).index_put(
            (torch.tensor(0), torch.tensor(1)), torch.tensor(FORBIDDEN)
        ), torch.zeros(3),
    )  # fmt: skip
    lengths = torch.tensor([30, 7])
    chain = crf.on(legal)
    log_partitions(emissions, lengths, chain).sum().backward()
    for parameter in crf.parameters():
        assert torch.isfinite(parameter.grad).all()
    assert crf.start_transitions.grad[1] == 0
    assert crf.transitions.grad[0, 1] == 0
    for path in best_paths(emissions, lengths, chain):
        assert path[0] != 1
        assert (0, 1) not in list(pairwise(path))


def test_a_sentence_does_not_depend_on_those_beside_it() -> None:
    emissions, ends, chain = drawn([4, 2, 3, 1, 4], 4, 7)
    together = best_paths(emissions, ends, chain)
    shares = marginals(emissions, ends, chain)
    for i, length in enumerate(ends.tolist()):
        alone = emissions[i : i + 1, :length]
        assert best_paths(alone, ends[i : i + 1], chain) == [together[i]]
        torch.testing.assert_close(marginals(alone, ends[i : i + 1], chain)[0], shares[i, :length])
