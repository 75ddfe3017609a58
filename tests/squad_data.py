"""Data for tests of question answering: SQuAD files, a small head, items, and logits."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bertsmith as bs
import tiny_run
from bertsmith.tasks.batching import Item, Outputs, TokenSequence
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.question_answering import TASK
from bertsmith.tasks.question_answering.data import QuestionAnsweringData, QuestionExample
from bertsmith.tasks.question_answering.model import AnswerPrediction
from bertsmith.tasks.settings import AnswerSettings

PASSAGE = "kaba lode migi nufo pezu riba sode tugi kade lofo miba nude."


def squad(*questions: dict[str, Any], context: str = PASSAGE) -> dict[str, Any]:
    return {
        "version": "1.1",
        "data": [{"title": "t", "paragraphs": [{"context": context, "qas": [*questions]}]}],
    }


def asked(text: str, start: int, **more: Any) -> dict[str, Any]:
    return {"id": "q", "question": "kaba?", "answers": [{"text": text, "answer_start": start}], **more}


def written(folder: Path, document: Any, name: str = "squad.json") -> Path:
    file = folder / name
    text = (document if isinstance(document, str) else json.dumps(document)).encode()
    file.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return file


def data(**settings: Any) -> QuestionAnsweringData:
    return QuestionAnsweringData(AnswerSettings(**settings), {})


def read(file: Path, *, labeled: bool = True, **settings: Any) -> list[QuestionExample]:
    return data(**settings).read(file, labeled=labeled)


def answerer(
    metadata: Mapping[str, Any] | None = None, state: Mapping[str, Any] | None = None, **settings: Any
) -> FittedTask:
    config = bs.ModelConfig(
        vocab_size=tiny_run.tokenizer().vocab_size,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=64,
    )
    return FittedTask.create(
        TASK, config, torch.Generator(), metadata or {}, AnswerSettings(**settings), state
    )


def item_of(spans: Sequence[tuple[int, int]], index: int = 0, first: int = 0) -> Item:
    """Return an item: [CLS], a question of one token, [SEP], a passage with these offsets, [SEP]."""
    offsets = np.array([(0, 0), (0, 1), (0, 0), *spans, (0, 0)], dtype=np.int32)
    sources = np.array([-1, 0, -1, *[1] * len(spans), -1], dtype=np.int8)
    size = len(sources)
    encoded = TokenSequence(
        np.zeros(size, np.int32), np.zeros(size, np.uint8), size - 3, size - 3, offsets, sources
    )
    return Item(index, (encoded,), None, first)


def logits_of(starts: Sequence[float], ends: Sequence[float]) -> Tensor:
    """Return start and end logits of probabilities over the passage's tokens; other tokens get -100."""
    rows = [
        [-100.0] * 3 + [math.log(p) if p else -100.0 for p in probabilities] + [-100.0]
        for probabilities in (starts, ends)
    ]
    return torch.tensor(rows).T


def decode(
    task: FittedTask, logits: Sequence[Tensor], items: Sequence[Item], examples: Sequence[QuestionExample]
) -> list[AnswerPrediction]:
    return task.decoder.decode(Outputs(logits), items, examples)
