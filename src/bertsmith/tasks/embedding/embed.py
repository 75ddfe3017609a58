"""Embedding: a text becomes a vector, near those of texts that mean the same or answer it (a bi-encoder).

Both texts of a pair are read by one encoder, each by itself, and compared by the cosine of their vectors (Reimers
and Gurevych 2019). What a file holds decides the loss: see `matches` and `contrast`. The finished folder is one of
sentence-transformers as well.

In-batch losses (softmax, cosent) compare what is together in a micro-batch (`train.batch_size`). Accumulation adds
up micro-batches and does not make them larger: two of 16 are not one of 32, which has twice as many passages to
choose from. What is together is a function of the seed, the epoch and the index alone, so that a resumed run
equals an uninterrupted one. An epoch takes one positive of each query and one negative, the next one each time.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.artifacts.sentence_transformers import (
    SentenceEmbeddingConfig,
    read_sentence_embedding_config,
    sentence_transformers_files,
)
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.loss import Loss
from bertsmith.metrics.sufficient_statistics import SufficientStatistics, mean_statistics
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.pooling import pool
from bertsmith.objectives.objective import MODEL, ModelParts
from bertsmith.packed import Packed
from bertsmith.retrieval.exact import normalize_vectors, search_vectors
from bertsmith.tasks.batching import Item, TaskBatch, TokenSequence, run_batched
from bertsmith.tasks.classification.regress import number_of
from bertsmith.tasks.embedding.contrastive_losses import contrastive, cosent, cosine_errors, in_batch
from bertsmith.tasks.embedding.items import EmbedItem, alone, also_right, compared, key_of
from bertsmith.tasks.embedding.matches import Kind, Match, as_row, kind_of, read_matches, same_label
from bertsmith.tasks.embedding.metadata import EmbedFacts, check_kind, learnt_of, overview_of
from bertsmith.tasks.embedding.scores import (
    Figures,
    Search,
    best_threshold,
    graded_figures,
    labelled_figures,
    misses,
    ranking_tallies,
    retrieval_figures,
    tfidf_figures,
)
from bertsmith.tasks.error_analysis import ErrorAnalysis, confusion, number_scatter
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.registry import EMBED
from bertsmith.tasks.results import DataSummary, Metrics, truncation_metrics
from bertsmith.tasks.settings import EmbedSettings
from bertsmith.tasks.task import Facts, Prediction, Task
from bertsmith.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_BEST = 10  # passages looked at for each query
_DECIDES = {"graded": "spearman", "labelled": "average_precision", "retrieval": "ndcg@10"}
_LOGGED = {
    "graded": ("spearman", "pearson"),
    "labelled": ("average_precision", "accuracy"),
    "retrieval": ("ndcg@10", "recall@1"),
}


class Compared(dict[str, Any]):
    """A prediction, and beside it the vectors that it was made of, which `score` ranks: float32 [texts, H]."""

    vectors: NDArray[np.float32]


class Embed(Task):
    """No head: the encoder's states, pooled."""

    name = "embed"
    summary = EMBED.summary
    inputs = ("text", "second")
    optional = ("second",)
    inherits = ()
    settings_type = EMBED.settings_type
    facts_type = EmbedFacts
    baseline_name = "TF-IDF"
    baseline_reads = True
    imitated = ""
    pooled = False  # cosines of two models are on two scales
    own_facts = ("threshold", "lowest", "highest")

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, facts: Facts, settings: EmbedSettings
    ) -> None:
        super().__init__(config, generator, facts, settings)
        known = EmbedFacts(**facts)
        self._kind: Kind = known.kind
        self._pooling = settings.pooling or "mean"
        self._normalize = settings.normalize is not False
        self.threshold: Tensor
        self.register_buffer("threshold", torch.tensor(known.threshold, dtype=torch.float64))
        if settings.symmetric and self._kind == "retrieval":
            self.loss_weights = {"task": 0.5, "back": 0.5}

    @classmethod
    def settled(cls, settings: EmbedSettings, base: Path, longest: int) -> EmbedSettings:
        """Take the base model's pooling, normalization, and maximum length where the settings leave them open, as
        sentence-transformers does. InputError for an unknown pooling of the base if the settings name none."""
        try:
            known = read_sentence_embedding_config(base)
        except InputError:
            if settings.pooling is None:
                raise
            known = None
        made = known or SentenceEmbeddingConfig("mean", True)
        length = made.max_length if made.max_length is not None and 3 <= made.max_length < longest else None
        own = {"pooling": made.pooling, "normalize": made.normalize, "max_length": length}
        taken = {name: value for name, value in own.items() if getattr(settings, name) is None}
        if known is not None and taken:
            values = ", ".join(f"task.{name}={own[name]}" for name in taken if own[name] is not None)
            logger.info("settings taken from the base model: %s", values)
        return settings.model_copy(update=taken)

    # From a file to examples

    @classmethod
    def read(cls, file: str | Path, settings: EmbedSettings, *, labelled: bool = True) -> list[Match]:
        """See `matches.read_matches`."""
        return read_matches(file, settings, labelled=labelled)

    @classmethod
    def of_inputs(
        cls, columns: Mapping[str, Sequence[str]], settings: EmbedSettings, places: Sequence[str]
    ) -> list[Match]:
        """Texts, or pairs of texts: two columns, or in one with a tab between."""
        for name, values in columns.items():
            for value, place in zip(values, places, strict=True):
                if not isinstance(value, str):
                    raise InputError(
                        "text_not_a_string",
                        f"{value!r:.60} is not a string",
                        location=place,
                        argument=name,
                        hint=f"give each {name} as a string",
                    )
        if "second" in columns:
            pairs = zip(columns["text"], columns["second"], places, strict=True)
            return [Match(text, (second,), (), None, place) for text, second, place in pairs]
        found = []
        for text, place in zip(columns["text"], places, strict=True):
            query, *others = text.split("\t")
            if len(others) > 1:
                raise InputError(
                    "too_many_tabs",
                    f"this line has {len(others)} tabs",
                    location=place,
                    hint="separate the two texts of a pair by one tab",
                )
            found.append(Match(query, tuple(others), (), None, place))
        return found

    @classmethod
    def columns_of_tuples(cls, settings: EmbedSettings, width: int) -> list[str]:
        """(text, second), or (text, second, label); with a negative column named, that one third."""
        last = settings.negative_column or settings.label_column or "label"
        return [settings.text_column or "text", settings.second_column or "second", last][: max(2, width)]

    @classmethod
    def as_row(cls, example: Match, settings: EmbedSettings) -> dict[str, Any]:
        """The row of its table, or a query with its passages."""
        return as_row(example)

    @classmethod
    def content(cls, example: Match) -> Hashable:
        """Of a query its passages: questions about one passage stay together; of a pair both texts."""
        return example.positives if example.label is None else (example.query, *example.positives)

    @classmethod
    def asked(cls, example: Match) -> dict[str, str]:
        """The text, and what it is compared with where that is one."""
        others = example.texts[1:]
        return {"text": example.query, **({"second": others[0]} if len(others) == 1 else {})}

    @classmethod
    def columns(cls, example: Match) -> Mapping[str, str] | None:
        """The whole row of its file."""
        return example.row

    @classmethod
    def is_empty(cls, example: Match) -> bool:
        """A text is empty: nothing can be compared with it."""
        return any(not text.strip() for text in example.texts)

    @classmethod
    def learnt(cls, examples: Sequence[Match], settings: EmbedSettings, names: LabelNames | None) -> Facts:
        """What the examples are, and what their labels mean."""
        super().learnt(examples, settings, names)
        return learnt_of(examples, settings)

    @classmethod
    def check_dev(cls, examples: Sequence[Match], facts: Facts) -> None:
        """They are what the training examples are."""
        check_kind(examples, facts["kind"])

    @classmethod
    def gold(cls, examples: Sequence[Match], facts: Facts) -> list[tuple[str, ...]]:
        """The label, or the score as Python writes it."""
        graded = facts["kind"] == "graded"
        return [() if e.label is None else (f"{number_of(e):g}" if graded else e.label,) for e in examples]

    @classmethod
    def overview_of_answers(cls, train: Sequence[Match], dev: Sequence[Match], facts: Facts) -> DataSummary:
        """How scores spread, how often each label occurs, or how many queries and passages there are."""
        if facts["kind"] == "labelled":
            return super().overview_of_answers(train, dev, facts)
        return overview_of(train, dev, facts["kind"])

    @classmethod
    def stratum(cls, example: Match) -> Hashable | None:
        """None: a score is not a class, and labels are mostly two."""
        return None

    # From examples to a batch

    def encode(self, examples: Sequence[Match], tokenizer: Tokenizer) -> list[Item]:
        """[CLS] text [SEP] for each text of an example, cut to max_length or to what the model takes."""
        limit = self.reads
        texts = list(dict.fromkeys(text for example in examples for text in example.texts))
        encodings = tokenizer.encode_batch(texts, max_length=limit, with_offsets=False)
        known = {
            text: TokenSequence.from_encoding(encoding)
            for text, encoding in zip(texts, encodings, strict=True)
        }
        return [
            EmbedItem(
                number,
                tuple(known[text] for text in example.texts),
                self._target(example),
                positives=len(example.positives),
                gold=frozenset(key_of(known[text]) for text in example.positives),
            )
            for number, example in enumerate(examples)
        ]

    def _target(self, example: Match) -> float | None:
        if self._kind == "retrieval" or example.label is None:
            return 1.0 if example.positives else None
        if self._kind == "labelled":
            return float(example.label == self.facts["same"])
        span = self.facts["highest"] - self.facts["lowest"]
        return (number_of(example) - float(self.facts["lowest"])) / (span or 1.0)

    def collate(self, items: Sequence[Item], epoch: int = 0, first: int = 0) -> TaskBatch:
        """Two or three sequences an item: the query, the epoch's positive, the epoch's negative."""
        chosen = [item.of_epoch(epoch) for item in items if isinstance(item, EmbedItem)]
        return super().collate(chosen, epoch, first)

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """See `match_items.compared`; `excluded`: bool [B, C], the others that would be right as well."""
        tensors = compared(items)
        counts = {"task": len(items)}
        if self._kind == "retrieval":
            tensors["excluded"] = torch.from_numpy(also_right(items))
            if self.settings.symmetric:
                counts["back"] = len(items)
        return tensors, counts

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """None."""
        return {}

    def vectors(self, encoder: Encoder, packed: Packed) -> Tensor:
        """[B, H], fp32: as a user gets them."""
        found = pool(encoder, packed, self._pooling)
        return F.normalize(found, dim=-1) if self._normalize else found

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """The loss that was chosen, of cosines, summed over the items."""
        tensors, settings = batch.tensors, self.settings
        vectors = F.normalize(self.vectors(encoder, batch.packed), dim=-1)
        queries, others = vectors[tensors["queries"]], vectors[tensors["others"]]
        if self._kind == "retrieval":
            products = settings.scale * queries @ others.T
            sums, right = {}, {}
            sums["task"], right["task"] = in_batch(products, tensors["excluded"])
            if "back" in batch.counts:
                number = len(queries)
                back = tensors["excluded"][:, :number].T
                sums["back"], right["back"] = in_batch(products[:, :number].T, back)
            return Loss(sums, batch.counts, right)
        cosines, wanted = (queries * others).sum(-1), tensors["wanted"]
        if self._kind == "labelled":
            found = contrastive(cosines, wanted, settings.margin)
        elif settings.loss == "cosent":
            found = cosent(cosines, wanted, settings.scale)
        else:
            found = cosine_errors(cosines, wanted)
        return Loss({"task": found}, batch.counts)

    # From a batch to answers

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """A vector a sequence: [sequences, H] an item."""
        return torch.split(self.vectors(encoder, batch.packed), list(batch.sizes))

    def outputs_of(self, encoder: Encoder, items: Sequence[Item], place: ComputeContext) -> list[Tensor]:
        """Each sequence is read once, however many items have it."""
        number_scatter: dict[bytes, int] = {}
        singles: list[Item] = []
        rows = []
        for item in items:
            row = []
            for sequence in item.sequences:
                if (number := number_scatter.setdefault(key_of(sequence), len(number_scatter))) == len(
                    singles
                ):
                    singles.append(Item(number, (sequence,)))
                row.append(number)
            rows.append(row)

        reader = place.autocast_encoder(encoder)
        found = run_batched(singles, alone, lambda batch: self.outputs(reader, batch), place)
        vectors = torch.cat(found) if found else torch.empty(0, self.config.hidden_size)
        return [vectors[row] for row in rows]

    def decode(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[Match]
    ) -> list[Prediction]:
        """Of a pair the cosine, and of labelled ones whether it is the same; of a query with several passages the
        cosine of each (positives, then negatives); of a text alone its vector; tokens of the texts and tokens
        read."""
        predictions: list[Prediction] = []
        for output, item in zip(outputs, items, strict=True):
            vectors = output.numpy()
            cosines = _cosines(vectors[:1], vectors[1:]).tolist()
            said: dict[str, Any] = {"cosine": cosines[0]} if len(cosines) == 1 else {"cosines": cosines}
            if self._kind == "labelled" and len(cosines) == 1:
                said["same"] = cosines[0] > float(self.threshold)
            read = {
                "tokens": sum(sequence.tokens for sequence in item.sequences),
                "tokens_read": sum(sequence.tokens_read for sequence in item.sequences),
            }
            answer = Compared({**(said if cosines else {"vector": vectors[0].tolist()}), **read})
            answer.vectors = vectors
            predictions.append(answer)
        return predictions

    def vote(self, output: Tensor) -> Tensor:
        """Vectors of the length 1."""
        return F.normalize(output, dim=-1)

    def outcome(self, votes: Sequence[Tensor]) -> Tensor:
        """The vectors beside each other, whose cosines are the means of the models' cosines."""
        return torch.cat(list(votes), dim=-1)

    @property
    def decides(self) -> str:
        """Spearman's correlation, average precision, or nDCG@10."""
        return _DECIDES[self._kind]

    @property
    def logged(self) -> tuple[str, ...]:
        """What decides, and one score more."""
        return _LOGGED[self._kind]

    def fit(self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[Match]) -> None:
        """Of labelled pairs: the threshold with the best accuracy."""
        if self._kind == "labelled":
            cosines = np.array([p["cosine"] for p in self.decode(outputs, items, examples)])
            self.threshold.fill_(best_threshold(cosines, self._same(examples))[1])

    @property
    def kept_facts(self) -> Facts:
        """Of labelled pairs: with the threshold."""
        return self.facts | ({"threshold": float(self.threshold)} if self._kind == "labelled" else {})

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Match]) -> Metrics:
        """Of graded pairs correlations; of labelled ones average precision, AUC, accuracy; of queries recall, MRR
        and nDCG among all passages of the file (see `match_scores`)."""
        kind = self._kind_of(examples)
        if kind == "retrieval":
            found = self._of_retrieval(predictions, examples)
        else:
            found = self._of_cosines(kind, examples, np.array([p["cosine"] for p in predictions], np.float64))
        cuts, notes = truncation_metrics(predictions)
        return Metrics(found.numbers, {**found.details, **cuts}, (), [*found.notes, *notes])

    def _kind_of(self, examples: Sequence[Match]) -> Kind:
        """Of what is scored, which may be another kind than what was trained on."""
        labelled = examples[0].label is not None
        if labelled == (self._kind != "retrieval"):
            return self._kind
        return kind_of(examples, self.settings.model_copy(update={"loss": "auto"}))

    def _of_cosines(
        self, kind: Kind, examples: Sequence[Match], cosines: NDArray[np.float64], *, baseline: bool = False
    ) -> Figures:
        if kind == "graded":
            return graded_figures(cosines, np.array([number_of(example) for example in examples]))
        own = float(self.threshold) if self._kind == "labelled" and not baseline else None
        return labelled_figures(cosines, self._same(examples), own)

    def _same(self, examples: Sequence[Match]) -> NDArray[np.bool_]:
        """bool [B]: which pairs mean the same."""
        same = self.facts.get("same") or same_label(examples, self.settings)
        return np.array([example.label == same for example in examples])

    def _of_retrieval(self, predictions: Sequence[Prediction], examples: Sequence[Match]) -> Figures:
        """Each query's passages among all; what has negatives also says how often the positive scores higher."""
        search, rankings = self._rankings(predictions, examples)
        found = retrieval_figures(search, rankings, len(examples))
        told_apart = [
            p["cosines"][0] > max(p["cosines"][len(e.positives) :])
            for p, e in zip(predictions, examples, strict=True)
            if e.negatives and e.positives
        ]
        if told_apart:
            found.numbers["above_negatives"] = float(np.mean(told_apart))
        return found

    def _rankings(
        self, predictions: Sequence[Prediction], examples: Sequence[Match]
    ) -> tuple[Search, list[list[int]]]:
        """What is searched, and the best passages of each query."""
        search = Search.of(examples)
        rows: dict[str, NDArray[np.float32]] = {}
        for prediction, example in zip(predictions, examples, strict=True):
            assert isinstance(prediction, Compared)
            rows.update(zip(example.texts, prediction.vectors, strict=True))
        queries, passages = (
            normalize_vectors(np.stack([rows[text] for text in texts]))
            for texts in (search.queries, search.passages)
        )
        return search, search_vectors(queries, passages, _BEST)[0].tolist()

    def tallies(
        self, predictions: Sequence[Prediction], examples: Sequence[Match]
    ) -> SufficientStatistics | None:
        """Of queries what `retrieval_figures` has, of labelled pairs the accuracy; of graded ones none: what
        decides is a rank correlation."""
        kind = self._kind_of(examples)
        if kind == "retrieval":
            return ranking_tallies(*self._rankings(predictions, examples), examples)
        if kind == "graded" or any("same" not in prediction for prediction in predictions):
            return None
        same = self._same(examples)
        return mean_statistics({"accuracy": [p["same"] == s for p, s in zip(predictions, same, strict=True)]})

    @property
    def measure(self) -> str:
        """Of what is trained on."""
        return {
            "graded": "the squared difference of the cosine and the score, as a share of its range",
            "labelled": "how far the cosine is on the wrong side of the threshold",
            "retrieval": "1 minus the cosine with the first passage that answers it",
        }[self._kind]

    def losses(self, answers: Any) -> list[float | None]:
        """How far each pair's cosine, or a query's with its first passage, is from what it should be."""
        examples, predictions = answers.examples, answers.predictions
        if self._kind_of(examples) != self._kind:
            return [None] * len(examples)
        if self._kind == "retrieval":
            pairs = zip(predictions, examples, strict=True)
            return [1 - _first_cosine(p) if e.positives else None for p, e in pairs]
        threshold = float(self.threshold) if self._kind == "labelled" else None
        wanted = [float(self._target(example) or 0) for example in examples]
        return misses([float(p["cosine"]) for p in predictions], wanted, threshold)

    def details(self, predictions: Sequence[Prediction], examples: Sequence[Match]) -> ErrorAnalysis:
        """Of graded pairs the cosines beside the scores; of labelled ones which are called the same."""
        kind = self._kind_of(examples)
        if kind == "graded":
            truth = [number_of(example) for example in examples]
            return {"numbers": number_scatter(truth, [p["cosine"] for p in predictions], "score", "cosine")}
        if kind == "labelled" and all("same" in p for p in predictions):
            sides = (self._same(examples).tolist(), [p["same"] for p in predictions])
            same, called = (["the same" if one else "others" for one in side] for side in sides)
            return {"confusion": confusion("pairs", same, called, ["the same", "others"])}
        return {}

    def compared(self, example: Match, prediction: Prediction) -> tuple[str, str]:
        """The score or label, and the cosine; of a query its first passage, and that one's cosine."""
        return example.positives[
            0
        ] if example.label is None else example.label, f"{_first_cosine(prediction):.4f}"

    def baseline(self, training: Sequence[Match], dev: Sequence[Match]) -> Metrics:
        """The cosines of TF-IDF vectors."""
        figures = tfidf_figures(
            self._kind,
            training,
            dev,
            lambda cosines: self._of_cosines(self._kind, dev, cosines, baseline=True),
        )
        return Metrics(figures.numbers)

    def export(self, encoder: Encoder) -> dict[str, ModelParts]:
        """The encoder, and what sentence-transformers wants to know of its vectors."""
        read = self.reads
        made = SentenceEmbeddingConfig(self._pooling, self._normalize, read)
        files = sentence_transformers_files(self.config.hidden_size, made)
        return {MODEL: ModelParts(self.config, {"encoder": encoder}, files=files)}


def _first_cosine(prediction: Mapping[str, Any]) -> float:
    """Of a pair, or of a query with its first passage."""
    return float(prediction["cosine"] if "cosine" in prediction else prediction["cosines"][0])


def _cosines(query: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of one vector [1, H] with others [n, H]: [n]."""
    a, b = query.astype(np.float64), others.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    found: NDArray[np.float64] = (a * b).sum(axis=1) / np.maximum(lengths, 1e-12)
    return found
