"""The parts of a model, and inference in bf16 and int8, compared with fp32 before the first answer.

Each comparison is made once for the same weights. int8 answers that differ too much are refused; hidden states
that differ too much in bf16 are logged, or keep precision "auto" in fp32.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from bertsmith import rng
from bertsmith.artifacts.folder import ModelFolder
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, command, option
from bertsmith.formatting import pluralize
from bertsmith.inference.predictor import Predictor, with_batch_size
from bertsmith.kernels.backend_selection import select_gpu_backend, select_inference_backend
from bertsmith.kernels.reference import WeightVersions, set_kernel_backend
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import predicts_from_both_sides
from bertsmith.models.quantization import copy_encoder, quantize_encoder
from bertsmith.packed import Packed
from bertsmith.settings import read_yaml
from bertsmith.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:  # each verb imports only its own predictor
    from bertsmith.inference.embedding import Embedder
    from bertsmith.inference.fill_mask import MaskFiller
    from bertsmith.inference.scoring import Scorer
    from bertsmith.inference.task_predictor import TaskPredictor

INT8 = "int8"
MIN_BF16_COSINE = 0.999
"""The smallest cosine between hidden states in bf16 and fp32 that rounding usually leaves; models of all sizes had
more than 0.9997 on random texts."""
_MAX_METRIC_LOSS = 0.01
_MAX_EXAMPLES = 1_000  # that are predicted in fp32, too
_TOP_K = 10  # tokens in int8 among which the most probable token in fp32 is searched
_BF16_SEQUENCES, _INT8_SEQUENCES = 4, 128  # random sequences
# Tokens of a random sequence: few, so that the special tokens, some channels of which are by far the largest, have
# as much weight as in real texts.
_SEQUENCE_LENGTH = 16
_NOT_PICKLED = ("_cache", "_requested_context", "_fp32_context")
_HINT = f"use {option('precision', 'bf16')} or {option('precision', 'fp32')}"

logger = logging.getLogger(__name__)

PredictorT = TypeVar("PredictorT", bound=Predictor)
ResultT = TypeVar("ResultT")
Compare = Callable[[Any, Any, Sequence[Any], Path], str | None]
"""Compares predictors in fp32 and int8 on requests, and returns a message; None if nothing can be compared.
Raises InputError if they differ too much. The path is the model's, for messages."""


@dataclass(frozen=True)
class _LogBf16:
    """Logs a large effect of bf16 before the first answer. Its pickle is None, without the model."""

    model: CheckedModel

    def __call__(self, requests: Sequence[Any]) -> None:
        self.model._log_bf16()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class _WeightCache:
    """Results that are kept as long as the weights are the same. Threads may share it."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._versions: WeightVersions | None = None
        self._results: dict[Any, Any] = {}

    def once(self, weights: list[Tensor], key: Any, compute: Callable[[], Any]) -> Any:
        """Return a result, computed once for the same weights; None is not kept."""
        with self._lock:
            if self._versions is None or not self._versions.matches(weights):
                self._versions, self._results = WeightVersions(weights), {}
            if self._results.get(key) is None:
                self._results[key] = compute()
            return self._results[key]


class CheckedModel:
    """The parts of a model folder, and predictors in the requested precision, which is checked.

    Threads may share it; its pickle has no results of checks. `Model` has the fields.
    """

    path: Path
    folder: ModelFolder
    device: str
    precision: str
    mapped: bool

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _NOT_PICKLED}

    @cached_property
    def _cache(self) -> _WeightCache:
        return _WeightCache()

    @cached_property
    def _requested_context(self) -> ComputeContext:
        """The context that the settings and the device ask for."""
        precision = self.precision
        if precision in ("auto", INT8):
            precision = "fp32" if self.folder.record.get("precision") == "fp32" else "auto"
        return ComputeContext.create(self.device, precision)

    @cached_property
    def _fp32_context(self) -> ComputeContext:
        return ComputeContext.create(self.device, "fp32")

    @property
    def context(self) -> ComputeContext:
        """The device and precision of predictions; int8 applies to the encoder's linear layers only.

        With precision "auto", it is in fp32 if bf16 changes the hidden states too much.
        """
        if self.precision != "auto" or self._bf16_cosine() >= MIN_BF16_COSINE:
            return self._requested_context
        return self._fp32_context

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return self.folder.tokenizer()

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder in evaluation mode: takes a `Packed`, or (input_ids, attention_mask, token_type_ids)."""
        context = self._requested_context
        with torch.inference_mode(False):  # so that its weights are ordinary tensors
            encoder = self.folder.encoder(context.init_generator, copy=not self.mapped)
            context.prepare_modules(encoder)
        # Compiled kernels take half a second to import; with "auto", one text is answered sooner without them.
        if self.precision in ("fp32", "bf16") and context.is_cpu:
            set_kernel_backend(encoder, select_inference_backend(encoder.config.hidden_size))
        elif context.is_async and context.precision == "bf16":
            set_kernel_backend(encoder, select_gpu_backend("auto", context.device, is_long=False))
        return encoder.eval()

    @property
    def _usage(self) -> str:
        """A reference to a command that this model serves, for hints."""
        folder, task = self.folder, self.folder.record.get("task")
        if task not in ("embed", "pretrain") and (task or folder.labels):
            return command("predict")
        if task == "embed" or not folder.has("masked"):
            return command("embed")
        if predicts_from_both_sides(folder.config):
            return command("fill-mask")
        return command("generate" if folder.config.attention_direction == "before" else "score")

    @property
    def vectors_digest(self) -> str:
        """The digest of the weights and the tokenizer: equal digests mean equal vectors."""
        both = f"{self.folder.weights_digest()} {self.tokenizer.digest}"
        return hashlib.sha256(both.encode("ascii")).hexdigest()

    def _once(self, key: Any, compute: Callable[[], ResultT]) -> ResultT:
        result: ResultT = self._cache.once(list(self.encoder.parameters()), key, compute)
        return result

    def _bf16_cosine(self) -> float:
        """Return the smallest cosine between hidden states in bf16 and fp32; 1 if bf16 needs no check.

        The weights of a model that was trained in bf16 were rounded in each forward pass of its training.
        """
        context = self._requested_context
        if context.precision != "bf16" or self.folder.record.get("precision") == "bf16":
            return 1.0
        return self._once("bf16", lambda: bf16_cosine(self.encoder, self.tokenizer, context))

    def _log_bf16(self) -> None:
        """Log a large effect of bf16, once for the same weights."""
        cosine = self._bf16_cosine()

        def log() -> bool:
            logger.warning("%s", _bf16_message(self.path, cosine))
            return True

        if not cosine >= MIN_BF16_COSINE:
            self._once("logged", log)

    def _create_predictor(
        self,
        predictor_class: type[PredictorT],
        compare: Compare,
        batch_size: int | None = None,
        **fields: Any,
    ) -> PredictorT:
        """Return a predictor in the precision, which is checked before its first answer.

        Args:
            predictor_class: Its class.
            compare: Compares predictors in fp32 and int8.
            batch_size: The maximum number of sequences per forward pass.
            **fields: The other fields of the class; a `tokenizer` replaces the model's.
        """

        def create(encoder: Encoder, context: ComputeContext) -> PredictorT:
            context = with_batch_size(context, batch_size)
            values = {"tokenizer": self.tokenizer, "context": context, "path": self.path, **fields}
            return predictor_class(encoder, **values)

        if self.precision != INT8:
            predictor = create(self.encoder, self.context)
            return replace(predictor, check=_LogBf16(self)) if self.precision == "bf16" else predictor
        int8_encoder = self._once(INT8, lambda: quantize(self.encoder, self.tokenizer))
        exact, quantized = (
            create(self.encoder, self._fp32_context),
            create(int8_encoder, self._requested_context),
        )
        return replace(quantized, check=partial(self._check_int8, compare, exact, quantized))

    def _check_int8(
        self, compare: Compare, exact: Predictor, quantized: Predictor, requests: Sequence[Any]
    ) -> None:
        def message() -> str | None:
            text = compare(exact, quantized, requests, self.path)
            if text is not None:
                logger.info("%s: %s", self.path, text)
            return text

        self._once(compare, message)


def random_texts(encoder: Encoder, tokenizer: Tokenizer, num_sequences: int) -> Packed:
    """Return sequences of random tokens, always the same, between [CLS] and [SEP] if there are such tokens."""
    length = min(_SEQUENCE_LENGTH, encoder.config.max_length)
    special = np.zeros(tokenizer.vocab_size, dtype=bool)
    special[sorted(tokenizer.all_special_ids)] = True
    candidates = np.flatnonzero(~special) if not special.all() else np.arange(len(special))
    indices = rng.integers(0, "int8", len(candidates), np.arange(num_sequences * length))
    ids = candidates[indices].reshape(num_sequences, length)
    with suppress(InputError):  # some vocabularies have no such tokens
        ids[:, 0], ids[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    lengths = np.full(num_sequences, length)
    return Packed.from_arrays(ids.reshape(-1), np.zeros(ids.size, np.int64), lengths)


def bf16_cosine(encoder: Encoder, tokenizer: Tokenizer, context: ComputeContext) -> float:
    """Return the smallest cosine between hidden states of random texts in bf16 and fp32.

    A short fine-tuning of weights that were stored in bf16 moves most of them by less than half a step. Rounding
    undoes that for all of them alike, so that the errors do not cancel out as usual.
    """
    texts = random_texts(encoder, tokenizer, _BF16_SEQUENCES).to(context.device)
    encoder = copy_encoder(encoder, with_hooks=False)
    with torch.inference_mode():
        exact, rounded = (e(texts).double() for e in (encoder, context.autocast_encoder(encoder)))
        return float(torch.cosine_similarity(exact, rounded, dim=1).min())


def _bf16_message(path: Path, cosine: float) -> str:
    rounded_down = math.floor(1e4 * cosine) / 1e4 if math.isfinite(cosine) else cosine
    return (
        f"{path}: bf16 changes the hidden states of this model more than usual: on random texts their cosine "
        f"with those in fp32 falls to {rounded_down:.4f}, below {MIN_BF16_COSINE}; use precision fp32"
    )


def quantize(encoder: Encoder, tokenizer: Tokenizer) -> Encoder:
    """Return the encoder with the linear layers in int8."""
    texts = random_texts(encoder, tokenizer, _INT8_SEQUENCES)
    return quantize_encoder(encoder, texts, select_inference_backend(encoder.config.hidden_size))


# Comparisons are written as `not … >= …`, so that NaN is refused, too.


def compare_task(exact: TaskPredictor, quantized: TaskPredictor, requests: Sequence[Any], path: Path) -> str:
    """Compare the primary metric on the run's validation file."""
    file = validation_file(path)
    all_examples = exact.with_settings({}, "evaluate", file).read(file)
    examples, metrics = all_examples[:: -(-len(all_examples) // _MAX_EXAMPLES)], exact.task.metrics
    name = metrics.primary_metric
    before, after = (
        metrics.compute(predictor.predict(examples), examples).values[name]
        for predictor in (exact, quantized)
    )
    message = (
        f"on {pluralize(len(examples), 'example')} of {file}, {name} is {after:.4f} in int8 and {before:.4f} in "
        f"fp32 ({round(after - before, 4) + 0.0:+.4f})"  # adding 0.0 turns -0.0 into 0.0
    )
    if not after >= before - _MAX_METRIC_LOSS:
        message += f", a loss of more than {_MAX_METRIC_LOSS:g}"
        raise InputError("int8_score_too_low", message, location=path, hint=_HINT)
    return message


@dataclass(frozen=True)
class Comparison:
    """Compares answers of predictors in fp32 and int8 on some of the first texts.

    Attributes:
        answers: The name of the answers.
        unit: The unit of the difference.
        max_difference: The largest difference that is not an error.
        max_texts: The maximum number of texts to compare.
        measure: Returns the difference on texts; None if there is nothing to compare.
    """

    answers: str
    unit: str
    max_difference: float
    max_texts: int
    measure: Callable[[Any, Any, Sequence[str]], float | None]

    def __call__(self, exact: Any, quantized: Any, requests: Sequence[str], path: Path) -> str | None:
        """Compare two predictors."""
        texts = requests[:: max(1, -(-len(requests) // self.max_texts))]  # evenly spaced
        if (difference := self.measure(exact, quantized, texts)) is None:
            return None
        count = pluralize(len(texts), "text")
        message = f"on {count}, {self.answers} in int8 and fp32 differ by {difference:.4f} {self.unit}"
        if not difference <= self.max_difference:
            message += f", more than {self.max_difference:g}"
            raise InputError("int8_answers_differ", message, location=path, hint=_HINT)
        return message


def _vector_difference(exact: Embedder, quantized: Embedder, texts: Sequence[str]) -> float | None:
    """Return 1 minus the smallest cosine."""
    a, b = exact(texts).astype(np.float64), quantized(texts).astype(np.float64)
    norms = np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-12)
    return 1 - float(((a * b).sum(1) / norms).min()) if texts else None


def _score_difference(exact: Scorer, quantized: Scorer, texts: Sequence[str]) -> float | None:
    pairs = list(zip(exact.scores(texts), quantized.scores(texts), strict=True))
    tokens = sum(a.tokens for a, _ in pairs)
    return sum(abs((a.score or 0.0) - (b.score or 0.0)) for a, b in pairs) / tokens if tokens else None


def _mask_difference(exact: MaskFiller, quantized: MaskFiller, texts: Sequence[str]) -> float | None:
    """Return the mean difference; a token that is no longer among the most probable ones has probability 0."""
    before = [best for text in replace(exact, top_k=1)(texts) for best, *_ in text]
    after = [top for text in replace(quantized, top_k=_TOP_K)(texts) for top in text]
    scores = (
        next((p.score for p in top if p.token == best.token), 0.0)
        for best, top in zip(before, after, strict=True)
    )
    differences = [abs(best.score - score) for best, score in zip(before, scores, strict=True)]
    return float(np.mean(differences)) if differences else None


compare_vectors = Comparison("vectors", "(1 - cosine)", 0.005, 64, _vector_difference)
compare_scores = Comparison("scores", "nats per token on average", 0.05, 16, _score_difference)
compare_masks = Comparison("probabilities of the likeliest token", "on average", 0.05, 64, _mask_difference)


def validation_file(run: Path) -> Path:
    """Return the run's validation file, or the part of its training file that was held out."""
    recorded: Any = None
    for folder in (run, run.parent):  # the path may be that of the run's model folder
        if (settings := folder / "settings.yaml").is_file():
            if held_out := sorted((folder / "split").glob("validation.*")):
                return held_out[0]
            recorded = read_yaml(settings).get("files", {}).get("validation")
            break
    if recorded and Path(recorded).is_file():
        return Path(recorded)
    problem = f"{recorded} does not exist" if recorded else "this folder names none"
    message = f"int8 is compared with fp32 on the run's validation file, and {problem}"
    hint = f"name the run, and start in the folder in which it was started, or {_HINT}"
    raise InputError("validation_file_missing", message, location=run, hint=hint)
