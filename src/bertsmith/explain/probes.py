"""Linear probes: how well a linear classifier reads the label of a word from its state in each layer.

A probe may learn labels of words by heart. Its selectivity is its accuracy minus that on a control task (Hewitt
and Liang 2019), in which each word has a random label wherever it occurs, drawn by the frequencies of the labels.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith import rng
from bertsmith.device import ComputeContext
from bertsmith.explain.span_states import SpanItem, compute_span_states
from bertsmith.io import atomic
from bertsmith.io.sources import Source
from bertsmith.models.encoder import Encoder
from bertsmith.notebook import Result
from bertsmith.tasks.registry import TASKS, get_task
from bertsmith.tokenizer.tokenizer import Tokenizer

Ids = NDArray[np.int64]

_NUM_STEPS, _BATCH_SIZE, _LEARNING_RATE, _WEIGHT_DECAY = 1200, 256, 3e-3, 1e-3
_PIPELINE = "token-classification"  # of the task whose data have a label for each word
_MAX_BYTES = 1 << 29  # of the states that are in memory at once


@dataclass(frozen=True)
class LabeledWords:
    """Words with labels, in the order of their states.

    Attributes:
        words: The n words.
        labels: The id of the label of each, int64 [n].
        states: Computes the states in some layers, float32 [layers, n, H].
    """

    words: Sequence[str]
    labels: Ids
    states: Callable[[Sequence[int]], NDArray[np.float32]]


@dataclass(frozen=True)
class LayerProbe:
    """The probes of a layer.

    Attributes:
        layer: The layer; 0 is the output of the embeddings.
        accuracy: The accuracy on the validation words.
        control_accuracy: That of a probe of the same kind on the control task.
        selectivity: The difference.
    """

    layer: int
    accuracy: float
    control_accuracy: float
    selectivity: float


@dataclass(frozen=True)
class ProbeReport(Result):
    """Linear probes of each layer.

    Attributes:
        layers: The probes.
        majority: The accuracy of the most frequent label.
        word_majority: The accuracy of the most frequent label of each word, and of the most frequent label for
            words that training does not have.
        train_words: The number of training words.
        validation_words: The number of validation words.
        labels: The number of labels.
    """

    display_fields: ClassVar = ("layers", "majority", "word_majority")

    layers: list[LayerProbe]
    majority: float
    word_majority: float
    train_words: int
    validation_words: int
    labels: int

    def plot(self, file: str | Path) -> Path:
        """Draw the accuracies by layer to a PNG; return its path."""
        from bertsmith.reports.page import check_suffix
        from bertsmith.reports.result_plots import plot_probes

        check_suffix(file, suffixes=(".png",))

        rows = {
            "accuracy": [row.accuracy for row in self.layers],
            "control task": [row.control_accuracy for row in self.layers],
        }
        with atomic.write_errors(file):
            atomic.write_bytes(Path(file), plot_probes(rows, self.word_majority))
        return Path(file)


def read_labeled_words(
    encoder: Encoder,
    tokenizer: Tokenizer,
    context: ComputeContext,
    train: Source,
    validation: Source,
    *,
    settings: dict[str, Any],
    max_words: int,
    seed: int,
) -> tuple[LabeledWords, LabeledWords]:
    """Read sentences with a label for each word, in the formats of the task of such labels.

    A word's state is that of its first token. Words without a token are left out.

    Args:
        encoder: The encoder of the states.
        tokenizer: Its tokenizer.
        context: The device.
        train: The training data.
        validation: The validation data.
        settings: Settings of the task, such as the column of the labels.
        max_words: The number of words of random sentences to use of each.
        seed: The seed of the choice of sentences.
    """
    task = next(task for task in map(get_task, TASKS) if task.pipeline_tag == _PIPELINE)
    task_settings = task.settings_type().changed(settings)
    data = task.part("data")(task_settings, {})
    examples = data.read(train)
    metadata = data.fit_metadata(examples, None)
    data = task.part("data")(task_settings, metadata)
    items_of = task.part("encoder")(encoder.config, metadata, task_settings)

    def select(examples: Sequence[Any]) -> LabeledWords:
        items: list[SpanItem] = []
        words: list[str] = []
        labels: list[int] = []
        for index in rng.permutation(seed, "probe sentences", len(examples)).tolist():
            if len(words) >= max_words:
                break
            example = examples[index]
            for item in items_of.encode([example], tokenizer):
                spans = tuple((token, token + 1) for token in item.token_indices)
                items.append(SpanItem(len(items), item.sequences, spans=spans))
                words += [example.words[word] for word in item.words]
                labels += item.target
        return LabeledWords(words, np.array(labels), partial(compute_span_states, encoder, context, items))

    return select(examples), select(data.read(validation))


def probe_layers(
    train: LabeledWords, validation: LabeledWords, num_layers: int, hidden_size: int, seed: int
) -> ProbeReport:
    """Train and score a probe and a control probe for each layer.

    Args:
        train: The training words.
        validation: The validation words.
        num_layers: The number of layers, L; layer 0 is the output of the embeddings.
        hidden_size: The size of a state, H.
        seed: The seed of the order of words, and of the control task.
    """
    num_labels = int(train.labels.max()) + 1
    control_labels = _control_labels(train, validation, num_labels, seed)
    bytes_per_layer = 4 * hidden_size * (len(train.words) + len(validation.words))
    layers_per_pass = max(1, _MAX_BYTES // bytes_per_layer)
    probes: list[LayerProbe] = []
    for start in range(0, num_layers + 1, layers_per_pass):
        layers = range(start, min(num_layers + 1, start + layers_per_pass))
        states = zip(train.states(layers), validation.states(layers), strict=True)
        for layer, (train_states, validation_states) in zip(layers, states, strict=True):
            accuracy, control_accuracy = (
                _probe_accuracy(train_states, labels, validation_states, references, num_labels, seed)
                for labels, references in ((train.labels, validation.labels), control_labels)
            )
            probes.append(LayerProbe(layer, accuracy, control_accuracy, accuracy - control_accuracy))
    counts = np.bincount(train.labels, minlength=num_labels)
    return ProbeReport(
        probes,
        majority=float((validation.labels == counts.argmax()).mean()),
        word_majority=_word_majority(train, validation, int(counts.argmax())),
        train_words=len(train.words),
        validation_words=len(validation.words),
        labels=num_labels,
    )


def _control_labels(
    train: LabeledWords, validation: LabeledWords, num_labels: int, seed: int
) -> tuple[Ids, Ids]:
    """Return the labels of the control task: one for each word, drawn by the frequencies of the labels."""
    words = sorted({*train.words, *validation.words})
    shares = np.cumsum(np.bincount(train.labels, minlength=num_labels) / len(train.labels))
    draws = rng.uniform(seed, "control task", np.arange(len(words)))
    drawn = np.minimum(np.searchsorted(shares, draws, side="right"), num_labels - 1)
    label_of = dict(zip(words, drawn.tolist(), strict=True))
    train_ids, validation_ids = (
        np.array([label_of[word] for word in part.words], dtype=np.int64) for part in (train, validation)
    )
    return train_ids, validation_ids


def _word_majority(train: LabeledWords, validation: LabeledWords, majority: int) -> float:
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for word, label in zip(train.words, train.labels.tolist(), strict=True):
        counts[word][label] += 1
    most_frequent = {word: labels.most_common(1)[0][0] for word, labels in counts.items()}
    predicted = np.array([most_frequent.get(word, majority) for word in validation.words])
    return float((predicted == validation.labels).mean())


def _probe_accuracy(
    states: NDArray[np.float32],
    labels: Ids,
    validation_states: NDArray[np.float32],
    references: Ids,
    num_labels: int,
    seed: int,
) -> float:
    """Train a linear classifier on standardized states [n, H], and return its accuracy on others."""
    mean, deviation = states.mean(0), states.std(0) + 1e-6
    inputs, targets = torch.from_numpy((states - mean) / deviation), torch.from_numpy(labels)
    weight = torch.zeros(num_labels, states.shape[1], requires_grad=True)
    bias = torch.zeros(num_labels, requires_grad=True)
    optimizer = torch.optim.AdamW([weight, bias], lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, _NUM_STEPS)
    for rows in _random_batches(len(labels), seed):
        optimizer.zero_grad()
        F.cross_entropy(F.linear(inputs[rows], weight, bias), targets[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    others: Tensor = torch.from_numpy((validation_states - mean) / deviation)
    with torch.inference_mode():
        predicted = F.linear(others, weight, bias).argmax(1)
    return float((predicted.numpy() == references).mean())


def _random_batches(num_words: int, seed: int) -> Iterator[Tensor]:
    """Yield the indices of each batch; each epoch has another order."""
    batches_per_epoch = -(-num_words // _BATCH_SIZE)
    for step in range(_NUM_STEPS):
        epoch, batch = divmod(step, batches_per_epoch)
        if batch == 0:
            order = torch.from_numpy(rng.permutation(seed, "probe", num_words, epoch))
        yield order[batch * _BATCH_SIZE : (batch + 1) * _BATCH_SIZE]
