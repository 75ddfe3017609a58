"""Int8 linear layers equal their definition, do not depend on the batch, and approximate fp32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.layers import Linear
from bertsmith.models.quantization import ChannelStats, Int8Linear, quantize_encoder
from bertsmith.packed import Packed


def random_layer(rows: int = 40, inputs: int = 96, outputs: int = 56) -> tuple[Linear, torch.Tensor]:
    """Return a linear layer and inputs with a few channels that are far larger than the others."""
    generator = torch.Generator().manual_seed(0)
    layer = Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.normal_(0, 0.05, generator=generator)
        layer.bias.normal_(generator=generator)
    x = torch.randn(rows, inputs, generator=generator)
    x[:, :3] *= 30
    return layer, x


def stats_of(x: torch.Tensor) -> ChannelStats:
    """Return the channel statistics of inputs."""
    return ChannelStats(x.square().mean(0).sqrt(), x.abs().amax(0))


def test_the_layer_equals_its_definition() -> None:
    layer, x = random_layer()
    quantized_layer = Int8Linear(layer, stats_of(x))
    rows, weight = x * quantized_layer.input_factors, quantized_layer.weight.double() * quantized_layer.scale
    minimum, maximum = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    step = (maximum - minimum) / 255
    rounded = ((rows - minimum) / step).round() * step + minimum
    assert (rounded - rows).abs().max() <= step.max() / 2 + 1e-5
    outlier = quantized_layer.outlier_channel
    outlier_product = x[:, outlier, None].double() * layer.weight[:, outlier].double()
    expected = rounded.double() @ weight + outlier_product + layer.bias.double()
    output = quantized_layer(x).double()
    assert (output - expected).norm() < 2e-3 * expected.norm()  # ties may round to either side


def test_channels_are_smoothed() -> None:
    """Without smoothing a row's large channels take the precision of the others."""
    layer, x = random_layer()
    exact = linear(x, layer.weight, layer.bias)
    smoothed, unsmoothed = (
        (Int8Linear(layer, ChannelStats(rms, x.abs().amax(0)))(x) - exact).norm() / exact.norm()
        for rms in (stats_of(x).rms, layer.weight.detach().abs().amax(0))
    )
    assert smoothed < 0.01
    assert smoothed < unsmoothed / 2


@pytest.mark.parametrize("rows", [[0, 7], list(range(40))])
def test_the_largest_channel_stays_in_floating_point(rows: list[int]) -> None:
    """The channel is large in a few rows, such as special tokens, or in all."""
    layer, x = random_layer()
    error_before = Int8Linear(layer, stats_of(x))(x) - linear(x, layer.weight, layer.bias)
    x[rows, 41] += 5000
    quantized_layer = Int8Linear(layer, stats_of(x))
    assert quantized_layer.outlier_channel == 41
    assert not quantized_layer.weight[41].any()
    error = quantized_layer(x) - linear(x, layer.weight, layer.bias)
    assert error.norm() < 1.5 * error_before.norm()


def test_rows_do_not_depend_on_each_other() -> None:
    layer, x = random_layer()
    quantized_layer = Int8Linear(layer, stats_of(x))
    output = quantized_layer(x)
    for rows in (slice(0, 1), slice(3, 20), slice(39, 40)):
        assert torch.equal(quantized_layer(x[rows]), output[rows])
    assert torch.equal(quantized_layer(x.reshape(4, 10, -1)), output.reshape(4, 10, -1))
    torch.testing.assert_close(quantized_layer(torch.zeros(2, 96)), quantized_layer.bias.expand(2, -1))
    torch.testing.assert_close(
        quantized_layer(torch.full((2, 96), 3.0)),
        linear(torch.full((2, 96), 3.0), layer.weight, layer.bias),
        rtol=0.1,
        atol=0.1,
    )


def encoder_of(name: str) -> Encoder:
    sizes = {"vocab_size": 80, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    config = preset(name).model_copy(update={**sizes, "initializer_range": 0.06})
    return build_encoder(config, torch.Generator().manual_seed(0)).eval()


def texts(rows: int, length: int, seed: int) -> Packed:
    ids = np.random.default_rng(seed).integers(0, 80, rows * length)
    return Packed.from_arrays(ids, np.zeros(rows * length, np.int64), np.full(rows, length))


@pytest.mark.parametrize("name", ["bert-tiny-uncased", "roberta-mini", "albert-small"])
def test_a_quantized_encoder_shares_embeddings_and_approximates_outputs(name: str) -> None:
    encoder = encoder_of(name)
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    int8_encoder = quantize_encoder(encoder, texts(8, 30, seed=0))
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    assert int8_encoder.embeddings.token.weight is encoder.embeddings.token.weight
    assert sum(isinstance(part, Int8Linear) for part in int8_encoder.modules()) == 4 * len(encoder.blocks)
    assert not any(isinstance(part, Linear) for part in int8_encoder.blocks.modules())
    with torch.inference_mode():
        output, exact = (model(texts(5, 20, seed=1)) for model in (int8_encoder, encoder))
    assert torch.cosine_similarity(output, exact).min() > 0.995
    assert not torch.equal(output, exact)
