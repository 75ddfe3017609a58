"""Layers in programs of their own: to the bit what they make part by part; and what hooks see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import set_kernel_backend
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.packed import Packed

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import gather_rows as bodies
from bertsmith.kernels.cpu import gemm_avx512bf16, gemm_fp32, inference, matmul, training
from bertsmith.kernels.cpu.compilation import launch
from bertsmith.kernels.cpu.program import KernelSequence
from by_parts import ByParts

HALF = torch.bfloat16
LENGTHS = [30, 7, 19]
ROWS = torch.tensor([40, 3, 3, 17, 0, 55, 3, 40, 22, 21, 20, 31, 33, 35, 9, 8])  # in no order, and some twice


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products by kernels also where the libraries are as quick."""
    monkeypatch.setattr(matmul, "GEMM_FP32", gemm_fp32)
    monkeypatch.setattr(matmul, "GEMM_BF16", gemm_avx512bf16)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[KernelSequence]:
    """Those that are run."""
    found: list[KernelSequence] = []
    end = KernelSequence.run
    monkeypatch.setattr(KernelSequence, "run", lambda self: (found.append(self), end(self)))
    return found


def encoder_of(p: float = 0.2, **changes: Any) -> Encoder:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "vocab_size": 50}
    dropout = {"hidden_dropout_prob": p, "attention_probs_dropout_prob": p}
    name = "albert-mini" if "share" in changes else "bert-tiny-uncased"
    config = preset(name, **{"hidden_act": "gelu", "num_hidden_layers": 3, **sizes, **dropout, **changes})
    return build_encoder(config, torch.Generator().manual_seed(0))


def texts() -> Packed:
    ids = torch.randint(5, 50, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1)).numpy()
    return Packed.from_arrays(ids, np.zeros_like(ids), np.array(LENGTHS))


def trained(
    encoder: Encoder, kernels: training.NumbaTrainingBackend, *, half: bool = True, rows: Tensor | None = None
) -> list[Tensor]:
    """What an encoder gives, and the slopes of all its weights."""
    set_kernel_backend(encoder, kernels)
    encoder.generator = torch.Generator().manual_seed(5)
    encoder.zero_grad()
    with torch.autocast("cpu", HALF, enabled=half):
        found = encoder(texts(), rows=rows)
    found.backward(torch.randn(found.shape, generator=torch.Generator().manual_seed(6)))
    return [found.detach(), *(w.grad.clone() for w in encoder.parameters() if w.grad is not None)]


def assert_equal(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    assert [n for n, pair in enumerate(zip(found, wanted, strict=True)) if not torch.equal(*pair)] == []


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("rows", [None, ROWS])
@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize("share", ["none", "all"])
def test_layers_in_programs_are_their_parts_to_the_bit(
    half: bool, rows: Tensor | None, p: float, share: str, programs: list[KernelSequence]
) -> None:
    # of three that share weights slopes would be added up in another order
    encoder = encoder_of(p) if share == "none" else encoder_of(p, share=share, num_hidden_layers=2)
    found = trained(encoder, training.NumbaTrainingBackend(), half=half, rows=rows)
    count = 2 * encoder.config.num_hidden_layers  # one there and one back
    assert len(programs) == count
    assert_equal(found, trained(encoder, ByParts(), half=half, rows=rows))
    assert len(programs) == count


def frozen(encoder: Encoder) -> None:
    """The first layer that learns is given what does not."""
    encoder.embeddings.requires_grad_(requires_grad=False)
    encoder.blocks[0].requires_grad_(requires_grad=False)


def watched_inside(encoder: Encoder) -> None:
    encoder.blocks[1].attention.qkv.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]


def few_rows(encoder: Encoder) -> None:
    """The library makes products of fewer rows."""


@pytest.mark.parametrize(("change", "count"), [(frozen, 2), (watched_inside, 4), (few_rows, 4)])
def test_where_one_of_them_cannot_be_the_others_are_programs(
    change: Callable[[Encoder], None], count: int, programs: list[KernelSequence]
) -> None:
    encoder, rows = encoder_of(), ROWS[:5] if change is few_rows else None
    change(encoder)
    found = trained(encoder, training.NumbaTrainingBackend(), rows=rows)
    assert len(programs) == count
    assert_equal(found, trained(encoder, ByParts(), rows=rows))


def hooks(block: nn.Module, seen: list[str]) -> None:
    block.register_forward_pre_hook(lambda *_: seen.append("before"))
    block.register_forward_hook(lambda *_: seen.append("behind"))
    block.register_full_backward_pre_hook(lambda *_: seen.append("back"))
    block.register_full_backward_hook(lambda *_: seen.append("and through"))


@pytest.mark.parametrize("place", ["a block", "its attention", "a product"])
def test_hooks_see_what_goes_through_a_layer_there_and_back(place: str) -> None:
    encoder, seen = encoder_of(), list[str]()
    attention: Any = encoder.blocks[1].attention
    places = {"a block": encoder.blocks[1], "its attention": attention, "a product": attention.output}
    hooks(places[place], seen)
    trained(encoder, training.NumbaTrainingBackend())
    assert seen == ["before", "behind", "back", "and through"]


@pytest.mark.parametrize("hook", ["register_full_backward_pre_hook", "register_full_backward_hook"])
def test_hooks_that_see_the_way_back_alone(hook: str) -> None:
    encoder, seen = encoder_of(), list[int]()
    for part in (encoder.blocks[0], encoder.blocks[2].feed_forward):
        getattr(part, hook)(lambda *_: seen.append(1))
    trained(encoder, training.NumbaTrainingBackend())
    assert len(seen) == 2


def test_answers_are_programs(programs: list[KernelSequence]) -> None:
    """Also where the states of each layer are wanted."""
    encoder, packed = encoder_of().eval(), texts()
    set_kernel_backend(encoder, inference.NumbaInferenceBackend())
    with torch.inference_mode():
        last = encoder(packed)
        assert len(programs) == 3
        states = encoder.hidden_states(packed)
    assert len(programs) == 6
    assert torch.equal(states[-1], last)


@pytest.mark.parametrize("kind", [torch.float32, HALF])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "rows", [[0], [4], [1, 1, 1, 1, 1], [0, 0, 3, 5, 5, 5, 8, 19], list(range(20))], ids=str
)
def test_rows_are_chosen_and_added_to(rows: list[int], threads: int, kind: torch.dtype) -> None:
    draw, places = torch.Generator().manual_seed(1), torch.tensor(rows)
    x = torch.randn(20, 48, generator=draw).to(kind)
    y = torch.randn(len(rows), 48, generator=draw).to(kind)
    wanted = x + torch.zeros_like(x).index_add_(0, places, y)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = torch.empty_like(y)
        launch(bodies.gather_rows_kernel, int(kind == HALF), x, found, places, len(rows), 48)
        assert torch.equal(found, x[places])
        launch(bodies.scatter_add_rows_kernel, int(kind == HALF), x, y, places, len(rows), 48)
        assert torch.equal(x, wanted)
    finally:
        torch.set_num_threads(before)
