"""A corpus, shards, and runs that are small enough for dozens of them in a test."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Shards
from bertsmith.inference.model import Model
from bertsmith.pretraining.run import pretrain
from bertsmith.tokenizer.tokenizer import Tokenizer

WORDS = [
    a + b for a in ("ka", "lo", "mi", "nu", "pe", "ri", "so", "tu") for b in ("ba", "de", "gi", "fo", "zu")
]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]

# Two layers of hidden size 32 with dropout, gradient accumulation, dynamic masking; one thread for exactness.
SETTINGS = [
    "model.hidden_size=32",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=2",
    "model.intermediate_size=64",
    "model.max_position_embeddings=64",
    "model.initializer_range=0.02",
    "model.hidden_dropout_prob=0.1",
    "model.attention_probs_dropout_prob=0.1",
    "start.tokens=normal",
    "start.positions=normal",
    "start.attention=normal",
    "start.output_bias=zero",
    "data.sequence_length=32",
    "data.validation_split=0.1",
    "train.optim=adamw",
    "train.batch_size=4",
    "train.gradient_accumulation_steps=2",
    "train.learning_rate=1e-3",
    "train.adam_beta1=0.9",
    "train.adam_beta2=0.999",
    "train.warmup_steps=0.1",
    "train.lr_scheduler_type=linear",
    "train.weight_decay=0.01",
    "train.threads=1",
    "train.precision=fp32",
    "train.logging_steps=1",
    "train.report_to=none",
]


def tokenizer() -> Tokenizer:
    """Return a tokenizer of forty words, a full stop, and the five special tokens."""
    return Tokenizer.from_vocabulary(TOKENS, lowercase=True, max_length=64)


def corpus(documents: int = 24, seed: int = 0) -> str:
    """Return documents of one to eight sentences of one to nine words, separated by blank lines."""
    rng = random.Random(seed)
    texts = []
    for _ in range(documents):
        sentences = [
            " ".join(rng.choices(WORDS, k=rng.randint(1, 9))).capitalize() + "."
            for _ in range(rng.randint(1, 8))
        ]
        texts.append(" ".join(sentences))
    return "\n\n".join(texts) + "\n"


def make_shards(folder: Path, documents: int = 24, seed: int = 0) -> Shards:
    """Prepare `corpus` as folder/shards."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "corpus.txt"
    file.write_text(corpus(documents, seed), encoding="utf-8")
    return prepare([file], tokenizer(), folder / "shards", workers=1)


def run(shards: Shards | Path, out: Path, *settings: str, resume: bool = False, **options: object) -> Model:
    """Pre-train with SETTINGS and further settings."""
    return pretrain(
        shards,
        out,
        preset="bert-tiny-uncased",
        settings=[*SETTINGS, *settings],
        resume=resume,
        **options,  # type: ignore[arg-type]
    )


def table(path: Path, rows: Sequence[tuple[str, str]], header: str = "text,label") -> Path:
    """Write a csv file."""
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


def examples(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return texts with one of three labels; each text contains its label's word."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        label = ("joy", "fear", "anger")[i % 3]
        words = rng.choices(WORDS[3:], k=rng.randint(1, 8))
        words.insert(rng.randrange(len(words) + 1), WORDS[i % 3])
        rows.append((" ".join(words), label))
    return rows


class _ListHandler(logging.Handler):
    """Append the text of each record to a list."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.INFO)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def logged(messages: list[str] | None = None) -> Iterator[list[str]]:
    """Collect what bertsmith logs, where pytest's caplog is not available, as in fixtures of a module."""
    messages = [] if messages is None else messages
    logger, handler = logging.getLogger("bertsmith"), _ListHandler(messages)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
