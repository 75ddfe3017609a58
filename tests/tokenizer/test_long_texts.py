"""Test that a long text, which is encoded in pieces, has the tokens of the whole text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertsmith.tokenizer import long_texts
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

OPTIONS: list[dict[str, Any]] = [{}, {"with_offsets": False}, {"special_strings": "parse"}]


def values(encodings: list[Encoding]) -> list[tuple[Any, ...]]:
    return [(e.ids, e.offsets, e.word_ids, e.type_ids, e.sequence_ids, e.num_truncated) for e in encodings]


@pytest.mark.parametrize("name", ["bert-base-uncased", "roberta-base", "gpt2", "albert-base"])
def test_tokens_of_pieces_are_those_of_the_whole_text(
    name: str, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared_data / "vocabs" / name
    if not folder.exists():
        pytest.skip(f"no {name}")
    tokenizer = Tokenizer.load(folder)
    lines = (shared_data / "corpora/sample/english.txt").read_text(encoding="utf-8")[:20_000].split("\n")
    text = "  ".join([*lines, "a [MASK] <s> b, don't  \t 1,000 e-mails"])

    def encode(options: dict[str, Any]) -> list[tuple[Any, ...]]:
        pairs = tokenizer.encode_batch([text, "a b"], ["x y", text], max_length=50, **options)
        return values([*pairs, *tokenizer.encode_batch([text, "a"], max_length=10**9, **options)])

    for options in OPTIONS if name != "gpt2" else OPTIONS[:2]:
        whole = encode(options)
        monkeypatch.setattr(long_texts, "PIECE_SIZE", 400)
        assert encode(options) == whole
        monkeypatch.undo()


def test_a_long_text_without_spaces_has_the_first_tokens_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = Tokenizer.from_vocabulary(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "中", "文"], lowercase=True
    )
    whole = values([tokenizer.encode(1000 * "中文", max_length=9)])
    monkeypatch.setattr(long_texts, "PIECE_SIZE", 64)
    assert values([tokenizer.encode(1000 * "中文", max_length=9)]) == whole
