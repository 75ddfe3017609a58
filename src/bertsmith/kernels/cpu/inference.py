"""The backend of compiled kernels for inference on a CPU, with matrix products in int8."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.kernels.cpu import encoder_layer, matmul, quantize, training
from bertsmith.kernels.cpu.encoder_layer import FloatLayerMatmuls, LayerMatmuls, LayerWeights
from bertsmith.kernels.cpu.launcher import KernelSequence, Launcher, float_bits, is_bf16, launch
from bertsmith.kernels.cpu.matmul import PANEL_COLUMNS, int8_linear
from bertsmith.kernels.cpu.training import SUPPORTED_DTYPES, NumbaTrainingBackend
from bertsmith.kernels.linear import MIN_QUANT_STEP, DequantParams, QuantizedLinear
from bertsmith.kernels.reference import (
    EncoderLayerModules,
    LayerNormParams,
    SequenceLayout,
    WeightVersions,
    compute_dtype,
)


class NumbaInferenceBackend(NumbaTrainingBackend):
    """Compiled kernels, also without gradients; a text's result does not depend on the rest of its batch."""

    # One kind of attention for all lengths, so that a result does not depend on the longest sequence.
    min_seqlen_bf16_attention, max_seqlen_fp32_attention = 0, math.inf

    def __init__(self) -> None:
        super().__init__()
        self._packed_layers: _PackedLayers = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out packed weights, which a copy packs again."""
        return {name: value for name, value in vars(self).items() if name != "_packed_layers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _packed_layers=WeakKeyDictionary())

    def _supports(self, x: Tensor) -> bool:
        return training.is_supported(x) and x.numel() > 0

    def encoder_layer(
        self, x: Tensor, layout: SequenceLayout, modules: EncoderLayerModules, rows: Tensor | None = None
    ) -> Tensor | None:
        """Run the kernels of a layer, in int8 or not, as one sequence; equal to its parts bit for bit."""
        if torch.is_grad_enabled():
            return super().encoder_layer(x, layout, modules, rows)
        num_outputs = len(x) if rows is None else len(rows)
        if not num_outputs or not self._supports(x) or modules.activation is not F.gelu:
            return None
        residual = x.to(compute_dtype(x)).contiguous()
        norms = _layer_norm_params(modules)
        head_size = x.shape[1] // modules.num_heads
        attention = self._attention_config(residual.dtype, head_size, modules.num_heads, layout)
        if norms is None or attention is None:
            return None
        matmuls = self._layer_matmuls(modules, residual[:num_outputs])  # last, since it may pack weights
        if matmuls is None:
            return None
        sequence = KernelSequence()
        inputs = x.contiguous() if isinstance(matmuls, _Int8LayerMatmuls) else residual
        config = encoder_layer.layer_config(modules, attention.with_queries(rows))
        output, _ = encoder_layer.layer_forward(inputs, residual, matmuls, norms, config, sequence)
        sequence.run()
        return output

    def _layer_matmuls(self, modules: EncoderLayerModules, x: Tensor) -> LayerMatmuls | None:
        """Return a layer's matrix products for the dtype and the number of rows of x; None without kernels."""
        quantized = [getattr(module, "quantized_tensors", None) for module in modules.linears]
        with_kernels = [q for q in quantized if isinstance(q, QuantizedLinear) and _is_packed(q)]
        if len(with_kernels) == len(quantized):
            return _Int8LayerMatmuls(x.dtype, *with_kernels)
        weights = encoder_layer.layer_weights(modules)
        if weights is None or not weights.have_kernels(x):
            return None
        if x.shape[1] % PANEL_COLUMNS or any(weight.is_inference() for weight in weights):
            return weights.matmuls()
        return self._packed_matmuls(modules, weights, x.dtype)

    def _packed_matmuls(
        self, modules: EncoderLayerModules, weights: LayerWeights, dtype: torch.dtype
    ) -> LayerMatmuls:
        """Return the products with packed weights, packed at the first call and after each change of a weight."""
        # Layers may share the qkv module but not the inner one, or the other way around.
        layers = self._packed_layers.setdefault(modules.qkv, WeakKeyDictionary())
        by_dtype = layers.setdefault(modules.inner, {})
        packed = by_dtype.get(dtype)
        if packed is None or not packed.versions.matches(weights):
            detached = LayerWeights(*(weight.detach() for weight in weights))
            packed = _PackedLayer(WeightVersions(detached), detached.packed_matmuls(dtype))
            by_dtype[dtype] = packed
        return packed.matmuls

    def quantize_rows(self, x: Tensor, input_scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Quantize rows, each read once."""
        if not self._supports(x) or x.shape[1] % quantize.COLUMNS:
            return super().quantize_rows(x, input_scale)
        x, integers = x.contiguous(), torch.empty(x.shape, dtype=torch.int8)
        scale, offset = torch.empty(len(x), 1), torch.empty(len(x), 1)
        workspace = torch.empty(torch.get_num_threads(), x.shape[1])
        launch(
            quantize.quantize_rows_kernel,
            *(is_bf16(x), x, input_scale, integers, scale),
            *(offset, *x.shape, float_bits(MIN_QUANT_STEP), workspace),
        )
        return integers, scale, offset

    def pack_int8_weight(self, weight: Tensor, *, is_native: bool) -> Tensor:
        """Return weights in the layout of the int8 kernels.

        With int8 products of the processor (VNNI, AMX): quads of inputs, int8 [out / 32, in / 4, 32, 4], for AMX
        padded with zeros to full tiles. Without: pairs of inputs, int16 [out / 16, in / 2, 16, 2].
        """
        inputs, outputs = weight.shape
        native = matmul.GEMM_INT8
        if is_native and native and inputs % quantize.COLUMNS == 0 and outputs % native.OUTPUT_MULTIPLE == 0:
            padded = F.pad(weight, (0, 0, 0, -inputs % native.INPUT_MULTIPLE))
            return _tile(padded, native.OUTPUT_MULTIPLE, 4)
        has_fallback = matmul.GEMM_INT8_FALLBACK and not is_native
        if not has_fallback or inputs % quantize.COLUMNS or outputs % quantize.COLUMNS:
            return super().pack_int8_weight(weight, is_native=is_native)
        return _tile(weight, quantize.COLUMNS, 2).to(torch.int16)

    def int8_linear(
        self, x: Tensor, linear: QuantizedLinear, dtype: torch.dtype, *, gelu: bool = False
    ) -> Tensor:
        """Compute the layer by one kernel, which stores neither quantized inputs nor integer products."""
        if not _is_packed(linear):
            return super().int8_linear(x, linear, dtype, gelu=gelu)
        x = (x if x.dtype in SUPPORTED_DTYPES else x.float()).contiguous()
        return int8_linear(linear, x, dtype, launch, gelu=gelu)

    def dequantize(
        self,
        products: Tensor,
        scale: Tensor,
        offset: Tensor,
        outlier: Tensor,
        params: DequantParams,
        dtype: torch.dtype,
    ) -> Tensor:
        """Compute the outputs in one pass."""
        supported = products.is_cpu and products.is_contiguous() and dtype in SUPPORTED_DTYPES
        if not supported or products.shape[1] % quantize.COLUMNS:
            return super().dequantize(products, scale, offset, outlier, params, dtype)
        output = products.new_empty(products.shape, dtype=dtype)
        launch(
            quantize.dequantize_kernel,
            *(is_bf16(output), products, output, scale, offset, outlier.contiguous()),
            *(*params, *products.shape),
        )
        return output


class _Int8LayerMatmuls(NamedTuple):
    """Matrix products of a layer in int8 (see `LayerMatmuls`), whose results have the dtype `dtype`."""

    dtype: torch.dtype
    qkv: QuantizedLinear
    projection: QuantizedLinear
    inner: QuantizedLinear
    output: QuantizedLinear

    def query(self, x: Tensor, run: Launcher) -> Tensor:
        return int8_linear(_slice_outputs(self.qkv, 0, x.shape[1]), x, self.dtype, run)

    def key_value(self, x: Tensor, run: Launcher) -> Tensor:
        return int8_linear(_slice_outputs(self.qkv, x.shape[1], 3 * x.shape[1]), x, self.dtype, run)

    def query_key_value(self, x: Tensor, run: Launcher) -> Tensor:
        return int8_linear(self.qkv, x, self.dtype, run)

    def output_projection(self, x: Tensor, run: Launcher) -> Tensor:
        return int8_linear(self.projection, x, self.dtype, run)

    def feed_forward(self, x: Tensor, run: Launcher) -> tuple[Tensor, Tensor, Tensor]:
        activation = int8_linear(self.inner, x, self.dtype, run, gelu=True)
        # The preactivation is not stored; nothing reads it in inference.
        return int8_linear(self.output, activation, self.dtype, run), activation, activation


class _PackedLayer(NamedTuple):
    """A layer's products with packed weights, and the versions of the weights that were packed."""

    versions: WeightVersions
    matmuls: FloatLayerMatmuls


_PackedLayers = WeakKeyDictionary[nn.Module, WeakKeyDictionary[nn.Module, dict[torch.dtype, _PackedLayer]]]
"""Packed layers by their modules `qkv` and `inner`, and by the dtype of their products."""


def _layer_norm_params(modules: EncoderLayerModules) -> list[LayerNormParams] | None:
    """Return the parameters of a layer's LayerNorms; None if its norms are others or lack parameters."""
    params: list[LayerNormParams] = []
    for norm in modules.norms:
        if not training.has_layer_norm_params(norm):
            return None
        params.append(LayerNormParams(norm.weight, norm.bias, norm.eps))
    return params


def _is_packed(linear: QuantizedLinear) -> bool:
    """Return True if the weights are tiles of a kernel's layout."""
    return linear.weight.dim() > 2


def _slice_outputs(linear: QuantizedLinear, start: int, end: int) -> QuantizedLinear:
    """Return the layer with outputs start to end, both multiples of its tile."""
    tile_size = linear.weight.shape[2]
    weight = linear.weight[start // tile_size : end // tile_size]
    params = DequantParams(*(tensor[start:end] for tensor in linear.dequant))
    return QuantizedLinear(linear.input_scale, weight, params, linear.outlier_channel)


def _tile(weight: Tensor, outputs: int, inputs: int) -> Tensor:
    """Reorder weights [in, out] to [out / outputs, in / inputs, outputs, inputs]."""
    split = weight.reshape(len(weight) // inputs, inputs, -1, outputs)
    return split.permute(2, 0, 3, 1).contiguous()
