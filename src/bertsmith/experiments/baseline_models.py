"""The models of a comparison behind one interface: train or load them, score and embed texts with them."""

from __future__ import annotations

import json
import shutil
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith import hardware, rng
from bertsmith.artifacts.folder import write_folder
from bertsmith.corpus.shards import Shards
from bertsmith.experiments.ablation_recipe import PRETRAIN
from bertsmith.experiments.baselines_recipe import ModelRecipe
from bertsmith.inference.model import Model, load
from bertsmith.instances.epoch_plan import count_document_tokens, document_token_offsets
from bertsmith.instances.holdout_split import DocumentSplit
from bertsmith.instances.settings import DataSettings
from bertsmith.models.family import build_encoder, predicts_from_both_sides
from bertsmith.predecessors.ngram import NgramModel, train_ngram
from bertsmith.predecessors.static_vectors import StaticModel, distill_static_vectors
from bertsmith.predecessors.word2vec import train_word_vectors
from bertsmith.predecessors.word_corpus import read_words
from bertsmith.predecessors.word_vectors import WordVectors
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.run_folder import holds_run, write_json
from bertsmith.tokenizer.tokenizer import Tokenizer

_MAX_CHUNK_TOKENS = 120  # of held-out text that a neural model reads at a time; most runs train on 128
_ONE_HOT_WORDS = 2_000  # the most frequent ones
_FILLED_WORDS = 3
_SAMPLE_TOKENS, _TEMPERATURE, _TOP_K = 30, 0.8, 40
_TRAINING = "training.json"

Vectors = NDArray[np.float32]


class LogProbability(NamedTuple):
    """The summed log-probability of tokens in nats, and their number."""

    total: float
    tokens: int


@dataclass(frozen=True)
class Baseline(ABC):
    """A trained model. Methods return None for what it cannot do.

    Attributes:
        parameters: The number of its trained numbers: weights, or probabilities and back-off weights of n-grams.
        units: What it reads: "pieces" or "words".
        tokens: The number of tokens that it was trained on, repetitions included; None if it was not trained.
        seconds: The time of the training.
    """

    parameters: int
    units: str
    tokens: int | None
    seconds: float

    @property
    def model(self) -> Model | None:
        """The neural model, for tasks, senses, and speed."""
        return None

    @property
    def is_left_to_right(self) -> bool:
        """True if the probability of a text is the product of those of each token given the ones before it."""
        return True

    def log_probability(self, chunks: Sequence[Sequence[str]]) -> LogProbability | None:
        """Return the log-probability of chunks of consecutive sentences, ends of sentences excluded."""
        return None

    def score(self, texts: Sequence[str]) -> list[float] | None:
        """Return the log-probability, or pseudo-log-likelihood, of each text in nats."""
        return None

    def embed(self, texts: Sequence[str]) -> Vectors | None:
        """Return a vector per text, [n, H]; zeros if it has no known word."""
        return None

    def continue_text(self, prompt: str, seed: int) -> str | None:
        """Return a sampled continuation of a text."""
        return None


@dataclass(frozen=True)
class NeuralBaseline(Baseline):
    """A model folder, which reads all sentences of a chunk together."""

    neural: Model

    @property
    def model(self) -> Model:
        """The model."""
        return self.neural

    @property
    def is_left_to_right(self) -> bool:
        """True for a causal model."""
        return self.neural.folder.config.causal

    def log_probability(self, chunks: Sequence[Sequence[str]]) -> LogProbability | None:
        """Score chunks, each as one text."""
        if not self.neural.folder.has("masked"):
            return None
        scores = [score for score in self.neural.score([" ".join(chunk) for chunk in chunks]) if score.tokens]
        return LogProbability(sum(score.score for score in scores), sum(score.tokens for score in scores))

    def score(self, texts: Sequence[str]) -> list[float] | None:
        """Score texts by the head over the vocabulary."""
        if not self.neural.folder.has("masked"):
            return None
        return [score.score or 0.0 for score in self.neural.score(list(texts))]

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the mean of the last layer's states."""
        return self.neural.embed(list(texts), pooling="mean")

    def continue_text(self, prompt: str, seed: int) -> str | None:
        """Sample from a causal model; of a model that reads both sides, return its words for a mask."""
        config = self.neural.folder.config
        if not self.neural.folder.has("masked") or not (config.causal or predicts_from_both_sides(config)):
            return None
        if not config.causal:
            mask = self.neural.tokenizer.mask_token
            words = self.neural.fill_mask(f"{prompt} {mask}.", top_k=_FILLED_WORDS)[0]
            return f"{mask}: {', '.join(word.token for word in words)}"
        settings: Mapping[str, Any] = {"temperature": _TEMPERATURE, "top_k": _TOP_K, "seed": seed}
        return str(self.neural.generate(prompt, max_new_tokens=_SAMPLE_TOKENS, **settings).text)


@dataclass(frozen=True)
class NgramBaseline(Baseline):
    """An n-gram model of pieces, which reads each sentence by itself."""

    ngram: NgramModel

    def log_probability(self, chunks: Sequence[Sequence[str]]) -> LogProbability:
        """Score the sentences of all chunks."""
        words = self._word_log_probabilities([sentence for chunk in chunks for sentence in chunk])
        return LogProbability(float(sum(values.sum() for values in words)), sum(map(len, words)))

    def score(self, texts: Sequence[str]) -> list[float]:
        """Score texts, each as a sentence."""
        return [float(values.sum()) for values in self._word_log_probabilities(texts)]

    def _word_log_probabilities(self, sentences: Sequence[str]) -> list[NDArray[np.float64]]:
        """Return those of the words, without the ends of sentences."""
        end = -1 if self.ngram.settings.sentence_boundaries else None
        return [values[:end] for values in self.ngram.log_probabilities(sentences)]

    def continue_text(self, prompt: str, seed: int) -> str:
        """Sample words."""
        tokenizer = self.ngram.tokenizer
        assert tokenizer is not None
        pieces = ["<s>", *(tokenizer.tokens[i] for i in next(iter(tokenizer.encode_ids([prompt]))))]
        start = len(pieces)
        uniform = rng.uniform(seed, "continuation of an n-gram model", np.arange(_SAMPLE_TOKENS))
        for draw in uniform.tolist():
            if not (followers := self.ngram.next_words(pieces, _TOP_K)):
                break
            words, probs = zip(*followers, strict=True)
            sharpened = np.cumsum(np.array(probs) ** (1 / _TEMPERATURE))
            word = str(words[int(np.searchsorted(sharpened, draw * sharpened[-1]))])
            if word == "</s>":
                break
            pieces.append(word)
        ids = {token: i for i, token in enumerate(tokenizer.tokens)}
        return tokenizer.decode([ids[piece] for piece in pieces[start:] if piece in ids])


@dataclass(frozen=True)
class VectorBaseline(Baseline):
    """Word vectors; a text has the mean of its words' vectors."""

    vectors: WordVectors
    tokenizer: Tokenizer

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the mean of the known words' vectors, with the tokenizer's splitting of texts into words."""
        rows = np.zeros((len(texts), self.vectors.vectors.shape[1]), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            words = split_words(text, self.tokenizer)
            indices = [self.vectors.indices[word] for word in words if word in self.vectors.indices]
            if indices:
                row[:] = self.vectors.vectors[indices].mean(0)
        return rows


@dataclass(frozen=True)
class StaticBaseline(Baseline):
    """Static vectors of a model's pieces."""

    static: StaticModel

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the mean of the pieces' vectors."""
        return self.static.embed(list(texts))


def train_baseline(
    recipe: ModelRecipe,
    folder: Path,
    shards: Shards,
    settings: Mapping[str, Any],
    seed: int,
    base: Path | None = None,
) -> Baseline:
    """Train a model of a recipe in a folder, or load it from there.

    Args:
        recipe: The model.
        folder: The folder of the model and seed.
        shards: The corpus; n-grams and neural models train on its training documents.
        settings: Settings of all pre-training runs.
        seed: The seed.
        base: The run of the pre-trained model that the recipe names.
    """
    if recipe.kind == "pretrained":
        run = base or folder / PRETRAIN
        if base is None:
            changes = {**settings, **PretrainSettings.dotted(recipe.settings), "train.seed": seed}
            pretrain(shards, run, preset=recipe.preset, settings=changes, resume=holds_run(run))
        model = load(run)
        return _neural_baseline(model, model.report)
    if recipe.kind == "untrained":
        assert base is not None
        return _neural_baseline(_untrained_model(base, folder / "model", seed, **recipe.settings), None)
    if recipe.kind in ("ngram", "word_vectors"):
        data, max_tokens = PretrainSettings().changed(settings).data, settings.get("train.max_tokens")
        documents = _training_documents(shards, data, max_tokens, seed)
        if recipe.kind == "ngram":
            return _train_ngram(recipe, folder, shards, documents)
        limits = {"seed": seed, "max_minutes": settings.get("train.max_minutes")}
        return _train_word_vectors({**limits, **recipe.settings}, folder, shards, documents)
    if recipe.kind == "one_hot":
        return _one_hot_vectors(shards)
    assert base is not None
    return _distill_static_vectors(recipe, folder, base)


def _neural_baseline(model: Model, report: Mapping[str, Any] | None) -> NeuralBaseline:
    tokens, seconds = (None, 0.0) if report is None else (report["tokens"], report["seconds"])
    return NeuralBaseline(model.info()["parameters"], "pieces", tokens, seconds, model)


def _untrained_model(base: Path, folder: Path, seed: int, *, keep_embeddings: bool = False) -> Model:
    """Return the model of a run with random weights; it may keep the run's token embeddings."""
    if not folder.exists():
        trained = load(base)
        encoder = build_encoder(trained.folder.config, torch.Generator().manual_seed(seed))
        if keep_embeddings:
            with torch.no_grad():
                encoder.embeddings.token.weight.copy_(trained.encoder.embeddings.token.weight)
        write_folder(folder, trained.folder.config, {"encoder": encoder}, tokenizer=trained.tokenizer)
    return load(folder)


def _training_documents(
    shards: Shards, data: DataSettings, max_tokens: int | None, seed: int
) -> NDArray[np.int64]:
    """Return the documents that are not held out, or as many random ones of them as have `max_tokens` tokens."""
    documents = DocumentSplit.from_settings(shards, data).train
    if max_tokens is None or count_document_tokens(shards, documents) <= max_tokens:
        return documents
    shuffled = documents[rng.permutation(seed, "documents of a comparison", len(documents))]
    sizes = np.diff(document_token_offsets(shards))[shuffled]
    num_documents = 1 + int(np.searchsorted(np.cumsum(sizes), max_tokens))
    return np.sort(shuffled[:num_documents])


def _train_ngram(
    recipe: ModelRecipe, folder: Path, shards: Shards, documents: NDArray[np.int64]
) -> NgramBaseline:
    target = folder / "model"

    def train() -> None:
        train_ngram(shards, documents=documents, **recipe.settings).save(target)

    seconds, ngram = _train_once(folder, train), NgramModel.load(target)
    numbers = sum(len(table.log_probs) + len(table.backoffs) for table in ngram.tables)
    return NgramBaseline(numbers, "pieces", count_document_tokens(shards, documents), seconds, ngram)


def _train_word_vectors(
    settings: dict[str, Any], folder: Path, shards: Shards, documents: NDArray[np.int64]
) -> VectorBaseline:
    target = folder / "model"

    def train() -> None:
        train_word_vectors(shards, documents=documents, **settings).save(target)

    seconds, vectors = _train_once(folder, train), WordVectors.load(target)
    tokens = round(vectors.report["tokens"] * vectors.report["settings"]["num_train_epochs"])
    return VectorBaseline(vectors.vectors.size, "words", tokens, seconds, vectors, shards.tokenizer)


def _one_hot_vectors(shards: Shards) -> VectorBaseline:
    words = read_words(shards).with_min_count(1, _ONE_HOT_WORDS).words
    return VectorBaseline(0, "words", None, 0.0, WordVectors.one_hot(words), shards.tokenizer)


def _distill_static_vectors(recipe: ModelRecipe, folder: Path, base: Path) -> StaticBaseline:
    target = folder / "model"

    def train() -> None:
        distill_static_vectors(base, **recipe.settings).save(target)

    seconds, static = _train_once(folder, train), StaticModel.load(target)
    return StaticBaseline(static.vectors.size, "pieces", None, seconds, static)


def _train_once(folder: Path, train: Callable[[], None]) -> float:
    """Train a model unless the folder has it, and return the seconds that it took."""
    record = folder / _TRAINING
    if not record.exists():
        shutil.rmtree(folder / "model", ignore_errors=True)
        start = hardware.clock()
        train()
        write_json(record, {"seconds": hardware.clock() - start})
    return float(json.loads(record.read_text(encoding="utf-8"))["seconds"])


def held_out_chunks(shards: Shards, data: DataSettings, max_tokens: int) -> list[list[str]]:
    """Return chunks of consecutive sentences of the validation documents, about `max_tokens` tokens together.

    A chunk has at most 120 tokens, unless its only sentence is longer.
    """
    tokenizer, split = shards.tokenizer, DocumentSplit.from_settings(shards, data)
    chunks: list[list[str]] = []
    total = 0
    for document in split.validation.tolist():
        first, last = shards.document_sentence_offsets[document : document + 2].tolist()
        size = _MAX_CHUNK_TOKENS
        for sentence in range(first, last):
            start = int(shards.sentence_ends[sentence - 1]) if sentence else 0
            end = int(shards.sentence_ends[sentence])
            if size + end - start > _MAX_CHUNK_TOKENS:
                if total >= max_tokens:
                    return chunks
                chunks.append([])
                size = 0
            chunks[-1].append(tokenizer.decode(shards.take(np.arange(start, end)).tolist()))
            size, total = size + end - start, total + end - start
    return chunks


def split_words(text: str, tokenizer: Tokenizer) -> list[str]:
    """Return the words of a text, which are pieces of the tokenizer joined again."""
    ids = np.array(next(iter(tokenizer.encode_ids([text]))), dtype=np.int64)
    starts = np.flatnonzero(tokenizer.word_starts(ids))
    return [tokenizer.decode(part.tolist()) for part in np.split(ids, starts[1:])] if len(ids) else []
