"""Products of 8-bit integers: right by plain arithmetic, the same beside any rows, and near the exact ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from bertsmith import hardware
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.layers import Linear
from bertsmith.models.quantization import ChannelSizes, Int8Linear, quantized
from bertsmith.packed import Packed


def product(rows: int = 40, width: int = 96, out: int = 56) -> tuple[Linear, torch.Tensor]:
    """A product with a few input channels that are far larger than the rest."""
    drawn = torch.Generator().manual_seed(0)
    part = Linear(width, out)
    with torch.no_grad():
        part.weight.normal_(0, 0.05, generator=drawn)
        part.bias.normal_(generator=drawn)
    x = torch.randn(rows, width, generator=drawn)
    x[:, :3] *= 30
    return part, x


def sizes_of(x: torch.Tensor) -> ChannelSizes:
    """How large these inputs are."""
    return ChannelSizes(x.square().mean(0).sqrt(), x.abs().amax(0))


def test_it_is_the_rounded_product() -> None:
    part, x = product()
    short = Int8Linear(part, sizes_of(x))
    rows, weight = x * short.channels, short.weight.double() * short.scale
    lowest, highest = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    step = (highest - lowest) / 255
    rounded = ((rows - lowest) / step).round() * step + lowest
    assert (rounded - rows).abs().max() <= step.max() / 2 + 1e-5
    apart = x[:, short.apart, None].double() * part.weight[:, short.apart].double()
    expected = rounded.double() @ weight + apart + part.bias.double()
    found = short(x).double()
    assert (found - expected).norm() < 2e-3 * expected.norm()  # numbers between two may go to either


def test_how_integers_are_multiplied_is_found_out_once_and_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, wanted in ((0.010, False), (0.0009, True)):
        took = iter([seconds, 0.001] * 6)
        monkeypatch.setattr(hardware, "_seconds_of", lambda work, took=took: next(took))
        hardware.multiplies_integers.cache_clear()
        assert hardware.multiplies_integers() is wanted
        assert hardware.multiplies_integers() is wanted
    monkeypatch.undo()
    hardware.multiplies_integers.cache_clear()


def test_channels_are_evened_out() -> None:
    """Without that a row's large channels take the digits of the others."""
    part, x = product()
    exact = linear(x, part.weight, part.bias)
    even, plain = (
        (Int8Linear(part, ChannelSizes(usual, x.abs().amax(0)))(x) - exact).norm() / exact.norm()
        for usual in (sizes_of(x).usual, part.weight.detach().abs().amax(0))
    )
    assert even < 0.01
    assert even < plain / 2


@pytest.mark.parametrize("rows", [[0, 7], list(range(40))])
def test_a_channel_that_is_far_larger_than_all_is_kept_apart(rows: list[int]) -> None:
    """In a few rows, as of special tokens, or in all."""
    part, x = product()
    usual = Int8Linear(part, sizes_of(x))(x) - linear(x, part.weight, part.bias)
    x[rows, 41] += 5000
    short = Int8Linear(part, sizes_of(x))
    assert short.apart == 41
    assert not short.weight[41].any()
    error = short(x) - linear(x, part.weight, part.bias)
    assert error.norm() < 1.5 * usual.norm()


def test_rows_do_not_depend_on_each_other() -> None:
    part, x = product()
    short = Int8Linear(part, sizes_of(x))
    whole = short(x)
    for some in (slice(0, 1), slice(3, 20), slice(39, 40)):
        assert torch.equal(short(x[some]), whole[some])
    assert torch.equal(short(x.reshape(4, 10, -1)), whole.reshape(4, 10, -1))
    torch.testing.assert_close(short(torch.zeros(2, 96)), short.bias.expand(2, -1))
    torch.testing.assert_close(
        short(torch.full((2, 96), 3.0)),
        linear(torch.full((2, 96), 3.0), part.weight, part.bias),
        rtol=0.1,
        atol=0.1,
    )


def encoder_of(name: str) -> Encoder:
    sizes = {"vocab_size": 80, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    config = preset(name).model_copy(update={**sizes, "initializer_range": 0.06})
    return build_encoder(config, torch.Generator().manual_seed(0)).eval()


def texts(rows: int, length: int, seed: int) -> Packed:
    ids = np.random.default_rng(seed).integers(0, 80, rows * length)
    return Packed.of_arrays(ids, np.zeros(rows * length, np.int64), np.full(rows, length))


@pytest.mark.parametrize("name", ["bert-tiny-uncased", "roberta-mini", "albert-small"])
def test_an_encoder_keeps_its_tables_and_its_answers(name: str) -> None:
    encoder = encoder_of(name)
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    short = quantized(encoder, texts(8, 30, seed=0))
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    assert short.embeddings.token.weight is encoder.embeddings.token.weight
    assert sum(isinstance(part, Int8Linear) for part in short.modules()) == 4 * len(encoder.blocks)
    assert not any(isinstance(part, Linear) for part in short.blocks.modules())
    with torch.inference_mode():
        own, exact = (one(texts(5, 20, seed=1)) for one in (short, encoder))
    assert torch.cosine_similarity(own, exact).min() > 0.995
    assert not torch.equal(own, exact)
