"""From examples to sequences: `[CLS] context [SEP] question choice [SEP]` for each choice, as for RACE."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from bertsmith.tasks.base import TaskEncoder
from bertsmith.tasks.batching import Item, TokenSequence
from bertsmith.tasks.multiple_choice.choice_rows import ChoiceExample
from bertsmith.tasks.truncation import Coverage
from bertsmith.tasks.windows import NO_LIMIT, single_window
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

_ENCODE_BATCH_SIZE = 512  # examples; untruncated encodings are large


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
