"""The encyclopedia corpus with a vocabulary of its own, prepared once for all measurements."""

from __future__ import annotations

from pathlib import Path

import bertsmith as bs
from record import DATA, WORK

FILES = [str(DATA / "corpora" / "enwiki.txt.zst")]


def prepare_corpus(vocab_size: int = 30_522) -> Path:
    """Return the folder of shards for an uncased vocabulary of this size; its tokenizer is in `tokenizer`."""
    tokenizer, shards = WORK / f"enwiki-{vocab_size}-tokenizer", WORK / f"enwiki-{vocab_size}-shards"
    if not (tokenizer / "training.json").exists():
        bs.train_tokenizer(FILES, tokenizer, vocab_size=vocab_size)
    if not (shards / "manifest.json").exists():
        bs.prepare(FILES, tokenizer, shards)
    return shards
