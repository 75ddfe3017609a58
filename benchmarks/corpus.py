"""The encyclopedia corpus with a vocabulary of its own, prepared once for all measurements."""

from __future__ import annotations

from pathlib import Path

import bertsmith as bs
from record import DATA, WORK

FILES = [str(DATA / "corpora" / "enwiki.txt.zst")]


def prepared() -> Path:
    """The folder of shards; its tokenizer (30,522 entries, uncased) lies in it."""
    tokenizer, shards = WORK / "enwiki-tokenizer", WORK / "enwiki-shards"
    if not (tokenizer / "training.json").exists():
        bs.train_tokenizer(FILES, tokenizer, vocab_size=30_522)
    if not (shards / "manifest.json").exists():
        bs.prepare(FILES, tokenizer, shards)
    return shards
