"""Preparation: the same bytes for any number of workers, whole or not there, honest counts."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.data import prepare as preparing
from bertsmith.data.prepare import prepare
from bertsmith.data.shards import Shards
from bertsmith.errors import InputError, MachineError
from bertsmith.text.files import read_documents
from bertsmith.text.tokenizer import Tokenizer

LETTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.", "中"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.of_vocabulary(LETTERS, lowercase=True)


def corpus(folder: Path, text: str) -> Path:
    file = folder / "corpus.txt"
    file.write_text(text)
    return file


def contents(folder: Path) -> dict[str, str]:
    files = sorted(f for f in folder.rglob("*") if f.is_file())
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_the_bytes_are_the_same_for_any_number_of_workers(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "_PIECE", 50_000)
    monkeypatch.setattr(preparing, "_SHARD", 100_000)
    files = [shared_data / f"corpora/sample/{name}.txt" for name in ("english", "chinese", "mixed")]
    found = []
    for workers in (1, 2, 4):
        prepare(files, shared_data / "vocabs/bert-base-uncased", tmp_path / str(workers), workers=workers)
        found.append(contents(tmp_path / str(workers)))
    assert len(found[0]) > 6
    assert found[0] == found[1] == found[2]


def test_counts_are_of_what_is_there_and_of_what_is_not(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = "a b.\nc d.\n\n\x00\x01\n\na\n\x02\nb zz9\n\n\u200b\n"
    heard: list[int] = []
    shards = prepare([corpus(tmp_path, text)], tokenizer, tmp_path / "out", progress=heard.append)
    assert shards.counts == {
        "documents": 2,
        "sentences": 4,
        "tokens": 9,
        "unknown": 1,
        "characters": 9 + 2 + 9 + 1,
        "bytes": 9 + 2 + 9 + 3,
        "empty_documents_dropped": 2,
        "empty_sentences_dropped": 3,
    }
    assert heard[-1] == 23
    assert shards.take(np.arange(3)).tolist() == [LETTERS.index(t) for t in ("a", "b", ".")]
    assert shards.document_sentences.tolist() == [0, 2, 4]
    assert shards.sentence_ends.tolist() == [3, 6, 7, 9]


def test_the_language_is_seen_from_the_text_or_given(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = corpus(tmp_path, "中中中。中中！\n")
    assert prepare([file], tokenizer, tmp_path / "a").language == "zh"
    assert prepare([file], tokenizer, tmp_path / "b", language="en").language == "en"
    assert prepare([corpus(tmp_path, "a b c.")], tokenizer, tmp_path / "c").language == "en"


def test_what_is_there_is_not_overwritten(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = corpus(tmp_path, "a b.")
    (tmp_path / "empty").mkdir()
    assert prepare([file], tokenizer, tmp_path / "empty").documents == 1
    before = contents(tmp_path)
    with pytest.raises(InputError, match="empty: there is something already"):
        prepare([file], tokenizer, tmp_path / "empty")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("bad", [b"fine\n\nb\xff\n", b"\n", b"\x01\n\n\x02"])
def test_a_fault_leaves_nothing_behind(tmp_path: Path, tokenizer: Tokenizer, bad: bytes) -> None:
    file = tmp_path / "corpus.txt"
    file.write_bytes(bad)
    with pytest.raises(InputError, match=r"corpus\.txt:\d"):
        prepare([file], tokenizer, tmp_path / "deep" / "out")
    assert not list((tmp_path / "deep").iterdir())


def test_no_file_is_no_corpus(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="no file"):
        prepare([], tokenizer, tmp_path / "out")


def test_a_full_disk_is_one_sentence(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(preparing, "write_shard", full)
    with pytest.raises(MachineError, match="the disk is full"):
        prepare([corpus(tmp_path, "a b.")], tokenizer, tmp_path / "out")
    assert [f.name for f in tmp_path.iterdir()] == ["corpus.txt"]


def test_documents_keep_their_ids(shared_data: Path, tmp_path: Path) -> None:
    file = shared_data / "corpora/sample/mixed.txt"
    vocabulary = Tokenizer.load(shared_data / "vocabs/bert-base-uncased")
    prepare([file], vocabulary, tmp_path / "out")
    shards = Shards.open(tmp_path / "out")
    documents = list(read_documents([file]))
    assert shards.counts["documents"] + shards.counts["empty_documents_dropped"] == len(documents) == 72
    whole = [i for document in documents for i in vocabulary.pieces([document.text])[0]]
    assert shards.take(np.arange(shards.tokens)).tolist() == whole
