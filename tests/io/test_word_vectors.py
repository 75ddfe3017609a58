"""Word vectors as text and binary: with and without a first line of sizes, compressed, and damaged."""

from __future__ import annotations

import gzip
import logging
import lzma
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from bertsmith.errors import InputError
from bertsmith.io.word_vectors import read_word_vectors, write_word_vectors

LINES = ["kaba 0.5 -1 2e-1", "lode 1 2 3", ". . 4 5 6", "kaba 9 9 9", "北京 7 8 9"]
BODY = "\n".join(LINES) + "\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("word2vec.txt", f"5 3\n{BODY}"),
        ("blanks.vec", "5 3\n" + BODY.replace("\n", " \n")),  # as word2vec itself ends its lines
        ("glove.txt", BODY),
        ("tabs.txt", BODY.replace(" ", "\t").replace(".\t.", ". .")),
        ("packed.txt.gz", f"5 3\n{BODY}"),
        ("packed.vec.xz", BODY),
    ],
)
def test_all_forms_hold_the_same_vectors(
    name: str, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of two vectors of a word counts; GloVe has words with spaces."""
    packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(packed(text.encode()))
    vectors, width = read_word_vectors(tmp_path / name)
    assert width == 3
    assert vectors.keys() == {"kaba", "lode", ". .", "北京"}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    np.testing.assert_array_equal(vectors["kaba"], np.array([0.5, -1, 0.2], dtype=np.float32))
    assert vectors["北京"].dtype == np.float32
    some, width = read_word_vectors(tmp_path / name, {"lode", "absent"})
    assert (some.keys(), width) == ({"lode"}, 3)


@pytest.mark.parametrize(
    ("text", "location", "code"),
    [
        ("", "", "no_vectors"),
        ("3 3\nkaba 1 2 3\n", "", "truncated_file"),
        ("0 20\n", "", "no_vectors"),
        ("1 3\nkaba 1 2 3\nlode 1 2 3\n", ":3", "too_many_vectors"),
        ("5 0\nkaba 1 2 3\n", ":1", "not_numbers"),
        ("kaba 1 2 3\nlode 1 2\n", ":2", "vector_length"),
        ("kaba 1 2 3\nlode 1 2 3 4\n", ":2", "vector_length"),
        ("2 3\nkaba 1 2 3\n. 1 2 3 4\n", ":3", "vector_length"),
        ("kaba 1 2 x\n", ":1", "not_numbers"),
        ("1 3\nkaba 1 2 x\n", ":2", "not_numbers"),
        ("1 3\nkaba 1 nan 3\n", ":2", "not_finite"),
        ("1 3\nkaba 1 1e99 3\n", ":2", "not_finite"),
    ],
)
def test_a_bad_vector_is_an_error_with_its_line(text: str, location: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(InputError) as caught:
        read_word_vectors(tmp_path / "v.txt")
    assert (caught.value.code, caught.value.location) == (code, f"{tmp_path / 'v.txt'}{location}")


def binary(header: str = "3 2", *, line_ends: bool = True) -> bytes:
    """Return word2vec's binary format; original files have line ends after vectors, later ones have none."""
    end = b"\n" if line_ends else b""
    numbers = np.arange(6, dtype="<f4").reshape(3, 2)
    words = [
        word.encode() + b" " + row.tobytes() + end
        for word, row in zip(("a", "北京", "a"), numbers, strict=True)
    ]
    return header.encode() + b"\n" + b"".join(words)


@pytest.mark.parametrize("line_ends", [True, False])
@pytest.mark.parametrize("name", ["v.bin", "v.bin.gz"])
def test_binary_files_hold_the_same_vectors(
    line_ends: bool, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = binary(line_ends=line_ends)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    vectors, width = read_word_vectors(tmp_path / name)
    assert ({word: row.tolist() for word, row in vectors.items()}, width) == (
        {"a": [0, 1], "北京": [2, 3]},
        2,
    )
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert read_word_vectors(tmp_path / name, {"北京"})[0].keys() == {"北京"}


def test_large_binary_files_are_read_in_blocks(tmp_path: Path) -> None:
    words = [f"word{i}" for i in range(3000)]
    numbers = np.random.default_rng(0).standard_normal((3000, 100)).astype(np.float32)
    write_word_vectors(tmp_path / "v.bin", words, numbers)
    vectors, _ = read_word_vectors(tmp_path / "v.bin")
    assert list(vectors) == words
    np.testing.assert_array_equal(np.stack(list(vectors.values())), numbers)


NOT_FINITE = np.array([1, np.nan], dtype="<f4").tobytes()


@pytest.mark.parametrize(
    ("content", "code", "position"),
    [
        (binary()[:-4], "truncated_file", None),
        (binary("4 2"), "truncated_file", None),
        (binary() + b"junk", "damaged_vectors", 41),
        (binary("2 2", line_ends=False), "damaged_vectors", 29),
        (b"word 1 2\n", "not_word2vec_binary", None),
        (b"3 0\n", "not_word2vec_binary", None),
        (b"0 3\n", "no_vectors", None),
        (b"", "not_word2vec_binary", None),
        ((793712314).to_bytes(4, "little") + b"\x0c\0\0\0" * 20, "not_word2vec_binary", None),
        (b"2 2\n" + b"x" * 100_000, "damaged_vectors", 4),
        (b"2 2\n\xff\xfe " + bytes(16) + b"b " + bytes(8), "damaged_vectors", 4),
        (b"2 2\na " + bytes(8) + b"b " + NOT_FINITE, "damaged_vectors", 14),
    ],
)
def test_a_damaged_binary_file_is_an_error_with_its_byte(
    content: bytes, code: str, position: int | None, tmp_path: Path
) -> None:
    (tmp_path / "v.bin").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_word_vectors(tmp_path / "v.bin")
    assert (caught.value.code, caught.value.location) == (code, str(tmp_path / "v.bin"))
    assert position is None or f"byte {position}:" in caught.value.message


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    for name in ("none.txt", "none.bin"):
        with pytest.raises(InputError) as caught:
            read_word_vectors(tmp_path / name)
        assert (caught.value.code, caught.value.location) == ("not_found", str(tmp_path / name))


@pytest.mark.parametrize("vectors", [np.ones((3, 4), np.float32), np.ones(2, np.float32)])
def test_a_folder_whose_words_and_vectors_do_not_match_is_an_error(
    vectors: NDArray[np.float32], tmp_path: Path
) -> None:
    (tmp_path / "words.json").write_text('{"words": ["joy", "fear"]}')
    save_file({"vectors": vectors}, tmp_path / "vectors.safetensors")
    with pytest.raises(InputError) as error:
        read_word_vectors(tmp_path)
    assert (error.value.code, error.value.location) == ("not_word_vectors", str(tmp_path))
