"""Tagging: each word of a sentence gets a tag: entity, chunk, part of speech, role (Devlin et al. 2019, section
5.3).

The words are joined by one blank and a word's tag is read at its first piece, as in the paper. A sentence too long
for the model is read in overlapping windows, each word where it has the most context, and its tags are chosen once
over all its words: there are always as many tags as words, and no tag that its scheme forbids behind another. The
roles of a predicate are tags, too: the predicate is the second text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.loss import Loss, distillation_kl
from bertsmith.metrics.entities import extract_entities
from bertsmith.metrics.sufficient_statistics import SufficientStatistics
from bertsmith.metrics.tagging_schemes import OUTSIDE, infer_scheme
from bertsmith.models.config import ModelConfig
from bertsmith.models.crf import ChainScores, Crf, log_partitions, path_scores
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import TokenClassificationHead
from bertsmith.tasks.batching import Item, TaskBatch, logits_from_probabilities
from bertsmith.tasks.data_checks import LabelCounts, summarize_labels
from bertsmith.tasks.error_analysis import ErrorAnalysis
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.registry import TAG
from bertsmith.tasks.results import DataSummary, Metrics
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.roles import has_roles, read_roles
from bertsmith.tasks.tagging.tag_scores import details_of, scored, tallied, wrong_words
from bertsmith.tasks.tagging.tagged import (
    TagExample,
    by_characters,
    in_characters,
    keys_of,
    predicate_key,
    predicate_of,
    read_sentences,
    row_of,
    words_of,
)
from bertsmith.tasks.tagging.tagging import (
    TagFacts,
    Tagging,
    best_tags,
    breaks_in,
    facts_of_tags,
    path_losses,
    prediction_of,
)
from bertsmith.tasks.tagging.words import TagItem, first_tokens, runs_of
from bertsmith.tasks.task import Facts, HFCheckpoint, Prediction, Task
from bertsmith.tasks.truncation import Coverage
from bertsmith.tasks.windows import NO_LIMIT, best_windows, split_windows
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

_UNREAD = -1e4  # emission of all tags but the usual one where a word has no token


class Tag(Task):
    """The family's head for tokens, and cross-entropy at the first piece of each word, or a CRF over the words.

    Facts: those of `tagging.TagFacts`: `labels` by id; `numbered`: the data may give ids in place of tags, or
    `codes`; `usual`: the label of a word of which the tokenizer makes nothing; `characters`: each Chinese
    character was a word; `roles`: of a predicate.
    """

    name = "tag"
    summary = TAG.summary
    hangs_on = "tag"
    example_file = TAG.example_file
    inputs = ("words", "predicate")
    optional = ("predicate",)
    inherits = ()
    accepts_label_names = TAG.accepts_label_names
    settings_type = TAG.settings_type
    legal_start: Tensor
    legal_transitions: Tensor
    legal_end: Tensor
    facts_type = TagFacts
    by_token = True
    lasting = ("scheme", "decoder", "layers", "head", "second_encoder")
    output_format = TAG.output_format

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, facts: Facts, settings: TagSettings
    ) -> None:
        super().__init__(config, generator, facts, settings)
        self._tagging = Tagging.of(facts)
        self._roles = bool(facts.get("roles"))
        self._spans = ("roles" if self._roles else "entities") if facts["scheme"] else None
        self._blank = "" if facts.get("characters") else " "
        self._ids = {label: i for i, label in enumerate(self._tagging.labels)}
        self.head = TokenClassificationHead(config, generator, len(self._ids))
        self.crf = Crf(len(self._ids)) if facts.get("decoder") == "crf" else None
        for name, part in self._tagging.chain()._asdict().items():
            self.register_buffer(f"legal_{name}", part, persistent=False)

    # From a file to examples

    @classmethod
    def read(cls, file: str | Path, settings: TagSettings, *, labelled: bool = True) -> list[TagExample]:
        """The sentences of a file: .jsonl with lists of words and tags, else columns (CoNLL; tabs, or blanks),
        a blank line after each sentence, `-DOCSTART-` lines left out; .conllu also without its comments, ranges
        and empty nodes; a sentence with columns of roles once for each predicate (`tasks.roles`). InputError with
        file and line for what is amiss."""
        read = read_roles if has_roles(file, settings) else read_sentences
        return read(file, settings, labelled=labelled)

    @classmethod
    def of_inputs(
        cls, columns: Mapping[str, Sequence[Any]], settings: TagSettings, places: Sequence[str]
    ) -> list[TagExample]:
        """Sentences: lists of words, or strings of words separated by blanks. predicate: of each the position of
        the word whose roles are wanted, or that word."""
        asked = columns.get("predicate", [None] * len(places))
        found = []
        for value, predicate, place in zip(columns["words"], asked, places, strict=True):
            words, text = words_of(value, place), value if isinstance(value, str) else None
            found.append(
                TagExample(words, None, place, text=text, predicate=predicate_of(predicate, words, place))
            )
        return found

    @classmethod
    def columns_of_tuples(cls, settings: TagSettings, width: int) -> list[str]:
        """Words and tags."""
        return list(keys_of(settings))

    @classmethod
    def as_row(cls, example: TagExample, settings: TagSettings) -> dict[str, Any]:
        """Two lists."""
        words, tags = keys_of(settings)
        row = {words: list(example.words), tags: None if example.tags is None else list(example.tags)}
        return row if example.predicate is None else {**row, predicate_key(settings): example.predicate}

    @classmethod
    def learnt(cls, examples: Sequence[TagExample], settings: TagSettings, names: LabelNames | None) -> Facts:
        """The tags, their scheme, and the labels that are learnt in their place."""
        rows = [example.tags or () for example in examples]
        roles = any(example.predicate is not None for example in examples)
        facts = facts_of_tags(rows, settings.scheme, names, examples[0].place, roles=roles)
        return {**facts, "decoder": settings.decoder, "characters": by_characters(examples)}

    @classmethod
    def facts_of(cls, folder: HFCheckpoint) -> Facts | None:
        """Of a class for tokens, with names for its classes."""
        labels = folder.labels
        if not folder.architecture.endswith("ForTokenClassification") or not labels:
            return None
        usual = OUTSIDE if OUTSIDE in labels else labels[0]
        # LabelCounts alone identify IOBES; they do not show whether B begins each entity, so nothing is forbidden.
        scheme = infer_scheme([[label] for label in labels])
        trained = scheme if scheme == "iobes" else None
        return {"labels": labels, "numbered": True, "scheme": scheme, "trained": trained, "usual": usual}

    @classmethod
    def content(cls, example: TagExample) -> tuple[str, ...]:
        """The words."""
        return example.words

    @classmethod
    def asked(cls, example: TagExample) -> dict[str, str]:
        """The sentence, and the predicate whose roles are asked for."""
        asked = {"words": " ".join(example.words)}
        return (
            asked if example.predicate is None else {**asked, "predicate": example.words[example.predicate]}
        )

    @classmethod
    def question(cls, example: TagExample) -> Hashable:
        """The words; of roles with the predicate."""
        return example.words, example.predicate

    @classmethod
    def rows(cls, example: TagExample, prediction: Prediction) -> list[dict[str, Any]]:
        """A row a word, with its tag and the tag's probability; of roles with the predicate."""
        own = {"predicate": cls.asked(example)["predicate"]} if "predicate" in prediction else {}
        return [
            {**own, "word": word, "prediction": tag, "score": score}
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
        tagging = Tagging.of(facts)
        return [tagging.named(example.tags) for example in examples]

    @classmethod
    def overview_of_answers(
        cls, train: Sequence[TagExample], dev: Sequence[TagExample], facts: Facts
    ) -> DataSummary:
        """The table of the file's tags, and those that break their scheme. Where entities are learnt in another
        scheme than the file's, their types may be rare or missing, as B is in IOB1."""
        scheme = facts.get("scheme")
        found = super().overview_of_answers(
            train, dev, {**facts, "labels": facts.get("written") or facts["labels"]}
        )
        if scheme is not None and facts.get("trained") not in (None, scheme):
            of_types = summarize_labels(_types_of(train, facts), _types_of(dev, facts), ())
            found = replace(found, diagnostics=of_types.diagnostics)
        breaks = breaks_in([*train, *dev], cls.gold([*train, *dev], facts), scheme)
        return found | DataSummary(diagnostics=[breaks] if breaks else [])

    # From examples to a batch

    def encode(self, examples: Sequence[TagExample], tokenizer: Tokenizer) -> list[Item]:
        """The windows of each sentence, `[CLS] words [SEP]`, for roles `[CLS] words [SEP] predicate [SEP]`;
        none for a sentence of which the tokenizer makes nothing."""
        self._refuse_strangers(examples)
        examples = self._as_trained(examples)
        self._check_predicates(examples)
        texts = [" ".join(e.words) for e in examples]
        seconds = [e.words[e.predicate] for e in examples if e.predicate is not None] or None
        encodings = tokenizer.encode_batch(texts, seconds, max_length=NO_LIMIT)
        return [
            item
            for number, (example, encoding) in enumerate(zip(examples, encodings, strict=True))
            for item in self._windows(number, example, encoding)
        ]

    def _check_predicates(self, examples: Sequence[TagExample]) -> None:
        """InputError where there is a predicate and the model reads none, or none and it does."""
        for example in examples:
            if self._roles and example.predicate is None and example.words:
                raise InputError(
                    "predicate_missing",
                    "this model labels the roles of a predicate, and this sentence has none",
                    location=example.place,
                    argument="predicate_column",
                    hint="give the predicate of each sentence, as the index of its word from 0: in Python as a "
                    f'list, in a .jsonl as "predicate", or as a column ({option("predicate_column")})',
                )
            if not self._roles and example.predicate is not None:
                raise InputError(
                    "predicates_unsupported",
                    "this file has predicates with their roles, and this model was trained on other tags",
                    location=example.place,
                    argument="tag_column",
                    hint=f"name the column of the tags with {option('tag_column')}",
                )

    def _as_trained(self, examples: Sequence[TagExample]) -> Sequence[TagExample]:
        """Where each Chinese character was a word in training, it is one in a running text, too."""
        return [in_characters(example) for example in examples] if self.facts.get("characters") else examples

    def _windows(self, number: int, example: TagExample, encoding: Encoding) -> Iterator[TagItem]:
        words, tokens = first_tokens(example.words, encoding)
        if not len(words):
            return
        ids = None if example.tags is None else self._ids_of(example.tags)
        limit = self.reads
        cut = split_windows(encoding, limit, location=example.place)
        decided_by = best_windows(cut)[tokens]
        for i, window in enumerate(cut):
            here = decided_by == i
            if not here.any():
                continue  # it holds no word's first piece but such as another window has more context for
            rows = tokens[here] - window.first + window.row
            own = tuple(words[here].tolist())
            yield TagItem(
                number,
                (window.sequence,),
                None if ids is None else tuple(ids[word] for word in own),
                first=window.first,
                words=own,
                rows=tuple(rows.tolist()),
                tokens=encoding.sequence_ids.count(0),
                length=len(example.words),
            )

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """All tokens of the sentence, in one window or in several; the tags are of the words with a token."""
        first = items[0].sequences[0]
        assert first.sources is not None
        begin = int(np.argmax(first.sources == 0))
        held = int((first.sources == 0).sum())
        words = at_once = tokens = 0
        for item in items:
            assert isinstance(item, TagItem)
            tokens, words = item.tokens, words + len(item.words)
            at_once += sum(row - begin + item.first < held for row in item.rows)
        return Coverage(tokens, tokens, min(tokens, held), len(items), words, words, at_once)

    def _ids_of(self, tags: Sequence[str]) -> list[int]:
        """-1 for a label that training did not have: whatever the model says is wrong there."""
        return [self._ids.get(label, -1) for label in self._tagging.learnt(self._tagging.named(tags))]

    def _refuse_strangers(self, examples: Sequence[TagExample]) -> None:
        """A rare tag may be new; where all are, it is another column, or another model."""
        tagging = self._tagging
        found = {tag for example in examples for tag in tagging.named(example.tags) if tag != OUTSIDE}
        if found and all(map(tagging.is_new, found)):
            tags = list(tagging.naming.ids)
            known = ", ".join(tags[:10]) + (", …" if len(tags) > 10 else "")
            raise InputError(
                "unknown_label",
                f"the model has none of these tags: {', '.join(sorted(found)[:5])}",
                location=examples[0].place,
                argument="tag_column",
                hint=f"the model's tags are {known}; name the column of the tags with {option('tag_column')}",
            )

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """`rows`: long [M], the first pieces of the words among all tokens of the batch; `tags`: long [M]. For a
        CRF also what `runs_of` says of them."""
        if any(item.target is None for item in items):
            return {}, {}
        rows: list[int] = []
        start = 0
        for item in items:
            assert isinstance(item, TagItem)
            rows += [start + row for row in item.rows]
            start += item.size
        tags = [tag for item in items for tag in item.target]
        found = {"rows": torch.tensor(rows), "tags": torch.tensor(tags)}
        return found | (runs_of(items) if self.crf is not None else {}), {"task": len(rows)}

    # From a batch to answers

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """The tagger, and the CRF where there is one."""
        return {**self.head.parts, **({} if self.crf is None else {"crf": self.crf})}

    def _chain(self, device: torch.device | None = None) -> ChainScores:
        """What the scheme forbids and the CRF has learnt."""
        legal = ChainScores(self.legal_start, self.legal_transitions, self.legal_end)
        chain = legal if self.crf is None else self.crf.add_to(legal)
        return chain if device is None else ChainScores(*(part.detach().to(device) for part in chain))

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Summed cross-entropy over the words; with a CRF minus the log-likelihoods of the runs of words, summed,
        which are also counted by words. Right is a word whose logit of its own is the highest."""
        wanted = batch.tensors["tags"]
        logits = self.head(self.features(encoder, batch.packed)[batch.tensors["rows"]]).float()
        right = (logits.detach().argmax(-1) == wanted).sum()
        if self.crf is None:
            total = F.cross_entropy(logits, wanted, reduction="sum")
        else:
            cells, lengths = batch.tensors["cells"], batch.tensors["lengths"]
            chain = self._chain()
            # a run within a sentence begins and ends freely
            start = chain.start * batch.tensors["begins"][:, None]
            chain = ChainScores(start, chain.transitions, chain.end * batch.tensors["ends"][:, None])
            emissions = logits[cells]
            golds = path_scores(emissions, wanted[cells], lengths, chain)
            total = (log_partitions(emissions, lengths, chain) - golds).sum()
        return Loss({"task": total}, batch.counts, {"task": right})

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Logits [tokens, tags] of each window."""
        found = self.head(self.features(encoder, batch.packed)).float()
        return torch.split(found, batch.packed.lengths.tolist())

    def apart(
        self, own: Sequence[Tensor], wanted: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Of the words' tags, each by itself; of a CRF the emissions'."""
        rows = batch.tensors["rows"]
        return distillation_kl(torch.cat(list(own))[rows], torch.cat(list(wanted))[rows], temperature)

    def decode(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[TagExample]
    ) -> list[Prediction]:
        """Words, tags as the file had them, each tag's probability (0 for a word of which the tokenizer makes
        nothing), entities where the tags have a scheme, tokens of the sentence and tokens read: all of them. Of a
        running text also the characters that words and entities are.

        The tags are the best path over the whole sentence that its scheme allows; a probability is the softmax's,
        or that of a CRF over all paths.
        """
        examples, labels = self._as_trained(examples), self._tagging.labels
        emissions, read = self._emissions(outputs, items, examples)
        tokens = {item.example: item.tokens for item in items if isinstance(item, TagItem)}
        found = best_tags(emissions, self._chain(torch.get_default_device()), crf=self.crf is not None)
        predictions = []
        for i, example in enumerate(examples):
            path, shares = found[i]
            tags = self._tagging.answered([labels[tag] for tag in path])
            scores = (shares * read[i]).tolist()
            more = prediction_of(example, tags, scores, spans=self._spans, blank=self._blank)
            of_it = tokens.get(i, 0)
            predictions.append({**more, "tokens": of_it, "tokens_read": of_it})
        return predictions

    def _emissions(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[TagExample]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Of each sentence the log probabilities [words, tags], each word's from the window that decides on it;
        and which words have a token, bool [words]: one without has the usual tag."""
        usual = torch.full((len(self._tagging.labels),), _UNREAD)
        usual[self._ids[str(self.facts["usual"])]] = 0.0
        emissions = [usual.expand(len(example.words), -1).clone() for example in examples]
        read = [torch.zeros(len(example.words), dtype=torch.bool) for example in examples]
        for logits, item in zip(outputs, items, strict=True):
            assert isinstance(item, TagItem)
            words = list(item.words)
            emissions[item.example][words] = logits[list(item.rows)].log_softmax(-1)
            read[item.example][words] = True
        return emissions, read

    def together(self, others: Sequence[Self]) -> Self:
        """Of CRFs also the mean of what they have learnt: the score of a path is the mean of its scores."""
        made = super().together(others)
        if made.crf is not None:
            every = [dict(task.crf.named_parameters()) for task in (self, *others) if task.crf is not None]
            with torch.no_grad():
                for name, parameter in made.crf.named_parameters():
                    parameter.copy_(torch.stack([one[name] for one in every]).mean(0))
        return made

    def vote(self, output: Tensor) -> Tensor:
        """Probabilities; of a CRF the emissions."""
        return output.double().softmax(-1) if self.crf is None else output

    def outcome(self, votes: Sequence[Tensor]) -> Tensor:
        """Their mean, as logits."""
        mean = super().outcome(votes)
        return logits_from_probabilities(mean).float() if self.crf is None else mean

    @property
    def decides(self) -> str:
        """F1 of the entities; accuracy where the tags make none."""
        return "f1" if self.facts["scheme"] else "accuracy"

    @property
    def logged(self) -> tuple[str, ...]:
        """Both."""
        return ("f1", "accuracy") if self.facts["scheme"] else ("accuracy",)

    def score(self, predictions: Sequence[Prediction], examples: Sequence[TagExample]) -> Metrics:
        """Precision, recall and F1 of entities (type, start and end right) as conlleval counts them, and each
        type's; the F1 of those whose tags are whole in the scheme; the share of words whose tag is right."""
        truth = self.gold(examples, self.facts)
        notes = []
        if unread := sum(score == 0 for prediction in predictions for score in prediction["scores"]):
            none = pluralize(unread, "word has no token", "words have no token")
            notes.append(f"{none} in this vocabulary; the tag there is '{self.facts['usual']}'")
        if found := breaks_in(examples, truth, self.facts["scheme"]):
            notes.append(found.text)
        return scored(truth, [prediction["tags"] for prediction in predictions], self._tagging, notes)

    @property
    def measure(self) -> str:
        """As in training."""
        if self.crf is not None:
            return "minus the log-likelihood of its tags"
        return "the cross-entropy, summed over its words"

    def losses(self, answers: Any) -> list[float | None]:
        """Of each sentence; none where it has a tag that the model never saw, or under a CRF a word without a
        token."""
        examples = self._as_trained(answers.examples)
        emissions, read = self._emissions(answers.outputs, answers.items, examples)
        paths = [None if example.tags is None else self._ids_of(example.tags) for example in examples]
        known = [path if path and min(path) >= 0 else None for path in paths]
        if self.crf is not None:
            known = [path if held.all() else None for path, held in zip(known, read, strict=True)]
            return path_losses(emissions, known, self._chain(torch.get_default_device()))
        return [
            None if path is None else -float(rows[torch.arange(len(path)), path][held].sum())
            for rows, path, held in zip(emissions, known, read, strict=True)
        ]

    def details(self, predictions: Sequence[Prediction], examples: Sequence[TagExample]) -> ErrorAnalysis:
        """Which types (tags, where they have no scheme) are taken for which, and how sure the model may be."""
        return details_of(self.gold(examples, self.facts), predictions, self._tagging)

    def compared(self, example: TagExample, prediction: Prediction) -> tuple[str, str]:
        """The words whose tags are wrong, with the right ones and the model's."""
        (gold,) = self.gold([example], self.facts)
        return wrong_words(prediction["words"], gold, prediction["tags"])

    def tallies(
        self, predictions: Sequence[Prediction], examples: Sequence[TagExample]
    ) -> SufficientStatistics:
        """All but the strict F1."""
        truth = self.gold(examples, self.facts)
        return tallied(truth, [prediction["tags"] for prediction in predictions], self._tagging)

    def baseline(self, training: Sequence[TagExample], dev: Sequence[TagExample]) -> Metrics:
        """Always the most frequent tag of the training words."""
        times = Counter(tag for tags in self.gold(training, self.facts) for tag in tags)
        most = min(times, key=lambda tag: (-times[tag], tag))
        return self.score([{"tags": [most] * len(e.words), "scores": [1.0] * len(e.words)} for e in dev], dev)


def _types_of(examples: Sequence[TagExample], facts: Facts) -> LabelCounts:
    """How often each type of entity occurs, and where it does first."""
    tagging = Tagging.of(facts)
    return LabelCounts.from_pairs(
        (entity.type, example.place_of(entity.start))
        for example in examples
        for entity in extract_entities(tagging.named(example.tags))
    )
