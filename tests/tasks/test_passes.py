"""Which texts share a forward pass: about as many tokens in each, and no thread without one at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bertsmith as bs
import tiny_run
from bertsmith.device import ComputeContext
from bertsmith.tasks.batching import batches_within_budget

MOST = 1024  # tokens of a pass on a processor


def cut(sizes: Sequence[int], threads: int, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    with monkeypatch.context() as patch:
        patch.setattr(ComputeContext, "num_parallel_passes", property(lambda _: threads))
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        passes = list(batches_within_budget(order, sizes, ComputeContext.create("cpu", "fp32")))
    assert [i for some in passes for i in some] == order
    return passes


@given(
    sizes=st.lists(st.integers(1, 512) | st.integers(1, 30), max_size=300),
    threads=st.sampled_from([1, 2, 3, 8]),
)
def test_a_pass_is_within_its_budget(sizes: list[int], threads: int) -> None:
    passes = cut(sizes, threads, pytest.MonkeyPatch())
    assert all(sum(sizes[i] for i in some) <= MOST or len(some) == 1 for some in passes)


@given(sizes=st.lists(st.integers(3, 40), min_size=200, max_size=400), threads=st.sampled_from([1, 2, 4]))
def test_passes_of_short_texts_are_alike(sizes: list[int], threads: int) -> None:
    passes = cut(sizes, threads, pytest.MonkeyPatch())
    assert len(passes) % threads == 0
    tokens = [sum(sizes[i] for i in some) for some in passes]
    assert max(tokens) - min(tokens) <= 2 * max(sizes)


def test_one_pass_stays_one() -> None:
    assert cut([20] * 51, 2, pytest.MonkeyPatch()) == [list(range(51))]
    assert cut([], 2, pytest.MonkeyPatch()) == []
    assert cut([2000, 3000], 2, pytest.MonkeyPatch()) == [[0], [1]]


def test_passes_of_long_texts_are_filled() -> None:
    assert [len(some) for some in cut([512] * 20, 2, pytest.MonkeyPatch())] == [2] * 10


def test_half_a_character_is_found_by_its_number_among_all(tmp_path: Path) -> None:
    model = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "run", "train.max_steps=1")
    texts = ["kaba [MASK]"] * 1_599 + ["lode [MASK] \ud800"]
    for ask in (model.embed, model.fill_mask, model.score):
        with pytest.raises(bs.InputError) as caught:
            ask(texts)
        assert (caught.value.code, caught.value.location) == ("lone_surrogate", "text 1600")


def test_masks_of_many_texts_share_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "run", "train.max_steps=2")
    texts = [f"{text} [MASK] lode [MASK]" for text, _ in tiny_run.examples(60)]
    texts[7] = "kaba [MASK]"
    read: list[int] = []

    def watch(_: Any, given: tuple[Any, ...]) -> None:
        read.append(given[0].num_sequences)

    handle = model.encoder.register_forward_pre_hook(watch)
    found = model.fill_mask(texts, top_k=3)
    handle.remove()
    assert sum(read) == len(texts)
    assert len(read) <= 2 * torch.get_num_threads()
    assert [len(masks) for masks in found] == [1 if i == 7 else 2 for i in range(len(texts))]
    assert found[7][0][0].text.startswith("kaba ")
    assert found == [model.fill_mask(text, top_k=3) for text in texts]
    with pytest.raises(bs.InputError) as caught:
        model.fill_mask([*texts, "lode"])
    assert caught.value.code == "mask_missing"
