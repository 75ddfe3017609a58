"""The sequences of the choices, the multiple-choice head (the pooler and one vector), and decoding.

There is a sequence `[CLS] context [SEP] question choice [SEP]` for each choice, as for RACE, and a softmax over
the choices of each example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertsmith.loss import Loss, classification_loss, distillation_kl
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.task_heads import MultipleChoiceHead
from bertsmith.tasks.base import Metadata, SoftmaxDecoder, TaskEncoder, TaskModel
from bertsmith.tasks.batching import Item, Outputs, TaskBatch, TokenSequence
from bertsmith.tasks.multiple_choice.data import ChoiceExample
from bertsmith.tasks.results import OMIT_IF_NONE, Prediction
from bertsmith.tasks.settings import ChooseSettings
from bertsmith.tasks.targets import Target, class_target
from bertsmith.tasks.windows import NO_LIMIT, Coverage, single_window
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


class MultipleChoiceModel(TaskModel):
    """One logit per choice."""

    has_choices = True

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: ChooseSettings
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        self.head = MultipleChoiceHead(config, generator)

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return `label`, int64 [B]: an index among each item's choices."""
        if any(item.target is None for item in items):
            return {}, {}
        return {"label": torch.tensor([item.target for item in items])}, {"task": len(items)}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the summed cross-entropy over each example's choices."""
        outputs = list(self.outputs(encoder, batch))
        logits = pad_sequence(outputs, batch_first=True, padding_value=-torch.inf)  # [B, most choices]
        return classification_loss(logits, batch.tensors["label"], batch.counts)

    def logits(self, encoder: Encoder, batch: TaskBatch) -> Tensor:
        """Return the fp32 logits of all choices, [sequences]."""
        logits: Tensor = self.head(self.features.sequence_features(encoder, batch.packed))
        return logits.float()

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return the logits [n] of each item's n choices."""
        return torch.split(self.logits(encoder, batch), list(batch.sizes))

    def distillation_loss(
        self, outputs: Sequence[Tensor], targets: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Return the divergence over each example's choices."""
        pairs = zip(outputs, targets, strict=True)
        return torch.stack([distillation_kl(a, b, temperature) for a, b in pairs]).sum()


@dataclass
class ChoicePrediction(Prediction):
    """A choice. The counts of tokens are those of the sequence that was cut most.

    Attributes:
        id: The file's id of the example.
        choice: The index of the choice.
        text: The text of the choice.
        score: The probability of the choice.
        scores: The probabilities of all choices.
    """

    id: str | None = field(default=None, metadata=OMIT_IF_NONE)
    choice: int | None = None
    text: str | None = None
    score: float | None = None
    scores: list[float] = field(default_factory=list)


class MultipleChoiceDecoder(SoftmaxDecoder):
    """The most probable choice; of equal ones the first."""

    def target(self, output: Tensor, item: Item, name: str | None) -> Target:
        """Return the logit of a choice, named by its index."""
        return class_target(output, [str(index) for index in range(len(output))], name)

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[ChoiceExample]
    ) -> list[ChoicePrediction]:
        """Return the choice of each example."""
        predictions = [ChoicePrediction(example.id, tokens=0, tokens_read=0) for example in examples]
        for logits, item in zip(outputs.per_item, items, strict=True):
            example, scores = examples[item.example], logits.softmax(0).tolist()
            best = max(range(len(scores)), key=scores.__getitem__)
            predictions[item.example] = ChoicePrediction(
                example.id,
                best,
                example.choices[best],
                scores[best],
                scores,
                **most_truncated(item).token_counts,
            )
        return predictions
