"""Matrix products, in floating point and in int8, by PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_INT8_OFFSET = 128  # Signed 8-bit integers range from -128 to 127; adding 128 makes them unsigned.
_INT8_STEPS = 255  # There are 255 steps between the lowest and the highest 8-bit integer.
# A sum of 1,024 products of an integer up to 128 and one up to 127 is below 2**24, so fp32 computes it exactly.
_EXACT_TERMS = 2**10
MIN_QUANT_STEP = 1e-12


class DequantParams(NamedTuple):
    """Parameters that turn the integer products of a linear layer into its outputs.

    With inputs x · input_scale ≈ offset + scale · q_x (see `Int8Backend.quantize_rows`) and weights
    w / input_scale ≈ weight_scale · q_w, the outputs are

        y = weight_scale · (scale · (q_x @ q_w) + offset · weight_sums + x_outlier · outlier_weight) + bias

    Attributes:
        weight_sums: Sums of the quantized weights per output, [out].
        weight_scale: Scale of the weights per output, [out].
        bias: [out].
        outlier_weight: Weights of the outlier channel divided by `weight_scale`, [out].
    """

    weight_sums: Tensor
    weight_scale: Tensor
    bias: Tensor
    outlier_weight: Tensor


class QuantizedLinear(NamedTuple):
    """A linear layer in int8 with one input channel, the outlier, in floating point.

    Attributes:
        input_scale: Factor of each input channel before quantization, [in], which makes the channels similarly
            large (SmoothQuant, Xiao et al. 2023); the weights are divided by it. 0 for the outlier.
        weight: Quantized weights in the format of `Int8Backend.pack_int8_weight`; 0 for the outlier.
        dequant: Parameters of the outputs.
        outlier_channel: Index of the outlier.
    """

    input_scale: Tensor
    weight: Tensor
    dequant: DequantParams
    outlier_channel: int


class MatmulBackend:
    """Matrix products by PyTorch's libraries, without autograd."""

    def matmul(self, x: Tensor, y: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Compute x [N, K] · y [K, M] + bias [M] → [N, M], written to `out` if given."""
        return torch.mm(x, y, out=out) if bias is None else torch.addmm(bias, x, y, out=out)

    def linear_weight_grads(self, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of a linear layer's weight [M, K] and bias [M].

        Args:
            x: Inputs of the layer, [N, K].
            grad: Gradient of its outputs, [N, M].
        """
        return self.matmul(grad.T, x), grad.sum(0)


class Int8Backend:
    """Linear layers in int8 by PyTorch."""

    def activation(self, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute activation(x)."""
        return activation(x)

    def quantize_rows(self, x: Tensor, input_scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Quantize x [N, in] · input_scale [in] to int8, each row by its own range.

        Returns:
            Integers q, int8 [N, in], with a scale and an offset of each row, [N, 1]: values are
            offset + scale·q.
        """
        rows = x * input_scale
        lowest, highest = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
        scale = ((highest - lowest) / _INT8_STEPS).clamp_min_(MIN_QUANT_STEP)
        offset = lowest + _INT8_OFFSET * scale  # becomes 0; the lowest value becomes -128
        integers = rows.sub_(offset).div_(scale).round_().clamp_(-_INT8_OFFSET, _INT8_OFFSET - 1)
        return integers.to(torch.int8), scale, offset

    def pack_int8_weight(self, weight: Tensor, *, is_native: bool) -> Tensor:
        """Return weights int8 [in, out] in the format of `int8_linear`.

        Args:
            weight: The weights.
            is_native: True if the CPU has int8 dot-product instructions that PyTorch uses; else the format
                is fp32.
        """
        return weight if is_native else weight.float()

    def int8_linear(
        self, x: Tensor, linear: QuantizedLinear, dtype: torch.dtype, *, gelu: bool = False
    ) -> Tensor:
        """Compute a linear layer in int8, [N, in] → [N, out].

        Sums of integers are exact, so a row of the result does not depend on the other rows.

        Args:
            x: Inputs.
            linear: The layer.
            dtype: The dtype of the result.
            gelu: Apply GELU to the result.
        """
        weight, (integers, scale, offset) = linear.weight, self.quantize_rows(x, linear.input_scale)
        if weight.dtype == torch.int8:
            products = torch._int_mm(integers, weight)
        else:
            blocks = zip(
                torch.split(integers, _EXACT_TERMS, 1), torch.split(weight, _EXACT_TERMS), strict=True
            )
            block_products = [(x_block.float() @ weight_block).int() for x_block, weight_block in blocks]
            products = torch.stack(block_products).sum(0, dtype=torch.int32)
        outlier = x[:, linear.outlier_channel, None].float()
        output = self.dequantize(products, scale, offset, outlier, linear.dequant, dtype)
        return self.activation(output, F.gelu) if gelu else output

    def dequantize(
        self,
        products: Tensor,
        scale: Tensor,
        offset: Tensor,
        outlier: Tensor,
        params: DequantParams,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return the outputs of a linear layer, [N, out], from its integer products.

        Args:
            products: Products of quantized inputs and weights, int32 [N, out].
            scale: Scale of each input row, [N, 1].
            offset: Offset of each input row, [N, 1].
            outlier: Inputs of the outlier channel, [N, 1].
            params: Parameters of the outputs.
            dtype: The dtype of the result.
        """
        unscaled = torch.addcmul(
            offset * params.weight_sums + outlier * params.outlier_weight, products, scale
        )
        return torch.addcmul(params.bias, unscaled, params.weight_scale).to(dtype)
