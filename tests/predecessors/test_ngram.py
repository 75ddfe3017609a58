"""N-gram models: fixed values, lmplz's probabilities, brute force, perplexity, shards, folders, and errors."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny_run
from bertsmith.errors import InputError
from bertsmith.io.sources import Texts
from bertsmith.predecessors.ngram import NgramModel, train_ngram

FIXTURES = Path(__file__).parent / "ngram"
TEXT = FIXTURES / "text.txt"
FALLBACK = (0.5, 1, 1.5)
PARTS_OF_SPEECH = Texts(["词性 是 动词", "判断 单词 的 词性", "磁性 很强 的 磁铁", "北京 的 词性 是 名词"])
CLOSED = {"sentence_boundaries": False, "unknown_words": False}
SMOOTHINGS: list[dict[str, Any]] = [
    {"smoothing": "kneser_ney", "discount_fallback": FALLBACK},
    {"smoothing": "interpolated"},
    {"smoothing": "add_k", "k": 0.5},
    {"smoothing": "maximum_likelihood"},
]


def test_probabilities_of_the_part_of_speech_corpus() -> None:
    model = train_ngram(PARTS_OF_SPEECH, order=2, smoothing="maximum_likelihood", **CLOSED)
    assert model.probability("词性", "的") == pytest.approx(2 / 3)
    assert model.next_words("的") == [("词性", pytest.approx(2 / 3)), ("磁铁", pytest.approx(1 / 3))]
    add_one = train_ngram(PARTS_OF_SPEECH, order=2, smoothing="add_k", **CLOSED)
    assert add_one.probability("词性", "的") == pytest.approx(3 / 14)
    assert add_one.probability("动词", "的") == pytest.approx(1 / 14)
    assert len(add_one.words) == 11 + 3  # word types, and the special words


def test_infinite_perplexity_names_the_number_and_the_first_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("北京 的 词性\n\n北京 的 动词\n动词 是 的\n", encoding="utf-8")
    model = train_ngram(PARTS_OF_SPEECH, order=2, smoothing="maximum_likelihood", **CLOSED)
    result = model.perplexity(text)
    assert math.isinf(result.perplexity)
    assert (result.tokens, result.sentences, result.impossible_tokens) == (9, 3, 3)
    assert result.first_impossible == f"{text}:3: '动词' after '的'"
    assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == [logging.WARNING]
    assert json.loads(json.dumps(result.to_dict()))["perplexity"] is None


def test_perplexity_is_that_of_the_product_of_probabilities() -> None:
    model = train_ngram(PARTS_OF_SPEECH, order=2, smoothing="add_k")
    probs = [
        model.probability("北京", "<s>"),
        model.probability("的", "北京"),
        model.probability("飞机", "的"),
        model.probability("</s>", ["飞机"]),
    ]
    # 11 word types, </s>, and <unk>: (1 + 1) / (4 + 13), (1 + 1) / (1 + 13), 1 / (3 + 13), 1 / 13.
    assert probs == pytest.approx([2 / 17, 2 / 14, 1 / 16, 1 / 13])
    result = model.perplexity(Texts(["北京 的 飞机"]))
    assert result.perplexity == pytest.approx(math.prod(probs) ** -0.25)
    assert result.unknown_tokens == 1
    assert result.known_perplexity == pytest.approx((probs[0] * probs[1] * probs[3]) ** (-1 / 3))
    score = model.score("北京 的 飞机")
    assert score.words == ["北京", "的", "<unk>", "</s>"]
    assert score.orders == [2, 2, 1, 1]
    assert np.exp(score.log_probabilities) == pytest.approx(probs)


@pytest.mark.parametrize("name", ["order-2", "order-3", "order-4", "order-5", "order-4-pruned"])
def test_probabilities_equal_lmplz(name: str) -> None:
    """KenLM 0.3.0 wrote the files: `lmplz -o N`, with `--prune 0 0 1 2` for the last.

    It computes in float32 and writes the shortest digits, so two computations differ in the last place: 1e-6 of
    logarithms up to 4.
    """
    reference = NgramModel.read_arpa(FIXTURES / f"{name}.arpa")
    model = train_ngram(TEXT, order=reference.order, prune=(0, 0, 1, 2) if "pruned" in name else (0,))
    assert model.words == reference.words
    for ours, theirs in zip(model.tables, reference.tables, strict=True):
        assert (ours.keys == theirs.keys).all()
        np.testing.assert_allclose(ours.log_probs, theirs.log_probs, rtol=0, atol=1e-6)
        np.testing.assert_allclose(ours.backoffs, theirs.backoffs, rtol=0, atol=1e-6)


def brute_force(
    sentences: list[list[str]], order: int, smoothing: str, weights: list[float]
) -> tuple[list[str], Any]:
    """Return the vocabulary, and p(word, context), computed from dictionaries of counts."""
    vocabulary = [*sorted({word for sentence in sentences for word in sentence}), "</s>", "<unk>"]
    padded = [["<s>", *sentence, "</s>"] for sentence in sentences]
    counts: list[Counter[tuple[str, ...]]] = [
        Counter(tuple(s[i : i + n]) for s in padded for i in range(len(s) - n + 1) if (n, i) != (1, 0))
        for n in range(1, order + 1)
    ]
    adjusted = [Counter(level) for level in counts]
    if smoothing == "kneser_ney":
        for level, above in pairwise(range(order)):
            preceding = defaultdict(set)
            for ngram in counts[above]:
                preceding[ngram[1:]].add(ngram[0])
            for ngram in adjusted[level]:
                if ngram[0] != "<s>":
                    adjusted[level][ngram] = len(preceding[ngram])

    def discounts(level: int) -> tuple[float, ...]:
        n1, n2, n3, n4 = (list(adjusted[level].values()).count(i) for i in (1, 2, 3, 4))
        if not (n1 and n2 and n3):
            return (0, *FALLBACK)
        y = n1 / (n1 + 2 * n2)
        values = (0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        return values if all(0 <= value <= i for i, value in enumerate(values)) else (0, *FALLBACK)

    def probability(word: str, context: tuple[str, ...]) -> float:
        n = len(context)
        row = {ngram: count for ngram, count in adjusted[n].items() if ngram[:-1] == context}
        total, count = sum(row.values()), row.get((*context, word), 0)
        if smoothing == "add_k":
            return (count + 0.5) / (total + 0.5 * len(vocabulary))
        if smoothing == "maximum_likelihood":
            return count / total if total else 0.0
        lower = probability(word, context[1:]) if n else 1 / len(vocabulary)
        if not total:
            return lower
        if smoothing == "interpolated":
            return weights[n] * count / total + (1 - weights[n]) * lower
        discount = discounts(n)
        mass = sum(discount[min(value, 3)] for value in row.values())
        return (count - discount[min(count, 3)] + mass * lower) / total

    return vocabulary, probability


CORPORA = st.lists(st.lists(st.sampled_from("abcd"), max_size=6), min_size=1, max_size=6).filter(any)


@given(CORPORA, st.integers(1, 4), st.sampled_from(SMOOTHINGS))
def test_probabilities_equal_brute_force(
    sentences: list[list[str]], order: int, smoothing: dict[str, Any]
) -> None:
    """Logarithms in float32 have a relative error of about 1e-7 times their size."""
    weights = [0.9, 0.7, 0.5, 0.3][:order]
    sentences = [sentence for sentence in sentences if sentence]
    corpus = Texts([" ".join(sentence) for sentence in sentences])
    model = train_ngram(corpus, order=order, interpolation_weights=weights, **smoothing)
    vocabulary, probability = brute_force(sentences, order, smoothing["smoothing"], weights)
    contexts = {("<s>", *s)[max(0, i + 2 - order) : i + 1] for s in sentences for i in range(len(s) + 1)}
    for context in [*contexts, ("d", "d", "d")[: order - 1]]:
        context = context if order > 1 else ()
        probs = [model.probability(word, list(context)) for word in vocabulary]
        expected = [probability(word, context) for word in vocabulary]
        np.testing.assert_allclose(probs, expected, rtol=2e-6, atol=1e-9)


@given(
    CORPORA,
    st.integers(1, 4),
    st.sampled_from(SMOOTHINGS),
    st.sampled_from([(0,), (0, 1), (0, 0, 1, 2)]),
    st.lists(st.sampled_from(["a", "b", "d", "new"]), max_size=5),
)
def test_rows_sum_to_one_and_scores_are_their_values(
    sentences: list[list[str]], order: int, smoothing: dict[str, Any], prune: tuple[int, ...], text: list[str]
) -> None:
    corpus = Texts([" ".join(sentence) for sentence in sentences if sentence])
    model = train_ngram(corpus, order=order, prune=prune[:order], **smoothing)
    score = model.score(" ".join(text))
    words = ["<s>", *text, "</s>"]
    for i, (word, log_probability) in enumerate(zip(words[1:], score.log_probabilities, strict=True)):
        probs = model.distribution(words[: i + 1])
        total = probs.sum()
        is_unseen = smoothing["smoothing"] == "maximum_likelihood" and total == 0
        assert is_unseen or total == pytest.approx(1, abs=1e-5)
        assert math.exp(log_probability) == pytest.approx(model.probability(word, words[: i + 1]), abs=1e-9)


def test_kneser_ney_is_below_interpolation_and_add_one_on_held_out_text() -> None:
    lines = TEXT.read_text(encoding="utf-8").splitlines()
    training, held_out = Texts(lines[::2] + lines[1::4]), Texts(lines[3::4])
    perplexities = [
        train_ngram(training, order=3, **settings).perplexity(held_out).perplexity
        for settings in (SMOOTHINGS[0], SMOOTHINGS[1], {"smoothing": "add_k"})
    ]
    assert perplexities[0] < perplexities[1] < perplexities[2]
    unsmoothed = train_ngram(training, order=3, smoothing="maximum_likelihood").perplexity(held_out)
    assert unsmoothed.impossible_tokens > 0


def test_estimated_weights_are_better_than_others_on_the_text_without_each_word() -> None:
    """The estimate prefers the orders whose n-grams recur: text that repeats has a high weight of long ones."""
    repeated = train_ngram(Texts(["a b c d e f"] * 5), order=3, smoothing="interpolated")
    assert repeated.probability("d", ["b", "c"]) > 0.95
    shuffled = train_ngram(
        Texts(["a b c", "c a b", "b c a", "a c b", "b a c"]), order=3, smoothing="interpolated"
    )
    assert shuffled.probability("c", ["a", "b"]) < 0.6


def test_rare_words_special_words_and_case() -> None:
    corpus = Texts(["the Cat saw the cat", "the dog <unk> </s> <s>", "\0the\0dog\0"])
    model = train_ngram(corpus, order=2, smoothing="add_k", vocabulary_size=2, lowercase=True)
    assert model.words == ["<unk>", "<s>", "</s>", "the", "cat"]
    result = model.perplexity(corpus)
    assert (result.tokens, result.sentences, result.unknown_tokens) == (5 + 5 + 2 + 3, 3, 1 + 4 + 1)
    assert train_ngram(corpus, order=1, smoothing="add_k").words[3:] == ["the", "Cat", "saw", "cat", "dog"]


def test_pieces_of_shards(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    model = train_ngram(shards, order=2, smoothing="interpolated")
    total = model.perplexity(shards)
    of_folder = train_ngram(str(shards.folder), order=2, smoothing="interpolated")
    assert (of_folder.words, of_folder.perplexity(shards.folder)) == (model.words, total)
    assert total.tokens == shards.tokens + len(shards.sentence_ends)
    assert total.sentences == len(shards.sentence_ends)
    documents = np.arange(shards.documents)
    halves = [model.perplexity(shards, documents=part) for part in (documents[::2], documents[1::2])]
    assert sum(half.log_probability for half in halves) == pytest.approx(total.log_probability)
    assert sum(half.sentences for half in halves) == total.sentences
    model.save(tmp_path / "model")
    text = "kaba lode mi xyz"
    score = NgramModel.load(tmp_path / "model").score(text)
    assert score == model.score(text)
    pieces = [shards.tokenizer.tokens[i] for i in shards.tokenizer.encode_ids([text])[0]]
    assert [word for word in score.words if word != "<unk>"] == [
        *(piece for piece in pieces if piece in model.words), "</s>",
    ]  # fmt: skip
    half = train_ngram(shards, documents=documents[:2], order=1, smoothing="maximum_likelihood")
    unseen = half.perplexity(shards, documents=documents[2:])
    if unseen.impossible_tokens:
        assert unseen.first_impossible.startswith(shards.location(2)[:3])


def test_a_saved_model_is_the_same(tmp_path: Path) -> None:
    model = train_ngram(TEXT, order=4, prune=(0, 0, 1), lowercase=True)
    model.save(tmp_path / "model")
    loaded = NgramModel.load(tmp_path / "model")
    assert loaded.words == model.words
    assert loaded.settings == model.settings
    assert loaded.score([]) == []
    texts = ["the old farmer saw THE river", "a new word", ""]
    for ours, theirs in zip(loaded.score(texts), model.score(texts), strict=True):
        assert ours == theirs
    with pytest.raises(InputError) as error:
        model.save(tmp_path / "model")
    assert (error.value.code, error.value.argument) == ("output_exists", "folder")
    other = train_ngram(TEXT, order=2)
    other.save(tmp_path / "model", overwrite=True)
    assert NgramModel.load(tmp_path / "model").order == 2
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(InputError) as error:
        other.save(tmp_path / "model", overwrite=True)
    assert error.value.code == "not_replaceable"
    with pytest.raises(InputError) as error:
        other.save(tmp_path / "model" / "notes.txt", overwrite=True)
    assert (error.value.code, "overwrite" in str(error.value)) == ("output_exists", False)


def test_an_arpa_file_is_replaced_on_request_only(tmp_path: Path) -> None:
    model, path = train_ngram(TEXT, order=2), tmp_path / "lm.arpa"
    model.write_arpa(path)
    with pytest.raises(InputError) as error:
        model.write_arpa(path)
    assert (error.value.code, error.value.argument) == ("output_exists", "path")
    train_ngram(TEXT, order=3).write_arpa(path, overwrite=True)
    assert NgramModel.read_arpa(path).order == 3


def test_next_words_are_one_or_more() -> None:
    model = train_ngram(TEXT, order=2)
    values: list[Any] = [-1, 0, 1.5]
    for k in values:
        with pytest.raises(InputError) as error:
            model.next_words("the", k)
        assert (error.value.code, error.value.argument) == ("number_too_small", "k")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ngram.json", b"{}"),
        ("ngram.json", b"[" * 100_000),
        ("vocabulary.txt", b"a\nb"),
        ("vocabulary.txt", b"\xff"),
        ("1-grams.safetensors", None),
        ("2-grams.safetensors", b"short"),
        ("3-grams.safetensors", "1-grams.safetensors"),
    ],
)
def test_damaged_folders(tmp_path: Path, name: str, content: bytes | str | None) -> None:
    train_ngram(TEXT, order=3).save(tmp_path / "model")
    file = tmp_path / "model" / name
    if isinstance(content, str):
        content = (tmp_path / "model" / content).read_bytes()
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError) as error:
        NgramModel.load(tmp_path / "model")
    assert (error.value.code, error.value.location) == ("ngram_model_damaged", str(file))


@pytest.mark.parametrize(
    ("settings", "code", "argument"),
    [
        ({"prune": (1, 1)}, "prune_thresholds", "prune"),
        ({"prune": (0, 2, 1)}, "prune_thresholds", "prune"),
        ({"order": 2, "prune": (0, 0, 1)}, "prune_thresholds", "prune"),
        ({"interpolation_weights": (0.5,)}, "interpolation_weights", "interpolation_weights"),
        ({"discount_fallback": (2, 2, 2)}, "discount_fallback", "discount_fallback"),
        ({"sentence_boundaries": False}, "boundaries_needed", "sentence_boundaries"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], code: str, argument: str) -> None:
    with pytest.raises(InputError) as error:
        train_ngram(TEXT, **settings)
    assert (error.value.code, error.value.argument) == (code, argument)


@pytest.mark.parametrize("settings", [{"order": 0}, {"ordre": 3}, {"k": 0}, {"smoothing": "witten_bell"}])
def test_invalid_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        train_ngram(TEXT, **settings)


def test_too_little_text(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        train_ngram(PARTS_OF_SPEECH)
    assert error.value.code == "discounts_undefined"
    assert "discount_fallback=(0.5, 1, 1.5)" in (error.value.hint or "")
    (tmp_path / "empty.txt").write_text("\n\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        train_ngram(tmp_path / "empty.txt")
    assert error.value.code == "no_text"
    with pytest.raises(InputError) as error:
        train_ngram(Texts([" "]))
    assert error.value.code in ("no_text", "empty_corpus")
