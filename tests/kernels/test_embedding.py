"""The embedding kernels: parity with PyTorch, independence of the number of threads, and their conditions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import REFERENCE, set_kernel_backend
from bertsmith.models.encoder import Embeddings
from bertsmith.models.family import preset
from bertsmith.packed import Packed

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import autograd, inference, training

NUMBA = training.NumbaTrainingBackend()
EMBED_BACKWARD = autograd.EmbedFunction._backward_cls  # type: ignore[attr-defined]


def create_embeddings(name: str = "bert-tiny-uncased", p: float = 0.0, **changes: Any) -> Embeddings:
    config = preset(name, vocab_size=60, hidden_dropout_prob=p, **changes)
    embeddings = Embeddings(config, torch.Generator())
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in embeddings.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return embeddings


def random_batch(lengths: list[int], segments: int = 2) -> Packed:
    rng, total = np.random.default_rng(1), sum(lengths)
    return Packed.from_arrays(
        rng.integers(5, 60, total), rng.integers(0, segments, total), np.array(lengths, dtype=np.int64)
    )


def forward_backward(
    embeddings: Embeddings, packed: Packed, backend: Any, threads: int = 1
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output and the gradients of all parameters, by name."""
    set_kernel_backend(embeddings, backend)
    embeddings.dropout.generator = torch.Generator().manual_seed(5)
    embeddings.zero_grad()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        output = embeddings(packed)
        upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(6))
        output.backward(upstream.to(output.dtype))
    finally:
        torch.set_num_threads(num_threads)
    named = embeddings.named_parameters()
    return output, {name: weight.grad for name, weight in named if weight.grad is not None}


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    name=st.sampled_from(["bert-tiny-uncased", "roberta-mini", "distilbert-mini-uncased", "albert-mini"]),
    hidden_size=st.sampled_from([32, 48, 72, 200]),
)
def test_parity_with_pytorch(lengths: list[int], name: str, hidden_size: int) -> None:
    """Test three embeddings, a single segment, two embeddings, and embeddings narrower than the layers."""
    changes = (
        {"embedding_size": hidden_size}
        if name == "albert-mini"
        else {"hidden_size": hidden_size, "num_attention_heads": 4}
    )
    lengths = [*lengths, 1]
    embeddings = create_embeddings(name, **changes)
    packed = random_batch(lengths, 1 if name == "roberta-mini" else 2)
    output, grads = forward_backward(embeddings, packed, NUMBA)
    expected_output, expected_grads = forward_backward(embeddings, packed, REFERENCE)
    assert isinstance(output.grad_fn, EMBED_BACKWARD) or name == "albert-mini"
    # The projection to the hidden size sums as many products as the embeddings have columns.
    atol = 1e-5 * (hidden_size**0.5 if embeddings.projection is not None else 1)
    torch.testing.assert_close(output, expected_output, atol=atol, rtol=1e-5)
    assert grads.keys() == expected_grads.keys()
    for key, grad in grads.items():
        torch.testing.assert_close(grad, expected_grads[key], atol=2e-4, rtol=1e-4, msg=key)


def test_bf16_rounds_the_fp32_result_once() -> None:
    embeddings, packed = create_embeddings(), random_batch([40, 3])
    fp32_output, fp32_grads = forward_backward(embeddings, packed, NUMBA)
    with torch.autocast("cpu", torch.bfloat16):
        output, grads = forward_backward(embeddings, packed, NUMBA)
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, fp32_output.bfloat16())
    for key, fp32_grad in fp32_grads.items():
        rms_error = (grads[key] - fp32_grad).square().mean().sqrt()
        assert rms_error < 0.01 * fp32_grad.square().mean().sqrt(), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_ratio_and_zero_gradients_of_dropped_elements(dtype: torch.dtype) -> None:
    embeddings, packed = create_embeddings(p=0.25), random_batch([200])
    with torch.no_grad():
        embeddings.norm.bias.add_(100)  # Then only dropped elements are 0.
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        output, _ = forward_backward(embeddings, packed, NUMBA)
        mask = output != 0
        assert 0.23 < 1 - mask.float().mean().item() < 0.27
        embeddings.eval()
        undropped, _ = forward_backward(embeddings, packed, NUMBA)
        expected = (undropped.float() / 0.75)[mask].to(dtype)
        torch.testing.assert_close(output[mask], expected, atol=0.5, rtol=0.01)
        embeddings.train()
        set_kernel_backend(embeddings, NUMBA)
        embeddings.zero_grad()
        embeddings.dropout.generator = torch.Generator().manual_seed(5)
        embeddings(packed).sum().backward()
    # The gradient of the bias sums the scale of dropout over the elements that were not dropped.
    torch.testing.assert_close(embeddings.norm.bias.grad, mask.float().sum(0) / 0.75, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_embedding_gradients_do_not_depend_on_the_number_of_threads(p: float) -> None:
    embeddings, packed = create_embeddings(p=p), random_batch([100, 57])
    output, grads = forward_backward(embeddings, packed, NUMBA)
    for threads in (2, 3):
        threaded_output, threaded_grads = forward_backward(embeddings, packed, NUMBA, threads)
        assert torch.equal(output, threaded_output)
        for key, grad in grads.items():
            if key.startswith("norm"):  # summed over threads
                torch.testing.assert_close(threaded_grads[key], grad)
            else:
                assert torch.equal(threaded_grads[key], grad), key


def test_fallback_to_pytorch_without_gradients_with_hooks_or_for_invalid_indices() -> None:
    embeddings, packed = create_embeddings(), random_batch([20])
    set_kernel_backend(embeddings, NUMBA)
    assert isinstance(embeddings(packed).grad_fn, EMBED_BACKWARD)
    with torch.no_grad():
        assert embeddings(packed).dtype == torch.float32
    handle = embeddings.position.register_forward_hook(lambda *_: None)
    assert not isinstance(embeddings(packed).grad_fn, EMBED_BACKWARD)
    handle.remove()
    for invalid in (-1, 2):
        packed.segments[3] = invalid
        with pytest.raises(IndexError):
            embeddings(packed)
    packed.segments[3] = 0
    embeddings.norm = nn.Identity()  # type: ignore[assignment]
    assert not isinstance(embeddings(packed).grad_fn, EMBED_BACKWARD)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inference_equals_training_and_does_not_depend_on_other_sequences(dtype: torch.dtype) -> None:
    embeddings, packed = create_embeddings().eval(), random_batch([20, 5])
    first = Packed.from_arrays(packed.tokens[:20].numpy(), packed.segments[:20].numpy(), np.array([20]))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        expected, _ = forward_backward(embeddings, packed, NUMBA)
        set_kernel_backend(embeddings, inference.NumbaInferenceBackend())
        with torch.inference_mode():
            output, first_output = embeddings(packed), embeddings(first)
    assert output.dtype == dtype
    assert torch.equal(output, expected)
    assert torch.equal(first_output, expected[:20])


def test_padding_row_gets_no_gradient() -> None:
    """Test RoBERTa's row before the first position."""
    embeddings, packed = create_embeddings("roberta-mini"), random_batch([20], 1)
    packed.positions[4] = -1
    _, grads = forward_backward(embeddings, packed, NUMBA)
    _, expected = forward_backward(embeddings, packed, REFERENCE)
    assert not grads["position.weight"][1].any()
    torch.testing.assert_close(grads["position.weight"], expected["position.weight"])
