"""What predicts and evaluates by a task, from whatever it answers: one model, or several together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from bertsmith.errors import InputError, option
from bertsmith.inference.output import as_json, format_of, refuse_existing, write_answers
from bertsmith.io.sources import Source
from bertsmith.notebook import Report

if TYPE_CHECKING:
    from bertsmith.inference.answering import Answering
    from bertsmith.tasks.fitted import FittedTask

_SHOWN = 40  # characters of a text in a message


class Predictor:
    """Answers, files of answers and scores, of what `answering` answers."""

    if TYPE_CHECKING:

        @property
        def task(self) -> FittedTask:
            """The task that is answered."""

        @property
        def answering(self) -> Answering:
            """What answers by it."""

    def predict(self, *inputs: Any, **changes: Any) -> list[dict[str, Any]]:
        """One answer for each example. inputs: a list or column (of pandas, polars, pyarrow, numpy) for each of
        the task's `inputs`, all of one length: texts, and for pairs the second texts; questions and passages;
        sentences, each a list of words. Or one table with the columns of training, whose answers are not looked
        at. changes: settings of the task, such as max_length or text_column, for this call.

        An empty text, or a missing one (None, NaN), is answered {"label": None, …, "empty": True}, and a warning
        says how many there are."""
        for values in inputs:
            if isinstance(values, str):
                raise wants_list("predict", values)
        return self.answering.of_inputs(inputs, changes)

    @overload
    def predict_file(
        self, file: Source, *, output: None = None, **columns: Any
    ) -> Iterator[dict[str, Any]]: ...

    @overload
    def predict_file(
        self,
        file: Source,
        *,
        output: str | Path,
        format: str | None = None,
        overwrite: bool = False,
        **columns: Any,
    ) -> Path: ...

    def predict_file(
        self,
        file: Source,
        *,
        output: str | Path | None = None,
        format: str | None = None,
        overwrite: bool = False,
        **columns: Any,
    ) -> Iterator[dict[str, Any]] | Path:
        """`predict` for each example of a file (or of a table in memory), which is read as `evaluate` reads it,
        but for the answers; of a .txt file that is no table, for each line.

        Without `output` an iterator, so that answers of any number need no memory: list(model.predict_file(file))
        has them all. An answer has its line in the file and what was asked; an empty text has none. With `output`
        the answers are written there, and its path is returned: .csv (each row of the file with its answer behind
        it), .jsonl, .json, or .txt, a table for reading. format: csv, json, table, or the form of the task's own
        field (`task.output_format`), whatever the name ends in. overwrite: replace a file that is there.

        columns: settings of the task to change, such as text_column, delimiter or max_length.
        """
        if output is None:
            if format is not None:
                raise InputError(
                    "output_missing",
                    "a format is for an output file only",
                    argument="format",
                    hint=f"name the file with {option('output')}",
                )
            return as_json(self.answering.of_file(file, columns))
        form, out = format_of(output, format, self.task.declaration.output_format), Path(output)
        if not overwrite:
            refuse_existing(out)
        answered = self.answering.of_file(file, columns)
        write_answers(self.task.report, answered, form, self.answering.delimiter_of(file, columns), out)
        return out

    def predict_lines(self, lines: Iterable[bytes], place: str, **changes: Any) -> Iterator[dict[str, Any]]:
        """`predict` for each line of a stream of UTF-8 bytes but the blank ones, some at a time."""
        return as_json(self.answering.of_lines(lines, place, changes))

    def evaluate(self, file: Source, *, report: str | Path | None = None, **columns: Any) -> dict[str, Any]:
        """The task's scores on a labelled file, or on data in memory as `finetune` takes it, as one object.

        report: a new folder for a page of all that there is to see (report.html), its numbers and its plots."""
        from bertsmith.inference.evaluation import evaluate  # it loads what writes pages

        found = evaluate(self.answering, file, columns, report, str(getattr(self, "path", "")))
        return Report(found.to_dict())


def wants_list(verb: str, text: str) -> InputError:
    """The error for a single text in place of a list."""
    shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return InputError(
        "not_a_list",
        f"{verb} takes a list, not a single text",
        hint=f"write {verb}([{json.dumps(shown)}])",
    )
