"""Examples of multiple choice: a context, a question, or both, and the choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.io.sources import Source
from bertsmith.tasks.base import Metadata, TaskData
from bertsmith.tasks.data_checks import check_examples, check_string
from bertsmith.tasks.multiple_choice.choice_rows import ChoiceExample, check_choices, read_choices
from bertsmith.tasks.results import Diagnostic
from bertsmith.tasks.settings import ChooseSettings


class MultipleChoiceData(TaskData):
    """Rows of a context, a question, choices, and the label; see `read_choices` for the formats."""

    settings: ChooseSettings

    def read(self, source: Source, *, labeled: bool = True) -> list[ChoiceExample]:
        """Return the examples of a source in order."""
        examples = list(read_choices(source, self.settings, labeled=labeled))
        check_examples(examples, source, "questions")
        return examples

    def from_inputs(
        self, columns: Mapping[str, Sequence[Any]], locations: Sequence[str]
    ) -> list[ChoiceExample]:
        """Return examples of contexts, lists of choices, and optionally questions.

        Without `choices` each context is one text with its choices behind it, separated by tabs.
        """
        contexts = columns["context"]
        questions = columns.get("question") or [""] * len(contexts)
        choices = columns.get("choices") or [None] * len(contexts)
        return [_unlabeled_example(*row) for row in zip(contexts, questions, choices, locations, strict=True)]

    def to_row(self, example: ChoiceExample) -> dict[str, Any]:
        """Return the context, the question, the choices, and the index of the correct one."""
        settings, names = self.settings, self.settings.choice_columns
        row: dict[str, Any] = {} if example.id is None else {"id": example.id}
        row[settings.context_column or "context"] = example.context
        row[settings.question_column or "question"] = example.question
        row |= (
            zip_longest(names, example.choices, fillvalue="")
            if len(names) > 1
            else {names[0]: list(example.choices)}
        )
        label = None if example.label is None else example.label + settings.first_index
        return {**row, settings.label_column or "label": label}

    def tuple_columns(self, num_values: int) -> list[str]:
        """Return the columns of the context, optionally the question, the choices, and the label."""
        settings, choices = self.settings, self.settings.choice_columns
        question = [settings.question_column or "question"] if num_values > 2 + len(choices) else []
        label = settings.label_column or "label"
        return [settings.context_column or "context", *question, *choices, label]

    def read_warnings(self, examples: Sequence[ChoiceExample]) -> list[Diagnostic]:
        """Return the choices without text."""
        blank = [e.location for e in examples for choice in e.choices if not choice.strip()]
        message = f"{pluralize(len(blank), 'choice has', 'choices have')} no text"
        return [Diagnostic("choices without any text", message, blank)] if blank else []

    def metadata_from_hf(self, folder: ModelFolder) -> Metadata | None:
        """Return no metadata: there is none besides the architecture."""
        return {} if folder.architecture.endswith("ForMultipleChoice") else None


def _unlabeled_example(context: Any, question: Any, choices: Any, location: str) -> ChoiceExample:
    """Return an example without a label; if `choices` is None, they follow the context behind tabs."""
    check_string(context, "context", location)
    check_string(question, "question", location)
    if isinstance(choices, str) and choices:
        message, hint = f"the choices {choices!r:.60} are a single text", "give a list of texts"
        raise InputError("choices_not_a_list", message, location=location, argument="choices", hint=hint)
    if choices is None:
        context, *choices = context.split("\t") if context.strip() else [""]
        if (context or choices) and len(choices) < 2:
            message = "there are no choices"
            hint = "give a list of texts for each context; in a file, a column; on a line, tabs before them"
            raise InputError("choices_missing", message, location=location, argument="choices", hint=hint)
    if not choices and not context.strip() and not question.strip():
        return ChoiceExample("", "", (), None, location)
    return ChoiceExample(context, question, check_choices(list(choices), location), None, location)
