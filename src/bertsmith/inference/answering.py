"""A fine-tuned model's answers and scores: for files, lines, texts and data in memory, all read in one way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.inference.output import Answered, answered_of, told_of_unanswered
from bertsmith.inference.text_input import texts_of_lines
from bertsmith.io.compression import format_suffix
from bertsmith.io.delimited import detect_delimiter
from bertsmith.io.prefetch import growing_batches, prefetch
from bertsmith.io.sources import Source, column_values, is_missing, is_path, is_table, to_source
from bertsmith.models.encoder import Encoder
from bertsmith.settings import Settings
from bertsmith.tasks.batching import Answers, Item, Outputs
from bertsmith.tasks.data_checks import empty_text_diagnostic
from bertsmith.tasks.fitted import FittedTask, check_max_length
from bertsmith.tasks.results import Metrics
from bertsmith.tasks.truncation import TruncationStats
from bertsmith.tokenizer.tokenizer import Tokenizer, validate_texts

_OF_LOADING = ("device", "precision")  # what people give to a verb, and `load` takes
_CHUNK = 1024  # examples that are encoded and answered at a time, so that memory does not grow with the file

Changes = Mapping[str, Any]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answering:
    """A task's model, ready to answer. `changes` are settings of the task for one call, such as max_length.

    check: is called before something is answered."""

    task: FittedTask
    encoder: Encoder
    tokenizer: Tokenizer
    place: ComputeContext
    _: KW_ONLY
    check: Callable[[], None] | None = None

    def of_inputs(self, inputs: Sequence[Any], changes: Changes) -> list[dict[str, Any]]:
        """`Model.predict`: inputs are lists or columns, or one table. InputError where they do not fit."""
        names = self.task.declaration.inputs
        if len(inputs) == 1 and is_table(inputs[0]):
            settings = self._settings(changes, "predict", inputs[0])
            examples = self.read_examples(inputs[0], settings, labeled=False)
            return self._aligned(examples, settings)
        if len(inputs) > len(names):
            raise InputError(
                "too_many_inputs",
                f"predict got {len(inputs)} lists, and the task '{self.task.name}' takes {', '.join(names)}",
                hint="pass one list for each of them",
            )
        columns = {
            name: ["" if is_missing(value) else value for value in column_values(values, name)]
            for name, values in zip(names, inputs, strict=False)
            if values is not None
        }
        return self._aligned(self._examples(columns), self._settings(changes, "predict"))

    def of_file(self, file: Source, changes: Changes) -> Iterator[Answered]:
        """Each example of a file with its answer, None for an empty one. Logs how the file was read, and how many
        examples are empty or truncated."""
        settings = self._settings(changes, "predict", file)
        examples = self.read_examples(file, settings, labeled=False)
        for diagnostic in self.task.data.read_warnings(examples):
            logger.warning("%s", diagnostic.text)
        return self._answered([examples], settings)

    def of_lines(self, lines: Iterable[bytes], place: str, changes: Changes) -> Iterator[Answered]:
        """The same for the lines of a stream of UTF-8 bytes, some at a time."""
        parts = self._in_chunks(texts_of_lines(lines, place))
        return self._answered(parts, self._settings(changes, "predict"))

    def of_texts(self, texts: Sequence[str], changes: Changes) -> Iterator[Answered]:
        """The same for texts, as the command line has them."""
        examples = self._examples({self.task.declaration.inputs[0]: list(texts)})
        return self._answered([examples], self._settings(changes, "predict"))

    def _answered(self, parts: Iterable[Sequence[Any]], settings: Settings) -> Iterator[Answered]:
        """Each example with its answer; logs at the end how much was truncated, and what windows have saved."""
        stats = self.task.with_settings(settings).truncation([])
        yield from answered_of(parts, self.answers(settings, stats))
        for sentence in stats.window_messages():
            logger.info("%s", sentence)

    def delimiter_of(self, file: Source, changes: Changes) -> str:
        """What separates the columns of a .csv, as its answers should have it; a comma for other files."""
        if not is_path(file):
            return ","
        given = getattr(self._settings(changes, "predict", file), "delimiter", None)
        return detect_delimiter(file, given) or "," if format_suffix(file) == ".csv" else ","

    def scores(self, file: Source, changes: Changes) -> Metrics:
        """The task's scores on a labelled file or data in memory."""
        settings, examples = self.labelled(file, changes)
        return self.scored(list(self.answers(settings)(examples)), examples)

    def labelled(self, file: Source, changes: Changes, verb: str = "evaluate") -> tuple[Settings, list[Any]]:
        """The examples of a labelled file or of data in memory, and the settings that they are to be answered
        with."""
        settings = self._settings(changes, verb, file)
        return settings, self.read_examples(file, settings)

    def scored(self, predictions: Sequence[Any], examples: Sequence[Any]) -> Metrics:
        """The scores of answers, with a note on examples where there was nothing to read."""
        metrics = self.task.metrics.compute(predictions, examples)
        empty = [example.location for example in examples if example.is_empty]
        return (
            replace(metrics, notes=[*metrics.notes, empty_text_diagnostic(empty).text]) if empty else metrics
        )

    def _aligned(self, examples: Sequence[Any], settings: Settings) -> list[dict[str, Any]]:
        """An answer for each example; an empty one has an answer that says so, and a warning is logged."""
        answers = self.answers(settings)
        empty = [example for example in examples if example.is_empty]
        if empty:
            logger.warning("%s", told_of_unanswered([example.location for example in empty]))
        of_rest = iter(answers([example for example in examples if not example.is_empty]))
        of_empty = (
            prediction.as_empty() for prediction in answers(empty)
        )  # apart: nobody's batch depends on them
        return [next(of_empty if example.is_empty else of_rest).to_dict() for example in examples]

    def _examples(self, columns: dict[str, list[Any]], places: Sequence[str] | None = None) -> list[Any]:
        """Examples from values that are in no file; each of the task's inputs is needed but the optional ones."""
        task = self.task.declaration
        if missing := [n for n in task.inputs if n not in columns and n not in task.optional_inputs]:
            raise InputError(
                "input_missing",
                f"the task '{task.name}' also takes {' and '.join(missing)}",
                hint="pass a list of each, or a table or a file with these columns",
            )
        number = len(next(iter(columns.values())))
        if wrong := [name for name, values in columns.items() if len(values) != number]:
            raise InputError(
                "length_mismatch",
                f"'{wrong[0]}' has {len(columns[wrong[0]]):,} values, and there are {number:,} examples",
                hint="pass lists of one length",
            )
        for values in columns.values():
            if all(isinstance(value, str) for value in values):
                list(validate_texts(values))  # refuses what is none, with its number among all
        return self.task.data.from_inputs(columns, places or [f"text {i + 1}" for i in range(number)])

    def _in_chunks(self, lines: Iterator[tuple[str, str]]) -> Iterator[list[Any]]:
        for some in in_chunks(lines):
            texts = [text for _, text in some]
            yield self._examples({self.task.declaration.inputs[0]: texts}, [place for place, _ in some])

    def read_examples(self, source: Source, settings: Settings, *, labeled: bool = True) -> list[Any]:
        """Return the examples of a file, or of data in memory with the columns that the settings name."""
        data = self.task.with_settings(settings).data
        return data.read(to_source(source, "data", data.tuple_columns), labeled=labeled)

    def _settings(self, changes: Changes, verb: str, file: Source = "") -> Settings:
        """The settings of training with those given; a .tsv file has tabs whatever the training file had."""
        given = {name: value for name, value in changes.items() if value is not None}
        known = self.task.declaration.settings_type.model_fields
        for name in _OF_LOADING:
            if name in given and name not in known:
                raise InputError(
                    "not_a_task_setting",
                    f"{verb} has no setting '{name}'",
                    argument=name,
                    hint=f"pass it where the model is loaded: {option(name, given[name])}",
                )
        if is_path(file) and format_suffix(file) == ".tsv" and "delimiter" in known:
            given.setdefault("delimiter", None)
        settings = self.task.declaration.settings_type.of(self.task.settings.model_dump() | given, verb)
        if "max_length" in given:
            check_max_length(settings, self.encoder.config.max_length)
        return settings

    def answers(
        self, settings: Settings, stats: TruncationStats | None = None
    ) -> Callable[[Sequence[Any]], Iterator[Any]]:
        """Return a function from examples to their predictions under these settings, which adds to `stats`."""

        def answers(examples: Sequence[Any]) -> Iterator[Any]:
            for chunk in self.in_turn(examples, settings, stats):
                yield from chunk.predictions

        return answers

    def answers_of(self, examples: Sequence[Any], settings: Settings) -> list[Any]:
        """Return the predictions for examples that are held in memory."""
        return self.with_outputs(examples, settings).predictions

    def with_outputs(self, examples: Sequence[Any], settings: Settings) -> Answers:
        """The same, with all that they were made of."""
        return self._made(examples, self.read(examples, settings), settings)

    def in_turn(
        self, examples: Sequence[Any], settings: Settings, stats: TruncationStats | None = None
    ) -> Iterator[Answers]:
        """Yield the answers to chunks of examples; the next chunk is encoded while one is answered.

        Args:
            examples: The examples.
            settings: The task's settings.
            stats: Statistics to add to.
        """
        task = self.task.with_settings(settings)
        with closing(prefetch(in_chunks(examples), lambda chunk: self.read(chunk, settings))) as chunks:
            for chunk, items in chunks:
                answers = self._made(chunk, items, settings)
                if stats is not None:
                    stats.add(task.truncation(answers.items))
                yield answers

    def read(self, examples: Sequence[Any], settings: Settings) -> Any:
        """What the model reads of some examples: their items."""
        return self.task.with_settings(settings).encode(examples, self.tokenizer)

    def outputs_of(self, task: FittedTask, items: Sequence[Item]) -> Outputs:
        """Return the model's outputs for items."""
        if self.check is not None:
            self.check()
        return task.model.run(self.encoder, items, self.place)

    def _made(self, examples: Sequence[Any], read: Any, settings: Settings) -> Answers:
        """The answers to what was read."""
        task = self.task.with_settings(settings)
        outputs = self.outputs_of(task, read)
        return Answers(outputs, read, examples, task.decoder.decode(outputs, read, examples))


def in_chunks(examples: Iterable[Any]) -> Iterator[Sequence[Any]]:
    """As many at a time as are encoded and answered together."""
    return growing_batches(examples, _CHUNK)
