"""Attributions: how much each token of a text adds to an output of a model, and how much each word does.

Integrated gradients (Sundararajan et al. 2017) of the word embeddings sum to the difference between the output for
the text and for a baseline (completeness); how far they miss it is reported. Occlusion is what the output loses
if a word is replaced by the baseline's token.

Shapes: T tokens of an item, E size of the embeddings, S steps of the integral.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names
from bertsmith.models.encoder import Embedding
from bertsmith.tasks.batching import Item
from bertsmith.tokenizer.tokenizer import Tokenizer

BaselineName = Literal["mask", "pad", "zero"]
"""The replacement of tokens: [MASK], [PAD], or a vector of zeros; special tokens stay."""

MAX_GAP = 0.01  # relative, at which no more steps are taken
_FIRST_STEPS, _MAX_STEPS = 20, 640
_MAX_TOKENS = 8_192  # of a batch
_MIN_DIFFERENCE = 1e-3  # of the outputs for the text and the baseline, by which a gap is divided at least


class IntegratedGradients(NamedTuple):
    """Attributions of tokens.

    Attributes:
        attributions: float64 [T].
        output: The output for the text.
        baseline_output: The output for the baseline.
        gap: The difference between the sum of the attributions and that of both outputs, divided by the latter (at
            least 0.001).
        steps: The number of steps S.
    """

    attributions: NDArray[np.float64]
    output: float
    baseline_output: float
    gap: float
    steps: int


@dataclass(frozen=True)
class ExplainedOutput:
    """A number that a model computes from an item, for changed tokens and embeddings of the item, too.

    Attributes:
        embeddings: The word embeddings of all encoders that read the item.
        item: The item.
        forward: Returns an output [r, ...] for each item.
        score: Returns the number [] for an output.
        baseline_ids: The ids of the baseline, [T].
        baseline: The name of the baseline.
    """

    embeddings: Sequence[Embedding]
    item: Item
    forward: Callable[[Sequence[Item]], Sequence[Tensor]]
    score: Callable[[Tensor], Tensor]
    baseline_ids: NDArray[np.int64]
    baseline: BaselineName = "mask"

    @property
    def ids(self) -> NDArray[np.int64]:
        """The ids of the item's tokens, [T]."""
        return np.concatenate([sequence.ids for sequence in self.item.sequences]).astype(np.int64)

    def scores(self, masked: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the number for copies of the item in which tokens are replaced by those of the baseline.

        Args:
            masked: The replaced tokens of each copy, [copies, T].

        Returns:
            The numbers, [copies].
        """
        rows = max(1, _MAX_TOKENS // masked.shape[1])
        values = [self._masked_scores(masked[i : i + rows]) for i in range(0, len(masked), rows)]
        return np.concatenate(values) if values else np.zeros(0)

    @torch.inference_mode()
    def _masked_scores(self, masked: NDArray[np.bool_]) -> NDArray[np.float64]:
        ids = np.where(masked, self.baseline_ids, self.ids)
        embeddings = self._embed(ids, masked)
        with _replaced_outputs(self.embeddings, embeddings.flatten(0, 1)):
            outputs = self.forward([_with_ids(self.item, row) for row in ids])
        return _checked(torch.stack([self.score(output) for output in outputs]).double().cpu().numpy())

    def _embed(self, ids: NDArray[np.int64], masked: NDArray[np.bool_]) -> Tensor:
        """Return the embeddings of ids, side by side for several encoders; with "zero", zeros for `masked`."""
        device = self.embeddings[0].weight.device
        on_device = torch.from_numpy(ids).to(device)
        vectors = torch.cat([embedding(on_device) for embedding in self.embeddings], -1)
        keep = torch.from_numpy(~masked | (self.baseline != "zero")).to(device)
        return vectors * keep[..., None]

    def integrated_gradients(self, steps: int | None = None) -> IntegratedGradients:
        """Return the attributions of the tokens.

        Args:
            steps: The number of steps of a Gauss–Legendre quadrature; None: 20, doubled until the gap is less
                than 0.01, up to 640.
        """
        both = np.stack([np.zeros(len(self.ids), dtype=bool), self.baseline_ids != self.ids])
        output, baseline_output = self.scores(both).tolist()
        num_steps = steps or _FIRST_STEPS
        while True:
            attributions = self._integrate(num_steps)
            difference = output - baseline_output
            gap = abs(attributions.sum() - difference) / max(abs(difference), _MIN_DIFFERENCE)
            if steps or gap < MAX_GAP or num_steps >= _MAX_STEPS:
                return IntegratedGradients(attributions, output, baseline_output, float(gap), num_steps)
            num_steps *= 2

    def _integrate(self, steps: int) -> NDArray[np.float64]:
        """Return the product of the mean gradient on the path and the difference of the embeddings, [T]."""
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        with torch.no_grad():
            differs = self.baseline_ids != self.ids
            x, start = self._embed(self.ids, np.zeros_like(differs)), self._embed(self.baseline_ids, differs)
        sums = torch.zeros_like(x)
        rows = max(1, _MAX_TOKENS // len(x))
        for i in range(0, steps, rows):
            alphas = x.new_tensor((1 + nodes[i : i + rows]) / 2)[:, None, None]
            path = (start + alphas * (x - start)).requires_grad_()
            with _replaced_outputs(self.embeddings, path.flatten(0, 1)):
                outputs = self.forward([self.item] * len(alphas))
            total = torch.stack([self.score(output) for output in outputs]).sum()
            (grads,) = torch.autograd.grad(total, path)
            factors = x.new_tensor(weights[i : i + rows] / 2)[:, None, None]
            sums += (factors * grads).sum(0)
        return _checked(((x - start) * sums).sum(1).double().cpu().numpy())


def baseline_ids(item: Item, tokenizer: Tokenizer, baseline: BaselineName) -> NDArray[np.int64]:
    """Return the ids of a baseline, [T]; the end token stands for a missing mask or padding token, as in GPT-2.

    Raises:
        InputError: There is no baseline of this name, or the tokenizer has none of these tokens.
    """
    if baseline not in get_args(BaselineName):
        message, hint = (
            f"there is no baseline {baseline!r}",
            f"use one of {join_names(get_args(BaselineName))}",
        )
        raise InputError("unknown_baseline", message, argument="baseline", hint=hint)
    ids = np.concatenate([sequence.ids for sequence in item.sequences]).astype(np.int64)
    role, replacement = "mask" if baseline == "mask" else "pad", tokenizer.end_token_id
    if replacement is None or role in tokenizer.info()["specials"]:
        replacement = tokenizer.mask_token_id if role == "mask" else tokenizer.pad_token_id
    return np.where(is_special(ids, tokenizer), ids, replacement)


def is_special(ids: NDArray[np.int64], tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Return which tokens are special, the mask token included, but no unknown words."""
    special_ids = set(tokenizer.all_special_ids)
    if tokenizer.kind in ("wordpiece", "unigram"):  # others know all words
        special_ids.remove(tokenizer.unk_token_id)
    return np.isin(ids, sorted(special_ids))


def _checked(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values; raise FloatingPointError if one is NaN or infinite."""
    if not np.isfinite(values).all():
        raise FloatingPointError("the outputs or their gradients are not finite")
    return values


def _with_ids(item: Item, ids: NDArray[np.int64]) -> Item:
    """Return the item with other ids, [T]."""
    parts = np.split(ids.astype(np.int32), np.cumsum([len(s.ids) for s in item.sequences])[:-1])
    sequences = (replace(s, ids=part) for s, part in zip(item.sequences, parts, strict=True))
    return replace(item, sequences=tuple(sequences))


@contextmanager
def _replaced_outputs(embeddings: Sequence[Embedding], output: Tensor) -> Iterator[None]:
    """Let embeddings return these vectors, [N, E] side by side, for what they look up first.

    What they look up later are the tokens of a decoder.
    """
    with ExitStack() as hooks:
        parts = torch.split(output, [embedding.weight.shape[1] for embedding in embeddings], 1)
        for embedding, part in zip(embeddings, parts, strict=True):
            handle = embedding.register_forward_hook(partial(_next_output, iter([part])))
            hooks.callback(handle.remove)
        yield


def _next_output(outputs: Iterator[Tensor], *_: Any) -> Tensor | None:
    return next(outputs, None)  # None keeps the output of the module


def check_steps(steps: int | None) -> None:
    """Raise InputError for a number of steps that is less than 1 or too large."""
    if steps is not None and not 1 <= steps <= _MAX_STEPS:
        hint = f"use a number up to {_MAX_STEPS}, or omit {option('steps')}"
        raise InputError("invalid_steps", f"{steps} steps are not possible", argument="steps", hint=hint)
