"""ARPA files of n-gram models."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.errors import InputError
from bertsmith.io.sources import Texts
from bertsmith.predecessors.ngram import NgramModel, train_ngram

FIXTURES = Path(__file__).parent / "ngram"
TEXT = FIXTURES / "text.txt"
SENTENCES = ["the old farmer saw a river again", "an unknown kettle", "my", ""]


def parsed_lines(path: Path) -> list[tuple[str, list[float]]]:
    """Return the words and the numbers of each line, in order."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        is_ngram = len(fields) > 1
        numbers = [float(field) for field in (*fields[:1], *fields[2:])] if is_ngram else []
        lines.append((fields[1] if is_ngram else line, numbers))
    return lines


@pytest.mark.parametrize("name", ["order-2", "order-5", "order-4-pruned"])
def test_files_have_the_lines_of_kenlm(tmp_path: Path, name: str) -> None:
    """The same headers, blank lines, and tabs, and the same n-grams; KenLM has another order."""
    order = int(name[6])
    model = train_ngram(TEXT, order=order, prune=(0, 0, 1, 2) if "pruned" in name else (0,))
    model.write_arpa(tmp_path / "model.arpa")
    ours, theirs = parsed_lines(tmp_path / "model.arpa"), parsed_lines(FIXTURES / f"{name}.arpa")
    assert [line for line, numbers in ours if not numbers] == [
        line for line, numbers in theirs if not numbers
    ]
    ours, theirs = sorted(ours), sorted(theirs)
    assert [line for line, _ in ours] == [line for line, _ in theirs]
    for (_, numbers), (_, expected) in zip(ours, theirs, strict=True):
        assert numbers == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"order": 1, "smoothing": "interpolated"},
        {"order": 2, "smoothing": "add_k", "k": 0.25},
        {"order": 4, "smoothing": "add_k"},
        {"order": 4, "smoothing": "interpolated", "prune": (0, 0, 1)},
        {"order": 3, "vocabulary_size": 20},
        {"order": 3, "unknown_words": False},
    ],
)
def test_scores_survive_a_file(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = train_ngram(TEXT, **{"smoothing": "kneser_ney", **settings})
    model.write_arpa(tmp_path / "model.arpa")
    read = NgramModel.read_arpa(tmp_path / "model.arpa")
    sentences = SENTENCES if settings.get("unknown_words", True) else SENTENCES[:1]
    for ours, theirs in zip(model.score(sentences), read.score(sentences), strict=True):
        assert ours.words == theirs.words
        assert ours.log_probabilities == pytest.approx(theirs.log_probabilities, abs=1e-5)


def test_kenlm_reads_the_file_with_equal_scores(tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm", reason="kenlm is not installed (pip install kenlm)")
    model = train_ngram(TEXT, order=4)
    model.write_arpa(tmp_path / "model.arpa")
    reader = kenlm.Model(str(tmp_path / "model.arpa"))
    for sentence, score in zip(SENTENCES, model.score(SENTENCES), strict=True):
        expected = [(log_prob, order) for log_prob, order, _ in reader.full_scores(sentence)]
        log10 = np.array(score.log_probabilities) / np.log(10)
        assert list(zip(log10, score.orders, strict=True)) == pytest.approx(expected, abs=1e-4)


ARPA = """comments

\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-1.0 <unk>
-99 <s> -0.5
-0.5\ta\t-0.25
-0.75 </s>

\\2-grams:
-0.125\t<s> a
-0.25 a </s>

\\end\\
"""


def test_files_of_other_tools(tmp_path: Path) -> None:
    """Spaces in place of tabs, missing backoffs, comments, `\\r\\n`, compression, and a missing `<unk>`."""
    file = tmp_path / "model.arpa.gz"
    file.write_bytes(gzip.compress(ARPA.replace("\n", "\r\n").encode()))
    model = NgramModel.read_arpa(file)
    log10 = [np.array(score.log_probabilities) / np.log(10) for score in model.score(["a", "b a"])]
    assert log10[0] == pytest.approx([-0.125, -0.25])
    assert log10[1] == pytest.approx([-0.5 - 1.0, -0.5, -0.25])
    without = ARPA.replace("-1.0 <unk>\n", "").replace("1=4", "1=3")
    (tmp_path / "model.arpa").write_text(without, encoding="utf-8")
    model = NgramModel.read_arpa(tmp_path / "model.arpa")
    model.write_arpa(tmp_path / "again.arpa")
    for same in (model, NgramModel.read_arpa(tmp_path / "again.arpa")):
        assert same.probability("b") == pytest.approx(1e-100, rel=1e-3, abs=0)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("-0.25 a </s>", "-0.25 a", 15),
        ("-0.25 a </s>", "-0.25 a </s> -1 -1", 15),
        ("-0.25 a </s>", "-0.2x a </s>", 15),
        ("-0.25 a </s>", "0.25 a </s>", 15),
        ("-0.25 a </s>", "nan a </s>", 15),
        ("-0.25 a </s>", "-0.25 b </s>", 15),
        ("-0.25 a </s>", "-0.125\t<s> a", 15),
        ("-0.25 a </s>\n", "", 13),
        ("-0.75 </s>", "-0.75 a", 11),
        ("ngram 2=2", "ngram 3=2", 5),
        ("ngram 1=4\nngram 2=2\n", "", 3),
        ("\\2-grams:", "\\3-grams:", 13),
        ("\\2-grams:", "\\2-gramms:", 13),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, old: str, new: str, line: int) -> None:
    assert old in ARPA
    file = tmp_path / "model.arpa"
    file.write_text(ARPA.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as error:
        NgramModel.read_arpa(file)
    assert (error.value.code, error.value.location) == ("arpa_damaged", f"{file}:{line}")


def test_an_ngram_without_its_context_is_named(tmp_path: Path) -> None:
    text = ARPA.replace("ngram 2=2\n", "ngram 2=2\nngram 3=1\n")
    text = text.replace("\\end\\", "\\3-grams:\n-1 a a </s>\n\n\\end\\")
    file = tmp_path / "model.arpa"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        NgramModel.read_arpa(file)
    assert error.value.location == f"{file}:19"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "not_arpa"),
        ("no model\n", "not_arpa"),
        (ARPA.replace("\\end\\\n", ""), "truncated_file"),
        (ARPA.partition("\\2-grams")[0] + "\\end\\\n", "truncated_file"),
    ],
)
def test_files_that_are_not_complete(tmp_path: Path, text: str, code: str) -> None:
    file = tmp_path / "model.arpa"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        NgramModel.read_arpa(file)
    assert (error.value.code, error.value.location) == (code, str(file))


def test_models_that_arpa_files_cannot_hold(tmp_path: Path) -> None:
    for settings in (
        {"smoothing": "maximum_likelihood"},
        {"smoothing": "add_k", "sentence_boundaries": False},
    ):
        with pytest.raises(InputError) as error:
            train_ngram(TEXT, **settings).write_arpa(tmp_path / "model.arpa")
        assert error.value.code == "arpa_unsupported"
    model = train_ngram(Texts(["a b"]), order=2, smoothing="add_k")
    model.words[3] = "a b"
    with pytest.raises(InputError) as error:
        model.write_arpa(tmp_path / "model.arpa")
    assert error.value.code == "word_with_blank"
    assert list(tmp_path.iterdir()) == []
