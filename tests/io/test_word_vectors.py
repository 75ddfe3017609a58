"""Word vectors as text: with and without a first line of sizes, compressed, torn, and what is no vector."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest

from bertsmith.errors import InputError
from bertsmith.io.word_vectors import read_word_vectors

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
def test_all_forms_hold_the_same_vectors(name: str, text: str, tmp_path: Path) -> None:
    """The first of two vectors of a word counts; a word with a blank in it (GloVe has some) is nobody's."""
    packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(packed(text.encode()))
    vectors, width = read_word_vectors(tmp_path / name)
    assert width == 3
    assert vectors.keys() == {"kaba", "lode", "北京"}
    np.testing.assert_array_equal(vectors["kaba"], np.array([0.5, -1, 0.2], dtype=np.float32))
    assert vectors["北京"].dtype == np.float32
    some, width = read_word_vectors(tmp_path / name, {"lode", "absent"})
    assert (some.keys(), width) == ({"lode"}, 3)


@pytest.mark.parametrize(
    ("text", "location", "code"),
    [
        ("", "", "no_vectors"),
        ("3 3\nkaba 1 2 3\n", "", "truncated_file"),
        ("kaba 1 2 3\nlode 1 2\n", ":2", "vector_length"),
        ("kaba 1 2 x\n", ":1", "not_numbers"),
        ("1 3\nkaba 1 nan 3\n", ":2", "not_finite"),
        ("1 3\nkaba 1 1e99 3\n", ":2", "not_finite"),
    ],
)
def test_a_bad_vector_is_an_error_with_its_line(text: str, location: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(InputError) as caught:
        read_word_vectors(tmp_path / "v.txt")
    assert (caught.value.code, caught.value.location) == (code, f"{tmp_path / 'v.txt'}{location}")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    """word2vec's binary form, and a file that is not there."""
    numbers = np.arange(12, dtype=np.float32).tobytes()
    (tmp_path / "v.bin").write_bytes(b"2 6\nkaba " + numbers + b"\nlode " + numbers)
    with pytest.raises(InputError) as caught:
        read_word_vectors(tmp_path / "v.bin")
    assert (caught.value.location or "").startswith(str(tmp_path / "v.bin"))
    with pytest.raises(InputError) as caught:
        read_word_vectors(tmp_path / "none.txt")
    assert (caught.value.code, caught.value.location) == ("not_found", str(tmp_path / "none.txt"))
