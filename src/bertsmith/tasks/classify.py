"""Classification: a text, or a pair of texts, gets one of K labels (Devlin et al. 2019, section 4.1).

From the user's file to the score: read, encode, head and loss, decode, score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from bertsmith.errors import InputError
from bertsmith.files.tables import read_table
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import ClassHead, Pooler
from bertsmith.settings import Settings
from bertsmith.tasks.task import EncodedRow, RowBatch, Task, run_over
from bertsmith.tokenizer.tokenizer import Tokenizer


class ClassifySettings(Settings):
    """Where the texts and labels stand, and how a text becomes one vector."""

    text_column: str = Field(
        "text", description="the column of the text (a number where the file has no header)"
    )
    second_column: str | None = Field(None, description="the column of a second text, for tasks on pairs")
    label_column: str = Field("label", description="the column of the label")
    delimiter: str | None = Field(
        None, description="what parts columns; none: comma in .csv, tab in .tsv and .txt"
    )
    header: bool = Field(
        True, description="whether the first line names the columns; if not they are 1, 2, …"
    )
    max_length: int | None = Field(
        None, ge=3, description="tokens read of a text, special ones included; none: what the model can take"
    )


@dataclass(frozen=True)
class Example:
    """A text (or two) with its label, None where it is not known, and its place in the user's file."""

    text: str
    second: str | None
    label: str | None
    place: str


def label_names(examples: Sequence[Example], names: Sequence[str] | None) -> list[str]:
    """The classes in the order of their ids: the given names, or the labels of the data, sorted.

    Labels that are whole numbers are sorted by value.
    """
    if names is not None:
        if len(set(names)) != len(names) or len(names) < 2:
            raise InputError(f"--label-names: {', '.join(names)}: two or more different names are needed")
        return list(names)
    found = {example.label for example in examples if example.label is not None}
    if len(found) < 2:
        raise InputError(
            f"{examples[0].place}: all examples have the label {next(iter(found), None)!r}",
            "a classifier needs at least two; is this the label column? (--label-column)",
        )
    if all(_whole_number(label) for label in found):
        return sorted(found, key=lambda label: (int(label), label))
    return sorted(found)


def label_id(example: Example, labels: Sequence[str], *, numbered: bool) -> int:
    """The id of an example's label. numbered: the data may give ids (0, 1, …) in place of names.

    Names that are numbers themselves are names only: nobody could tell the name 1 from the id 1.
    """
    label = example.label
    if label in labels:
        return labels.index(label)
    words = not any(_whole_number(name) for name in labels)
    if numbered and words and label is not None and _whole_number(label) and 0 <= int(label) < len(labels):
        return int(label)
    known = ", ".join(labels[:10]) + (", …" if len(labels) > 10 else "")
    raise InputError(
        f"{example.place}: the label '{label}' is unknown",
        f"the model's labels are: {known}; mend the row, or name another column with --label-column",
    )


def _whole_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


class Classify(Task):
    """Pooler and classifier on the first token, as in the paper."""

    name = "classify"
    architecture = "BertForSequenceClassification"
    decides = "accuracy"
    summary = ("accuracy", "macro_f1")
    settings_type = ClassifySettings

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator,
        labels: Sequence[str],
        settings: ClassifySettings,
        *,
        numbered: bool = False,
    ) -> None:
        super().__init__(config, generator, labels, settings, numbered=numbered)
        self.pooler = Pooler(config, generator)
        self.classifier = ClassHead(config, generator, len(labels))

    @classmethod
    def read(cls, file: str | Path, settings: ClassifySettings, *, labelled: bool = True) -> list[Example]:
        """The rows of a csv, tsv or jsonl file, in its order. InputError with file and line for what is amiss."""
        table = read_table(file, delimiter=settings.delimiter, header=settings.header)
        texts = table.column(settings.text_column, "--text-column")
        seconds = table.column(settings.second_column, "--second-column") if settings.second_column else None
        labels = table.column(settings.label_column, "--label-column") if labelled else None
        examples = []
        for i, row in enumerate(table):
            place = f"{file}:{row.line}"
            label = labels[i].strip() if labels else None
            if label == "":
                raise InputError(f"{place}: the label is empty", "give each row a label, or take the row out")
            examples.append(Example(texts[i], seconds[i] if seconds else None, label, place))
        if not examples:
            raise InputError(f"{file}: there is no row in it", "give a file with at least one example")
        return examples

    @classmethod
    def of_texts(
        cls, texts: Sequence[str], seconds: Sequence[str] | None, places: Sequence[str]
    ) -> list[Example]:
        """Examples without labels."""
        others: Sequence[str | None] = seconds if seconds is not None else [None] * len(texts)
        return [Example(*row) for row in zip(texts, others, [None] * len(texts), places, strict=True)]

    @classmethod
    def labels_of(cls, examples: Sequence[Example], names: Sequence[str] | None) -> list[str]:
        """The classes, as `label_names` orders them; each example must have one of them."""
        labels = label_names(examples, names)
        for example in examples:
            label_id(example, labels, numbered=names is not None)
        return labels

    @classmethod
    def as_row(cls, example: Example, settings: ClassifySettings) -> dict[str, Any]:
        """Under the columns' own names."""
        row: dict[str, Any] = {settings.text_column: example.text, settings.label_column: example.label}
        if settings.second_column is not None:
            row[settings.second_column] = example.second
        return row

    @property
    def heads(self) -> dict[str, nn.Module]:
        """Pooler and classifier."""
        return {"pooler": self.pooler, "classifier": self.classifier}

    @property
    def pairs(self) -> bool:
        """Whether a second column was named."""
        return self.settings.second_column is not None

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer, longest: int) -> list[EncodedRow]:
        """[CLS] A [SEP] (B [SEP]) for each example, cut to max_length or the model's `longest`."""
        limit = min(longest, self.settings.max_length or longest)
        encodings = tokenizer.encode_many(
            [example.text for example in examples],
            [example.second or "" for example in examples] if self.pairs else None,
            max_length=limit,
        )
        rows = []
        for example, encoding in zip(examples, encodings, strict=True):
            target = -1 if example.label is None else label_id(example, self.labels, numbered=self.numbered)
            kept = sum(source is not None for source in encoding.sources)
            rows.append(EncodedRow(encoding.ids, encoding.segments, target, kept + encoding.cut, kept))
        return rows

    def logits(self, encoder: Encoder, batch: RowBatch) -> Tensor:
        """[B, K]."""
        hidden = encoder(batch.packed)
        logits: Tensor = self.classifier(self.pooler(hidden[batch.packed.first_rows]))
        return logits

    def loss(self, encoder: Encoder, batch: RowBatch) -> Loss:
        """Summed cross-entropy over the examples."""
        logits = self.logits(encoder, batch).float()
        return Loss({"task": F.cross_entropy(logits, batch.targets, reduction="sum")}, batch.counts)

    def decode(self, encoder: Encoder, rows: Sequence[EncodedRow]) -> list[dict[str, Any]]:
        """One prediction a row: label, its probability, all probabilities, tokens of the text and tokens read."""
        if not rows:
            return []
        probabilities = run_over(rows, lambda batch: self.logits(encoder, batch)).softmax(-1)
        predictions = []
        for row, share in zip(rows, probabilities.tolist(), strict=True):
            best = max(range(len(share)), key=share.__getitem__)
            predictions.append(
                {
                    "label": self.labels[best],
                    "score": share[best],
                    "scores": dict(zip(self.labels, share, strict=True)),
                    "tokens": row.tokens,
                    "tokens_read": row.kept,
                }
            )
        return predictions

    def score(self, predictions: Sequence[dict[str, Any]], rows: Sequence[EncodedRow]) -> dict[str, Any]:
        """Accuracy, macro and weighted F1, Matthews' correlation, each class's figures, the confusion matrix.

        Macro F1 is the mean over all the model's labels; a label that neither occurs nor is predicted counts
        0, as scikit-learn has it with `labels` given.
        """
        from sklearn.metrics import (
            accuracy_score,
            confusion_matrix,
            matthews_corrcoef,
            precision_recall_fscore_support,
        )

        ids = list(range(len(self.labels)))
        truth = [row.target for row in rows]
        guess = [self.labels.index(prediction["label"]) for prediction in predictions]
        of_each = precision_recall_fscore_support(truth, guess, labels=ids, zero_division=0)
        f1, support = of_each[2], of_each[3]
        names = ("precision", "recall", "f1")
        return {
            "accuracy": float(accuracy_score(truth, guess)),
            "macro_f1": float(f1.mean()),
            "weighted_f1": float((f1 * support).sum() / max(1, support.sum())),
            # of one label alone there is nothing to correlate with
            "matthews": float(matthews_corrcoef(truth, guess)) if len({*truth, *guess}) > 1 else 0.0,
            "examples": len(rows),
            "cut_texts": sum(row.kept < row.tokens for row in rows),
            "cut_tokens": sum(row.tokens - row.kept for row in rows),
            "classes": {
                label: {
                    **{name: float(of_each[k][i]) for k, name in enumerate(names)},
                    "support": int(support[i]),
                }
                for i, label in enumerate(self.labels)
            },
            "confusion": confusion_matrix(truth, guess, labels=ids).tolist(),
        }

    def baseline(self, training: Sequence[EncodedRow], dev: Sequence[EncodedRow]) -> dict[str, float]:
        """Always the most frequent label of the training rows."""
        most = Counter(row.target for row in training).most_common(1)[0][0]
        return {"accuracy": sum(row.target == most for row in dev) / max(1, len(dev))}
