"""Examples of multiple choice: a context, a question, or both, and the choices."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.io.sources import Source
from bertsmith.tasks.base import Example, HFCheckpoint, Metadata, TaskData
from bertsmith.tasks.data_checks import check_examples, check_string
from bertsmith.tasks.multiple_choice.choice_rows import check_choices, read_choices
from bertsmith.tasks.results import Diagnostic
from bertsmith.tasks.settings import ChooseSettings


@dataclass(frozen=True)
class ChoiceExample(Example):
    """A question with choices.

    Attributes:
        context: The context; "" if there is none.
        question: The question; "" if there is none.
        choices: The choices; none for a blank row.
        label: The index of the correct choice; None if it is unknown.
        id: The file's id of the example, if it has one.
    """

    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None
    location: str
    id: str | None = None
    table_row: Mapping[str, str] | None = field(default=None, compare=False, repr=False)

    @property
    def group_key(self) -> str:
        """The context, or else the question."""
        return self.context or self.question

    @property
    def question_key(self) -> Hashable:
        """Context, question, and choices in any order."""
        return self.context, self.question, tuple(sorted(self.choices))

    @property
    def is_empty(self) -> bool:
        """True for a blank row."""
        return not self.choices

    @property
    def display_inputs(self) -> dict[str, str]:
        """The question, or else the context."""
        return {"question": self.question} if self.question else {"context": self.context}

    @property
    def label_text(self) -> str | None:
        """The text of the correct choice."""
        return None if self.label is None else self.choices[self.label]


class MultipleChoiceData(TaskData):
    """Rows of a context, a question, choices, and the label; see `read_choices` for the formats."""

    settings: ChooseSettings

    def read(self, source: Source, *, labeled: bool = True) -> list[ChoiceExample]:
        """Return the examples of a source in order."""
        settings = self.settings
        rows = read_choices(
            source,
            labeled=labeled,
            names=settings.file_names,
            delimiter=settings.delimiter,
            header=settings.header,
            encoding=settings.encoding,
        )
        examples = [ChoiceExample(*row) for row in rows]
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
        return [_unlabeled(*row) for row in zip(contexts, questions, choices, locations, strict=True)]

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

    def metadata_from_hf(self, checkpoint: HFCheckpoint) -> Metadata | None:
        """Return no metadata: there is none besides the architecture."""
        return {} if checkpoint.architecture.endswith("ForMultipleChoice") else None


def _unlabeled(context: Any, question: Any, choices: Any, location: str) -> ChoiceExample:
    """Return an example without a label; if `choices` is None, they follow the context behind tabs."""
    check_string(context, "context", location)
    check_string(question, "question", location)
    if isinstance(choices, str) and choices:
        message = f"the choices {choices!r:.60} are a single text"
        hint = "give a list of texts"
        raise InputError("choices_not_a_list", message, location=location, argument="choices", hint=hint)
    if choices is None:
        context, *choices = context.split("\t") if context.strip() else [""]
        if (context or choices) and len(choices) < 2:
            raise InputError(
                "choices_missing",
                "there are no choices",
                location=location,
                argument="choices",
                hint="give them: in Python as a list of texts for each context, in a file as a column, or on the "
                "line of the context with tabs between them",
            )
    choices = list(choices)
    if not choices and not context.strip() and not question.strip():
        return ChoiceExample("", "", (), None, location)
    return ChoiceExample(context, question, check_choices(choices, location), None, location)
