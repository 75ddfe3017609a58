"""word2vec: planted synonyms, equality with a plain reference, exactness, and kinds of corpora."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_run
from bertsmith import hardware
from bertsmith.corpus.prepare import prepare
from bertsmith.errors import InputError
from bertsmith.io.sources import Texts
from bertsmith.predecessors import word2vec, word2vec_kernels
from bertsmith.predecessors.word2vec import train_word_vectors
from bertsmith.predecessors.word2vec_kernels import build_alias_table
from bertsmith.predecessors.word_vectors import WordVectors
from bertsmith.pretraining.model import read_token_vectors
from bertsmith.tokenizer_training.train import train_tokenizer

TOPICS = 8


def planted_corpus(num_sentences: int = 3000) -> list[list[str]]:
    """Return sentences in which left3 and right3 occur between the same words, and no others do."""
    rng = np.random.default_rng(0)
    sentences = []
    for _ in range(num_sentences):
        topic = int(rng.integers(TOPICS))
        context = [f"topic{topic}word{i}" for i in rng.permutation(6)]
        context.insert(int(rng.integers(2, 5)), f"{('left', 'right')[int(rng.integers(2))]}{topic}")
        sentences.append(context)
    return sentences


SMALL: dict[str, Any] = {
    "dimensions": 20,
    "window": 3,
    "num_train_epochs": 4,
    "learning_rate": 0.1,
    "min_count": 1,
}
# The planted corpus has few words, of which subsampling with the usual ratio would keep few.
PLANTED: dict[str, Any] = {**SMALL, "subsampling": 0}


@pytest.mark.parametrize("algorithm", ["skip_gram", "cbow"])
@pytest.mark.parametrize("loss", ["negative_sampling", "hierarchical_softmax", "softmax"])
@pytest.mark.parametrize("max_subword", [0, 4])
def test_planted_synonyms_are_nearest_and_the_loss_falls(algorithm: Any, loss: Any, max_subword: int) -> None:
    # Only rare n-grams, else "left0" is nearest to "left1" by its letters.
    subwords = {"min_subword": 4, "max_subword": max_subword} if max_subword else {}
    vectors = train_word_vectors(planted_corpus(), algorithm=algorithm, loss=loss, **PLANTED, **subwords)
    losses = vectors.report["losses"]
    assert losses[-1] < 0.95 * losses[0]
    for topic in range(TOPICS):
        names = [word for word, _ in vectors.neighbors(f"left{topic}", 30) if not word.startswith("topic")]
        expected = f"right{topic}"
        assert expected in (names[:2] if max_subword else names[:1])


def reference_softmax(
    ids: list[list[int]], vectors: Any, rate: float, total: int, *, is_skip_gram: bool
) -> Any:
    """Train an epoch with a window of 1 and a full softmax in double precision."""
    inputs, outputs = vectors.astype(np.float64), np.zeros(vectors.shape)
    losses, done = [], 0
    for sentence in ids:
        step = rate * (1 - done / total)
        for i, center in enumerate(sentence):
            others = [sentence[j] for j in (i - 1, i + 1) if 0 <= j < len(sentence)]
            rows, targets = ([center], others) if is_skip_gram else (others, [center])
            hidden, gradient = inputs[rows].mean(0), np.zeros(inputs.shape[1])
            for target in targets:
                probabilities = np.exp(outputs @ hidden)
                probabilities /= probabilities.sum()
                losses.append(-np.log(probabilities[target]))
                error = np.eye(len(outputs))[target] - probabilities
                gradient += step * error @ outputs
                outputs += step * np.outer(error, hidden)
            for row in rows:
                inputs[row] += gradient
        done += len(sentence)
    return inputs, outputs, np.mean(losses)


@pytest.mark.parametrize("algorithm", ["skip_gram", "cbow"])
def test_an_epoch_equals_a_plain_reference(algorithm: Any) -> None:
    """Tolerance: single precision over 400 sentences; the updates themselves are 1e-2 and more."""
    sentences = planted_corpus(400)
    options: dict[str, Any] = {
        **PLANTED,
        "algorithm": algorithm,
        "window": 1,
        "loss": "softmax",
        "num_train_epochs": 1,
    }
    vectors = train_word_vectors(sentences, **{**options, "learning_rate": 0.5})
    # A rate of almost zero leaves the initial vectors.
    initial = train_word_vectors(sentences, **{**options, "learning_rate": 1e-30})
    assert initial.words == vectors.words
    ids = [[vectors.indices[word] for word in sentence] for sentence in sentences]
    is_skip_gram = algorithm == "skip_gram"
    expected, outputs, loss = reference_softmax(
        ids, initial.vectors, 0.5, sum(map(len, ids)), is_skip_gram=is_skip_gram
    )
    assert np.abs(expected - initial.vectors).max() > 0.1
    np.testing.assert_allclose(vectors.vectors, expected, atol=1e-4)
    np.testing.assert_allclose(vectors.outputs, outputs, atol=1e-4)
    assert vectors.report["losses"][0] == pytest.approx(loss, rel=1e-5)


def test_hierarchical_softmax_is_a_distribution_over_words() -> None:
    """Before training each node is a fair coin, so that the mean loss is the mean length of the Huffman code."""
    sentences = [
        ["a", "b"],
        ["a", "b"],
        ["a", "c"],
        ["a", "d"],
    ]  # counts 4, 2, 1, 1: codes of 1, 2, 3, 3 bits
    options: dict[str, Any] = {
        **PLANTED,
        "loss": "hierarchical_softmax",
        "learning_rate": 1e-30,
        "num_train_epochs": 1,
    }
    bits = train_word_vectors(sentences, **options).report["losses"][0] / np.log(2)
    assert bits == pytest.approx((4 * 1 + 2 * 2 + 3 + 3) / 8, abs=0.01)  # the sigmoid is a table


def test_negative_samples_have_the_powers_of_the_counts() -> None:
    weights = np.array([100.0, 1, 0, 7, 30]) ** 0.75
    thresholds, aliases = np.zeros(5, dtype=np.uint64), np.zeros(5, dtype=np.int64)
    build_alias_table(weights, thresholds, aliases)
    kept = thresholds / 2.0**32
    probabilities = (kept + np.bincount(aliases, 1 - kept, minlength=5)) / 5
    np.testing.assert_allclose(probabilities, weights / weights.sum(), atol=1e-8)


def test_vectors_depend_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = planted_corpus(300)
    first = train_word_vectors(sentences, **SMALL)
    monkeypatch.setattr(word2vec, "_BLOCK_WORDS", 10)
    monkeypatch.setattr(word2vec, "_ROWS_PER_BLOCK", 3)
    second = train_word_vectors(sentences, **SMALL)
    np.testing.assert_array_equal(first.vectors, second.vectors)
    assert first.report == second.report
    assert not np.array_equal(first.vectors, train_word_vectors(sentences, **SMALL, seed=1).vectors)


@pytest.mark.parametrize("options", [{}, {"max_subword": 4}])
def test_training_continues_from_a_saved_folder(options: dict[str, Any], tmp_path: Path) -> None:
    sentences = planted_corpus(600)
    first = train_word_vectors(sentences, **SMALL, **options)
    first.save(tmp_path / "vectors")
    more = [*sentences, ["newcomer", "topic0word1", "topic0word2"]]
    second = train_word_vectors(more, initial=tmp_path / "vectors", **SMALL, **options)
    assert second.words == [*first.words, "newcomer"]
    assert second.report["losses"][0] < 0.8 * first.report["losses"][0]
    again = train_word_vectors(more, initial=first, **SMALL, **options)
    np.testing.assert_array_equal(second.vectors, again.vectors)
    assert second.counts is not None
    assert second.counts.sum() == sum(map(len, [*sentences, *more]))
    only_new = train_word_vectors([["newcomer", "other"]], initial=first, **SMALL, **options)
    if not options:
        np.testing.assert_array_equal(only_new.vectors[: len(first)], first.vectors)


@pytest.mark.parametrize("seconds", [1000, 320, 120])
def test_minutes_allow_the_epochs_that_fit(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only training advances, training ends in time; its settings repeat it."""
    train, now = word2vec_kernels.train_sentences, 0.0

    def train_sentences(ids: Any, *arguments: Any) -> Any:
        nonlocal now
        now += len(ids) * 200 / num_words  # 200 seconds per epoch
        return train(ids, *arguments)

    corpus = planted_corpus(2000)
    num_words = sum(map(len, corpus))
    monkeypatch.setattr(word2vec_kernels, "train_sentences", train_sentences)
    monkeypatch.setattr(hardware, "clock", lambda: now)
    monkeypatch.setattr(word2vec, "_TRIAL_WORDS", num_words // 20)
    options = {**PLANTED, "num_train_epochs": 3, "dimensions": 4}
    vectors = train_word_vectors(corpus, max_minutes=seconds / 60, **options)
    fitted = vectors.report["settings"]["num_train_epochs"]
    assert now <= seconds
    assert fitted == pytest.approx(min(3, (seconds - 20) / 200), abs=0.01)
    again = train_word_vectors(corpus, **vectors.report["settings"])
    np.testing.assert_array_equal(again.vectors, vectors.vectors)


def test_subwords_give_unknown_words_a_vector() -> None:
    vectors = train_word_vectors(planted_corpus(600), **PLANTED, max_subword=5)
    assert "lefts0" not in vectors.indices
    assert "lefts0" in vectors
    assert vectors["lefts0"].shape == (20,)
    assert "东" not in vectors
    # The vector of a word is the mean of its own and of those of its n-grams.
    assert vectors.subwords is not None
    word = vectors.words[0]
    parts = [vectors.subwords.inputs[0] * 1, vectors.subwords.compose(word)]
    grams = len([g for g in vectors.subwords.rows if g in f"<{word}>"])
    assert parts[1] is not None
    np.testing.assert_allclose(
        vectors.vectors[0], (parts[0] + grams * parts[1]) / (grams + 1), rtol=1e-4, atol=1e-6
    )


def test_kinds_of_corpora_have_the_same_words(tmp_path: Path) -> None:
    """Text files, texts in memory, sentences, and prepared tokens, whose pieces are joined to words."""
    lines = [" ".join(sentence) + " ." for sentence in planted_corpus(400)]
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(line.capitalize() for line in lines))
    expected = train_word_vectors([line.split() for line in lines], **SMALL)
    tokenizer = train_tokenizer(file, tmp_path / "tokenizer", vocab_size=60)
    shards = prepare(file, tokenizer, tmp_path / "shards")
    assert shards.tokens > 1.2 * sum(len(line.split()) for line in lines)  # many words have several pieces
    for corpus in (file, str(file), Texts(lines), shards, tmp_path / "shards"):
        vectors = train_word_vectors(corpus, **SMALL)
        assert vectors.words == expected.words
        np.testing.assert_array_equal(vectors.vectors, expected.vectors)


def test_words_are_those_of_bert(tmp_path: Path) -> None:
    text = Texts(["The café's 北京。 THE café"] * 3)
    options: dict[str, Any] = {**SMALL, "num_train_epochs": 1, "subsampling": 0}
    words = train_word_vectors(text, **options).words
    assert sorted(words) == sorted(["the", "cafe", "'", "s", "北", "京", "。"])
    assert "Café" not in words
    assert {"The", "THE", "café"} <= set(train_word_vectors(text, **options, lowercase=False).words)


def test_phrases_are_joined() -> None:
    rng = np.random.default_rng(0)
    fillers = [f"w{i}" for i in range(50)]
    sentences = [
        [*rng.choice(fillers, 4), "new", "york", "city", *rng.choice(fillers, 4)] for _ in range(100)
    ]
    sentences = [list(map(str, sentence)) for sentence in sentences]
    options: dict[str, Any] = {**SMALL, "min_count": 3, "num_train_epochs": 1, "phrase_threshold": 0.4}
    once = train_word_vectors(sentences, **options, phrase_passes=1).words
    twice = train_word_vectors(sentences, **options, phrase_passes=2).words
    assert ("new_york" in once, "city" in once, "york_city" in once) == (True, True, False)
    assert "new_york_city" in twice
    assert not [word for word in twice if word.startswith("w") and "_" in word]


@pytest.mark.parametrize(
    ("corpus", "options", "code", "argument"),
    [
        (Texts([" "]), {}, "no_text", None),
        ([[]], {}, "no_words", "corpus"),
        ([["a", "b"]], {"min_count": 2}, "no_frequent_word", "min_count"),
        ([["a"], ["b"]], {"min_count": 1}, "no_word_pair", "corpus"),
        ([["a", "b"]], {"window": 0}, "invalid_setting", "window"),
        ([["a", "b"]], {"max_subword": 2}, "invalid_setting", None),
        ([["a", "b"]], {"windows": 3}, "unknown_setting", "windows"),
        ([["a", "b"]] * 9, {"learning_rate": 2.0}, "invalid_setting", "learning_rate"),
    ],
)
def test_errors_name_the_argument(corpus: Any, options: Any, code: str, argument: str | None) -> None:
    with pytest.raises(InputError) as caught:
        train_word_vectors(corpus, **options)
    assert (caught.value.code, caught.value.argument) == (code, argument)


def test_initial_vectors_of_other_sizes_are_refused() -> None:
    initial = WordVectors(["a", "b"], np.ones((2, 3), dtype=np.float32))
    for options, code in (
        ({}, "dimensions_differ"),
        ({"dimensions": 3, "max_subword": 3}, "subwords_differ"),
    ):
        with pytest.raises(InputError) as caught:
            train_word_vectors([["a", "b"]], initial=initial, min_count=1, **options)  # type: ignore[arg-type]
        assert caught.value.code == code
    with pytest.raises(InputError) as caught:
        train_word_vectors([["c", "d"]], initial=initial, dimensions=3)
    assert caught.value.code == "no_frequent_word"


def test_vectors_of_prepared_data_initialize_a_model(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    vectors = train_word_vectors(shards, **{**SMALL, "num_train_epochs": 1})
    assert not any(word.startswith("##") or "[" in word for word in vectors.words)
    for name in ("vectors.bin", "vectors.txt", "folder"):
        file = vectors.save(tmp_path / name)
        table = read_token_vectors(str(file), shards.tokenizer, 20)
        token_id = next(i for i, token in enumerate(shards.tokenizer.tokens) if token in vectors.indices)
        np.testing.assert_array_equal(table[token_id], vectors[shards.tokenizer.tokens[token_id]])


def test_documents_of_prepared_data(tmp_path: Path) -> None:
    """A part of the documents gives the vectors of their text alone."""
    shards = tiny_run.make_shards(tmp_path)
    settings: dict[str, Any] = {"dimensions": 4, "min_count": 1, "num_train_epochs": 1, "subsampling": 0}
    chosen = np.array([1, 2, shards.documents - 1])
    part = train_word_vectors(shards, documents=chosen, **settings)
    texts = []
    for document in chosen.tolist():
        first, last = shards.document_sentence_offsets[document : document + 2].tolist()
        ends = [0, *shards.sentence_ends.tolist()]
        texts += [
            shards.tokenizer.decode(shards.take(np.arange(ends[i], ends[i + 1])).tolist())
            for i in range(first, last)
        ]
    alone = train_word_vectors([re.findall(r"\w+|[^\w\s]", text) for text in texts], **settings)
    assert part.words == alone.words
    np.testing.assert_array_equal(part.vectors, alone.vectors)
    everything = train_word_vectors(shards, documents=np.arange(shards.documents), **settings)
    np.testing.assert_array_equal(everything.vectors, train_word_vectors(shards, **settings).vectors)
