"""Tagging: each word of a sentence gets a tag: entity, chunk, part of speech (Devlin et al. 2019, section 5.3).

The words are joined by one blank and a word's tag is read at its first piece, as in the paper. A sentence too long
for the model is read in overlapping windows, each word where it has the most context, so there are always as many
tags as words. Tags are learnt as they are written in the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.errors import InputError
from bertsmith.loss import Loss
from bertsmith.metrics.entities import count, entities, scheme_of, total
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import TokenHead
from bertsmith.tasks.items import Item, TaskBatch
from bertsmith.tasks.labels import LabelFacts, Names, Naming, facts_of_names
from bertsmith.tasks.scores import Scores, ScoreTable
from bertsmith.tasks.tagged import (
    TagExample,
    TagSettings,
    by_characters,
    in_characters,
    keys_of,
    read_sentences,
    row_of,
    words_of,
)
from bertsmith.tasks.task import AnswerForm, Facts, Foreign, Prediction, Task
from bertsmith.tasks.windows import UNCUT, deciding, windows
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

_OUTSIDE = "O"


@dataclass(frozen=True)
class TagItem(Item):
    """A window, and what it decides: the tags of `words` (numbers in the sentence), read at `rows`. target: their
    ids. tokens: of the whole sentence."""

    words: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    tokens: int = 0


class TagFacts(LabelFacts):
    """What `Tag` says of its facts, by kind."""

    scheme: Literal["iob1", "iob2", "iobes"] | None
    usual: str
    characters: bool = False


class Tag(Task):
    """The family's head for tokens, and cross-entropy at the first piece of each word.

    Facts: `labels` by id; `numbered`: the data may give ids in place of labels, or `codes`; `scheme`: of entities,
    None for other tags; `usual`: the tag of a word of which the tokenizer makes nothing; `characters`: each
    Chinese character was a word.
    """

    name = "tag"
    summary = "a tag for each word of a sentence: entities, chunks, parts of speech"
    example_file = "train.conll"
    inputs = ("words",)
    inherits = ()
    settings_type = TagSettings
    facts_type = TagFacts
    answer_form = AnswerForm("conll", "the file's columns, the predicted tag behind them", ".conll")

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, facts: Facts, settings: TagSettings
    ) -> None:
        super().__init__(config, generator, facts, settings)
        self._names: list[str] = facts["labels"]
        self._naming = Naming.of(facts)
        self.head = TokenHead(config, generator, len(self._names))

    # From a file to examples

    @classmethod
    def read(cls, file: str | Path, settings: TagSettings, *, labelled: bool = True) -> list[TagExample]:
        """The sentences of a file: .jsonl with lists of words and tags, else columns (CoNLL; tabs, or blanks),
        a blank line after each sentence, `-DOCSTART-` lines left out; .conllu also without its comments, ranges
        and empty nodes. InputError with file and line for what is amiss."""
        return read_sentences(file, settings, labelled=labelled)

    @classmethod
    def of_inputs(
        cls, columns: Mapping[str, Sequence[Any]], settings: TagSettings, places: Sequence[str]
    ) -> list[TagExample]:
        """Sentences: lists of words, or strings of words separated by blanks."""
        return [
            TagExample(words_of(value, place), None, place, text=value if isinstance(value, str) else None)
            for value, place in zip(columns["words"], places, strict=True)
        ]

    @classmethod
    def columns_of_tuples(cls, settings: TagSettings, width: int) -> list[str]:
        """Words and tags."""
        return list(keys_of(settings))

    @classmethod
    def as_row(cls, example: TagExample, settings: TagSettings) -> dict[str, Any]:
        """Two lists."""
        words, tags = keys_of(settings)
        return {words: list(example.words), tags: None if example.tags is None else list(example.tags)}

    @classmethod
    def learnt(cls, examples: Sequence[TagExample], settings: TagSettings, names: Names | None) -> Facts:
        """The tags, sorted, or the names given for their numbers or codes; the scheme; the most frequent tag."""
        rows = [example.tags or () for example in examples]
        found: dict[str, Any] = {"numbered": False}
        if names is not None:
            found = facts_of_names(names)
            naming = Naming.of(found)
            rows = [tuple(naming.name(tag) for tag in row) for row in rows]
        times = Counter(tag for row in rows for tag in row)
        labels = found.setdefault("labels", sorted(times))
        if unknown := sorted(times.keys() - set(labels)):
            raise InputError(
                f"{examples[0].place}: the tag '{unknown[0]}' is none of --label-names", "name all tags there"
            )
        if len(times) < 2:
            raise InputError(
                f"{examples[0].place}: all words have the tag '{labels[0]}'",
                "a tagger needs at least two; is this the column of the tags? (--tag-column)",
            )
        # ties by name, so that the order of the sentences decides nothing
        usual = _OUTSIDE if _OUTSIDE in labels else min(times, key=lambda tag: (-times[tag], tag))
        return {
            **found,
            "scheme": scheme_of(rows),
            "usual": usual,
            "characters": by_characters(examples),
        }

    @classmethod
    def facts_of(cls, folder: Foreign) -> Facts | None:
        """Of a class for tokens, with names for its classes."""
        labels = folder.labels
        if not folder.architecture.endswith("ForTokenClassification") or not labels:
            return None
        usual = _OUTSIDE if _OUTSIDE in labels else labels[0]
        return {"labels": labels, "numbered": True, "scheme": _scheme_of_labels(labels), "usual": usual}

    @classmethod
    def content(cls, example: TagExample) -> tuple[str, ...]:
        """The words."""
        return example.words

    @classmethod
    def asked(cls, example: TagExample) -> dict[str, str]:
        """The sentence."""
        return {"words": " ".join(example.words)}

    @classmethod
    def rows(cls, example: TagExample, prediction: Prediction) -> list[dict[str, Any]]:
        """A row a word, with its tag and the tag's probability."""
        return [
            {"word": word, "prediction": tag, "score": score}
            for word, tag, score in zip(
                prediction["words"], prediction["tags"], prediction["scores"], strict=True
            )
        ]

    @classmethod
    def answer_file(cls, answered: Iterable[tuple[TagExample, Prediction | None]]) -> Iterator[str]:
        """Each sentence's rows, a blank line behind. Columns are separated as in the file; by tabs where it had
        none."""
        for example, prediction in answered:
            words, tags = (prediction["words"], prediction["tags"]) if prediction else ((), ())
            rows = example.rows
            if rows is None or len(rows) != len(words):  # a running text
                rows = tuple(row_of([word]) for word in words)
            for row, tag in zip(rows, tags, strict=True):
                yield f"{row}{tag}\n"
            yield "\n"

    @classmethod
    def is_empty(cls, example: TagExample) -> bool:
        """No word."""
        return not example.words

    @classmethod
    def gold(cls, examples: Sequence[TagExample], facts: Facts) -> list[tuple[str, ...]]:
        """The tags, by their names."""
        naming = Naming.of(facts)
        return [tuple(map(naming.name, example.tags or ())) for example in examples]

    # From examples to a batch

    def encode(self, examples: Sequence[TagExample], tokenizer: Tokenizer) -> list[Item]:
        """The windows of each sentence; none for one of which the tokenizer makes nothing."""
        self._refuse_strangers(examples)
        examples = self._as_trained(examples)
        encodings = tokenizer.encode_many([" ".join(e.words) for e in examples], max_length=UNCUT)
        return [
            item
            for number, (example, encoding) in enumerate(zip(examples, encodings, strict=True))
            for item in self._windows(number, example, encoding)
        ]

    def _as_trained(self, examples: Sequence[TagExample]) -> Sequence[TagExample]:
        """Where each Chinese character was a word in training, it is one in a running text, too."""
        return [in_characters(example) for example in examples] if self.facts.get("characters") else examples

    def _windows(self, number: int, example: TagExample, encoding: Encoding) -> Iterator[TagItem]:
        words, tokens = first_tokens(example.words, encoding)
        if not len(words):
            return
        limit = min(self.config.longest, self.settings.max_length or self.config.longest)
        cut = windows(encoding, limit, place=example.place)
        decided_by = deciding(cut)[tokens]
        for i, window in enumerate(cut):
            here = decided_by == i
            if not here.any():
                continue  # it holds no word's first piece but such as another window has more context for
            rows = tokens[here] - window.first + window.row
            own = tuple(words[here].tolist())
            yield TagItem(
                number,
                (window.encoded,),
                None if example.tags is None else tuple(self._id(example.tags[word]) for word in own),
                first=window.first,
                words=own,
                rows=tuple(rows.tolist()),
                tokens=sum(source is not None for source in encoding.sources),
            )

    def _id(self, tag: str) -> int:
        """-1 for a tag that training did not have: whatever the model says is wrong there."""
        found = self._naming.id(tag)
        return -1 if found is None else found

    def _refuse_strangers(self, examples: Sequence[TagExample]) -> None:
        """A rare tag may be new; where all are, it is another column, or another model."""
        found = {tag for example in examples for tag in example.tags or () if tag != _OUTSIDE}
        if found and all(self._id(tag) < 0 for tag in found):
            known = ", ".join(self._names[:10]) + (", …" if len(self._names) > 10 else "")
            raise InputError(
                f"{examples[0].place}: none of these tags is the model's: {', '.join(sorted(found)[:5])}",
                f"its tags are {known}; name the column of the tags with --tag-column",
            )

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """`rows`: long [M], the first pieces of the words among all tokens of the batch; `tags`: long [M]."""
        if any(item.target is None for item in items):
            return {}, {}
        rows: list[int] = []
        start = 0
        for item in items:
            assert isinstance(item, TagItem)
            rows += [start + row for row in item.rows]
            start += item.size
        tags = [tag for item in items for tag in item.target]
        return {"rows": torch.tensor(rows), "tags": torch.tensor(tags)}, {"task": len(rows)}

    # From a batch to answers

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        """The tagger."""
        parts: Mapping[str, nn.Module] = self.head.parts
        return parts

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Summed cross-entropy over the words."""
        wanted = batch.tensors["tags"]
        logits = self.head(encoder(batch.packed)[batch.tensors["rows"]]).float()
        right = (logits.detach().argmax(-1) == wanted).sum()
        return Loss({"task": F.cross_entropy(logits, wanted, reduction="sum")}, batch.counts, {"task": right})

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Logits [tokens, tags] of each window."""
        return torch.split(self.head(encoder(batch.packed)).float(), batch.packed.lengths.tolist())

    def decode(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[TagExample]
    ) -> list[Prediction]:
        """Words, tags, each tag's probability (0 for a word of which the tokenizer makes nothing), entities where
        the tags have a scheme, tokens of the sentence and tokens read: all of them."""
        examples = self._as_trained(examples)
        tags = [[str(self.facts["usual"])] * len(example.words) for example in examples]
        scores = [[0.0] * len(example.words) for example in examples]
        tokens = [0] * len(examples)
        blank = "" if self.facts.get("characters") else " "
        for logits, item in zip(outputs, items, strict=True):
            assert isinstance(item, TagItem)
            shares, best = logits[list(item.rows)].softmax(-1).max(-1)
            for word, share, tag in zip(item.words, shares.tolist(), best.tolist(), strict=True):
                tags[item.example][word], scores[item.example][word] = self._names[tag], share
            tokens[item.example] = item.tokens
        return [
            {
                "words": list(example.words),
                "tags": tags[i],
                "scores": scores[i],
                **({"entities": _spans(example.words, tags[i], blank)} if self.facts["scheme"] else {}),
                "tokens": tokens[i],
                "tokens_read": tokens[i],
            }
            for i, example in enumerate(examples)
        ]

    @property
    def decides(self) -> str:
        """F1 of the entities; accuracy where the tags make none."""
        return "f1" if self.facts["scheme"] else "accuracy"

    @property
    def logged(self) -> tuple[str, ...]:
        """Both."""
        return ("f1", "accuracy") if self.facts["scheme"] else ("accuracy",)

    def score(self, predictions: Sequence[Prediction], examples: Sequence[TagExample]) -> Scores:
        """Precision, recall and F1 of entities (type, start and end right) as conlleval counts them, and each
        type's; the share of words whose tag is right."""
        truth = self.gold(examples, self.facts)
        guess = [prediction["tags"] for prediction in predictions]
        pairs = [pair for a, b in zip(truth, guess, strict=True) for pair in zip(a, b, strict=True)]
        accuracy = sum(a == b for a, b in pairs) / max(1, len(pairs))
        sizes = {"words": len(pairs), "examples": len(examples)}
        notes = []
        if new := Counter(tag for tag, _ in pairs if tag not in self._naming.ids):
            notes.append(
                f"words with a tag that the model never saw: {new.total():,} ({', '.join(sorted(new)[:5])}); "
                "each counts as wrong"
            )
        if unread := sum(score == 0 for prediction in predictions for score in prediction["scores"]):
            notes.append(
                f"words for which the tokenizer has no token: {unread:,}; their tag is '{self.facts['usual']}'"
            )
        if not self.facts["scheme"]:
            return Scores({"accuracy": accuracy, **sizes}, {}, (), notes)
        types = count(truth, guess)
        whole = total(types)
        of_each = {
            kind: {
                "precision": f.precision,
                "recall": f.recall,
                "f1": f.f1,
                "support": f.gold,
                "found": f.found,
            }
            for kind, f in types.items()
        }
        rows = [
            [
                k,
                *(f"{row[n]:.4f}" for n in ("precision", "recall", "f1")),
                *(f"{row[n]:,}" for n in ("support", "found")),
            ]
            for k, row in of_each.items()
        ]
        table = ScoreTable("", ["entity", "precision", "recall", "F1", "support", "found"], rows)
        numbers = {"precision": whole.precision, "recall": whole.recall, "f1": whole.f1, "accuracy": accuracy}
        return Scores({**numbers, **sizes}, {"types": of_each}, (table,), notes)

    def baseline(self, training: Sequence[TagExample], dev: Sequence[TagExample]) -> Scores:
        """Always the most frequent tag of the training words."""
        times = Counter(tag for tags in self.gold(training, self.facts) for tag in tags)
        most = min(times, key=lambda tag: (-times[tag], tag))
        return self.score([{"tags": [most] * len(e.words), "scores": [1.0] * len(e.words)} for e in dev], dev)


def first_tokens(words: Sequence[str], encoding: Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The words that have a token, and the number of the first token of each, special ones not counted.

    encoding: of the words joined by one blank. A token belongs to the word it begins in; one that begins with the
    blank in front of a word (byte-level BPE, Unigram) to that word.
    """
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    starts = [
        begin for (begin, _), source in zip(encoding.offsets, encoding.sources, strict=True) if source == 0
    ]
    of_token = np.searchsorted(ends, np.array(starts, dtype=np.int64), side="right")
    found, first = np.unique(of_token, return_index=True)
    inside = found < len(words)
    return found[inside].astype(np.int64), first[inside].astype(np.int64)


def _spans(words: Sequence[str], tags: Sequence[str], blank: str) -> list[dict[str, Any]]:
    return [{**e._asdict(), "text": blank.join(words[e.start : e.end])} for e in entities(tags)]


def _scheme_of_labels(labels: Sequence[str]) -> str | None:
    """Of names alone: whether B- begins each entity is not to be seen there, and no matter."""
    return scheme_of([[label] for label in labels])
