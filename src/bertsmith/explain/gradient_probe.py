"""The gradient probe: how fast gradients vanish or explode on the way back through a recurrent encoder.

The norm of ∂L_T/∂h_t, the gradient of the loss at the last token by an earlier state, is multiplied by at most the
largest singular value of the recurrent weights at each step, since tanh' is at most 1: below 1 it vanishes;
only above 1 can it explode (Pascanu et al. 2013, section 2.1). With forget gates near 1 it stays (Hochreiter
and Schmidhuber 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.models.encoder import Encoder
from bertsmith.models.recurrent import LEFT_TO_RIGHT, RecurrentEncoder, RecurrentLayer
from bertsmith.packed import Packed


def gradient_norms(
    encoder: Encoder, sequences: Sequence[Sequence[int]], loss: Callable[[Tensor, int], Tensor]
) -> NDArray[np.float64]:
    """Compute the norms of ∂L_T/∂h_t by layer and distance T - t.

    Args:
        encoder: An RNN or LSTM that reads from left to right.
        sequences: Token ids; the last one of each is the label at T, the token before it. All have at least two.
        loss: Returns L_T for the last hidden state [H] and the label.

    Returns:
        The means over the sequences, float64 [L, D]; column d is the distance d, up to the shortest sequence's.

    Raises:
        InputError: The encoder is not recurrent, or does not read from left to right only; there is no sequence;
            or one has fewer than two ids, or an id that is not in the vocabulary.
    """
    if not isinstance(encoder, RecurrentEncoder) or not encoder.config.causal or encoder.config.backwards:
        message = "only an RNN or LSTM that reads from left to right has the states of the probe"
        raise InputError(
            "no_recurrent_states", message, hint="choose a causal model of the family rnn or lstm"
        )
    _check_sequences(sequences, encoder.config.vocab_size)
    length = min(map(len, sequences)) - 1
    norms = []
    was_training = encoder.training
    encoder.eval()
    for ids in sequences:
        states = _states_by_step(encoder, ids[:-1])
        value = loss(states[-1][-1], ids[-1])
        flat = [h for layer_states in states[:-1] for h in layer_states]
        grads = torch.autograd.grad(value, flat)
        by_layer = torch.stack([grad.norm() for grad in grads]).view(len(states) - 1, -1)
        norms.append(by_layer.flip(1)[:, :length].double().numpy(force=True))
    encoder.train(was_training)
    means: NDArray[np.float64] = np.mean(norms, axis=0)
    return means


def _check_sequences(sequences: Sequence[Sequence[int]], vocab_size: int) -> None:
    for i, ids in enumerate(sequences, start=1):
        if len(ids) < 2 or not all(0 <= token_id < vocab_size for token_id in ids):
            message = f"it does not have two or more ids of tokens, from 0 to {vocab_size - 1:,}"
            hint = "encode texts of two or more tokens with the model's tokenizer"
            raise InputError("invalid_sequence", message, location=f"sequence {i}", hint=hint)
    if not len(sequences):
        raise InputError(
            "no_sequences", "there is no sequence", argument="sequences", hint="give one or more"
        )


def plot_gradient_norms(
    norms: Mapping[str, NDArray[np.float64]], file: str | Path, *, overwrite: bool = False
) -> Path:
    """Plot the norms of the last layer by distance, relative to distance 0, as a PNG.

    Args:
        norms: The result of `gradient_norms` for each model, by its name.
        file: The PNG file to write.
        overwrite: Replace the file.

    Returns:
        The path of the file.

    Raises:
        InputError: There are no norms, or the file exists or is no .png.
    """
    from bertsmith.reports.page import check_suffix
    from bertsmith.reports.result_plots import plot_gradients

    if not norms:
        hint = "give the result of gradient_norms for one or more models"
        raise InputError("no_norms", "there is nothing to plot", argument="norms", hint=hint)
    path = atomic.output_path(file)
    check_suffix(path, "file", (".png",))
    atomic.check_output_file(path, overwrite=overwrite, argument="file")
    curves = {name: (values[-1] / values[-1][0]).tolist() for name, values in norms.items()}
    with atomic.write_errors(path):
        atomic.write_bytes(path, plot_gradients(curves))
    return path


def _states_by_step(encoder: RecurrentEncoder, ids: Sequence[int]) -> list[list[Tensor]]:
    """Return the states h_t of each layer, computed token by token, and as the last entry the outputs [H]."""
    device = next(encoder.parameters()).device
    packed = Packed.from_lists([ids], [[0] * len(ids)]).to(device)
    x = encoder.embeddings(packed)
    states: list[list[Tensor]] = []
    for layer in encoder.layers:
        assert isinstance(layer, RecurrentLayer)
        cell: Any = layer.cells[LEFT_TO_RIGHT]
        state, layer_states = None, []
        for row in x:
            _, state = cell(row[None], state)
            layer_states.append(state[0] if isinstance(state, tuple) else state)
        states.append(layer_states)
        x = layer.project(LEFT_TO_RIGHT, torch.cat(layer_states))
    return [*states, list(x)]
