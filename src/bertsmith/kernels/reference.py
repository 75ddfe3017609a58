"""The reference backend: the operations of a layer, the loss, and AdamW in plain PyTorch.

A module calls these operations on its attribute `kernels`, which `ComputeContext.prepare_modules` sets. Faster
backends override them and call the reference for inputs that they do not support. Tests compare all backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.kernels.linear import Int8Backend, MatmulBackend
from bertsmith.kernels.vocabulary_loss import VocabularyLossBackend

BackendName = Literal["torch", "numba", "flash", "triton"]
DropoutState = Tensor | tuple[int, int, int, int] | None
"""A dropout mask, or what a CPU kernel recomputes it from; None without dropout.

The four integers (`DropoutSeeds` of cpu/layer_functions.py) are the low and the high word of the seed, the dropout
probability in units of 1/65,536, and the bits of the fp32 scale of the elements that are kept.
"""

NO_GRAD, NEVER_UPDATED = -1, -2
"""Marks of an embedding row without a gradient in this update, or in any update so far."""


Lookups = Sequence[tuple[nn.Embedding, Tensor]]
"""Embeddings with the index of each token, long [N]."""


class DropoutLike(Protocol):
    """Dropout as in `models.layers.Dropout`: a probability and a generator."""

    p: float
    generator: torch.Generator

    @property
    def is_active(self) -> bool:
        """Return True if elements are dropped."""
        ...

    def add_residual(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + dropout(x)."""
        ...

    def draw_mask(self, x: Tensor) -> Tensor:
        """Return a random factor for each element of x: 0 or 1/(1 - p)."""
        ...


class AdamWStep(NamedTuple):
    """Scalars of one AdamW update.

    Attributes:
        betas: Decay rates of the moment estimates.
        decay_factor: Factor of the parameters due to weight decay, 1 - lr·weight_decay.
        step_size: The learning rate divided by the bias correction of the first moment.
        sqrt_bias_correction2: The square root of the bias correction of the second moment.
        epsilon: Added to the denominator.
    """

    betas: tuple[float, float]
    decay_factor: float
    step_size: float
    sqrt_bias_correction2: float
    epsilon: float


class AdamWTensors(NamedTuple):
    """A parameter, its gradient, and its first and second moment estimates."""

    param: Tensor
    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


class SequenceLayout(NamedTuple):
    """Sequences of a packed batch; a token attends only to tokens of its own sequence.

    Attributes:
        cu_seqlens: Start of each sequence and the end of the last, long [B + 1].
        attention_direction: The tokens of its sequence that a token attends to: "all"; "before", itself and
            earlier ones (causal); or "behind", itself and later ones.
        max_seqlen: Tokens of the longest sequence, 0 without sequences.
        num_tokens: Tokens of all sequences.
    """

    cu_seqlens: Tensor
    attention_direction: str
    max_seqlen: int
    num_tokens: int


AttentionFn = Callable[[Tensor, Tensor], Tensor]
"""Attention of queries [M, H] over keys and values [N, 2H], which returns [M, H]."""


class EncoderLayerModules(NamedTuple):
    """Modules of a BERT layer: those with parameters in the order of computation, then those without."""

    qkv: nn.Module
    projection: nn.Module
    attention_norm: nn.Module
    inner: nn.Module
    output: nn.Module
    output_norm: nn.Module
    num_heads: int
    attention_dropout: DropoutLike
    dropout: DropoutLike
    activation: Callable[[Tensor], Tensor]

    @property
    def parametrized(self) -> Sequence[nn.Module]:
        """Return the modules with parameters."""
        return self[:6]

    @property
    def linears(self) -> Sequence[nn.Module]:
        """Return the linear layers."""
        return self.qkv, self.projection, self.inner, self.output

    @property
    def norms(self) -> Sequence[nn.Module]:
        """Return the LayerNorms."""
        return self.attention_norm, self.output_norm


class LayerNormParams(NamedTuple):
    """Parameters of a LayerNorm: weight and bias, fp32 [H], and eps, which is added to the variance."""

    weight: Tensor
    bias: Tensor
    eps: float


class EncoderLayerWeights(NamedTuple):
    """Weights and biases of a BERT layer, in the order of `EncoderLayerModules.parametrized`."""

    qkv: Tensor
    qkv_bias: Tensor
    projection: Tensor
    projection_bias: Tensor
    attention_norm: Tensor
    attention_norm_bias: Tensor
    inner: Tensor
    inner_bias: Tensor
    output: Tensor
    output_bias: Tensor
    output_norm: Tensor
    output_norm_bias: Tensor

    def norms(self, eps: tuple[float, float]) -> tuple[LayerNormParams, LayerNormParams]:
        """Return the parameters of both LayerNorms."""
        return (
            LayerNormParams(self.attention_norm, self.attention_norm_bias, eps[0]),
            LayerNormParams(self.output_norm, self.output_norm_bias, eps[1]),
        )


class OptimizerBackend:
    """AdamW by PyTorch."""

    def has_fused_adamw(self, grad: Tensor) -> bool:
        """Return True if `adamw_step` is faster than PyTorch's AdamW for parameters with such a gradient."""
        return False

    def grad_norm(self, grads: Sequence[Tensor]) -> Tensor:
        """Return the Euclidean norm of all gradients, []."""
        return nn.utils.get_total_norm(grads)

    def adamw_step(self, tensors: Sequence[AdamWTensors], step: AdamWStep, grad_scale: float) -> None:
        """Update parameters in place by AdamW, with gradients multiplied by `grad_scale`."""
        beta1, beta2 = step.betas
        for param, grad, exp_avg, exp_avg_sq in tensors:
            scaled_grad = grad * grad_scale
            exp_avg.lerp_(scaled_grad, 1 - beta1)
            exp_avg_sq.mul_(beta2).addcmul_(scaled_grad, scaled_grad, value=1 - beta2)
            _apply_adamw(param, exp_avg, exp_avg_sq, step)

    def sparse_adamw(
        self,
        weight: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        grad_index: Tensor,
        grads: Tensor,
        step: AdamWStep,
    ) -> None:
        """Update an embedding in place by AdamW, where only some rows have a gradient.

        The result is that of dense AdamW, unlike that of torch.optim.SparseAdam: the gradient of the other rows is
        0, but their moment estimates still decay, and weight decay and the update still apply.

        Args:
            weight: The embedding, [V, E].
            exp_avg: First moment estimates, [V, E].
            exp_avg_sq: Second moment estimates, [V, E].
            grad_index: Index of each row's gradient in `grads`, long [V]; NO_GRAD; or NEVER_UPDATED for a row
                whose moment estimates are 0, so that only weight decay changes it.
            grads: Gradients of n rows, [n, E].
            step: Scalars of the update.
        """
        has_grad = grad_index >= 0
        grad = torch.zeros_like(weight)
        grad[has_grad] = grads[grad_index[has_grad]]
        beta1, beta2 = step.betas
        exp_avg.lerp_(grad, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        _apply_adamw(weight, exp_avg, exp_avg_sq, step)


def _apply_adamw(param: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: AdamWStep) -> None:
    denominator = (exp_avg_sq.sqrt() / step.sqrt_bias_correction2).add_(step.epsilon)
    param.mul_(step.decay_factor).addcdiv_(exp_avg, denominator, value=-step.step_size)


class KernelBackend(MatmulBackend, Int8Backend, VocabularyLossBackend, OptimizerBackend):
    """Operations of an encoder, the loss, and the optimizer by PyTorch; the base of the faster backends.

    An operation whose result may be None returns it if it is not supported or not faster here; the caller then
    uses the unfused path. The unfused path of attention pads sequences of similar length to one length and
    computes them together, as a bucket (`models.attention.Bucket`).

    Attributes:
        name: The name in settings.
        sparse_embedding_updates: True if an embedding with few used rows is trained faster by `sparse_adamw`.
        logits_column_multiple: The number of logits per row is padded to a multiple of this.
        ignores_negative_labels: True if `fused_cross_entropy` ignores rows whose label is below 0.
        seqlen_multiple: max_seqlen is rounded up to a multiple of this before kernels see it, so that few shapes
            occur.
    """

    name: ClassVar[BackendName] = "torch"
    sparse_embedding_updates: ClassVar[bool] = False
    logits_column_multiple: ClassVar[int] = 1
    ignores_negative_labels: ClassVar[bool] = False
    seqlen_multiple: ClassVar[int] = 1

    def embed(
        self, x: Tensor, embeddings: Lookups, norm: nn.Module, dropout: DropoutLike, dtype: torch.dtype
    ) -> Tensor | None:
        """Compute dropout(norm(x + looked-up embeddings)), [N, E]; None if not fused.

        Args:
            x: Token embeddings, [N, E].
            embeddings: Further embeddings with the index of each token, long [N].
            norm: A LayerNorm.
            dropout: The dropout of the result.
            dtype: The dtype of the result.
        """
        return None

    def encoder_layer(
        self, x: Tensor, layout: SequenceLayout, modules: EncoderLayerModules, rows: Tensor | None = None
    ) -> Tensor | None:
        """Compute a layer, [N, H] → [N, H]; None if not fused.

        Args:
            x: Hidden states, [N, H].
            layout: The sequences.
            modules: The layer's modules.
            rows: Tokens whose output is needed, long [M], for an output [M, H]; repetitions are allowed. On a CPU
                they must be in ascending order (see `AttentionLayout.sort_rows`); on a GPU any order will do.
        """
        return None

    def feed_forward(
        self, x: Tensor, inner: nn.Linear, output: nn.Linear, activation: Callable[[Tensor], Tensor]
    ) -> Tensor | None:
        """Compute output(activation(inner(x))), [N, H] → [N, H]; None if not fused."""
        return None

    def layer_norm(
        self, x: Tensor, norm: nn.Module, residual: Tensor | None = None, dropout: DropoutLike | None = None
    ) -> Tensor:
        """Compute norm(x), or norm(residual + dropout(x)), [N, H]."""
        normalized: Tensor = norm(
            x if residual is None or dropout is None else dropout.add_residual(residual, x)
        )
        return normalized

    def has_fast_matmul(self, x: Tensor) -> bool:
        """Return True if this backend multiplies x faster than PyTorch's libraries."""
        return False

    def attention(
        self, qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: DropoutLike | None
    ) -> Tensor | None:
        """Compute attention over packed sequences, [N, 3H] → [N, H]; None if buckets are faster.

        Rows behind the last sequence, which only occur on a CPU, become zeros.
        """
        return None

    def attention_of_queries(
        self, x: Tensor, rows: Tensor, layout: SequenceLayout, num_heads: int, dropout: DropoutLike | None
    ) -> AttentionFn | None:
        """Return attention for the queries of some tokens only; None if all tokens are faster.

        Args:
            x: Hidden states, [N, H], from which queries, keys, and values are computed.
            rows: The tokens with a query, as in `encoder_layer`.
            layout: The sequences.
            num_heads: Number of attention heads.
            dropout: The dropout of the attention weights.

        Returns:
            A function of queries [M, H] and keys with values [N, 2H], to be called once.
        """
        return None

    def attention_softmax(
        self, scores: Tensor, bias: Tensor | None, dropout: DropoutLike | None
    ) -> tuple[Tensor, Tensor, DropoutState]:
        """Return the softmax of scores + bias after and before dropout, and the state of dropout.

        Args:
            scores: Attention scores, [B, heads, T, T].
            bias: Added to the scores (`models.attention.Bucket`).
            dropout: The dropout of the attention weights.
        """
        weights = softmax_fp32(scores if bias is None else scores + bias, scores.dtype)
        mask = None if dropout is None else dropout.draw_mask(weights)
        return weights if mask is None else weights * mask, weights, mask

    def softmax_backward(
        self, weights: Tensor, dropout_state: DropoutState, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the weights after dropout, computed again, and the gradient of the scores.

        Args:
            weights: The weights before dropout.
            dropout_state: The state of dropout.
            grad: Gradient of the weights after dropout; may be overwritten.
        """
        if isinstance(dropout_state, Tensor):
            grad *= dropout_state
        scores_grad = torch._softmax_backward_data(grad, weights, -1, weights.dtype)
        return weights * dropout_state if isinstance(dropout_state, Tensor) else weights, scores_grad


class WeightVersions:
    """Versions of weights from which something was computed, to detect changes.

    Versions are addresses and PyTorch's version counters, which do not count writes through `.data` or NumPy. The
    weights are kept alive so that no other tensors take their addresses.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._weights = [weight.detach() for weight in weights]
        self._versions = _versions(self._weights)

    def matches(self, weights: Iterable[Tensor]) -> bool:
        """Return True if these are the same weights, unchanged."""
        return self._versions == _versions(weights)


def _versions(weights: Iterable[Tensor]) -> list[tuple[int, int]]:
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products of x: autocast's if it is on, else that of x."""
    device = x.device.type
    is_autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_autocast else x.dtype


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute the tanh approximation of GELU."""
    return F.gelu(x, approximate="tanh")


def softmax_fp32(scores: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Compute the softmax over the last axis in fp32; return it in `dtype`, by default that of the scores."""
    return scores.softmax(-1, dtype=torch.float32).to(dtype or scores.dtype)


REFERENCE = KernelBackend()


def set_kernel_backend(module: nn.Module, kernels: KernelBackend) -> None:
    """Set the backend of all submodules that use one."""
    for submodule in module.modules():
        if isinstance(getattr(submodule, "kernels", None), KernelBackend):
            setattr(submodule, "kernels", kernels)  # noqa: B010  (a Module's type knows no such name)
