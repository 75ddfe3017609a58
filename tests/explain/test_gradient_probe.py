"""The gradient probe: vanishing and exploding gradients of an RNN, and a slower decay in an LSTM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertsmith.errors import InputError
from bertsmith.explain.gradient_probe import gradient_norms, plot_gradient_norms
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.recurrent import RecurrentEncoder

LENGTH = 60


def an_encoder(family: str, gain: float | None = None, **changes: Any) -> Any:
    """Return a small encoder; with a gain, its recurrent weights are that multiple of an orthogonal matrix."""
    sizes = {
        "vocab_size": 20,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "causal": True,
    }
    config = preset(f"{family}-mini", **{**sizes, **changes})
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    assert isinstance(encoder, RecurrentEncoder)
    if gain is not None:
        weight: Any = encoder.blocks[0].cells["left_to_right"].weight_hh_l0  # type: ignore[union-attr,index]
        for block in weight.chunk(len(weight) // 16):
            nn.init.orthogonal_(block, gain, generator=torch.Generator().manual_seed(1))
    return encoder


def sequences() -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(1, 20, (LENGTH + 1,), generator=generator).tolist() for _ in range(4)]


def summed(state: Tensor, label: int) -> Tensor:
    del label
    return state.sum()


def test_norms_are_those_of_autograd() -> None:
    """Compare with the formula written out: h_t = tanh(U x_t + W h_{t-1} + b), two layers."""
    encoder = an_encoder("rnn", num_hidden_layers=2)
    ids = sequences()[0][:9]
    x = encoder.embeddings.token.weight[ids[:-1]]
    states = []
    for block in encoder.blocks:
        cell, h, layer = block.cells["left_to_right"], torch.zeros(16), []
        for row in x:
            h = torch.tanh(
                cell.weight_ih_l0 @ row + cell.weight_hh_l0 @ h + cell.bias_ih_l0 + cell.bias_hh_l0
            )
            layer.append(h)
        states.append(layer)
        x = torch.stack(layer)
    label = ids[-1]
    loss = (states[-1][-1] * encoder.embeddings.token.weight[label]).sum()
    expected = [[torch.autograd.grad(loss, h, retain_graph=True)[0].norm().item() for h in s] for s in states]

    def product(state: Tensor, token: int) -> Tensor:
        return (state * encoder.embeddings.token.weight[token]).sum()

    norms = gradient_norms(encoder, [ids], product)
    np.testing.assert_allclose(norms, np.flip(expected, 1), rtol=1e-5)


def test_gradients_vanish_below_an_orthogonal_matrix_and_explode_above_near_zero() -> None:
    vanishing = an_encoder("rnn", 0.5)
    exploding = an_encoder("rnn", 1.5)
    for encoder in (vanishing, exploding):
        encoder.embeddings.token.weight.data *= 1e-12  # states near zero, where tanh' is 1
    for encoder, gain in ((vanishing, 0.5), (exploding, 1.5)):
        (norms,) = gradient_norms(encoder, sequences(), summed)
        assert len(norms) == LENGTH
        np.testing.assert_allclose(norms[:30] / norms[0], gain ** np.arange(30), rtol=1e-3)


def test_saturation_stops_the_explosion() -> None:
    """tanh' is below 1 where states are large, so a singular value above 1 is not sufficient."""
    encoder = an_encoder("rnn", 1.5)
    encoder.embeddings.token.weight.data *= 100
    (norms,) = gradient_norms(encoder, sequences(), summed)
    assert norms[20] < 1.5**20 * norms[0] / 100


def test_an_lstm_with_open_forget_gates_decays_slower_than_an_rnn(tmp_path: Path) -> None:
    rnn, lstm = an_encoder("rnn", 0.5), an_encoder("lstm", 0.5)
    cell = lstm.blocks[0].cells["left_to_right"]
    with torch.no_grad():
        cell.bias_ih_l0[16:32] = 6.0  # f is near 1
    norms = {
        name: gradient_norms(encoder, sequences(), summed)
        for name, encoder in {"RNN": rnn, "LSTM": lstm}.items()
    }
    decays = {name: values[0, 40] / values[0, 1] for name, values in norms.items()}
    assert decays["RNN"] < 1e-9
    assert decays["LSTM"] > 0.1
    file = plot_gradient_norms(norms, tmp_path / "gradients.png")
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("ids", "location"),
    [([], None), ([[5]], "sequence 1"), ([[1, 2], [3, 20]], "sequence 2"), ([[-1, 2]], "sequence 1")],
)
def test_sequences_without_a_step_or_of_unknown_tokens_are_refused(
    ids: list[list[int]], location: str | None
) -> None:
    with pytest.raises(InputError) as caught:
        gradient_norms(an_encoder("rnn"), ids, summed)
    assert caught.value.location == location


def test_a_plot_is_a_new_png_file(tmp_path: Path) -> None:
    norms = {"RNN": np.ones((1, 3))}
    plot_gradient_norms(norms, tmp_path / "a.png")
    for values, name, code in (
        ({}, "b.png", "no_norms"),
        (norms, "b.pdf", "wrong_file_suffix"),
        (norms, "a.png", "output_exists"),
    ):
        with pytest.raises(InputError) as caught:
            plot_gradient_norms(values, tmp_path / name)
        assert caught.value.code == code
    assert plot_gradient_norms(norms, tmp_path / "a.png", overwrite=True) == tmp_path / "a.png"


@pytest.mark.parametrize("changes", [{"causal": False}, {"backwards": True}])
def test_other_encoders_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        gradient_norms(an_encoder("lstm", **changes), sequences(), summed)
    assert caught.value.code == "no_recurrent_states"
