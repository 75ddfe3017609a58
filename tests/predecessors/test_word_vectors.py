"""Word vectors: lookup, neighbors, analogies, files, and scores on word pairs."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.io.sources import Texts
from bertsmith.predecessors.ngram import NgramModel, train_ngram
from bertsmith.predecessors.static_vectors import StaticModel
from bertsmith.predecessors.word_evaluation import evaluate_analogies, evaluate_similarity
from bertsmith.predecessors.word_vectors import Subwords, WordVectors

MATRIX = np.array([[17, 24, 1], [23, 5, 7], [4, 6, 13], [10, 12, 19], [11, 18, 25]], dtype=np.float32)
WORDS = ["judge", "term", "paper", "speech", "word"]
ROYALS = ["king", "queen", "man", "woman", "prince", "princess", "boy", "girl", "stone"]


def royal_vectors() -> WordVectors:
    """Return vectors whose parts are gender, rank, and age; the first word of a pair is male."""
    parts = [(gender, rank, age) for rank, age in ((2, 2), (0, 2), (2, 0), (0, 0)) for gender in (1, -1)]
    return WordVectors(ROYALS, np.array([*parts, (0, -3, -3)], dtype=np.float32) + np.float32(0.01))


def test_lookup_equals_one_hot_times_matrix() -> None:
    one_hot, vectors = WordVectors.one_hot(WORDS), WordVectors(WORDS, MATRIX)
    assert vectors["speech"].tolist() == [10, 12, 19]
    assert (one_hot["speech"] @ MATRIX).tolist() == [10, 12, 19]
    assert one_hot.similarity("speech", "word") == 0
    assert one_hot.similarity("speech", "speech") == 1
    assert {cosine for _, cosine in one_hot.neighbors("speech")} == {0}


def test_neighbors_are_sorted_by_cosine_without_the_word_itself() -> None:
    vectors = WordVectors(
        ["a", "b", "c", "zero"], np.array([[1, 0], [2, 1], [-1, 0], [0, 0]], dtype=np.float32)
    )
    expected = [("b", 2 / 5**0.5), ("zero", 0.0), ("c", -1.0)]
    assert [word for word, _ in vectors.neighbors("a")] == [word for word, _ in expected]
    assert [cosine for _, cosine in vectors.neighbors("a")] == pytest.approx(
        [cosine for _, cosine in expected]
    )
    assert vectors.neighbors("a", 1)[0][0] == "b"
    assert [word for word, _ in vectors.neighbors(np.array([5, 0]), 2)] == ["a", "b"]
    with pytest.raises(InputError) as caught:
        vectors.neighbors("A")
    assert (caught.value.code, caught.value.hint) == ("unknown_word", "did you mean 'a'?")


def test_analogies_skip_the_words_of_the_question() -> None:
    vectors = royal_vectors()
    assert vectors.analogy("man", "king", "woman")[0][0] == "queen"
    assert vectors.analogy("king", "queen", "prince")[0][0] == "princess"
    assert len(vectors.analogy("man", "king", "woman", k=3)) == 3
    assert not {"man", "king", "woman"} & {word for word, _ in vectors.analogy("man", "king", "woman", k=9)}


def test_analogies_are_scored_by_section(tmp_path: Path) -> None:
    lines = [
        ": family",
        "Man King woman QUEEN",
        "king queen prince princess",
        "king queen prince stone",
        "king queen prince unknown",
        ": gram1",
        "boy girl man woman",
    ]
    (tmp_path / "q.txt").write_text("\n".join(lines))
    score = evaluate_analogies(royal_vectors(), tmp_path / "q.txt")
    assert (score.correct, score.answered, score.total) == (
        {"family": 2, "gram1": 1},
        {"family": 3, "gram1": 1},
        5,
    )
    assert (score.accuracy, score.semantic_accuracy, score.syntactic_accuracy) == (3 / 4, 2 / 3, 1)
    assert score.to_dict()["coverage"] == 4 / 5


@pytest.mark.parametrize(
    "text",
    [
        "# comment\nking\tQueen\t9\nking\tstone\t1\nman\tboy\t5\nking\tunknown\t5\n",
        "word1,word2,POS,score,other\nking,queen,N,9,0\nking,stone,N,1,7\nman,boy,N,5,3\nking,unknown,N,5,1\n",
        "king queen 9\nking stone 1\n\nman boy 5\nking unknown 5\n",
    ],
)
def test_similarity_is_the_rank_correlation_of_known_pairs(text: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text(text)
    score = evaluate_similarity(royal_vectors(), tmp_path / "pairs.txt")
    # By the vectors: king-queen 7/9, king-stone below 0, man-boy 1/√5.
    assert (score.spearman, score.pairs, score.total, score.coverage) == (1, 3, 4, 0.75)


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [("", "no_pairs", ""), ("a b 1\na b\n", "not_a_pair", ":2"), ("a b 1\n\nc d x\n", "not_a_pair", ":3")],
)
def test_a_line_that_is_no_pair_is_named(text: str, code: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text(text)
    with pytest.raises(InputError) as caught:
        evaluate_similarity(royal_vectors(), tmp_path / "pairs.txt")
    assert (caught.value.code, caught.value.location) == (code, f"{tmp_path / 'pairs.txt'}{line}")


@pytest.mark.parametrize(
    ("text", "code", "line"), [(": s\n", "no_analogies", ""), ("a b\n", "not_an_analogy", ":1")]
)
def test_a_line_that_is_no_analogy_is_named(text: str, code: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text(text)
    with pytest.raises(InputError) as caught:
        evaluate_analogies(royal_vectors(), tmp_path / "q.txt")
    assert (caught.value.code, caught.value.location) == (code, f"{tmp_path / 'q.txt'}{line}")


@pytest.mark.parametrize("name", ["v.txt", "v.vec", "v.bin", "folder"])
def test_saved_vectors_load_with_the_same_bits(name: str, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    subwords = Subwords((2, 3), ["<a", "a>"], np.concatenate([numbers, numbers[:2]]))
    vectors = WordVectors(
        ["a", "北京", "1"], numbers, np.array([3, 2, 1]), numbers, subwords, {"losses": [1.5]}
    )
    assert vectors.save(tmp_path / name) == tmp_path / name
    loaded = WordVectors.load(tmp_path / name)
    assert loaded.words == vectors.words
    np.testing.assert_array_equal(loaded.vectors, numbers)
    if name == "folder":
        assert loaded.report == vectors.report
        assert loaded.subwords is not None
        np.testing.assert_array_equal(loaded["ab"], vectors["ab"])
        np.testing.assert_array_equal(loaded.counts, vectors.counts)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        vectors.save(tmp_path / name)
    vectors.save(tmp_path / name, overwrite=True)


def test_words_with_white_space_are_saved_in_folders_only(tmp_path: Path) -> None:
    vectors = WordVectors(["new york", "b"], np.eye(2, dtype=np.float32))
    for name in ("v.txt", "v.bin"):
        with pytest.raises(InputError) as caught:
            vectors.save(tmp_path / name)
        assert caught.value.code == "word_with_space"
        assert not (tmp_path / name).exists()
    assert WordVectors.load(vectors.save(tmp_path / "folder")).words == vectors.words


def test_folders_of_other_kinds_are_named(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    loaders = {
        "not_an_ngram_model": NgramModel.load,
        "not_word_vectors": WordVectors.load,
        "not_static_vectors": StaticModel.load,
    }
    for code, load in loaders.items():
        with pytest.raises(InputError) as caught:
            load(tmp_path / "shards")
        assert (caught.value.code, caught.value.location) == (code, str(tmp_path / "shards"))


def test_commands_name_the_class_that_opens_a_folder(tmp_path: Path) -> None:
    WordVectors.one_hot(WORDS).save(tmp_path / "vectors")
    train_ngram(Texts(["a b"]), order=2, smoothing="add_k").save(tmp_path / "ngram")
    pieces = tiny_run.tokenizer()
    StaticModel(pieces, np.ones((len(pieces), 2), dtype=np.float32)).save(tmp_path / "static")
    for name, cls in (("vectors", WordVectors), ("ngram", NgramModel), ("static", StaticModel)):
        for open_folder in (bs.load, bs.info):
            with pytest.raises(InputError) as caught:
                open_folder(tmp_path / name)
            assert (caught.value.code, caught.value.location) == (
                "model_without_layers",
                str(tmp_path / name),
            )
            assert f"bertsmith.{cls.__name__}.load" in (caught.value.hint or "")
            cls.load(tmp_path / name)


def test_a_saved_path_that_exists_is_named_by_its_argument(tmp_path: Path) -> None:
    vectors = WordVectors.one_hot(WORDS)
    for name in ("v.txt", "folder"):
        vectors.save(tmp_path / name)
        with pytest.raises(InputError) as caught:
            vectors.save(tmp_path / name)
        assert (caught.value.code, caught.value.argument) == ("output_exists", "path")


def test_wrong_arguments_are_refused() -> None:
    vectors: Any = WordVectors(WORDS, MATRIX)
    calls: dict[str, Callable[[], Any]] = {
        "number_too_small": lambda: vectors.neighbors("term", -1),
        "vector_shape": lambda: vectors.neighbors(np.ones(2)),
        "unknown_word": lambda: vectors[5],
        "repeated_word": lambda: WordVectors.one_hot(["a", "b", "a"]),
    }
    for code, call in calls.items():
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.code == code


def test_a_glove_file_loads(tmp_path: Path) -> None:
    (tmp_path / "glove.txt.gz").write_bytes(gzip.compress(b"the 0.5 1\nof -1 2e-1\n"))
    loaded = WordVectors.load(tmp_path / "glove.txt.gz")
    assert (loaded.words, loaded["of"].tolist()) == (["the", "of"], [-1, np.float32(0.2)])


@pytest.mark.parametrize("file", ["word_vectors.json", "words.json", "vectors.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1]"])
def test_a_damaged_folder_is_an_error(file: str, content: bytes | None, tmp_path: Path) -> None:
    WordVectors.one_hot(WORDS).save(tmp_path / "v")
    (tmp_path / "v" / file).unlink()
    if content is not None:
        (tmp_path / "v" / file).write_bytes(content)
    if (file, content) == ("word_vectors.json", b"{}"):
        assert WordVectors.load(tmp_path / "v").words == WORDS
        return
    with pytest.raises(InputError) as caught:
        WordVectors.load(tmp_path / "v")
    assert (caught.value.location or "").startswith(str(tmp_path / "v"))


def test_shapes_that_do_not_fit_are_refused() -> None:
    for arrays in ((MATRIX,), (MATRIX[:2], np.ones(3)), (MATRIX[:2], None, MATRIX[:1])):
        with pytest.raises(InputError) as caught:
            WordVectors(["a", "b"], *arrays)  # type: ignore[arg-type]
        assert caught.value.code == "vector_shape"
