"""Which kernels a GPU gets, and what is said where one does not work there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.kernels import choice, on_gpu
from bertsmith.kernels.on_gpu import Blocks
from bertsmith.place import Place

HERE = torch.device("cpu")


def broken(*_: Any, **__: Any) -> Tensor:
    raise NotImplementedError("needs a newer GPU\nand more")


def plain_attention(qkv: Tensor, *_: Any, **__: Any) -> Tensor:
    return qkv[:, : qkv.shape[1] // 3]


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return broken


def compiled_wrongly(function: Callable[..., Any]) -> Callable[..., Any]:
    """What adds up by half a logit too much."""

    def found(*given: Any) -> Any:
        made = function(*given)
        return made + 0.5 if isinstance(made, Tensor) else made

    return found


def test_the_kernels_of_a_gpu(uncompiled: None) -> None:
    for asked, is_long, name in (
        ("auto", True, "inductor"),
        ("auto", False, "flash"),
        ("flash", True, "flash"),
        ("inductor", False, "inductor"),
        ("torch", True, "torch"),
    ):
        assert choice.for_gpu(asked, HERE, is_long=is_long).name == name
    with pytest.raises(InputError, match=r"^train.kernels=numba: computes on the processor"):
        choice.for_gpu("numba", HERE, is_long=True)
    for asked in ("flash", "inductor"):
        with pytest.raises(InputError, match=f"train.kernels={asked}: computes on a GPU"):
            choice.chosen(asked, 128)


@pytest.mark.parametrize(
    ("part", "fault", "what", "why", "left"),
    [
        ("_attended", broken, "flash attention", "needs a newer GPU", "torch"),
        ("_attended", plain_attention, "flash attention", "flash attention gives other numbers", "torch"),
        ("_program", not_compiled, "torch.compile", "needs a newer GPU", "flash"),
        ("_program", compiled_wrongly, "torch.compile", "a compiled program gives other numbers", "flash"),
    ],
)
def test_what_does_not_work_on_a_gpu_is_done_without(
    uncompiled: None, monkeypatch: pytest.MonkeyPatch, part: str, fault: Any, what: str, why: str, left: str
) -> None:
    monkeypatch.setattr(on_gpu, part, fault)
    told: list[str] = []
    assert choice.for_gpu("auto", HERE, is_long=True, tell=told.append).name == left
    assert len(told) == 1
    assert told[0].startswith(f"{what} does not work here ({why}")
    assert told[0].endswith("); torch computes without it, more slowly")
    with pytest.raises(InputError) as refused:
        choice.for_gpu("inductor", HERE, is_long=True)
    assert refused.value.sentence.startswith(f"train.kernels=inductor: {what} does not work here: {why}")


class OutOfResources(Exception):
    """As Triton's, which is no RuntimeError."""


def too_large(*_: Any) -> Tensor:
    raise OutOfResources("out of resource: shared memory")


def wrong_loss(logits: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return on_gpu._cross_entropy(logits, bias, labels)[0] + 7, labels.sum()


def test_blocks_are_done_without_where_they_do_not_work(
    uncompiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Blocks(
        lambda *given: on_gpu._attended(*given[:-1]), 64, lambda *given: on_gpu._cross_entropy(*given)[:2]
    )
    for blocks, why in (
        (None, None),
        (good, None),
        (good._replace(attends=broken), "needs a newer GPU"),
        (good._replace(attends=too_large), "out of resource: shared memory"),
        (good._replace(loses=wrong_loss), "a program of Triton gives other numbers"),
    ):
        told: list[str] = []
        monkeypatch.setattr(on_gpu, "blocks", lambda blocks=blocks: blocks)
        found = choice.for_gpu("auto", HERE, is_long=True, tell=told.append)
        assert isinstance(found, on_gpu.Compiled)
        assert found.blocks is (None if why else blocks)
        assert told[-1].startswith("layers are compiled for this GPU")
        if why:
            assert told[0].startswith(f"Triton does not work here ({why}")
            assert told[0].endswith("); torch computes attention and the loss, more slowly")


def test_what_is_tried_draws_nothing_from_the_run(uncompiled: None) -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    choice.for_gpu("inductor", HERE, is_long=True)
    assert torch.get_rng_state().equal(state)


def test_a_model_that_answers_leaves_the_run_its_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default generator is a run's alone."""
    monkeypatch.setattr("bertsmith.place._default_generator", lambda _: torch.default_generator)
    run = Place.of("cpu", "bf16", 5, trains=True)
    assert run.generator is torch.default_generator
    state = run.generator.get_state()
    assert Place.of("cpu", "bf16", 0).generator is not torch.default_generator
    assert run.generator.get_state().equal(state)
    assert run.generator.initial_seed() == 5
