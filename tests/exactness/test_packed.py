"""Packing, accumulating and batching leave the numbers alone: the gradient is that of one large padded batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.device import ComputeContext
from bertsmith.instances.batches import InstanceStream, MaskedBatch
from bertsmith.instances.settings import DataSettings
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.language_modeling import MaskedLM
from bertsmith.packed import Packed
from bertsmith.training.data_loader import START, Update
from bertsmith.training.optimizer import create_adamw
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import GradientStrategy, TrainModule, train_step

CONFIG = ModelConfig(
    vocab_size=46,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.2,  # far from linear, so that an error shows
)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> InstanceStream:
    shards: Shards = tiny_run.make_shards(tmp_path_factory.mktemp("corpus"), documents=60)
    tokenizer = tiny_run.tokenizer()
    documents = np.arange(shards.documents)
    return InstanceStream(shards, documents, tokenizer, DataSettings(), length=48, seed=0)


def model() -> tuple[Encoder, MaskedLM]:
    generator = torch.Generator().manual_seed(3)
    return Encoder(CONFIG, generator), MaskedLM(CONFIG, generator)


def gradient(batches: Sequence[MaskedBatch]) -> dict[str, Tensor]:
    """Of the mean loss over all batches together, as the loop takes it."""
    encoder, objective = model()
    totals = {part: sum(batch.counts[part] for batch in batches) for part in batches[0].counts}
    for batch in batches:
        torch.autograd.backward(objective.loss(encoder, batch).reduce(totals))
    named = [*encoder.named_parameters(), *objective.named_parameters()]
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert max(float(g.abs().max()) for g in expected.values()) > 1e-2
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) <= 1e-6, name


@pytest.mark.parametrize("cuts", [[0, 20, 40], [0, 1, 40], [0, 3, 10, 11, 40], list(range(41))], ids=len)
def test_accumulated_batches_are_one_large_batch(stream: InstanceStream, cuts: list[int]) -> None:
    """Uneven in sequences, in tokens and in predicted tokens: a mean of means would be off."""
    parts = [stream.batch(0, a, b) for a, b in itertools.pairwise(cuts)]
    assert len({len(part.rows) for part in parts}) > 1
    assert_close(gradient(parts), gradient([stream.batch(0, 0, 40)]))


def test_a_mean_of_means_would_be_noticed(stream: InstanceStream) -> None:
    parts = [stream.batch(0, 0, 1), stream.batch(0, 1, 40)]
    alone = [gradient([part]) for part in parts]
    whole = gradient([stream.batch(0, 0, 40)])
    mean = {name: (alone[0][name] + alone[1][name]) / 2 for name in whole}
    assert max(float((mean[name] - whole[name]).abs().max()) for name in whole) > 1e-3


def test_the_order_of_sequences_does_not_matter(stream: InstanceStream) -> None:
    some = [stream.batch(0, i, i + 1) for i in range(12)]
    assert_close(gradient(some[::-1]), gradient(some))


def test_one_update_from_any_cut_of_its_batches(stream: InstanceStream) -> None:
    settings = TrainSettings(threads=1)

    def updated(cuts: list[int]) -> tuple[dict[str, float], list[Tensor]]:
        trained = TrainModule(*model())
        optimizer = create_adamw(
            trained.named_parameters(), betas=(0.9, 0.999), epsilon=1e-6, weight_decay=0.01
        )
        micro = [stream.batch(0, a, b) for a, b in itertools.pairwise(cuts)]
        counts = {part: sum(batch.counts[part] for batch in micro) for part in micro[0].counts}
        work = Update(counts, sum(batch.tokens for batch in micro), 0, micro, START)
        context = ComputeContext.create("cpu", "fp32")
        values = train_step(GradientStrategy(trained, context, settings, optimizer), work, 1e-3, 1)
        return {name: float(value) for name, value in values.items()}, [
            p.detach().clone() for p in trained.parameters()
        ]

    whole, weights = updated([0, 24])
    for cuts in ([0, 12, 24], [0, 5, 6, 24]):
        values, others = updated(cuts)
        for name in ("loss", "mlm", "nsp", "gradient_norm"):
            assert values[name] == pytest.approx(whole[name], rel=1e-6)
        # Adam's first step divides a gradient by its own size: where that is all rounding, so is the step.
        apart = torch.cat([(a - b).abs().flatten() for a, b in zip(weights, others, strict=True)])
        assert float((apart > 1e-5).float().mean()) < 0.001


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    seed=st.integers(0, 2**31),
    left=st.booleans(),
    extra=st.integers(0, 7),
)
def test_packed_is_padded(lengths: list[int], seed: int, left: bool, extra: int) -> None:
    """Each sequence has the hidden states it has alone: packed, padded on either side, in any company."""
    encoder = model()[0].eval()
    draw = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(5, 46, (n,), generator=draw) for n in lengths]
    segments = [torch.randint(0, 2, (n,), generator=draw) for n in lengths]
    width = max(lengths) + extra
    ids = torch.zeros(len(lengths), width, dtype=torch.long)
    mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, (t, s) in enumerate(zip(tokens, segments, strict=True)):
        at = slice(width - len(t), width) if left else slice(0, len(t))
        ids[row, at], types[row, at], mask[row, at] = t, s, 1
    with torch.inference_mode():
        packed = encoder(Packed.from_lists([t.tolist() for t in tokens], [s.tolist() for s in segments]))
        padded = encoder(ids, mask, types)
        if not left:
            assert float((padded[mask.bool()] - packed).abs().max()) <= 1e-6
        start = 0
        for row, (t, s) in enumerate(zip(tokens, segments, strict=True)):
            alone = encoder(Packed.from_lists([t.tolist()], [s.tolist()]))
            assert float((packed[start : start + len(t)] - alone).abs().max()) <= 2e-6
            if (
                left
            ):  # a position is its column, as in the reference: alone in a row of its own it is the same
                again = encoder(ids[row : row + 1], mask[row : row + 1], types[row : row + 1])
                assert float((padded[row] - again[0]).abs().max()) <= 2e-6
            start += len(t)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_padding_and_packing_are_each_others_way_back(lengths: list[int]) -> None:
    ids = [list(range(10 * i + 1, 10 * i + 1 + n)) for i, n in enumerate(lengths)]
    packed = Packed.from_lists(ids, [[i % 2] * n for i, n in enumerate(lengths)])
    padded = packed.pad(packed.tokens)
    assert padded.shape == (len(lengths), max(lengths))
    again = Packed.from_padded(padded, (padded > 0).long(), packed.pad(packed.segments))
    for field in ("tokens", "segments", "positions", "cu_seqlens"):
        assert torch.equal(getattr(again, field), getattr(packed, field))
    assert again.max_seqlen == packed.max_seqlen == max(lengths)
    assert packed.tokens[packed.first_token_rows].tolist() == [row[0] for row in ids]
    assert packed.lengths.tolist() == lengths
