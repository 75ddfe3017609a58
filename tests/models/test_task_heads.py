"""The CRF against the enumeration of all paths: partition functions, best paths, marginals, gradients."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.models.task_heads import (
    FORBIDDEN_SCORE,
    ChainScores,
    Crf,
    log_partitions,
    marginals,
    path_scores,
    viterbi_decode,
)

SIZES = st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 4), st.integers(0, 99))


def random_inputs(lengths: list[int], tags: int, seed: int) -> tuple[Tensor, Tensor, ChainScores]:
    """Return emissions with conspicuous padding, lengths, and a chain, in fp64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    emissions = normal(len(lengths), max(lengths), tags)
    for i, length in enumerate(lengths):
        emissions[i, length:] = 1e3
    return emissions, torch.tensor(lengths), ChainScores(normal(tags), normal(tags, tags), normal(tags))


def score(path: tuple[int, ...], emissions: Tensor, chain: ChainScores) -> Tensor:
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
def test_partitions_best_paths_and_marginals_equal_the_enumeration(sizes: tuple[list[int], int, int]) -> None:
    lengths, tags, seed = sizes
    emissions, ends, chain = random_inputs(lengths, tags, seed)
    partitions = log_partitions(emissions, ends, chain)
    best, probabilities = viterbi_decode(emissions, ends, chain), marginals(emissions, ends, chain)
    for i, length in enumerate(lengths):
        all_paths = paths(length, tags)
        scores = torch.stack([score(path, emissions[i], chain) for path in all_paths])
        torch.testing.assert_close(partitions[i], scores.logsumexp(0))
        assert tuple(best[i]) == all_paths[int(scores.argmax())]
        weights = scores.softmax(0)
        for t in range(length):
            for tag in range(tags):
                expected = sum(
                    w for w, path in zip(weights.tolist(), all_paths, strict=True) if path[t] == tag
                )
                assert float(probabilities[i, t, tag]) == pytest.approx(expected)
        path = all_paths[seed % len(all_paths)]
        row = torch.tensor([[*path, *[0] * (emissions.shape[1] - length)]])
        path_score = path_scores(emissions[i : i + 1], row, ends[i : i + 1], chain)
        torch.testing.assert_close(path_score[0], score(path, emissions[i], chain))


@pytest.mark.parametrize("seed", range(3))
def test_gradients_equal_those_of_the_enumeration(seed: int) -> None:
    emissions, ends, chain = random_inputs([3, 1, 4], 3, seed)
    labels = torch.tensor([[0, 2, 1, 0], [1, 0, 0, 0], [2, 2, 0, 1]])

    def gradients(total: Tensor, leaves: list[Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad(total, leaves))

    leaves = [part.clone().requires_grad_() for part in (emissions, *chain)]
    leaf_chain = ChainScores(*leaves[1:])
    partitions = log_partitions(leaves[0], ends, leaf_chain)
    loss = (partitions - path_scores(leaves[0], labels, ends, leaf_chain)).sum()
    loss_gradients = gradients(loss, leaves)
    total = torch.zeros((), dtype=torch.float64)
    for i, length in enumerate(ends.tolist()):
        scores = torch.stack([score(path, leaves[0][i], leaf_chain) for path in paths(length, 3)])
        label_path = tuple(labels[i, :length].tolist())
        total = total + scores.logsumexp(0) - score(label_path, leaves[0][i], leaf_chain)
    for a, b in zip(loss_gradients, gradients(total, leaves), strict=True):
        torch.testing.assert_close(a, b)
    assert loss_gradients[0][1, 1:].abs().max() == 0  # padding does not matter


def test_forbidden_transitions_have_no_probability_and_no_gradient() -> None:
    """In fp32, as in training: exp of their score is exactly 0, and nothing becomes NaN."""
    generator = torch.Generator().manual_seed(0)
    emissions = torch.randn(2, 30, 3, generator=generator)
    crf = Crf(3)
    legal = ChainScores(
        torch.tensor([0.0, FORBIDDEN_SCORE, 0.0]), torch.zeros(3, 3).index_put(
            (torch.tensor(0), torch.tensor(1)), torch.tensor(FORBIDDEN_SCORE)
        ), torch.zeros(3),
    )  # fmt: skip
    lengths = torch.tensor([30, 7])
    chain = crf.add_to(legal)
    log_partitions(emissions, lengths, chain).sum().backward()
    for parameter in crf.parameters():
        assert torch.isfinite(parameter.grad).all()
    assert crf.start_transitions.grad[1] == 0
    assert crf.transitions.grad[0, 1] == 0
    for path in viterbi_decode(emissions, lengths, chain):
        assert path[0] != 1
        assert (0, 1) not in list(pairwise(path))


def test_a_sentence_does_not_depend_on_the_batch() -> None:
    emissions, ends, chain = random_inputs([4, 2, 3, 1, 4], 4, 7)
    best = viterbi_decode(emissions, ends, chain)
    probabilities = marginals(emissions, ends, chain)
    for i, length in enumerate(ends.tolist()):
        single = emissions[i : i + 1, :length]
        assert viterbi_decode(single, ends[i : i + 1], chain) == [best[i]]
        single_marginals = marginals(single, ends[i : i + 1], chain)
        torch.testing.assert_close(single_marginals[0], probabilities[i, :length])
