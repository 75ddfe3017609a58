"""What kernels compute does not depend on where their arrays lie in memory: else a run resumed is another one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bertsmith.kernels import backend_selection

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from numba import cfunc

from bertsmith.kernels.cpu import layer_norm, row_kernels
from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    float32,
    float_array,
    float_bits,
    float_from_bits,
    launch,
    load_slots,
)

_BLOCK = re.compile(r'^"?([\w.$-]+)"?:(?:\s+; preds = (.*))?\n((?:  .*\n|\n)*)', re.MULTILINE)
_NAME = re.compile(r'%"?([\w.$-]+)"?')


def guarded_sums(code: str) -> list[str]:
    """Loops over vectors, in LLVM's code, that add up floats, and are entered only where arrays lie far enough
    apart: else the loop over scalars adds up in another order."""
    return [found for function in code.split("\ndefine ")[1:] for found in _guarded_sums_of(function)]


def _guarded_sums_of(function: str) -> Iterator[str]:
    blocks = {name: (set(_NAME.findall(before)), text) for name, before, text in _BLOCK.findall(function)}
    for name, (before, text) in blocks.items():
        is_sum = name in before and re.search(r"= phi (<\d+ x )?(float|double)", text)
        if not name.startswith("vector.body") or not is_sum:
            continue
        todo, seen = before - {name}, set[str]()
        while todo:  # what is run between the loop before and this one
            other = todo.pop()
            seen.add(other)
            if other.startswith("vector.memcheck"):
                yield f"{name} behind {other}"
            elif other.startswith("vector."):
                todo |= blocks[other][0] - seen


def added_while_it_is_written(given):  # type: ignore[no-untyped-def]
    s = load_slots(given)
    x, y, total = float_array(s[0], s[2]), float_array(s[1], s[2]), float32(0)
    for j in range(s[2]):
        value = x[j] * float_from_bits(s[3])
        y[j] = value
        total += value
    float_array(s[4], 1)[0] = total


def added_afterwards(given):  # type: ignore[no-untyped-def]
    s = load_slots(given)
    x, y, total = float_array(s[0], s[2]), float_array(s[1], s[2]), float32(0)
    for j in range(s[2]):
        y[j] = x[j] * float_from_bits(s[3])
    for j in range(s[2]):
        total += y[j]
    float_array(s[4], 1)[0] = total


def test_a_loop_that_writes_and_adds_up_is_found() -> None:
    found = {
        body.__name__: guarded_sums(cfunc("void(voidptr)", **JIT_OPTIONS)(body).inspect_llvm())
        for body in (added_while_it_is_written, added_afterwards)
    }
    assert found["added_while_it_is_written"]
    assert not found["added_afterwards"]


def test_no_body_has_such_a_loop(tmp_path: Path) -> None:
    """In another process, as Numba shows the code of what it compiles now alone."""
    names = sorted(
        path.stem for path in Path(layer_norm.__file__).parent.glob("*.py") if "@kernel" in path.read_text()
    )
    assert {"attention_fp32", "gemm_fp32", "quantize", "row_kernels"} <= set(names)
    shows = (
        "import sys\n"
        "from bertsmith.kernels.cpu import training\n"
        "modules = [sys.modules[f'bertsmith.kernels.cpu.{name}'] for name in sys.argv[1:]\n"
        "           if f'bertsmith.kernels.cpu.{name}' in sys.modules]\n"
        "for module in modules:\n"
        "    for name, body in vars(module).items():\n"
        "        if hasattr(body, 'inspect_llvm') and hasattr(body, 'address'):\n"
        "            print(f'\\n=== {module.__name__}.{name}')\n"
        "            print(body.inspect_llvm())\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", shows, *names],
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    bodies = [body.split("\n", 1) for body in shown.stdout.split("\n=== ")[1:]]
    assert len(bodies) >= 15
    assert {name: found for name, code in bodies if (found := guarded_sums(code))} == {}


def laid(tensors: list[Tensor], order: tuple[int, ...], gap: int) -> list[Tensor]:
    """Copies of tensors in one piece of memory, in this order, as many bytes between two."""
    sizes = [-(-tensor.numel() * tensor.element_size() // 4) * 4 for tensor in tensors]
    memory = torch.empty(sum(sizes) + gap * (len(tensors) + 1), dtype=torch.uint8)
    found, place = list(tensors), gap
    for number in order:
        tensor, size = tensors[number], sizes[number]
        found[number] = (
            memory[place : place + size].view(tensor.dtype)[: tensor.numel()].view(tensor.shape).copy_(tensor)
        )
        place += size + gap
    return found


def orders(of: int) -> list[tuple[int, ...]]:
    """Each array right behind each other one, at least once."""
    return [(a, b, *sorted(set(range(of)) - {a, b})) for a, b in permutations(range(of), 2)]


kinds = pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
columns_here = pytest.mark.parametrize("columns", [16, 20, 31, 32, 33, 48, 96])


@kinds
@columns_here
@pytest.mark.parametrize("dropped", [0, 6554])
def test_norms_and_their_slopes(kind: torch.dtype, columns: int, dropped: int) -> None:
    rows, half = 3, kind == torch.bfloat16
    draw = torch.Generator().manual_seed(1)
    x, residual, grad = (torch.randn(rows, columns, generator=draw).to(kind) for _ in range(3))
    weight, bias = torch.randn(2, columns, generator=draw).unbind()
    written = [torch.zeros(rows, columns, dtype=kind) for _ in range(3)]
    given = [x, residual, grad, weight, bias, *written, torch.zeros(rows, 2), torch.zeros(2, columns)]
    random = 1, 2, dropped, float_bits(1.1)

    def computed(order: tuple[int, ...], gap: int) -> list[Tensor]:
        places = laid(given, order, gap)
        x, residual, grad, weight, bias, found, of_sum, of_x, stats, sums = (t.data_ptr() for t in places)
        size = rows, columns
        room = torch.empty(2, 2 * columns)
        there = weight, bias, stats, float_bits(1e-12), *random, 0, 0, 0, room
        launch(layer_norm.add_layer_norm_kernel, half, x, residual, found, *size, *there)
        back = weight, 0, stats, 0, *random, grad, of_x, sums, room
        launch(layer_norm.add_layer_norm_backward_kernel, half, x, residual, of_sum, *size, *back)
        return places

    check(computed, len(given))


@kinds
@columns_here
@pytest.mark.parametrize("dropped", [0, 6554])
def test_weights_of_attention_and_the_slopes_of_scores(kind: torch.dtype, columns: int, dropped: int) -> None:
    rows, half = 3, kind == torch.bfloat16
    draw = torch.Generator().manual_seed(2)
    scores, slopes = (torch.randn(rows, columns, generator=draw).to(kind) for _ in range(2))
    written = [torch.zeros(rows, columns, dtype=kind) for _ in range(2)]
    given = [scores, slopes, *written]
    random = 1, 2, dropped, float_bits(1.1)

    def computed(order: tuple[int, ...], gap: int) -> list[Tensor]:
        places = laid(given, order, gap)
        scores, slopes, weights, after = (t.data_ptr() for t in places)
        size = rows, columns, 0, 1, 0, 0
        launch(row_kernels.attention_softmax, half, scores, weights, after, *size, *random)
        launch(row_kernels.softmax_backward, half, slopes, weights, after, *size, *random)
        return places

    check(computed, len(given))


def check(computed, of: int) -> None:  # type: ignore[no-untyped-def]
    """That what is computed is the same for arrays that lie side by side and for those that lie far apart."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        apart = computed(tuple(range(of)), 4096)
        for order in orders(of):
            beside = computed(order, 16)
            assert [n for n in range(of) if not torch.equal(apart[n], beside[n])] == [], order
    finally:
        torch.set_num_threads(threads)
