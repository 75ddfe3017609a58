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

BackendName = Literal["torch", "numba", "flash", "triton"]
DropoutState = Tensor | tuple[int, int, int, int] | None
"""A dropout mask, or the seeds of one (`DropoutSeeds` of cpu/layer_functions.py); None without dropout."""

NO_GRAD, NEVER_UPDATED = -1, -2
"""Marks of an embedding row without a gradient in this update, or in any update so far."""

_INT8_OFFSET = 128  # of unsigned 8-bit integers from signed ones
_INT8_STEPS = 255  # between the lowest and the highest 8-bit integer
_EXACT_TERMS = 2**10  # fp32 adds up so many products of 8-bit integers exactly: their sum is below 2**24
MIN_QUANT_STEP = 1e-12


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


class DequantParams(NamedTuple):
    """Parameters that turn the integer products of a linear layer into its outputs.

    Attributes:
        weight_sums: Sums of the quantized weights per output, [out].
        scale: Scale of the weights per output, [out].
        bias: [out].
        outlier_weight: Weights of the outlier channel over `scale`, [out].
    """

    weight_sums: Tensor
    scale: Tensor
    bias: Tensor
    outlier_weight: Tensor


class QuantizedLinear(NamedTuple):
    """A linear layer in int8 with one input channel, the outlier, in floating point.

    Attributes:
        input_scale: Factors of the input channels, [in]; 0 for the outlier.
        weight: Quantized weights in the format of `KernelBackend.pack_int8_weight`; 0 for the outlier.
        dequant: Parameters of the outputs.
        outlier_channel: Index of the outlier.
    """

    input_scale: Tensor
    weight: Tensor
    dequant: DequantParams
    outlier_channel: int


class VocabChunk(NamedTuple):
    """Logits of M tokens for a chunk of the vocabulary.

    Attributes:
        logits: Without the bias, [v, M].
        bias: [v].
        labels: Index of each token's label in the whole vocabulary, long [M].
        start: Index of the chunk's first entry in the vocabulary.
    """

    logits: Tensor
    bias: Tensor
    labels: Tensor
    start: int

    def label_positions(self) -> tuple[Tensor, Tensor]:
        """Return the tokens whose labels are in the chunk, and the rows of these labels in it."""
        is_inside = (self.labels >= self.start) & (self.labels < self.start + len(self.logits))
        (tokens,) = is_inside.nonzero(as_tuple=True)
        return tokens, self.labels[tokens] - self.start


class VocabPrediction(NamedTuple):
    """Inputs of a loss over the vocabulary.

    Attributes:
        x: Hidden states of M tokens, [M, E].
        embedding: Output embeddings, [V, E].
        bias: [V].
        labels: Long [M].
    """

    x: Tensor
    embedding: Tensor
    bias: Tensor
    labels: Tensor

    def chunk(self, start: int, end: int, logits: Tensor) -> VocabChunk:
        """Return the chunk of entries start to end with their logits [end - start, M]."""
        return VocabChunk(logits, self.bias[start:end], self.labels, start)


class OnlineSoftmaxState(NamedTuple):
    """Softmax statistics of each token over the chunks so far (Milakov and Gimelshein 2018).

    Attributes:
        max: The highest logit, [M].
        sum_exp: The sum of exp(logit - max), [M].
        label_logit: The logit of the label, [M]; 0 until its chunk is reached.
    """

    max: Tensor
    sum_exp: Tensor
    label_logit: Tensor


class AdamWStep(NamedTuple):
    """Scalars of one AdamW update.

    Attributes:
        betas: Decay rates of the moment estimates.
        decay_factor: Factor of the parameters due to weight decay, 1 - lr·weight_decay.
        step_size: The learning rate over the bias correction of the first moment.
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
        attention_direction: The tokens of its sequence that a token attends to: "all", "before", or "behind".
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


class KernelBackend(MatmulBackend):
    """Operations of an encoder, the loss, and the optimizer by PyTorch; the base of the faster backends.

    Operations that return None here are optional fusions: on None the caller computes their parts one by one.

    Attributes:
        name: The name in settings.
        sparse_embedding_updates: True if an embedding with few used rows is trained faster by `sparse_adamw`.
        loss_block_rows: Rows of logits that the loss processes at a time: 16 of 30,522 are 2 MB and stay in the
            cache of a core.
        logits_column_multiple: The number of logits per row is padded to a multiple of this.
        ignores_negative_labels: True if `fused_cross_entropy` ignores rows whose label is below 0.
        seqlen_multiple: Computation depends on the longest sequence only through its length rounded up to a
            multiple of this.
    """

    name: ClassVar[BackendName] = "torch"
    sparse_embedding_updates: ClassVar[bool] = False
    loss_block_rows: ClassVar[int] = 16
    logits_column_multiple: ClassVar[int] = 1
    ignores_negative_labels: ClassVar[bool] = False
    seqlen_multiple: ClassVar[int] = 1

    def activation(self, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute activation(x)."""
        return activation(x)

    def embed(
        self,
        x: Tensor,
        embeddings: Sequence[tuple[nn.Embedding, Tensor]],
        norm: nn.Module,
        dropout: DropoutLike,
        dtype: torch.dtype,
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
        self,
        x: Tensor,
        layout: SequenceLayout,
        modules: EncoderLayerModules,
        rows: Tensor | None = None,
    ) -> Tensor | None:
        """Compute a layer, [N, H] → [N, H]; None if not fused.

        Args:
            x: Hidden states, [N, H].
            layout: The sequences.
            modules: The layer's modules.
            rows: Tokens whose output is needed, long [M], for an output [M, H]; see `models.encoder` for their
                order. None: all.
        """
        return None

    def feed_forward(
        self, x: Tensor, inner: nn.Linear, output: nn.Linear, activation: Callable[[Tensor], Tensor]
    ) -> Tensor | None:
        """Compute output(activation(inner(x))), [N, H] → [N, H]; None if not fused."""
        return None

    def add_layer_norm(self, residual: Tensor, x: Tensor, dropout: DropoutLike, norm: nn.Module) -> Tensor:
        """Compute norm(residual + dropout(x)), [N, H]."""
        normalized: Tensor = norm(dropout.add_residual(residual, x))
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
        self,
        x: Tensor,
        rows: Tensor,
        layout: SequenceLayout,
        num_heads: int,
        dropout: DropoutLike | None,
    ) -> AttentionFn | None:
        """Return attention for the queries of some tokens only; None if all tokens are faster.

        Args:
            x: Hidden states, [N, H], from which queries, keys, and values are computed.
            rows: The tokens with a query, long [M]; see `models.encoder` for their order.
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
            bias: Added to the scores (`attention_layout.Bucket`).
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

    def fused_cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the summed cross-entropy, the number of correct predictions, and the gradient of the bias.

        The logits [M, V] are overwritten by their gradient, a few rows at a time while these are in the cache, in
        fp32 even if the buffer is bf16. PyTorch's own loss makes four buffers of this size.
        """
        dtype = torch.promote_types(logits.dtype, torch.float32)
        loss, num_correct = logits.new_zeros((), dtype=dtype), labels.new_zeros(())
        bias_grad = logits.new_zeros(bias.shape, dtype=dtype)
        blocks = (torch.split(tensor, self.loss_block_rows) for tensor in (logits, labels))
        for block, block_labels in zip(*blocks, strict=True):
            rows = block.to(dtype)  # no copy if the dtype is this one already
            rows += bias
            label_logits = rows.gather(1, block_labels[:, None])[:, 0]
            max_logits = rows.amax(1)
            torch.softmax(rows, 1, out=rows)
            # The most likely token has probability 1 / sum(exp(logit - max)), which is never 0.
            loss += (max_logits - rows.amax(1).log() - label_logits).sum()
            num_correct += (label_logits == max_logits).sum()
            rows.scatter_add_(1, block_labels[:, None], rows.new_full((len(block_labels), 1), -1.0))
            bias_grad += rows.sum(0)
            if rows is not block:
                block.copy_(rows)
        return loss, num_correct, bias_grad

    def prefers_chunked_loss(self, x: Tensor) -> bool:
        """Return True if the loss of x [M, E] is faster in chunks of the vocabulary than over all of it."""
        return False

    def chunked_loss_forward(
        self,
        prediction: VocabPrediction,
        ranges: Sequence[tuple[int, int]],
        matmul_backend: MatmulBackend,
        saved_logits: list[Tensor] | None,
    ) -> OnlineSoftmaxState:
        """Compute softmax statistics over the vocabulary, chunk by chunk.

        Args:
            prediction: Inputs of the loss.
            ranges: Start and end of each chunk.
            matmul_backend: Computes the matrix products.
            saved_logits: Receives the logits of each chunk; None if there is no backward pass.
        """
        max_logits = torch.full(prediction.labels.shape, -torch.inf)
        state = OnlineSoftmaxState(max_logits, torch.zeros_like(max_logits), torch.zeros_like(max_logits))
        for start, end in ranges:
            logits = matmul_backend.matmul(prediction.embedding[start:end], prediction.x.T)
            self.update_online_softmax(prediction.chunk(start, end, logits), state)
            if saved_logits is not None:
                saved_logits.append(logits)
        return state

    def chunked_loss_backward(
        self,
        prediction: VocabPrediction,
        ranges: Sequence[tuple[int, int]],
        matmul_backend: MatmulBackend,
        saved_logits: Sequence[Tensor],
        max_logits: Tensor,
        scale: Tensor,
        loss_grad: Tensor,
        embedding_grad: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of x, fp32 [M, E], and of the bias, [V].

        Args:
            prediction: Inputs of the loss.
            ranges: Start and end of each chunk.
            matmul_backend: Computes the matrix products.
            saved_logits: The logits of each chunk, which are overwritten.
            max_logits: The highest logit of each token, [M].
            scale: `loss_grad` over the sum of exp(logit - max), [M].
            loss_grad: Gradient of the loss, [].
            embedding_grad: Receives the gradient of the embeddings, [V, E]; None if it is not needed.
        """
        x_grad, bias_grads = torch.zeros(prediction.x.shape), []
        for (start, end), logits in zip(ranges, saved_logits, strict=True):
            chunk = prediction.chunk(start, end, logits)
            bias_grads.append(self.chunk_backward(chunk, max_logits, scale, loss_grad))
            x_grad += matmul_backend.matmul(logits.T, prediction.embedding[start:end])
            if embedding_grad is not None:
                matmul_backend.matmul(logits, prediction.x, out=embedding_grad[start:end])
        return x_grad, torch.cat(bias_grads)

    def update_online_softmax(self, chunk: VocabChunk, state: OnlineSoftmaxState) -> None:
        """Update the softmax statistics in place with the logits of a chunk."""
        logits = chunk.logits + chunk.bias[:, None]
        new_max = torch.maximum(state.max, logits.amax(0))
        state.sum_exp.mul_((state.max - new_max).exp_()).add_((logits - new_max).exp_().sum(0))
        state.max.copy_(new_max)
        tokens, rows = chunk.label_positions()
        state.label_logit[tokens] = logits[rows, tokens]

    def chunk_backward(
        self, chunk: VocabChunk, max_logits: Tensor, scale: Tensor, loss_grad: Tensor
    ) -> Tensor:
        """Overwrite the logits of a chunk by their gradient; return the gradient of its bias, [v].

        The arguments are those of `chunked_loss_backward`.
        """
        logits_grad = chunk.logits + chunk.bias[:, None]  # in fp32
        logits_grad.sub_(max_logits).exp_().mul_(scale)
        tokens, rows = chunk.label_positions()
        logits_grad[rows, tokens] -= loss_grad
        chunk.logits.copy_(logits_grad)
        return logits_grad.sum(1)

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
            is_native: True if PyTorch multiplies int8 by instructions of the processor; else the format is fp32.
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
        return torch.addcmul(params.bias, unscaled, params.scale).to(dtype)

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
