"""Int8 quantization of an encoder's linear layers for inference on CPUs.

Weights have a scale per output channel, inputs a scale and a zero point per token. Each input channel is first
divided by a factor that its weights are multiplied by, since a few channels are far larger than the others and
would take their precision (Xiao et al. 2023, "SmoothQuant", with alpha 0.5). The statistics of the channels are
calibrated on random tokens: channels that are large are so for any text. SmoothQuant uses the largest value of a
channel, which varies with the tokens; this module uses the root mean square. The channel that is still the largest
after that stays in floating point: in a feed-forward layer it may be ten times as large as the next one. Integer
products are exact, so no token's result depends on another row.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bertsmith import hardware
from bertsmith.kernels.linear import DequantParams, QuantizedLinear
from bertsmith.kernels.reference import REFERENCE, KernelBackend, compute_dtype, set_kernel_backend
from bertsmith.models.encoder import Encoder
from bertsmith.models.layers import Linear
from bertsmith.packed import Packed

_INT8_MAX = 127  # symmetric range of the weights
_MIN_SCALE = 1e-12  # so that no output channel divides by 0
_MIN_CHANNEL = 1e-5  # smallest channel statistic in a smoothing factor


class ChannelStats(NamedTuple):
    """Statistics of the input channels of a linear layer.

    Attributes:
        rms: Root mean square, [in].
        abs_max: Largest absolute value, [in].
    """

    rms: Tensor
    abs_max: Tensor


class Int8Linear(nn.Module):
    """A linear layer, [N, in] → [N, out], whose inputs and weights are int8; the output is bf16 under autocast.

    Attributes:
        supports_gelu: True, since the layer can apply GELU to its output.
        weight: Quantized weights, in the kernels' format.
        weight_sums: Sums of the quantized weights per output channel, [out].
        scale: Scale of the weights per output channel, [out].
        input_factors: Factor of each input channel, [in]; 0 for the channel in floating point.
        bias: [out].
        outlier_channel: Index of the input channel in floating point.
        outlier_weight: Weights of that channel over `scale`, [out].
    """

    kernels: KernelBackend = REFERENCE
    supports_gelu: ClassVar[bool] = True
    weight: Tensor
    weight_sums: Tensor
    scale: Tensor
    input_factors: Tensor
    bias: Tensor
    outlier_weight: Tensor

    def __init__(self, linear: nn.Linear, inputs: ChannelStats, kernels: KernelBackend = REFERENCE) -> None:
        """Quantize a linear layer.

        Args:
            linear: The layer.
            inputs: Statistics of its inputs.
            kernels: The kernels that define the format of the weights.
        """
        super().__init__()
        self.kernels = kernels
        weight = linear.weight.detach().float()
        factor = (inputs.rms.clamp_min(_MIN_CHANNEL) / weight.abs().amax(0).clamp_min(_MIN_CHANNEL)).sqrt()
        self.outlier_channel = int((inputs.abs_max / factor).argmax())
        smoothed = weight * factor
        smoothed[:, self.outlier_channel] = 0
        scale = (smoothed.abs().amax(1) / _INT8_MAX).clamp_min(_MIN_SCALE)
        quantized_weight = (smoothed / scale[:, None]).round_().to(torch.int8)
        is_native = hardware.has_int8_matmul()
        packed_weight = kernels.pack_int8_weight(quantized_weight.t().contiguous(), is_native=is_native)
        self.register_buffer("weight", packed_weight)
        self.register_buffer("weight_sums", quantized_weight.sum(1, dtype=torch.float32))
        self.register_buffer("scale", scale)
        input_factors = 1 / factor
        input_factors[self.outlier_channel] = 0
        self.register_buffer("input_factors", input_factors)
        self.register_buffer("outlier_weight", weight[:, self.outlier_channel] / scale)
        bias = torch.zeros(len(weight)) if linear.bias is None else linear.bias.detach().float().clone()
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor, *, gelu: bool = False) -> Tensor:
        """Compute […, in] → […, out], with GELU if `gelu`."""
        rows = x.reshape(-1, x.shape[-1])
        out = self.kernels.int8_linear(rows, self.quantized_tensors, compute_dtype(x), gelu=gelu)
        return out.reshape(*x.shape[:-1], out.shape[1])

    @property
    def quantized_tensors(self) -> QuantizedLinear:
        """Return the layer's tensors in the form that kernels take."""
        weights = DequantParams(self.weight_sums, self.scale, self.bias, self.outlier_weight)
        return QuantizedLinear(self.input_factors, self.weight, weights, self.outlier_channel)


def quantize_encoder(encoder: Encoder, texts: Packed, kernels: KernelBackend = REFERENCE) -> Encoder:
    """Return a copy of an encoder, in evaluation mode, with its layers in int8 and all other weights shared.

    Args:
        encoder: The encoder.
        texts: Random tokens; the layers' inputs on them calibrate the input channels.
        kernels: The kernels of the copy.
    """
    stats = _channel_stats(copy_encoder(encoder, with_hooks=False), texts)
    result = copy_encoder(encoder, with_hooks=True)
    for name, linear in _linears(result).items():
        int8_linear = Int8Linear(linear, stats[name], kernels)
        result.set_submodule(name, int8_linear)
        # The compiled kernels have weights of another format.
        result.is_int8 |= int8_linear.weight.dtype == torch.int8 and int8_linear.weight.dim() == 2
    set_kernel_backend(result, kernels)
    return result


def _linears(encoder: Encoder) -> dict[str, Linear]:
    """Return the linear layers of the encoder's layers by their names."""
    return {
        name: module
        for name, module in encoder.named_modules()
        if isinstance(module, Linear) and name.startswith("blocks.")
    }


def _channel_stats(encoder: Encoder, texts: Packed) -> dict[str, ChannelStats]:
    """Compute the statistics of each linear layer's inputs on texts, by forward hooks."""
    linears = _linears(encoder)
    # a module that layers share is called several times
    stats: dict[str, list[ChannelStats]] = {name: [] for name in linears}

    def record(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].detach().flatten(0, -2).float()
        stats[name].append(ChannelStats(x.square().mean(0), x.abs().amax(0)))

    handles = [linear.register_forward_pre_hook(partial(record, name)) for name, linear in linears.items()]
    try:
        with torch.inference_mode():
            encoder(texts)
    finally:
        for handle in handles:
            handle.remove()
    return {
        name: ChannelStats(
            torch.stack([call.rms for call in calls]).mean(0).sqrt(),
            torch.stack([call.abs_max for call in calls]).amax(0),
        )
        for name, calls in stats.items()
    }


def copy_encoder(encoder: Encoder, *, with_hooks: bool) -> Encoder:
    """Return a copy in evaluation mode that shares the parameters and the generator, with or without hooks."""
    # deepcopy does not copy an object whose id is in its memo, but takes the memo's value: here the
    # parameters and the generator themselves, and empty dictionaries of hooks.
    memo: dict[int, Any] = {id(shared): shared for shared in (*encoder.parameters(), encoder.generator)}
    for module in () if with_hooks else encoder.modules():
        for name in ("forward", "forward_pre", "backward", "backward_pre"):
            memo[id(getattr(module, f"_{name}_hooks"))] = OrderedDict()
    return copy.deepcopy(encoder, memo).eval()
