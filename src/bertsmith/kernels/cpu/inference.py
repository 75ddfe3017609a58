"""The compiled kernels where nothing is trained, and what only answers are computed by: products of 8-bit
integers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.kernels.cpu import matmul_int8, quantize
from bertsmith.kernels.cpu.compilation import Launcher, float_bits, launch
from bertsmith.kernels.cpu.encoder_layer import (
    FloatLayerMatmuls,
    LayerMatmuls,
    LayerNormParams,
    LayerWeights,
    layer_forward,
    layer_weights,
)
from bertsmith.kernels.cpu.layer_functions import is_bf16
from bertsmith.kernels.cpu.matmul import PANEL_COLUMNS
from bertsmith.kernels.cpu.matmul_int8 import int8_linear
from bertsmith.kernels.cpu.program import KernelSequence
from bertsmith.kernels.cpu.training import SUPPORTED_DTYPES, NumbaTrainingBackend, is_supported, layer_config
from bertsmith.kernels.reference import (
    MIN_QUANT_STEP,
    DequantParams,
    EncoderLayerModules,
    QuantizedLinear,
    SequenceLayout,
    WeightVersions,
    compute_dtype,
)


class NumbaInferenceBackend(NumbaTrainingBackend):
    """By compiled loops also where nothing is trained. What serves a text does not depend on its company."""

    min_seqlen_bf16_attention, max_seqlen_fp32_attention = 0, math.inf

    def __init__(self) -> None:
        """Nothing of a model is known yet."""
        super().__init__()
        self._kept: _KeptOf = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """Without what is kept of a model, which a copy makes itself."""
        return {name: value for name, value in vars(self).items() if name != "_kept"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The contrary."""
        vars(self).update(state, _kept=WeakKeyDictionary())

    def _serves(self, x: Tensor) -> bool:
        return is_supported(x) and x.numel() > 0

    def encoder_layer(
        self, x: Tensor, bounds: SequenceLayout, of: EncoderLayerModules, rows: Tensor | None = None
    ) -> Tensor | None:
        """Where nothing is trained and its products are ours, in 8-bit integers or not, by one program. To the bit
        the same as part by part."""
        if torch.is_grad_enabled():
            return super().encoder_layer(x, bounds, of, rows)
        least = len(x) if rows is None else len(rows)
        if not least or not self._serves(x) or of.activation is not F.gelu:
            return None
        residual = x.to(compute_dtype(x)).contiguous()
        norms, over = (
            _norms_of(of),
            self._over(residual.dtype, x.shape[1] // of.num_heads, of.num_heads, bounds),
        )
        if norms is None or over is None:
            return None
        products = self._products_of(of, residual[:least])  # which may be made for it, and kept
        if products is None:
            return None
        run, given = KernelSequence(), x.contiguous() if isinstance(products, _Int8LayerMatmuls) else residual
        found, _ = layer_forward(
            given, residual, products, norms, layer_config(of, over.with_queries(rows)), run
        )
        run.run()
        return found

    def _products_of(self, of: EncoderLayerModules, x: Tensor) -> LayerMatmuls | None:
        """A layer's, of as many rows as x has, in its kind; None where not all of them have bodies."""
        integers = [getattr(part, "quantized_tensors", None) for part in of.linears]
        known = [one for one in integers if isinstance(one, QuantizedLinear) and _has_body(one)]
        if len(known) == len(integers):
            return _Int8LayerMatmuls(x.dtype, *known)
        weights = layer_weights(of)
        if weights is None or not weights.have_kernels(x):
            return None
        has_panels = x.dtype == torch.bfloat16 and x.shape[1] % PANEL_COLUMNS == 0
        if not has_panels or any(weight.is_inference() for weight in weights):
            return weights.matmuls()
        return self._in_panels(of, weights)

    def _in_panels(self, of: EncoderLayerModules, weights: LayerWeights) -> LayerMatmuls:
        """The same with weights in panels, which are made at the first call and when a weight has changed."""
        kept = self._kept.setdefault(of.qkv, WeakKeyDictionary())  # which layers may share, but not all else
        before = kept.get(of.inner)
        if before is None or not before.weights.matches(weights):
            held = LayerWeights(*(weight.detach() for weight in weights))
            before = kept[of.inner] = _Kept(WeightVersions(held), held.packed_matmuls())
        return before.products

    def quantize_rows(self, x: Tensor, channels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A row is read once."""
        if not self._serves(x) or x.shape[1] % quantize.COLUMNS:
            return super().quantize_rows(x, channels)
        x, found = x.contiguous(), torch.empty(x.shape, dtype=torch.int8)
        step, middle = torch.empty(len(x), 1), torch.empty(len(x), 1)
        room = torch.empty(torch.get_num_threads(), x.shape[1])
        launch(
            quantize.quantize_rows_kernel,
            *(is_bf16(x), x, channels, found, step),
            *(middle, *x.shape, float_bits(MIN_QUANT_STEP), room),
        )
        return found, step, middle

    def pack_int8_weight(self, weight: Tensor, *, is_native: bool) -> Tensor:
        """As a body reads them: in fours, int8 [out / 32, in / 4, 32, 4], where the processor multiplies such, the
        inputs filled up for tiles; in pairs, int16 [out / 16, in / 2, 16, 2], where it has no products of 8-bit
        integers. Of an output these are neighbours among the inputs, and as many outputs stand side by side."""
        inputs, outputs = weight.shape
        native = matmul_int8.GEMM_INT8
        if is_native and native and inputs % quantize.COLUMNS == 0 and outputs % native.OUTPUT_MULTIPLE == 0:
            return _side_by_side(
                F.pad(weight, (0, 0, 0, -inputs % native.INPUT_MULTIPLE)), native.OUTPUT_MULTIPLE, 4
            )
        if (
            is_native
            or not matmul_int8.GEMM_INT8_FALLBACK
            or inputs % quantize.COLUMNS
            or outputs % quantize.COLUMNS
        ):
            return super().pack_int8_weight(weight, is_native=is_native)
        return _side_by_side(weight, quantize.COLUMNS, 2).to(torch.int16)

    def int8_linear(
        self, x: Tensor, linear: QuantizedLinear, dtype: torch.dtype, *, activated: bool = False
    ) -> Tensor:
        """By one body, which keeps neither integers nor sums, where weights are in pairs or fours."""
        if not _has_body(linear):
            return super().int8_linear(x, linear, dtype, activated=activated)
        x = (x if x.dtype in SUPPORTED_DTYPES else x.float()).contiguous()
        return int8_linear(linear, x, dtype, launch, activated=activated)

    def dequantize(
        self,
        products: Tensor,
        step: Tensor,
        middle: Tensor,
        apart: Tensor,
        of: DequantParams,
        dtype: torch.dtype,
    ) -> Tensor:
        """In one pass."""
        served = products.is_cpu and products.is_contiguous() and dtype in SUPPORTED_DTYPES
        if not served or products.shape[1] % quantize.COLUMNS:
            return super().dequantize(products, step, middle, apart, of, dtype)
        found = products.new_empty(products.shape, dtype=dtype)
        launch(
            quantize.dequantize_kernel,
            *(is_bf16(found), products, found, step, middle, apart.contiguous()),
            *of,
            *products.shape,
        )
        return found


class _Int8LayerMatmuls(NamedTuple):
    """Those of a layer in 8-bit integers; kind: of what comes of them."""

    kind: torch.dtype
    qkv: QuantizedLinear
    projection: QuantizedLinear
    inner: QuantizedLinear
    output: QuantizedLinear

    def query(self, x: Tensor, run: Launcher) -> Tensor:
        """See `LayerMatmuls`."""
        return int8_linear(_outputs(self.qkv, 0, x.shape[1]), x, self.kind, run)

    def key_value(self, x: Tensor, run: Launcher) -> Tensor:
        """See `LayerMatmuls`."""
        return int8_linear(_outputs(self.qkv, x.shape[1], 3 * x.shape[1]), x, self.kind, run)

    def query_key_value(self, x: Tensor, run: Launcher) -> Tensor:
        """See `LayerMatmuls`."""
        return int8_linear(self.qkv, x, self.kind, run)

    def output_projection(self, x: Tensor, run: Launcher) -> Tensor:
        """See `LayerMatmuls`."""
        return int8_linear(self.projection, x, self.kind, run)

    def feed_forward(self, x: Tensor, run: Launcher) -> tuple[Tensor, Tensor, Tensor]:
        """See `LayerMatmuls`; what GELU is taken of is not kept."""
        activated = int8_linear(self.inner, x, self.kind, run, activated=True)
        return int8_linear(self.output, activated, self.kind, run), activated, activated


class _Kept(NamedTuple):
    """A layer's products, and the weights that they were made of."""

    weights: WeightVersions
    products: FloatLayerMatmuls


_KeptOf = WeakKeyDictionary[nn.Module, WeakKeyDictionary[nn.Module, _Kept]]


def _norms_of(of: EncoderLayerModules) -> list[LayerNormParams] | None:
    """A layer's; None where they are others than BERT's."""
    norms: list[LayerNormParams] = []
    for norm in of.norms:
        if not isinstance(norm, nn.LayerNorm) or norm.weight is None or norm.bias is None:
            return None
        norms.append((norm.weight, norm.bias, norm.eps))
    return norms


def _has_body(linear: QuantizedLinear) -> bool:
    """Whether its weights are in pairs or fours."""
    return linear.weight.dim() > 2


def _outputs(linear: QuantizedLinear, begin: int, end: int) -> QuantizedLinear:
    """Some of its outputs, as many as stand side by side in its weights, or a multiple."""
    together = linear.weight.shape[2]
    weight = linear.weight[begin // together : end // together]
    of = DequantParams(*(one[begin:end] for one in linear.dequant))
    return QuantizedLinear(linear.input_scale, weight, of, linear.outlier_channel)


def _side_by_side(weight: Tensor, outputs: int, inputs: int) -> Tensor:
    """Weights [in, out] as [out / outputs, in / inputs, outputs, inputs]."""
    split = weight.reshape(len(weight) // inputs, inputs, -1, outputs)
    return split.permute(2, 0, 3, 1).contiguous()
