"""Multiple choice as sequences: one `[CLS] context [SEP] question choice [SEP]` for each choice, as for RACE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.io.sources import Source
from bertsmith.tasks.base import Metadata, TaskData, TaskEncoder
from bertsmith.tasks.batching import Item, TokenSequence
from bertsmith.tasks.data_checks import check_examples, check_string
from bertsmith.tasks.multiple_choice.choice_rows import ChoiceExample, check_choices, read_choices
from bertsmith.tasks.results import Diagnostic
from bertsmith.tasks.settings import ChooseSettings
from bertsmith.tasks.windows import NO_LIMIT, Coverage, single_window
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

_ENCODE_BATCH_SIZE = 512  # examples; untruncated encodings are large


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


class MultipleChoiceEncoder(TaskEncoder):
    """Read each choice with its context; an item has one sequence per choice.

    A text that does not fit is cut at the context's end, so that choices are read completely. Only if question and
    choice alone are too long, they lose their end, too.
    """

    def encode(self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer) -> list[Item]:
        """Return one item per example; none for an example without choices."""
        items = []
        indexed = [(index, example) for index, example in enumerate(examples) if example.choices]
        for start in range(0, len(indexed), _ENCODE_BATCH_SIZE):
            batch = indexed[start : start + _ENCODE_BATCH_SIZE]
            pairs = [pair for _, example in batch for pair in text_pairs(example)]
            firsts, seconds = zip(*pairs, strict=True)
            encodings = tokenizer.encode_batch(firsts, seconds, max_length=NO_LIMIT)
            sequences = (
                _truncate(encoding, self.max_length, pair, tokenizer)
                for encoding, pair in zip(encodings, pairs, strict=True)
            )
            items += [
                Item(index, tuple(islice(sequences, len(example.choices))), example.label)
                for index, example in batch
            ]
        return items

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """Return how much is read of the sequence that is cut most."""
        sequence = most_truncated(items[0])
        return Coverage(sequence.tokens, sequence.tokens_read)


def text_pairs(example: ChoiceExample) -> list[tuple[str, str]]:
    """Return for each choice the text before the separator and the text behind it."""
    if example.context and example.question:
        return [(example.context, f"{example.question} {choice}") for choice in example.choices]
    return [(example.context or example.question, choice) for choice in example.choices]


def most_truncated(item: Item) -> TokenSequence:
    """Return the sequence that lost the most tokens; of equal ones the longest."""
    return max(item.sequences, key=lambda sequence: (sequence.tokens - sequence.tokens_read, sequence.tokens))


def _truncate(
    encoding: Encoding, max_length: int, pair: tuple[str, str], tokenizer: Tokenizer
) -> TokenSequence:
    """Return a sequence without the end of the first text, of which at least one token stays.

    If the second text alone is too long, the longer text is shortened until both fit.
    """
    excess, first_length = len(encoding.ids) - max_length, encoding.sequence_ids.count(0)
    if excess <= 0:
        return TokenSequence.from_encoding(encoding)
    if excess < first_length:
        return single_window(encoding, 0, first_length - excess).sequence
    return TokenSequence.from_encoding(tokenizer.encode(*pair, max_length=max_length))
