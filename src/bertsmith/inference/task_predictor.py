"""Predict and evaluate by a task: examples of files, lines, texts, and data in memory are read in one way."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, overload

from bertsmith.errors import InputError, option
from bertsmith.inference.output import Answered, output_format, prediction_objects, write_predictions
from bertsmith.inference.predictor import Predictor, with_batch_size
from bertsmith.inference.text_input import log_empty, texts_of_lines
from bertsmith.io import atomic
from bertsmith.io.compression import format_suffix
from bertsmith.io.delimited import detect_delimiter
from bertsmith.io.prefetch import growing_batches
from bertsmith.io.sources import Source, column_values, is_path, is_table, name_of, to_source
from bertsmith.io.values import is_missing
from bertsmith.tasks.base import Example
from bertsmith.tasks.batching import Item, Outputs
from bertsmith.tasks.data_checks import empty_text_diagnostic, find_validation_examples
from bertsmith.tasks.fitted_task import FittedTask, check_max_length
from bertsmith.tasks.results import Metrics, Prediction
from bertsmith.tasks.windows import TextStats
from bertsmith.tokenizer.tokenizer import validate_texts

Changes = Mapping[str, Any]
"""Settings of one call: settings of the task, and `batch_size`; None leaves a setting as it is."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskPredictor(Predictor):
    """Answers examples of a task.

    Attributes:
        task: The task, with the settings of the call.
        validation_digests: The digests of the validation examples that chose the weights, if they are recorded.
    """

    task: FittedTask
    validation_digests: frozenset[str] = field(default=frozenset(), kw_only=True)

    # The steps

    def preprocess(self, requests: Sequence[Any]) -> Any:
        """Return the items of examples."""
        return self.task.encode(requests, self.tokenizer)

    def forward(self, prepared: Any) -> Outputs:
        """Return the outputs of items."""
        return self.task.model.run(self.encoder, prepared, self.context)

    def decode(self, outputs: Outputs, items: Sequence[Item], requests: Sequence[Any]) -> list[Any]:
        """Return the predictions."""
        return self.task.decoder.decode(outputs, items, requests)

    def shares_forward(self, other: Predictor) -> bool:
        """Return True for the same weights: the settings of a call concern the other steps only."""
        return isinstance(other, TaskPredictor) and self.task.model is other.task.model

    # Settings and examples

    def with_settings(self, changes: Changes, caller: str = "predict", source: Source = "") -> Self:
        """Return a predictor with other settings.

        Args:
            changes: The settings to change.
            caller: The name of the function that takes the settings, for errors.
            source: The data; a .tsv is delimited by tabs whatever the training file was delimited by.
        """
        values = {name: value for name, value in changes.items() if value is not None}
        fields = self.task.declaration.settings_type.model_fields
        batch_size = values.pop("batch_size", None)
        if is_path(source) and format_suffix(source) == ".tsv" and "delimiter" in fields:
            values.setdefault("delimiter", None)
        predictor = self._with(values, caller, batch_size)
        if "max_length" in values:
            check_max_length(predictor.task.settings, self.encoder.config.max_length)
        return predictor

    def _with(self, values: Changes, caller: str, batch_size: int | None) -> Self:
        settings = self.task.declaration.settings_type.of(
            {**self.task.settings.model_dump(), **values}, caller
        )
        context = with_batch_size(self.context, batch_size)
        return replace(self, task=self.task.with_settings(settings), context=context)

    def read(self, source: Source, *, labeled: bool = True) -> list[Any]:
        """Return the examples of a file, or of data in memory with the columns that the settings name."""
        data = self.task.data
        return data.read(to_source(source, "data", data.tuple_columns), labeled=labeled)

    def examples(
        self, inputs: Mapping[str, Sequence[Any]], locations: Sequence[str] | None = None
    ) -> list[Any]:
        """Return the examples of lists of equal length, one for each input of the task.

        Args:
            inputs: The lists by the names of `Task.inputs`; optional ones may be missing.
            locations: The location of each example; None: "text 1", ….
        """
        task = self.task.declaration
        if missing := [n for n in task.inputs if n not in inputs and n not in task.optional_inputs]:
            message = f"the task '{task.name}' also takes {' and '.join(missing)}"
            hint = "pass a list of each, or a table or a file with these columns"
            raise InputError("input_missing", message, hint=hint)
        count = len(next(iter(inputs.values())))
        for name, values in inputs.items():
            if len(values) != count:
                message = f"'{name}' has {len(values):,} values, and there are {count:,} examples"
                raise InputError("length_mismatch", message, hint="pass lists of one length")
            if all(isinstance(value, str) for value in values):
                list(validate_texts(values))
        return self.task.data.from_inputs(inputs, locations or [f"text {i + 1}" for i in range(count)])

    def examples_of_lines(self, lines: Iterable[bytes], location: str) -> Iterator[Any]:
        """Yield the example of each line of a stream of UTF-8 bytes."""
        for chunk in growing_batches(texts_of_lines(lines, location), self.chunk_size):
            texts = [text for _, text in chunk]
            yield from self.examples({self.task.declaration.inputs[0]: texts}, [at for at, _ in chunk])

    # Answers

    def answered(self, examples: Iterable[Example]) -> Iterator[Answered]:
        """Yield each example with its prediction, None if it is empty; log empty and truncated texts."""
        waiting: deque[Example] = deque()
        empty: list[str] = []
        stats = self.task.text_stats(self.tokenizer)

        def nonempty() -> Iterator[Example]:
            for example in examples:
                waiting.append(example)
                if example.is_empty:
                    empty.append(example.location)
                else:
                    yield example

        for answers in self.answers(nonempty()):
            stats.add(answers.items, answers.examples)
            for prediction in answers.predictions:
                while waiting[0].is_empty:
                    yield Answered(waiting.popleft(), None)
                yield Answered(waiting.popleft(), prediction)
        yield from (Answered(example, None) for example in waiting)
        log_empty(empty, "not predicted")
        stats.log()

    def answered_file(self, file: Source) -> Iterator[Answered]:
        """Yield each example of a file or table with its prediction; log how it was read."""
        examples = self.read(file, labeled=False)
        for diagnostic in self.task.data.read_warnings(examples):
            logger.warning("%s", diagnostic.text)
        return self.answered(examples)

    def predict_all(self, examples: Sequence[Example]) -> list[Prediction]:
        """Return a prediction per example; that of an empty one says so, and is logged."""
        predictions = [answered.prediction for answered in self.answered(examples)]
        # Predicted by themselves, so that no other example shares a batch with them.
        empties = self.predict_stream(example for example in examples if example.is_empty)
        return mark_empty([next(empties) if p is None else p for p in predictions], examples)

    def for_python(self, predictions: list[Any]) -> list[Any]:
        """Return predictions with scores as dicts, and integers as labels if those of the training data were."""
        has_integers = self.task.metadata.get("integer_labels")
        for prediction in predictions:
            if isinstance(scores := getattr(prediction, "scores", None), Mapping):
                prediction.scores = {int(k) if has_integers else k: score for k, score in scores.items()}
            if has_integers and getattr(prediction, "label", None) is not None:
                prediction.label = int(prediction.label)
            if has_integers and getattr(prediction, "labels", None) is not None:
                prediction.labels = [int(label) for label in prediction.labels]
        return predictions

    def metrics(self, predictions: Sequence[Any], examples: Sequence[Any], stats: TextStats) -> Metrics:
        """Return the metrics of predictions, with notes on what is not read of texts and on empty examples."""
        metrics = self.task.score(predictions, examples, stats)
        empty = [example.location for example in examples if example.is_empty]
        diagnostics = [
            *self.task.data.read_warnings(examples),
            *([empty_text_diagnostic(empty)] if empty else []),
        ]
        return replace(metrics, notes=[*metrics.notes, *(diagnostic.text for diagnostic in diagnostics)])

    def warn_of_validation(self, examples: Sequence[Any]) -> None:
        """Log a warning if these examples chose the weights."""
        for diagnostic in find_validation_examples(examples, self.validation_digests):
            logger.warning("%s", diagnostic.text)

    def evaluate_examples(
        self, examples: Sequence[Any], *, with_losses: bool = False
    ) -> tuple[Metrics, list[Any], list[float | None], TextStats]:
        """Return the metrics, the predictions, the losses if requested, and the statistics of the texts.

        Validation examples of the model are logged.
        """
        self.warn_of_validation(examples)
        predictions: list[Any] = []
        losses: list[float | None] = []
        stats = self.task.text_stats(self.tokenizer)
        for answers in self.answers(examples):
            predictions += answers.predictions
            losses += self.task.metrics.example_losses(answers) if with_losses else []
            stats.add(answers.items, answers.examples)
        return self.metrics(predictions, examples, stats), predictions, losses, stats


class TaskInterface(ABC):
    """The methods of a fine-tuned model, or of an ensemble, for its task."""

    @property
    @abstractmethod
    def predictor(self) -> TaskPredictor:
        """The predictor of the task."""

    @property
    def task(self) -> FittedTask:
        """The task. Raises InputError if the model was not fine-tuned for one."""
        return self.predictor.task

    def predict(self, *inputs: Any, batch_size: int | None = None, **settings: Any) -> Any:
        """Predict answers.

        Args:
            inputs: Texts: a string, a list, or a column of any library (pandas, polars, pyarrow, NumPy). Tasks
                with several inputs take one argument for each, by position or by name, such as `text_pair=` or
                `question=` and `context=`. A sentence may be a list of words: `predict([["EU", "rejects"]])`. Or
                one table with the columns of the training data, whose labels are ignored.
            batch_size: The maximum number of sequences per forward pass; None: as many as a budget of tokens
                allows.
            settings: Further inputs, and settings of the task for this call, such as max_length or text_column.

        Returns:
            A `Prediction` for a single example; for a list or table a list of predictions in order. The prediction
            of an empty or missing text has `empty=True` and no answer, and a warning is logged.
        """
        predictor = self.predictor
        names = predictor.task.declaration.inputs
        if len(inputs) > len(names):
            task = predictor.task.name
            message = f"predict got {len(inputs)} inputs, and the task '{task}' takes {', '.join(names)}"
            hint = "pass one list for each of them"
            raise InputError("too_many_inputs", message, hint=hint)
        values = dict(zip(names, inputs, strict=False))
        values |= {name: settings.pop(name) for name in names if name in settings}
        settings["batch_size"] = batch_size
        values = {name: value for name, value in values.items() if value is not None}
        first = next(iter(values.values()), None)
        if is_single := isinstance(first, str):
            values = {name: [value] for name, value in values.items()}
        if len(values) == 1 and is_table(first):
            predictor = predictor.with_settings(settings, "predict", first)
            examples = predictor.read(first, labeled=False)
        else:
            predictor = predictor.with_settings(settings)
            examples = predictor.examples(to_columns(values))
        predictions = predictor.for_python(predictor.predict_all(examples))
        return predictions[0] if is_single else predictions

    @overload
    def predict_file(
        self, file: Source, *, output: None = None, **settings: Any
    ) -> Iterator[dict[str, Any]]: ...

    @overload
    def predict_file(
        self,
        file: Source,
        *,
        output: str | Path,
        format: str | None = None,
        overwrite: bool = False,
        **settings: Any,
    ) -> Path: ...

    def predict_file(
        self,
        file: Source,
        *,
        output: str | Path | None = None,
        format: str | None = None,
        overwrite: bool = False,
        **settings: Any,
    ) -> Iterator[dict[str, Any]] | Path:
        """Predict answers for the examples of a file or table, or for the lines of a .txt.

        Args:
            file: The file, read as `evaluate` reads it, except that labels are ignored.
            output: The file to write: .csv (the rows of the input with predictions), .jsonl, or .json.
            format: csv, json, or the official format of the task; None: by the suffix of `output`.
            overwrite: Replace an existing file.
            settings: Settings of the task for this call, such as text_column, delimiter, or max_length.

        Returns:
            The path of the output; without `output`, an iterator of dicts with the line, the inputs, and the
            prediction of each example that is not empty. It holds some examples in memory at a time.
        """
        predictor = self.predictor.with_settings(settings, "predict", file)
        if output is None:
            if format is not None:
                hint = f"name the file with {option('output')}"
                raise InputError(
                    "output_missing", "a format is for an output file only", argument="format", hint=hint
                )
            return prediction_objects(predictor.answered_file(file))
        format, path = output_format(output, format, predictor.task.declaration.output_format), Path(output)
        atomic.check_output_file(path, overwrite=overwrite)
        answered = predictor.answered_file(file)
        write_predictions(predictor.task.report, answered, format, delimiter_of(file, predictor.task), path)
        return path

    def evaluate(
        self,
        data: Source,
        *,
        report: str | Path | None = None,
        batch_size: int | None = None,
        **settings: Any,
    ) -> Metrics:
        """Score the predictions for labeled data.

        Args:
            data: A file, or data in memory, in a format of the task.
            report: A new folder for a page (report.html), its numbers, and its plots.
            batch_size: The maximum number of sequences per forward pass.
            settings: Settings of the task for this call, such as text_column or max_length.

        Returns:
            The metrics, which are also attributes: `model.evaluate("test.csv").accuracy`.
        """
        settings["batch_size"] = batch_size
        predictor = self.predictor.with_settings(settings, "evaluate", data)
        if report is None:
            return predictor.evaluate_examples(predictor.read(data))[0]
        atomic.check_output_folder(Path(report), in_place=True, argument="report")
        return _evaluation_report(predictor, data, Path(report), str(getattr(self, "path", "")))


def _evaluation_report(predictor: TaskPredictor, source: Source, folder: Path, model: str) -> Metrics:
    """Evaluate a model and write the report: report.html, report.json, and figures.

    Args:
        predictor: The predictor of the model.
        source: The labeled data.
        folder: The new folder.
        model: The name of the model in the report.
    """
    from bertsmith.reports.run import StepTimer, write_figures, write_report
    from bertsmith.tasks.report import prediction_report

    steps, task = StepTimer(), predictor.task
    with steps.step("reading the file"):
        examples = predictor.read(source)
    with steps.step("predicting and scoring"):
        metrics, predictions, losses, stats = predictor.evaluate_examples(examples, with_losses=True)
    with steps.step("the report"):
        empty = [example.location for example in examples if example.is_empty]
        diagnostics = [
            *find_validation_examples(examples, predictor.validation_digests),
            *task.data.read_warnings(examples),
            *([empty_text_diagnostic(empty)] if empty else []),
        ]
        values = {
            "task": task.name,
            "model": model,
            "data": name_of(source, "data"),
            "decided_by": task.primary_metric,
            "scores": metrics.to_dict(),
            "answers": prediction_report(task.report, metrics, predictions, examples, losses),
            "lengths": {"data": stats.lengths()},
            "truncation": {"data": stats.to_dict()},
            "findings": [diagnostic.to_dict() for diagnostic in diagnostics],
            "settings": {"task": task.settings.model_dump(mode="json")},
        }
        figures = write_figures(folder, values)
    write_report(folder, values | {"wall_time": steps.to_list()}, figures)
    logger.info("%s: open this report in a browser", folder / "report.html")
    return metrics


def delimiter_of(file: Source, task: FittedTask) -> str:
    """Return the delimiter of a .csv file, which its predictions get, too; a comma for other data."""
    if not is_path(file) or format_suffix(file) != ".csv":
        return ","
    return detect_delimiter(file, getattr(task.settings, "delimiter", None)) or ","


def to_columns(inputs: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values of lists or columns by the name of the input, with empty texts for missing values."""
    return {
        name: ["" if is_missing(value) else value for value in column_values(column, name)]
        for name, column in inputs.items()
    }


def mark_empty(predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Prediction]:
    """Return the predictions, of which those of empty examples say so and have no answer."""
    pairs = zip(predictions, examples, strict=True)
    return [prediction.as_empty() if example.is_empty else prediction for prediction, example in pairs]
