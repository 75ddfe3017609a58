"""Training a vocabulary: the same everywhere, of the size asked, honest about what it left out."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bertsmith.errors import InputError
from bertsmith.io.files import read_documents
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training.train import TrainingRecord, train_tokenizer, train_wordpiece

STORY = "Der Bär sah den Wald, den Wald sah der Bär. 中国的中国人 [MASK] walking talking walked talked\n" * 5

_SCRIPT = """
import sys
from bertsmith.tokenizer_training.train import train_tokenizer
train_tokenizer([sys.argv[1]], sys.argv[2], vocab_size=int(sys.argv[3]))
"""


def story(folder: Path, text: str = STORY) -> Path:
    file = folder / "story.txt"
    file.write_text(text, encoding="utf-8")
    return file


def vocabularies_of_processes(file: Path, folder: Path, size: int) -> set[str]:
    found = set()
    for n in range(1, 5):
        out = folder / f"tokenizer-{n}"
        environment = {**os.environ, "PYTHONHASHSEED": str(n * 101), "RAYON_NUM_THREADS": str(n)}
        command = [sys.executable, "-c", _SCRIPT, str(file), str(out), str(size)]
        subprocess.run(command, check=True, env=environment)
        found.add(hashlib.sha256((out / "vocab.txt").read_bytes()).hexdigest())
    return found


def test_four_processes_train_the_same_vocabulary(shared_data: Path, tmp_path: Path) -> None:
    assert len(vocabularies_of_processes(shared_data / "corpora/sample/mixed.txt", tmp_path, 4_000)) == 1


@pytest.mark.slow
def test_four_processes_train_the_same_vocabulary_from_20_mb(shared_data: Path, tmp_path: Path) -> None:
    file = tmp_path / "en.txt"
    with open(file, "w", encoding="utf-8", newline="\n") as out:
        size = 0
        for document in read_documents([shared_data / "corpora/enwiki.txt.zst"]):
            size += out.write(document.text + "\n\n")
            if size > 20_000_000:
                break
    assert len(vocabularies_of_processes(file, tmp_path, 30_522)) == 1


def test_sizes_are_what_was_asked(shared_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokenizer"
    heard: list[int] = []
    file = shared_data / "corpora/sample/english.txt"
    tokenizer = train_tokenizer([file], out, vocab_size=5_000, progress=heard.append)
    assert tokenizer.vocab_size == 5_000 == len((out / "vocab.txt").read_text("utf-8").splitlines())
    assert tokenizer.tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert heard == sorted(heard)
    assert heard[-1] == file.stat().st_size
    assert Tokenizer.load(out).digest == tokenizer.digest
    record = json.loads((out / "training.json").read_text())
    assert record["asked"] == record["size"] == 5_000
    assert record["bytes"] == file.stat().st_size
    known = {"the", "which", "##ing", "##s", "a", "##a"}
    assert known <= set(tokenizer.tokens)


def test_a_text_with_fewer_pieces_says_how_many(tmp_path: Path) -> None:
    records: list[TrainingRecord] = []
    tokenizer = train_wordpiece([story(tmp_path)], vocab_size=30_000, report=records.append)
    assert records[0].size == tokenizer.vocab_size < 200
    assert records[0].asked == 30_000
    assert records[0].words_cut == records[0].characters_cut == 0


def test_case_and_accents(tmp_path: Path) -> None:
    file = story(tmp_path)
    uncased = train_tokenizer([file], tmp_path / "u", vocab_size=300)
    cased = train_tokenizer([file], tmp_path / "c", vocab_size=300, cased=True)
    assert "bar" in uncased.tokens
    assert "Bär" in cased.tokens
    assert not cased.lowercase
    assert not Tokenizer.load(tmp_path / "c").lowercase
    assert Tokenizer.load(tmp_path / "u").lowercase


def test_jsonl_trains_on_the_texts_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"id": "zebra", "text": STORY}) + "\n")
    plain = train_wordpiece([story(tmp_path)], vocab_size=300)
    assert train_wordpiece([file], vocab_size=300).tokens == plain.tokens


def test_special_strings_in_the_corpus_are_text(tmp_path: Path) -> None:
    tokenizer = train_wordpiece([story(tmp_path)], vocab_size=300)
    assert {"[", "]", "mask"} <= set(tokenizer.tokens)
    assert tokenizer.tokens.count("[MASK]") == 1
    assert tokenizer.unk_id not in tokenizer.encode("[MASK]").ids


def test_a_chinese_vocabulary_keeps_every_ideograph_that_recurs(shared_data: Path) -> None:
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


def test_a_small_vocabulary_drops_the_rarest_characters_and_counts_them(tmp_path: Path) -> None:
    records: list[TrainingRecord] = []
    file = story(tmp_path, "aa bb aa bb aa bb cc cc\nq q r r\n")
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
    ("kind", "least"), [("wordpiece", 1), ("wordpiece", 2), ("wordpiece", 50), ("unigram", 2)]
)
def test_no_character_is_left_out_while_there_is_room(tmp_path: Path, kind: Any, least: int) -> None:
    common = "the king of the country was there when the others had gone home to their land\n" * 60
    file = story(tmp_path, common + "".join(f"x{character}\n" for character in RARE))
    out = tmp_path / "out"
    tokenizer = train_tokenizer([file], out, kind=kind, vocab_size=2_000, min_frequency=least, cased=True)
    record = json.loads((out / "training.json").read_text("utf-8"))
    assert record["size"] == tokenizer.vocab_size < record["asked"]
    assert record["characters_cut"] == record["words_cut"] == 0
    assert record["characters_cut_first"] == []
    for text in file.read_text("utf-8").splitlines():
        assert tokenizer.unk_id not in tokenizer.pieces([text])[0], text
    if kind == "wordpiece":  # longer pieces still are of what occurs often enough
        assert {"king", "country"} <= set(tokenizer.tokens)
        assert any(
            len(token.removeprefix("##")) == 2 and token[-1] in RARE for token in tokenizer.tokens
        ) == (least == 1)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_a_full_vocabulary_leaves_out_the_rarest_alone(shared_data: Path, tmp_path: Path, kind: Any) -> None:
    file = shared_data / "corpora/sample/chinese.txt"
    records = {}
    for size in (2_000, 4_000, 8_000):
        out = tmp_path / str(size)
        tokenizer = train_tokenizer([file], out, kind=kind, vocab_size=size, cased=True)
        records[size] = json.loads((out / "training.json").read_text("utf-8"))
        known = {token for token in tokenizer.tokens if len(token) == 1}
        counts = Counter(file.read_text("utf-8"))
        left = Counter({c: counts[c] for c in counts if c.isalnum() and c.isprintable() and c not in known})
        cut = records[size]["characters_cut"]
        assert bool(left) == bool(cut)
        if left:  # what is left out is no more frequent than what is kept
            kept = [counts[c] for c in known if "\u4e00" <= c <= "\u9fff"]
            han = [n for c, n in left.items() if "\u4e00" <= c <= "\u9fff"]
            assert max(han) <= min(kept) + 1
            assert records[size]["characters_cut_share"] > 0
    assert records[2_000]["characters_cut"] > records[4_000]["characters_cut"]
    assert records[8_000]["characters_cut"] == 0


def test_a_text_of_two_letters_is_one(tmp_path: Path) -> None:
    tokenizer = train_wordpiece([story(tmp_path, "ab")], vocab_size=1_000)
    assert tokenizer.tokens[5:] == ["a", "b", "##b"]


def test_a_tokenizer_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    train_tokenizer([story(tmp_path)], tmp_path / "out", vocab_size=300)
    with pytest.raises(InputError, match="out: already exists and is not empty"):
        train_tokenizer([story(tmp_path)], tmp_path / "out", vocab_size=200)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["out", "story.txt"]
    assert len(list((tmp_path / "out").iterdir())) == 4


@pytest.mark.parametrize(
    ("text", "size", "told"),
    [
        ("some text here some text here\n", 6, "a vocabulary of 6 tokens has no room for letters"),
        ("\n\n", 1_000, "there is no word in the files"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path: Path, text: str, size: int, told: str) -> None:
    with pytest.raises(InputError, match=told):
        train_tokenizer([story(tmp_path, text)], tmp_path / "out", vocab_size=size)
    assert not (tmp_path / "out").exists()
