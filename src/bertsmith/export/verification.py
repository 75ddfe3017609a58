"""Compare exported files with the original model: the largest difference, the score, and the speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import InputError, option
from bertsmith.export.exported_model import ExportedModel, ExportedPredictor, items_of
from bertsmith.export.padded_model import PaddedModel
from bertsmith.export.sample_texts import SAMPLE_TEXTS
from bertsmith.inference.model import Model
from bertsmith.inference.precision import random_texts, validation_file
from bertsmith.inference.significance import score_interval
from bertsmith.inference.task_predictor import TaskPredictor
from bertsmith.io.sources import Source, name_of
from bertsmith.packed import Packed
from bertsmith.tasks.base import WritingModel
from bertsmith.tasks.batching import Item, Outputs, TaskBatch, TokenSequence, pack, run_batched

MAX_DIFFERENCE = 1e-4
"""The largest difference of an output in fp32 that is not an error."""
_MIN_INT8_COSINE = 0.995  # of outputs without a score; as for vectors in int8 by this package
_MAX_TARGETS = 100
_MAX_EXAMPLES = 1_000
_SAMPLE_LENGTHS = (1, 2, 3, 17, *[16] * 8, 64, 512)  # tokens of random sequences


class _Answers(NamedTuple):
    """Outputs and predictions for the examples, and the seconds that the outputs took."""

    outputs: Outputs
    predictions: list[Any]
    seconds: float


class Verifier:
    """Compares exported files with the original on labeled examples, sample texts, and random tokens.

    Attributes:
        source: A description of the examples, or of the sample texts.
    """

    def __init__(
        self, original: Model, model: PaddedModel, predictor: TaskPredictor | None, data: Source | None
    ) -> None:
        """Compute what the original answers.

        Args:
            original: The model, on the CPU in fp32.
            model: The module that is exported.
            predictor: The predictor of the model's task; None without a task.
            data: Labeled examples; None: the run's validation file, if the model has a task and there is one.

        Raises:
            InputError: `data` cannot be read, or the model can be compared on examples only and there are none.
        """
        self._original, self._model = original, model
        self.source = f"{len(SAMPLE_TEXTS)} sample texts and random tokens"
        self._predictor: TaskPredictor | None = None
        self._examples: Sequence[Any] = []
        self._items: Sequence[Item] = []
        if predictor is not None:
            self._read_examples(predictor, data)
        elif data is not None:
            message = "the model has no task, so it has no score on labeled data"
            raise InputError("export_data_without_task", message, argument="data", hint="omit it")
        self._texts = [] if model.needs_examples else _text_items(original)
        self._samples = [] if model.needs_examples else [*self._texts, *_random_items(original)]
        self._sample_outputs = self._run_original(self._samples)
        start = perf_counter()
        self._run_original(self._texts)
        self._text_seconds = perf_counter() - start

    def verify(self, exported: ExportedModel, *, is_int8: bool) -> dict[str, Any]:
        """Return the largest difference of an opened file from the original, the scores, and the speeds.

        Raises:
            InputError: In fp32 an output differs by more than `MAX_DIFFERENCE`; in int8 the score is outside of
                its bootstrap interval, or without examples the cosine of the output of a text is below 0.995.
        """
        exported.run((self._samples or self._items)[:16])  # the first run is slow
        pairs = list(zip(self._sample_outputs, exported.run(self._samples).per_item, strict=True))
        start = perf_counter()
        exported.run(self._texts)
        seconds, seconds_before = perf_counter() - start, self._text_seconds
        report: dict[str, Any] = {"checked_on": self.source}
        if self._predictor is not None:
            answers = _answer(
                ExportedPredictor(**vars(self._predictor), exported=exported), self._items, self._examples
            )
            pairs += (
                self._target_logits(exported)
                if self._model.writes_text
                else zip(self._answers.outputs.per_item, answers.outputs.per_item, strict=True)
            )
            seconds, seconds_before = answers.seconds, self._answers.seconds
            report |= self._scores(answers.predictions, is_int8=is_int8)
        report["difference"] = max(float((a - b).abs().max()) for a, b in pairs)
        if not is_int8 and not report["difference"] <= MAX_DIFFERENCE:
            message = f"an output differs by {report['difference']:.2g}, more than {MAX_DIFFERENCE:g}"
            raise self._error(message)
        if is_int8 and self._predictor is None:
            texts = pairs[: len(self._texts)] or pairs
            cosine = min(float(torch.cosine_similarity(a.flatten(), b.flatten(), 0)) for a, b in texts)
            report["cosine"] = cosine
            if not cosine >= _MIN_INT8_COSINE:
                message = f"the cosine of the output of a text in int8 with that in fp32 is {cosine:.4f}"
                raise self._error(message)
        return report | {"seconds": seconds, "seconds_before": seconds_before}

    def _read_examples(self, predictor: TaskPredictor, data: Source | None) -> None:
        """Read the examples and answer them by the original; without `data` there may be none."""
        try:
            source = validation_file(self._original.path) if data is None else data
        except InputError:
            if self._model.needs_examples:
                raise
            return
        predictor = predictor.with_settings({}, "evaluate", source)
        examples = [example for example in predictor.read(source) if not example.is_empty]
        self._examples = examples[:: -(-len(examples) // _MAX_EXAMPLES) or 1]
        self._items = predictor.preprocess(self._examples)
        self._answers = _answer(predictor, self._items, self._examples)
        self._predictor = predictor
        self.source = f"{len(self._examples):,} examples of {name_of(source, 'data')}"
        task = predictor.task
        self._interval = score_interval(task.metrics, self._answers.predictions, self._examples)

    def _scores(self, predictions: Sequence[Any], *, is_int8: bool) -> dict[str, Any]:
        """Return the scores of predictions and of the original's."""
        assert self._predictor is not None
        metrics, (low, high) = self._predictor.task.metrics, self._interval
        name = metrics.primary_metric
        before, after = (
            metrics.compute(answers, self._examples).values[name]
            for answers in (self._answers.predictions, predictions)
        )
        if is_int8 and not low - 1e-9 <= after <= high + 1e-9:
            message = (
                f"{name} is {after:.4f} in int8, outside of {low:.4f} to {high:.4f}, the 95 % interval of "
                f"{before:.4f} in fp32"
            )
            raise self._error(message)
        return {"metric": name, "score": after, "score_before": before, "interval": [low, high]}

    def _error(self, message: str) -> InputError:
        hint = f"nothing was written; export to another format: {option('to', 'onnx')}"
        return InputError("export_differs", message, location=self._original.path, hint=hint)

    def _target_logits(self, exported: ExportedModel) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the original's logits at the tokens of some reference texts, [t, V], and the file's."""
        model, encoder = self._original.task.model, self._original.encoder
        assert isinstance(model, WritingModel)
        for item in self._items[:_MAX_TARGETS]:
            with torch.inference_mode():
                (logits,) = model.target_logits(encoder, model.collate([item]))
            yield logits, exported.target_logits([item], item.target[None, :-1])[0]

    def _run_original(self, items: Sequence[Item]) -> Sequence[Tensor]:
        """Return the original's outputs for items of single sequences; without heads its hidden states."""
        encoder, context = self._original.encoder, self._original.context
        if self._model.model is not None:
            return self._original.task.model.run(encoder, items, context).per_item

        def states(batch: TaskBatch) -> Sequence[Tensor]:
            return torch.split(encoder(batch.packed), batch.packed.lengths.tolist())

        return run_batched(items, _collate, states, context)


def _answer(predictor: TaskPredictor, items: Sequence[Item], examples: Sequence[Any]) -> _Answers:
    start = perf_counter()
    outputs = predictor.forward(items)
    seconds = perf_counter() - start
    return _Answers(outputs, predictor.decode(outputs, items, examples), seconds)


def _text_items(model: Model) -> list[Item]:
    """Return the sample texts."""
    encodings = model.tokenizer.encode_batch(SAMPLE_TEXTS, max_length=model.folder.config.max_length)
    items = [Item(i, (TokenSequence.from_encoding(encoding),)) for i, encoding in enumerate(encodings)]
    return [item for item in items if item.size]


def _random_items(model: Model) -> list[Item]:
    """Return sequences of random tokens, of very different lengths; half of their segment ids are 1."""
    config = model.folder.config
    lengths = np.minimum(_SAMPLE_LENGTHS, config.max_length)
    tokens = random_texts(model.encoder, model.tokenizer, int(lengths.sum())).tokens.numpy()[: lengths.sum()]
    segments = np.concatenate([np.arange(n) >= n / 2 for n in lengths]).astype(np.int64)
    return items_of(Packed.from_arrays(tokens, segments * (config.type_vocab_size > 1), lengths))


def _collate(items: Sequence[Item]) -> TaskBatch:
    return TaskBatch(pack(items), (1,) * len(items), {}, {})
