"""SIMD vectors of 16 fp32 values for kernels compiled by Numba.

A vector is one 512-bit register, or two 256-bit registers. Numba vectorizes long loops by itself, but emits scalar
code for short ones. Addresses are integers, and strides are in bytes. Sums may be reassociated, and a product and
a sum may be fused (`FAST_MATH_FLAGS`).
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, has_cpu_feature

VECTOR_WIDTH = 16
HAS_AVX512_BF16 = has_cpu_feature("avx512bf16")
HAS_AVX512F = has_cpu_feature("avx512f")
FAST_MATH_FLAGS = ("reassoc", "contract", "nsz", "arcp")
# LLVM's types.
F32, I32, I16, I8 = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)
F32X16, I32X16, I16X16, I8X16 = (ir.VectorType(element, VECTOR_WIDTH) for element in (F32, I32, I16, I8))
_F32X8 = ir.VectorType(F32, 8)


class _FloatVectorType(types.Type):  # type: ignore[misc]
    """Numba's type of 16 fp32 values."""

    def __init__(self) -> None:
        super().__init__("float32x16")


@register_model(_FloatVectorType)
class _FloatVectorModel(models.PrimitiveModel):  # type: ignore[misc]
    """LLVM's representation of `_FloatVectorType`."""

    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, F32X16)


FLOAT_VECTOR = _FloatVectorType()
_UNARY = FLOAT_VECTOR(FLOAT_VECTOR)
_BINARY = FLOAT_VECTOR(FLOAT_VECTOR, FLOAT_VECTOR)
_LOAD = FLOAT_VECTOR(types.int64)
_STORE = types.void(types.int64, FLOAT_VECTOR)
_REDUCE = types.float32(FLOAT_VECTOR)


def typed_intrinsic(signature: Any) -> Any:
    """Return a decorator that makes a Numba intrinsic of a function emit(builder, *operands) of LLVM IR."""

    def decorate(emit: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, operands: Any) -> Any:
            result = emit(builder, *operands)
            return context.get_dummy_value() if signature.return_type is types.void else result

        @functools.wraps(emit)  # Numba reads the names and the number of the operands
        def define(typing_context: Any, *operand_types: Any) -> Any:
            return signature, generate

        return intrinsic(define)

    return decorate


def typed_pointer(builder: Any, address: Any, element: Any) -> Any:
    """Emit the conversion of an integer address to a pointer to `element`."""
    return builder.inttoptr(address, element.as_pointer())


def broadcast(builder: Any, value: Any, vector_type: Any) -> Any:
    """Emit a vector whose elements are all `value`."""
    undefined = ir.Constant(vector_type, ir.Undefined)
    first = builder.insert_element(undefined, value, I32(0))
    return builder.shuffle_vector(first, undefined, int_constant(0))


def llvm_intrinsic(builder: Any, name: str, result: Any, *operands: Any, flags: Any = FAST_MATH_FLAGS) -> Any:
    """Emit a call of an LLVM intrinsic that returns `result`."""
    function_type = ir.FunctionType(result, [operand.type for operand in operands])
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, operands, fastmath=flags)


def inline_asm(builder: Any, code: str, constraints: str, result: Any, *operands: Any) -> Any:
    """Emit inline assembly that returns `result`, where an LLVM intrinsic has a type that llvmlite lacks."""
    function_type = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(ir.InlineAsm(function_type, code, constraints), operands)


def vector_constant(value: float) -> Any:
    """Return a constant vector of 16 equal fp32 values."""
    return ir.Constant(F32X16, [float(np.float32(value))] * VECTOR_WIDTH)


def int_constant(value: int) -> Any:
    """Return a constant vector of 16 equal 32-bit integers."""
    return ir.Constant(I32X16, [value] * VECTOR_WIDTH)


def fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Emit x * y + z, rounded once."""
    return llvm_intrinsic(builder, f"llvm.fma.v{VECTOR_WIDTH}f32", F32X16, x, y, z, flags=())


def round_to_int(builder: Any, x: Any, step: float) -> tuple[Any, Any]:
    """Emit round(x / step), below 2**22 in size, as integers whose lowest bits hold it, and as fp32."""
    large = vector_constant(1.5 * 2**23)  # the sum with this has no bits for a fraction
    total = fma(builder, x, vector_constant(1 / step), large)
    return builder.bitcast(total, I32X16), builder.fsub(total, large)


def permute_table(builder: Any, table: Any, indices: Any) -> Any:
    """Emit the look-up of the lowest 4 bits of each index in a table of 16 constants; needs AVX-512."""
    values = ir.Constant(F32X16, [float(np.float32(value)) for value in table])
    return llvm_intrinsic(builder, "llvm.x86.avx512.permvar.sf.512", F32X16, values, indices, flags=())


def to_bf16(builder: Any, x: Any) -> Any:
    """Emit the conversion of fp32 to the bits of bf16, rounded to nearest, ties to even."""
    if HAS_AVX512_BF16:
        return inline_asm(builder, "vcvtneps2bf16 $1, $0", "=v,v", I16X16, x)
    bits = builder.bitcast(x, I32X16)
    odd = builder.and_(builder.lshr(bits, int_constant(16)), int_constant(1))
    rounded = builder.add(builder.add(bits, int_constant(0x7FFF)), odd)
    return builder.trunc(builder.lshr(rounded, int_constant(16)), I16X16)


def _to_saturated_int8(builder: Any, x: Any, result: Any) -> Any:
    """Emit round(x), ties to even, clamped to [-128, 127], as type `result`; |x| must be below 2**31."""
    if HAS_AVX512F and result is I8X16:
        integers = inline_asm(builder, "vcvtps2dq $1, $0", "=v,v", I32X16, x)
        return inline_asm(builder, "vpmovsdb $1, $0", "=v,v", I8X16, integers)
    rounded = llvm_intrinsic(builder, f"llvm.rint.v{VECTOR_WIDTH}f32", F32X16, x)
    low, high = vector_constant(-128.0), vector_constant(127.0)
    rounded = builder.select(builder.fcmp_ordered("<", rounded, high), rounded, high)
    rounded = builder.select(builder.fcmp_ordered(">", rounded, low), rounded, low)
    return builder.fptosi(rounded, result)


@typed_intrinsic(_LOAD)
def load(builder, address):
    """Load 16 fp32 values."""
    return builder.load(typed_pointer(builder, address, F32X16), align=4)


@typed_intrinsic(_STORE)
def store(builder, address, x):
    """Store 16 fp32 values."""
    builder.store(x, typed_pointer(builder, address, F32X16), align=4)


@typed_intrinsic(_STORE)
def store_non_temporal(builder, address, x):
    """Store 16 fp32 values at a multiple of 64 bytes without evicting data from the caches; see `store_fence`."""
    stored = builder.store(x, typed_pointer(builder, address, F32X16), align=4 * VECTOR_WIDTH)
    stored.set_metadata("nontemporal", builder.module.add_metadata([I32(1)]))


@typed_intrinsic(types.void())
def store_fence(builder):
    """Wait until other threads see what `store_non_temporal` wrote."""
    builder.fence("seq_cst")


@typed_intrinsic(_LOAD)
def _load_bf16(builder, address):
    """Load 16 bf16 values as fp32."""
    bits = builder.zext(builder.load(typed_pointer(builder, address, I16X16), align=2), I32X16)
    return builder.bitcast(builder.shl(bits, int_constant(16)), F32X16)


@typed_intrinsic(_STORE)
def store_bf16(builder, address, x):
    """Store 16 values as bf16, rounded to nearest, ties to even."""
    builder.store(to_bf16(builder, x), typed_pointer(builder, address, I16X16), align=2)


@typed_intrinsic(_LOAD)
def load_int32_as_float(builder, address):
    """Load 16 32-bit integers as fp32."""
    return builder.sitofp(builder.load(typed_pointer(builder, address, I32X16), align=4), F32X16)


@typed_intrinsic(_STORE)
def store_int8(builder, address, x):
    """Store 16 values as int8, rounded and saturated."""
    integers = _to_saturated_int8(builder, x, I8X16)
    builder.store(integers, typed_pointer(builder, address, I8X16), align=1)


@typed_intrinsic(_STORE)
def store_uint8(builder, address, x):
    """Store 16 values as uint8: the int8 of `store_int8` plus 128."""
    integers = _to_saturated_int8(builder, x, I8X16)
    shifted = builder.xor(integers, ir.Constant(I8X16, [0x80] * VECTOR_WIDTH))
    builder.store(shifted, typed_pointer(builder, address, I8X16), align=1)


@typed_intrinsic(_STORE)
def store_int16(builder, address, x):
    """Store 16 values as int16: the int8 of `store_int8`, sign-extended."""
    integers = builder.trunc(_to_saturated_int8(builder, x, I32X16), I16X16)
    builder.store(integers, typed_pointer(builder, address, I16X16), align=2)


@typed_intrinsic(FLOAT_VECTOR(types.float32))
def splat(builder, x):
    """Return a vector of 16 equal values."""
    return broadcast(builder, x, F32X16)


@typed_intrinsic(_LOAD)
def broadcast_load(builder, address):
    """Load one fp32 value into all 16 elements."""
    return broadcast(builder, builder.load(typed_pointer(builder, address, F32)), F32X16)


def _overload_operator(function: Any, emit: Any) -> None:
    """Define an operator of two vectors, or of a vector and a number, as in NumPy's broadcasting."""
    intrinsic_function = typed_intrinsic(_BINARY)(emit)

    @overload(function, inline="always")
    def select(x, y):
        if x is FLOAT_VECTOR and y is FLOAT_VECTOR:
            return lambda x, y: intrinsic_function(x, y)
        if x is FLOAT_VECTOR and isinstance(y, types.Float):
            return lambda x, y: intrinsic_function(x, splat(y))
        return (lambda x, y: intrinsic_function(splat(x), y)) if y is FLOAT_VECTOR else None


_overload_operator(operator.add, lambda builder, x, y: builder.fadd(x, y, flags=FAST_MATH_FLAGS))
_overload_operator(operator.sub, lambda builder, x, y: builder.fsub(x, y, flags=FAST_MATH_FLAGS))
_overload_operator(operator.mul, lambda builder, x, y: builder.fmul(x, y, flags=FAST_MATH_FLAGS))
_overload_operator(operator.truediv, lambda builder, x, y: builder.fdiv(x, y))


@typed_intrinsic(_BINARY)
def maximum(builder, x, y):
    """Return the elementwise maximum; x where x or y is NaN."""
    return builder.select(builder.fcmp_ordered("<", x, y), y, x)


@typed_intrinsic(_BINARY)
def minimum(builder, x, y):
    """Return the elementwise minimum; x where x or y is NaN."""
    return builder.select(builder.fcmp_ordered(">", x, y), y, x)


@typed_intrinsic(FLOAT_VECTOR(FLOAT_VECTOR, FLOAT_VECTOR, FLOAT_VECTOR))
def zero_below(builder, x, limit, y):
    """Return 0 where x < limit, and y elsewhere."""
    return builder.select(builder.fcmp_ordered("<", x, limit), vector_constant(0.0), y)


@typed_intrinsic(FLOAT_VECTOR(FLOAT_VECTOR, types.int64, types.int64, types.int64))
def mask_lanes(builder, x, first, start, end):
    """Return element i of x where start <= first + i < end, and -inf elsewhere."""
    offset, size = (
        broadcast(builder, builder.trunc(builder.sub(value, start), I32), I32X16) for value in (first, end)
    )
    indices = builder.add(ir.Constant(I32X16, list(range(VECTOR_WIDTH))), offset)
    return builder.select(builder.icmp_unsigned("<", indices, size), x, vector_constant(float("-inf")))


@typed_intrinsic(_REDUCE)
def reduce_sum(builder, x):
    """Return the sum of the 16 elements."""
    return llvm_intrinsic(builder, f"llvm.vector.reduce.fadd.v{VECTOR_WIDTH}f32", F32, F32(0.0), x)


def _reduce(builder: Any, x: Any, comparison: str) -> Any:
    """Emit a reduction by a tree of selects; LLVM's handles NaN, and compares one element after the other."""
    size = VECTOR_WIDTH
    while size > 1:
        size //= 2
        low, high = (
            builder.shuffle_vector(
                x, x, ir.Constant(ir.VectorType(I32, size), list(range(first, first + size)))
            )
            for first in (0, size)
        )
        x = builder.select(builder.fcmp_ordered(comparison, high, low), high, low)
    return builder.extract_element(x, I32(0))


@typed_intrinsic(_REDUCE)
def reduce_max(builder, x):
    """Return the largest of the 16 elements, none of which may be NaN."""
    return _reduce(builder, x, ">")


@typed_intrinsic(_REDUCE)
def reduce_min(builder, x):
    """Return the smallest of the 16 elements, none of which may be NaN."""
    return _reduce(builder, x, "<")


@typed_intrinsic(_UNARY)
def floor(builder, x):
    """Round down to integers, as fp32."""
    return llvm_intrinsic(builder, f"llvm.floor.v{VECTOR_WIDTH}f32", F32X16, x)


@typed_intrinsic(_UNARY)
def exp2_int(builder, x):
    """Compute 2**x for integers from -126 to 127, given as fp32."""
    exponent = builder.add(builder.fptosi(x, I32X16), int_constant(127))
    return builder.bitcast(builder.shl(exponent, int_constant(23)), F32X16)


@typed_intrinsic(types.void(types.int64, types.int64))
def copy_8(builder, source, target):
    """Copy 8 fp32 values."""
    source, target = (typed_pointer(builder, address, _F32X8) for address in (source, target))
    builder.store(builder.load(source, align=4), target, align=4)


@typed_intrinsic(types.void(types.int64, types.int64, types.int64, types.int64))
def transpose_8x8(builder, source, source_stride, target, target_stride):
    """Transpose 8 rows of 8 fp32 values into another place."""
    sources, targets = (
        [
            typed_pointer(builder, builder.add(start, builder.mul(stride, ir.IntType(64)(row))), _F32X8)
            for row in range(8)
        ]
        for start, stride in ((source, source_stride), (target, target_stride))
    )
    rows = [builder.load(pointer, align=4) for pointer in sources]
    # Interleaving the rows i and i + 4, three times, transposes 2**3 rows.
    interleave = [
        ir.Constant(
            ir.VectorType(I32, 8), [i for column in range(first, first + 4) for i in (column, 8 + column)]
        )
        for first in (0, 4)
    ]
    for _ in range(3):
        rows = [builder.shuffle_vector(rows[i // 2], rows[i // 2 + 4], interleave[i % 2]) for i in range(8)]
    for pointer, row in zip(targets, rows, strict=True):
        builder.store(row, pointer, align=4)


@njit(inline="always", **JIT_OPTIONS)
def load_vector(is_bf16, address):
    """Load 16 values of bf16 or fp32 as fp32."""
    return _load_bf16(address) if is_bf16 else load(address)


@njit(inline="always", **JIT_OPTIONS)
def store_vector(is_bf16, address, x):
    """Store 16 values as bf16 or fp32."""
    if is_bf16:
        store_bf16(address, x)
    else:
        store(address, x)
