"""Search over probabilities that are written down here."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.models.beam_search import Hypothesis, search
from bertsmith.models.decoder import DecoderState, EncodedSource
from bertsmith.packed import Packed

START, END, A, B = 0, 1, 2, 3
FLOOR = -1e4  # the log-probability of what is impossible


class Texts(DecoderState):
    """The texts so far."""

    def __init__(self, sources: int) -> None:
        packed = Packed.from_lists([[0]] * sources, [[0]] * sources)
        super().__init__(EncodedSource(torch.zeros(sources, 1), packed))
        self.texts: list[tuple[int, ...]] = [()] * sources

    def _select(self, hypotheses: Tensor) -> None:
        self.texts = [self.texts[i] for i in hypotheses.tolist()]

    @property
    def sources(self) -> list[int]:
        return np.repeat(np.arange(len(self.counts)), self.counts).tolist()


def found(tables: list[dict], num_beams: int, max_tokens: int = 9) -> list[Hypothesis]:
    """Search with the probabilities of the next token after each text, by source."""

    def step(tokens: Tensor, state: DecoderState) -> Tensor:
        assert isinstance(state, Texts)
        state.texts = [(*text, token) for text, token in zip(state.texts, tokens.tolist(), strict=True)]
        rows = []
        for text, source in zip(state.texts, state.sources, strict=True):
            table = tables[source].get(text[1:], {END: 1.0})
            rows.append([math.log(table[i]) if table.get(i) else FLOOR for i in range(4)])
        return torch.tensor(rows)

    count = len(tables)
    return search(step, lambda: Texts(count), START, END, [max_tokens] * count, [num_beams] * count)


GARDEN = {(): {A: 0.6, B: 0.4}, (A,): {A: 0.34, B: 0.33, END: 0.33}, (B,): {END: 1.0}}
"""The likelier first token leads to less likely texts."""


def test_greedy_takes_the_likeliest_token_in_each_step() -> None:
    (text,) = found([GARDEN], 1)
    assert text.tokens == (A, A, END)
    assert text.total == pytest.approx(math.log(0.6 * 0.34))


def test_two_beams_find_the_likelier_text() -> None:
    (text,) = found([GARDEN], 2)
    assert text.tokens == (B, END)
    assert text.score == pytest.approx(math.log(0.4) / 2)


def test_each_source_has_the_text_that_it_has_alone() -> None:
    other = {(): {B: 1.0}, (B,): {A: 0.9, END: 0.1}, (B, A): {A: 0.5, END: 0.5}}
    for beams in (1, 2, 3):
        together = found([GARDEN, other, GARDEN], beams)
        assert together == [found([table], beams)[0] for table in (GARDEN, other, GARDEN)]


def test_a_text_ends_at_the_limit() -> None:
    (text,) = found([{(A,) * n: {A: 1.0} for n in range(20)}], 2, max_tokens=5)
    assert text.tokens == (A,) * 5
    assert text.score == 0


@given(seed=st.integers(0, 10_000), beams=st.integers(2, 6))
def test_a_beam_is_never_worse_than_greedy_decoding(seed: int, beams: int) -> None:
    draw = np.random.default_rng(seed)
    texts: list[tuple[int, ...]] = [()]
    table = {}
    for text in texts:
        table[text] = dict(zip((END, A, B), draw.dirichlet([0.5] * 3), strict=True))
        texts += [(*text, token) for token in (A, B) if len(text) < 4]
    (greedy,), (best,) = found([table], 1, 5), found([table], beams, 5)
    assert best.score >= greedy.score
