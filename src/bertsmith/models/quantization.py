"""An encoder whose matrix products are of 8-bit integers, for answers on a processor.

Weights have a scale for each output, inputs a scale and a middle for each token. Before that each input channel is
divided by a factor that its weights are multiplied by, since a few channels are far larger than the rest and would
take the others' digits (Xiao et al. 2023, "SmoothQuant", with alpha 0.5). How large the channels are is seen on
texts of random tokens: those that are large are so for any text. Their root mean square stands where that paper
has the largest value, which is another one for each draw of tokens. The channel that is still the largest then is
kept apart, in as many bits as it has: of a feed-forward layer's it may be ten times the next one. A product of
integers is exact, so that what a token gets depends on no other row.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bertsmith import hardware
from bertsmith.kernels.reference import TORCH, Integers, IntegerWeights, Kernels, kind_of, use_kernels
from bertsmith.models.encoder import Encoder, unwatched
from bertsmith.models.layers import Linear
from bertsmith.packed import Packed

_LARGEST = 127  # of 8 bits, the same on both sides of 0
_TINY = 1e-12


class ChannelSizes(NamedTuple):
    """Of each input channel of a product [in]: its root mean square, and its largest value on either side of 0."""

    usual: Tensor
    largest: Tensor


class Int8Linear(nn.Module):
    """x Wᵀ + b with x and W rounded to 8 bits; what comes of it in bf16 where autocast asks for it."""

    kernels: Kernels = TORCH
    activates: ClassVar[bool] = True
    weight: Tensor
    sums: Tensor
    scale: Tensor
    channels: Tensor
    bias: Tensor
    of_apart: Tensor

    def __init__(self, linear: nn.Linear, inputs: ChannelSizes, kernels: Kernels = TORCH) -> None:
        """inputs: how large they are. kernels: have weights in a form of their own."""
        super().__init__()
        self.kernels = kernels
        weight = linear.weight.detach().float()
        factor = (inputs.usual.clamp_min(1e-5) / weight.abs().amax(0).clamp_min(1e-5)).sqrt()
        self.apart = int((inputs.largest / factor).argmax())
        smooth = weight * factor
        smooth[:, self.apart] = 0
        scale = (smooth.abs().amax(1) / _LARGEST).clamp_min(_TINY)
        rounded = (smooth / scale[:, None]).round_().to(torch.int8)
        is_native = hardware.multiplies_integers()
        self.register_buffer("weight", kernels.integer_weights(rounded.t().contiguous(), is_native=is_native))
        self.register_buffer("sums", rounded.sum(1, dtype=torch.float32))
        self.register_buffer("scale", scale)
        channels = 1 / factor
        channels[self.apart] = 0
        self.register_buffer("channels", channels)
        self.register_buffer("of_apart", weight[:, self.apart] / scale)
        bias = torch.zeros(len(weight)) if linear.bias is None else linear.bias.detach().float().clone()
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor, *, activated: bool = False) -> Tensor:
        """[…, in] → […, out], in bf16 where autocast asks for it. activated: whether GELU of it is wanted."""
        rows = x.reshape(-1, x.shape[-1])
        found = self.kernels.integer_linear(rows, self.integers, kind_of(x), activated=activated)
        return found.reshape(*x.shape[:-1], found.shape[1])

    @property
    def integers(self) -> Integers:
        """What kernels compute with."""
        of = IntegerWeights(self.sums, self.scale, self.bias, self.of_apart)
        return Integers(self.channels, self.weight, of, self.apart)


def quantized(encoder: Encoder, texts: Packed, kernels: Kernels = TORCH) -> Encoder:
    """The encoder with the products of its layers in int8, and the rest of it shared; in evaluation.

    texts: of random tokens, on which it is seen how large the inputs of the products are. kernels: compute what
    stands around the products, and between them.
    """
    # what is in the memo is not copied, but taken as it is said there
    memo: dict[int, Any] = {id(part): part for part in (*encoder.parameters(), encoder.generator)}
    sizes = _sizes(unwatched(encoder), texts)
    own = {id(part): Int8Linear(part, sizes[name], kernels) for name, part in _products(encoder).items()}
    found = copy.deepcopy(encoder, memo | own).eval()
    found.in_integers = any(
        part.weight.dtype == torch.int8 and part.weight.dim() == 2 for part in own.values()
    )
    use_kernels(found, kernels)
    return found


def _products(encoder: Encoder) -> dict[str, Linear]:
    """What is multiplied with the weights of its layers, by their names."""
    return {
        name: part
        for name, part in encoder.named_modules()
        if isinstance(part, Linear) and name.startswith("blocks.")
    }


def _sizes(encoder: Encoder, texts: Packed) -> dict[str, ChannelSizes]:
    """How large the inputs of each product are in these texts; seen by hooks, which meet no other texts where the
    encoder is nobody else's."""
    products = _products(encoder)
    found: dict[str, list[ChannelSizes]] = {name: [] for name in products}  # several, where layers share it

    def watch(name: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        x = given[0].detach().flatten(0, -2).float()
        found[name].append(ChannelSizes(x.square().mean(0), x.abs().amax(0)))

    handles = [part.register_forward_pre_hook(partial(watch, name)) for name, part in products.items()]
    try:
        with torch.inference_mode():
            encoder(texts)
    finally:
        for handle in handles:
            handle.remove()
    return {
        name: ChannelSizes(
            torch.stack([one.usual for one in some]).mean(0).sqrt(),
            torch.stack([one.largest for one in some]).amax(0),
        )
        for name, some in found.items()
    }
