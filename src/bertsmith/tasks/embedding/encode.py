"""The sequences of a query and its passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bertsmith.tasks.base import TaskEncoder
from bertsmith.tasks.batching import Item, TokenSequence
from bertsmith.tasks.embedding.data import EmbeddingExample, target
from bertsmith.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class EmbeddingItem(Item):
    """The sequences of a query, its positives, and its negatives.

    Attributes:
        num_positives: The number of positives.
        positive_keys: The keys of all positives of the example.
    """

    num_positives: int = 0
    positive_keys: frozenset[bytes] = frozenset()

    def in_epoch(self, epoch: int) -> EmbeddingItem:
        """Return the item with one of its positives and one of its negatives, which change with the epoch."""
        query, *others = self.sequences
        parts = (others[: self.num_positives], others[self.num_positives :])
        passages = [part[epoch % len(part)] for part in parts if part]
        return replace(self, sequences=(query, *passages), num_positives=min(1, self.num_positives))


class EmbeddingEncoder(TaskEncoder):
    """Encode [CLS] text [SEP] for each text of an example, truncated."""

    def encode(self, examples: Sequence[EmbeddingExample], tokenizer: Tokenizer) -> list[Item]:
        """Return one item for each example; equal texts share a sequence."""
        texts = list(dict.fromkeys(text for example in examples for text in example.texts))
        encodings = tokenizer.encode_batch(texts, max_length=self.max_length, with_offsets=False)
        sequences = dict(zip(texts, map(TokenSequence.from_encoding, encodings), strict=True))
        return [
            EmbeddingItem(
                index,
                tuple(sequences[text] for text in example.texts),
                target(example, self.metadata),
                num_positives=len(example.positives),
                positive_keys=frozenset(sequence_key(sequences[text]) for text in example.positives),
            )
            for index, example in enumerate(examples)
        ]


def sequence_key(sequence: TokenSequence) -> bytes:
    """Return a key of a sequence; equal sequences have equal embeddings."""
    return sequence.ids.tobytes()
