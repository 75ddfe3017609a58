"""Check the counts of what is read of the examples and what truncation loses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.question_answering.data import QuestionExample, ReferenceAnswer
from bertsmith.tasks.registry import get_task
from bertsmith.tasks.relation_extraction.data import RelationExample
from bertsmith.tasks.tagging.sentences import TagExample
from bertsmith.tasks.texts import TextExample
from bertsmith.tasks.windows import Coverage, TruncationStats
from bertsmith.tokenizer.tokenizer import Tokenizer
from squad_data import PASSAGE, answerer

WORDS = tiny_run.WORDS


def config(tokens: int = len(tiny_run.TOKENS)) -> bs.ModelConfig:
    return bs.ModelConfig(
        vocab_size=tokens, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        max_position_embeddings=64,
    )  # fmt: skip


def fitted(
    task: str, metadata: dict[str, Any], tokens: int = len(tiny_run.TOKENS), **settings: Any
) -> FittedTask:
    declaration = get_task(task)
    return FittedTask.create(
        declaration, config(tokens), torch.Generator(), metadata, declaration.settings_type(**settings)
    )


def tagged(words: int) -> TagExample:
    return TagExample(tuple(WORDS[:words]), ("O",) * words, "here")


@pytest.mark.parametrize(
    ("stride", "read", "windows"), [(None, Coverage(15, 6), 1), (4, Coverage(15, 15), 4)]
)
def test_a_text_is_cut_or_read_in_windows(stride: int | None, read: Coverage, windows: int) -> None:
    task = fitted("classify", {"labels": ["a", "b"], "pairs": False}, max_length=8, stride=stride)
    items = task.encode([TextExample(" ".join(WORDS[:15]), None, "a", "here")], tiny_run.tokenizer())
    assert len(items) == windows
    assert task.truncation(items).coverages == [read]


def test_windows_hold_all_tags() -> None:
    facts = {"labels": ["B-X", "O"], "scheme": "iob2", "default_label": "O"}
    task = fitted("tag", facts, max_length=8)
    items = task.encode([tagged(15), tagged(2)], tiny_run.tokenizer())
    account = task.truncation(items)
    assert account.coverages == [Coverage(15, 15, 15, 15), Coverage(2, 2, 2, 2)]
    assert account.messages() == []
    assert account.to_dict() == {
        "limit": 8, "special_tokens": 2, "texts": 2, "tokens": 17, "tags": 17,
        "cut": {"texts": 0, "tokens": 0, "tags": 0},
    }  # fmt: skip
    assert account.lengths()["median"] == 2
    assert account.lengths()["most"] == 15


@pytest.mark.parametrize(
    ("stride", "answer", "read"),
    [
        (4, "kade lofo", Coverage(15, 15, 1, 1)),  # in the second window
        (7, "sode tugi", Coverage(15, 15, 1, 0)),  # half in each
        (4, None, Coverage(15, 15, 0, 0)),
    ],
)
def test_an_answer_counts_where_a_window_has_all_of_it(
    stride: int, answer: str | None, read: Coverage
) -> None:
    gold = () if answer is None else (ReferenceAnswer(answer, PASSAGE.index(answer)),)
    example = QuestionExample("kaba lode", PASSAGE, gold, "here", unanswerable=answer is None)
    model = answerer(max_length=12, stride=stride)
    account = model.truncation(model.encode([example], tiny_run.tokenizer()))
    assert account.coverages == [read]
    assert len(account.messages()) == read.annotations - read.annotations_read


def test_a_relation_far_from_the_beginning_is_read_all_the_same() -> None:
    tokens = [*tiny_run.TOKENS, "@", "#"]
    labels: dict[str, Any] = {"labels": ["a", "b"], "numbered": False, "none": None}
    task = fitted("relate", labels, len(tokens), max_length=12)
    words = WORDS[:9]
    text = " ".join(words)
    spans = [(text.index(word), text.index(word) + len(word)) for word in words[7:]]
    known = Tokenizer.from_vocabulary(tokens, lowercase=True, max_length=64)
    account = task.truncation(task.encode([RelationExample(text, *spans, "a", "here")], known))
    assert account.coverages == [Coverage(13, 10, 1, 1)]


def test_accounts_add_up() -> None:
    one, other = TruncationStats("", 8), TruncationStats("", 8, 2, [Coverage(9, 6), Coverage(1, 1)])
    one.add(other)
    one.add(TruncationStats("", 8, 2, [Coverage(10, 6)]))
    assert one.to_dict()["cut"] == {"texts": 2, "tokens": 7}
    assert one.to_dict()["special_tokens"] == 2
    (message,) = one.messages(" (a remedy)")
    assert "2 of 3 texts" in message
    assert "7 tokens (35.0 %)" in message
    assert message.endswith(" (a remedy)")
