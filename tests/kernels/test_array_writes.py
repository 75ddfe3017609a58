"""The results of kernels do not depend on the addresses of their arrays; else resumed runs could differ."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from itertools import permutations

import pytest
import torch
from torch import Tensor

from bertsmith.kernels import backend_selection, kernel_cache

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

import llvmlite.binding as llvm
from numba import cfunc

from bertsmith.kernels.cpu import layer_norm, row_kernels
from bertsmith.kernels.cpu.arrays import float_from_bits, floats
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, KERNEL_SIGNATURE, float32
from bertsmith.kernels.cpu.launcher import float_bits, launch

_BLOCK = re.compile(r'^"?([\w.$-]+)"?:(?:\s+; preds = (.*))?\n((?:  .*\n|\n)*)', re.MULTILINE)
_NAME = re.compile(r'%"?([\w.$-]+)"?')


def guarded_sums(llvm_ir: str) -> list[str]:
    """Return the vectorized loops that sum floats behind a run-time check that arrays do not overlap.

    If such a check fails, a scalar loop sums in another order.
    """
    return [name for function in llvm_ir.split("\ndefine ")[1:] for name in _guarded_sums_of(function)]


def _guarded_sums_of(function: str) -> Iterator[str]:
    blocks = {
        name: (set(_NAME.findall(predecessors)), text)
        for name, predecessors, text in _BLOCK.findall(function)
    }
    for name, (predecessors, text) in blocks.items():
        is_sum = name in predecessors and re.search(r"= phi (<\d+ x )?(float|double)", text)
        if not name.startswith("vector.body") or not is_sum:
            continue
        todo, visited = predecessors - {name}, set[str]()
        while todo:  # blocks between the previous loop and this one
            block = todo.pop()
            visited.add(block)
            if block.startswith("vector.memcheck"):
                yield f"{name} behind {block}"
            elif block.startswith("vector."):
                todo |= blocks[block][0] - visited


def sum_while_writing(s):  # type: ignore[no-untyped-def]
    x, y, total = floats(s[0], s[2]), floats(s[1], s[2]), float32(0)
    for j in range(s[2]):
        value = x[j] * float_from_bits(s[3])
        y[j] = value
        total += value
    floats(s[4], 1)[0] = total


def sum_after_writing(s):  # type: ignore[no-untyped-def]
    x, y, total = floats(s[0], s[2]), floats(s[1], s[2]), float32(0)
    for j in range(s[2]):
        y[j] = x[j] * float_from_bits(s[3])
    for j in range(s[2]):
        total += y[j]
    floats(s[4], 1)[0] = total


def test_guarded_sums_finds_a_loop_that_writes_and_sums() -> None:
    loops = {
        kernel.__name__: guarded_sums(cfunc(KERNEL_SIGNATURE, **JIT_OPTIONS)(kernel).inspect_llvm())
        for kernel in (sum_while_writing, sum_after_writing)
    }
    assert loops["sum_while_writing"]
    assert not loops["sum_after_writing"]


def test_no_kernel_has_guarded_sums() -> None:
    """Read LLVM's code of each kernel from the cache, which holds it next to the machine code that runs."""
    folder = kernel_cache.cache_folder()
    assert folder is not None
    kernels: dict[str, str] = {}
    for path in folder.rglob("*.nbc"):
        (_, kind, (_, bitcode)), *_ = pickle.loads(path.read_bytes())
        assert kind == "object"
        kernels[path.name] = str(llvm.parse_bitcode(bitcode))
    modules = {name.split(".")[0] for name in kernels}
    assert {"attention_fp32", "embedding", "layer_norm", "quantize", "row_kernels"} <= modules
    assert len(kernels) >= 15
    assert {name: loops for name, llvm_ir in kernels.items() if (loops := guarded_sums(llvm_ir))} == {}


def place_in_memory(tensors: list[Tensor], order: tuple[int, ...], gap: int) -> list[Tensor]:
    """Copy tensors to one block of memory, in this order, with `gap` bytes between them."""
    sizes = [-(-tensor.numel() * tensor.element_size() // 4) * 4 for tensor in tensors]
    memory = torch.empty(sum(sizes) + gap * (len(tensors) + 1), dtype=torch.uint8)
    copies, offset = list(tensors), gap
    for i in order:
        tensor, size = tensors[i], sizes[i]
        copy = memory[offset : offset + size].view(tensor.dtype)[: tensor.numel()].view(tensor.shape)
        copies[i] = copy.copy_(tensor)
        offset += size + gap
    return copies


def orders(count: int) -> list[tuple[int, ...]]:
    """Return orders in which each array directly follows each other array at least once."""
    return [(a, b, *sorted(set(range(count)) - {a, b})) for a, b in permutations(range(count), 2)]


dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
column_counts = pytest.mark.parametrize("columns", [16, 20, 31, 32, 33, 48, 96])


@dtypes
@column_counts
@pytest.mark.parametrize("num_dropped", [0, 6554])
def test_add_layer_norm(dtype: torch.dtype, columns: int, num_dropped: int) -> None:
    rows, is_bf16 = 3, dtype == torch.bfloat16
    generator = torch.Generator().manual_seed(1)
    x, residual, grad = (torch.randn(rows, columns, generator=generator).to(dtype) for _ in range(3))
    weight, bias = torch.randn(2, columns, generator=generator).unbind()
    outputs = [torch.zeros(rows, columns, dtype=dtype) for _ in range(3)]
    arrays = [x, residual, grad, weight, bias, *outputs, torch.zeros(rows, 2), torch.zeros(2, columns)]
    dropout = 1, 2, num_dropped, float_bits(1.1)

    def compute(order: tuple[int, ...], gap: int) -> list[Tensor]:
        copies = place_in_memory(arrays, order, gap)
        x, residual, grad, weight, bias, out, grad_residual, grad_x, stats, sums = (
            copy.data_ptr() for copy in copies
        )
        size = rows, columns
        workspace = torch.empty(2, 2 * columns)
        forward_args = weight, bias, stats, float_bits(1e-12), *dropout, 0, 0, 0, workspace
        launch(layer_norm.add_layer_norm_kernel, is_bf16, x, residual, out, *size, *forward_args)
        backward_args = weight, 0, stats, 0, *dropout, grad, grad_x, sums, workspace
        launch(
            layer_norm.add_layer_norm_backward_kernel,
            *(is_bf16, x, residual, grad_residual, *size, *backward_args),
        )
        return copies

    check_addresses_do_not_matter(compute, len(arrays))


@dtypes
@column_counts
@pytest.mark.parametrize("num_dropped", [0, 6554])
def test_attention_softmax(dtype: torch.dtype, columns: int, num_dropped: int) -> None:
    rows, is_bf16 = 3, dtype == torch.bfloat16
    generator = torch.Generator().manual_seed(2)
    scores, grads = (torch.randn(rows, columns, generator=generator).to(dtype) for _ in range(2))
    outputs = [torch.zeros(rows, columns, dtype=dtype) for _ in range(2)]
    arrays = [scores, grads, *outputs]
    dropout = 1, 2, num_dropped, float_bits(1.1)

    def compute(order: tuple[int, ...], gap: int) -> list[Tensor]:
        copies = place_in_memory(arrays, order, gap)
        scores, grads, weights, dropped_weights = (copy.data_ptr() for copy in copies)
        args = rows, columns, 0, 1, 0, 0, *dropout
        launch(row_kernels.attention_softmax, is_bf16, scores, weights, dropped_weights, *args)
        launch(row_kernels.softmax_backward, is_bf16, grads, weights, dropped_weights, *args)
        return copies

    check_addresses_do_not_matter(compute, len(arrays))


def check_addresses_do_not_matter(compute, count: int) -> None:  # type: ignore[no-untyped-def]
    """Compare the results for adjacent arrays with those for arrays that are far apart."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = compute(tuple(range(count)), 4096)
        for order in orders(count):
            results = compute(order, 16)
            assert [i for i in range(count) if not torch.equal(expected[i], results[i])] == [], order
    finally:
        torch.set_num_threads(threads)
