"""WordPiece training: the same in every process, of the requested size, with a record of excluded text."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertsmith.errors import InputError
from bertsmith.io.documents import read_documents
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training.train import TrainingRecord, train_tokenizer

STORY = "Der Bär sah den Wald, den Wald sah der Bär. 中国的中国人 [MASK] walking talking walked talked\n" * 5

_SCRIPT = """
import sys
from bertsmith.tokenizer_training.train import train_tokenizer
train_tokenizer([sys.argv[1]], sys.argv[2], vocab_size=int(sys.argv[3]))
"""


def write_story(folder: Path, text: str = STORY) -> Path:
    file = folder / "story.txt"
    file.write_text(text, encoding="utf-8")
    return file


def train_wordpiece(
    files: list[Path], report: Callable[[TrainingRecord], None] = lambda _: None, **settings: Any
) -> Tokenizer:
    """Train a tokenizer in a temporary folder, and give its record to `report`."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = train_tokenizer(files, folder, **settings)
        report(TrainingRecord(**json.loads(Path(folder, "training.json").read_text("utf-8"))))
        return tokenizer


def train_in_processes(file: Path, folder: Path, size: int) -> set[str]:
    digests = set()
    for n in range(1, 5):
        out = folder / f"tokenizer-{n}"
        environment = {**os.environ, "PYTHONHASHSEED": str(n * 101), "RAYON_NUM_THREADS": str(n)}
        command = [sys.executable, "-c", _SCRIPT, str(file), str(out), str(size)]
        subprocess.run(command, check=True, env=environment)
        digests.add(hashlib.sha256((out / "vocab.txt").read_bytes()).hexdigest())
    return digests


def test_four_processes_train_the_same_vocabulary(shared_data: Path, tmp_path: Path) -> None:
    assert len(train_in_processes(shared_data / "corpora/sample/mixed.txt", tmp_path, 4_000)) == 1


@pytest.mark.slow
def test_four_processes_train_the_same_vocabulary_from_20_mb(shared_data: Path, tmp_path: Path) -> None:
    file = tmp_path / "en.txt"
    with open(file, "w", encoding="utf-8", newline="\n") as out:
        size = 0
        for document in read_documents([shared_data / "corpora/enwiki.txt.zst"]):
            size += out.write(document.text + "\n\n")
            if size > 20_000_000:
                break
    assert len(train_in_processes(file, tmp_path, 30_522)) == 1


def test_size_and_record(shared_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokenizer"
    progress: list[int] = []
    file = shared_data / "corpora/sample/english.txt"
    tokenizer = train_tokenizer([file], out, vocab_size=5_000, progress=progress.append)
    assert tokenizer.vocab_size == 5_000 == len((out / "vocab.txt").read_text("utf-8").splitlines())
    assert tokenizer.tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert progress == sorted(progress)
    assert progress[-1] == file.stat().st_size
    assert Tokenizer.load(out).digest == tokenizer.digest
    record = json.loads((out / "training.json").read_text())
    assert record["requested_size"] == record["size"] == 5_000
    assert record["bytes"] == file.stat().st_size
    assert {"the", "which", "##ing", "##s", "a", "##a"} <= set(tokenizer.tokens)


def test_text_with_fewer_pieces(tmp_path: Path) -> None:
    records: list[TrainingRecord] = []
    tokenizer = train_wordpiece([write_story(tmp_path)], vocab_size=30_000, report=records.append)
    assert records[0].size == tokenizer.vocab_size < 200
    assert records[0].requested_size == 30_000
    assert records[0].words_cut == records[0].characters_cut == 0


def test_case_and_accents(tmp_path: Path) -> None:
    file = write_story(tmp_path)
    uncased = train_tokenizer([file], tmp_path / "u", vocab_size=300)
    cased = train_tokenizer([file], tmp_path / "c", vocab_size=300, cased=True)
    assert "bar" in uncased.tokens
    assert "Bär" in cased.tokens
    assert not cased.lowercase
    assert not Tokenizer.load(tmp_path / "c").lowercase
    assert Tokenizer.load(tmp_path / "u").lowercase


def test_jsonl_trains_on_texts_only(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"id": "zebra", "text": STORY}) + "\n")
    plain = train_wordpiece([write_story(tmp_path)], vocab_size=300)
    assert train_wordpiece([file], vocab_size=300).tokens == plain.tokens


def test_special_strings_are_text(tmp_path: Path) -> None:
    tokenizer = train_wordpiece([write_story(tmp_path)], vocab_size=300)
    assert {"[", "]", "mask"} <= set(tokenizer.tokens)
    assert tokenizer.tokens.count("[MASK]") == 1
    assert tokenizer.unk_token_id not in tokenizer.encode("[MASK]").ids


def test_chinese_vocabulary_has_every_recurring_ideograph(shared_data: Path) -> None:
    file = shared_data / "corpora/sample/chinese.txt"
    records: list[TrainingRecord] = []
    tokenizer = train_wordpiece([file], vocab_size=8_000, chinese=True, report=records.append)
    text = file.read_text("utf-8")
    recurring = {c for c in set(text) if "\u4e00" <= c <= "\u9fff" and text.count(c) >= 2}
    assert len(recurring) > 2_000
    assert recurring <= set(tokenizer.tokens)
    small = train_wordpiece([file], vocab_size=1_000, chinese=True, report=records.append)
    assert small.vocab_size == 1_000
    assert records[1].characters_cut > records[0].characters_cut
    assert records[1].words_cut > records[0].words_cut


def test_small_vocabulary_excludes_the_rarest_characters(tmp_path: Path) -> None:
    records: list[TrainingRecord] = []
    file = write_story(tmp_path, "aa bb aa bb aa bb cc cc\nq q r r\n")
    tokenizer = train_wordpiece([file], vocab_size=12, report=records.append)
    assert tokenizer.tokens[5:] == ["a", "b", "c", "q", "##a", "##b", "##c"]
    assert records[0].characters == 5
    assert records[0].characters_cut == 1
    assert records[0].characters_cut_share == 2 / 20
    assert records[0].characters_cut_first == ["r"]
    assert records[0].words_cut == 2
    tokenizer = train_wordpiece([file], vocab_size=16, report=records.append)
    assert {"a", "##a", "b", "##b", "c", "##c", "q", "r", "aa", "bb", "cc"} == set(tokenizer.tokens[5:])
    assert records[1].characters_cut == records[1].words_cut == 0


RARE = [
    "ā",
    "é",
    "ñ",
    "ж",
    "ю",
    "中",
    "国",
    "漢",
    "字",
    "😀",
    "ｗ",
    "₽",
    "þ",
    "ð",
    "ß",
    "ł",
    "ş",
    "ğ",
    "ő",
    "ű",
]


@pytest.mark.parametrize(
    ("kind", "min_frequency"), [("wordpiece", 1), ("wordpiece", 2), ("wordpiece", 50), ("unigram", 2)]
)
def test_all_characters_are_included_while_entries_are_free(
    tmp_path: Path, kind: Any, min_frequency: int
) -> None:
    common = "the king of the country was there when the others had gone home to their land\n" * 60
    file = write_story(tmp_path, common + "".join(f"x{character}\n" for character in RARE))
    out = tmp_path / "out"
    tokenizer = train_tokenizer(
        [file], out, kind=kind, vocab_size=2_000, min_frequency=min_frequency, cased=True
    )
    record = json.loads((out / "training.json").read_text("utf-8"))
    assert record["size"] == tokenizer.vocab_size < record["requested_size"]
    assert record["characters_cut"] == record["words_cut"] == 0
    assert record["characters_cut_first"] == []
    for text in file.read_text("utf-8").splitlines():
        assert tokenizer.unk_token_id not in tokenizer.encode_ids([text])[0], text
    if kind == "wordpiece":  # longer pieces still consist of frequent characters
        assert {"king", "country"} <= set(tokenizer.tokens)
        assert any(
            len(token.removeprefix("##")) == 2 and token[-1] in RARE for token in tokenizer.tokens
        ) == (min_frequency == 1)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_full_vocabulary_excludes_only_the_rarest_characters(
    shared_data: Path, tmp_path: Path, kind: Any
) -> None:
    file = shared_data / "corpora/sample/chinese.txt"
    records = {}
    for size in (2_000, 4_000, 8_000):
        out = tmp_path / str(size)
        tokenizer = train_tokenizer([file], out, kind=kind, vocab_size=size, cased=True)
        records[size] = json.loads((out / "training.json").read_text("utf-8"))
        alphabet = {token for token in tokenizer.tokens if len(token) == 1}
        counts = Counter(file.read_text("utf-8"))
        excluded = Counter(
            {c: counts[c] for c in counts if c.isalnum() and c.isprintable() and c not in alphabet}
        )
        cut = records[size]["characters_cut"]
        assert bool(excluded) == bool(cut)
        if excluded:  # excluded characters are not more frequent than included ones
            included_counts = [counts[c] for c in alphabet if "\u4e00" <= c <= "\u9fff"]
            excluded_counts = [n for c, n in excluded.items() if "\u4e00" <= c <= "\u9fff"]
            assert max(excluded_counts) <= min(included_counts) + 1
            assert records[size]["characters_cut_share"] > 0
    assert records[2_000]["characters_cut"] > records[4_000]["characters_cut"]
    assert records[8_000]["characters_cut"] == 0


def test_text_of_two_letters(tmp_path: Path) -> None:
    tokenizer = train_wordpiece([write_story(tmp_path, "ab")], vocab_size=1_000)
    assert tokenizer.tokens[5:] == ["a", "b", "##b"]


def test_existing_tokenizer_is_not_overwritten(tmp_path: Path) -> None:
    train_tokenizer([write_story(tmp_path)], tmp_path / "out", vocab_size=300)
    with pytest.raises(InputError):
        train_tokenizer([write_story(tmp_path)], tmp_path / "out", vocab_size=200)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["out", "story.txt"]
    assert len(list((tmp_path / "out").iterdir())) == 4


@pytest.mark.parametrize(
    ("text", "size", "code", "argument"),
    [
        ("some text here some text here\n", 6, "vocab_size_too_small", "vocab_size"),
        ("\n\n", 1_000, "no_words", None),
    ],
)
def test_training_errors(tmp_path: Path, text: str, size: int, code: str, argument: str | None) -> None:
    with pytest.raises(InputError) as caught:
        train_tokenizer([write_story(tmp_path, text)], tmp_path / "out", vocab_size=size)
    assert (caught.value.code, caught.value.argument) == (code, argument)
    assert not (tmp_path / "out").exists()
