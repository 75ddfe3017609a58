"""Windows of texts: all tokens, the window that decides, and what truncation loses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.tasks.batching import Item, TokenSequence
from bertsmith.tasks.embedding.data import EmbeddingExample
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.multiple_choice.data import ChoiceExample
from bertsmith.tasks.question_answering.data import QuestionExample, ReferenceAnswer
from bertsmith.tasks.registry import get_task
from bertsmith.tasks.relation_extraction.data import RelationExample
from bertsmith.tasks.tagging.sentences import TagExample
from bertsmith.tasks.texts import TextExample
from bertsmith.tasks.windows import NO_LIMIT, Coverage, TextStats, best_windows, split_windows
from bertsmith.tokenizer.tokenizer import Tokenizer
from squad_data import PASSAGE, answerer

QUESTION = "who is kaba"


def text_of(words: int) -> str:
    return " ".join(["kaba", "lode", "migi", "nufo"][i % 4] for i in range(words))


@given(st.integers(0, 60), st.integers(3, 20), st.integers(1, 30) | st.none())
def test_windows_of_a_text_hold_all_its_tokens_in_order(words: int, limit: int, stride: int | None) -> None:
    encoding = tiny_run.tokenizer().encode(text_of(words), max_length=NO_LIMIT)
    cut = split_windows(encoding, limit, stride=stride)
    inner = encoding.ids[1:-1]
    held = set()
    for window in cut:
        ids, offsets = window.sequence.ids.tolist(), window.sequence.offsets.tolist()
        assert len(ids) <= limit
        assert (ids[0], ids[-1]) == (encoding.ids[0], encoding.ids[-1])
        assert (
            ids[window.sequence_start : window.sequence_start + window.size]
            == inner[window.text_start :][: window.size]
        )
        wanted = [list(pair) for pair in encoding.offsets[1:-1][window.text_start :][: window.size]]
        assert offsets[window.sequence_start : window.sequence_start + window.size] == wanted
        assert window.sequence.tokens == window.sequence.tokens_read == window.size
        held |= set(range(window.text_start, window.text_start + window.size))
    assert held == set(range(len(inner)))
    assert len(cut) == 1 or len(inner) > limit - 2


def test_a_text_that_fits_is_one_window_and_is_what_the_tokenizer_makes() -> None:
    encoding = tiny_run.tokenizer().encode("kaba lode", max_length=NO_LIMIT)
    (window,) = split_windows(encoding, len(encoding.ids))
    assert window.sequence.ids.tolist() == encoding.ids
    assert len(split_windows(encoding, len(encoding.ids) - 1)) == 2


def test_a_passage_is_cut_and_the_question_stands_before_each_part() -> None:
    tokenizer = tiny_run.tokenizer()
    encoding = tokenizer.encode(QUESTION, text_of(40), max_length=NO_LIMIT)
    before = encoding.sequence_ids.index(1)
    cut = split_windows(encoding, before + 11, source=1, stride=4)
    assert [window.text_start for window in cut[:3]] == [0, 4, 8]
    for window in cut:
        ids, segments = window.sequence.ids.tolist(), window.sequence.segments.tolist()
        assert ids[: window.sequence_start] == encoding.ids[:before]
        assert ids[-1] == tokenizer.sep_token_id
        assert segments == [0] * before + [1] * (window.size + 1)
        assert window.sequence.sources.tolist()[-window.size - 1 :] == [1] * window.size + [-1]
        for row in range(window.sequence_start, window.sequence_start + window.size):
            start, end = window.sequence.offsets[row]
            assert text_of(40)[start:end] == tokenizer.tokens[ids[row]]


def test_a_long_question_is_truncated_and_counted() -> None:
    encoding = tiny_run.tokenizer().encode(text_of(9), text_of(3), max_length=NO_LIMIT)
    asked, passage = encoding.sequence_ids.count(0), encoding.sequence_ids.count(1)
    (window,) = split_windows(encoding, NO_LIMIT, source=1, max_other_tokens=2)
    assert window.sequence.ids.tolist() == encoding.ids[:3] + encoding.ids[1 + asked :]
    assert (window.sequence_start, window.size) == (4, passage)
    assert window.sequence.tokens - window.sequence.tokens_read == asked - 2


def test_no_room_beside_the_question_is_refused_with_its_place() -> None:
    encoding = tiny_run.tokenizer().encode(text_of(9), "kaba", max_length=NO_LIMIT)
    around = len(encoding.ids) - encoding.sequence_ids.count(1)
    with pytest.raises(InputError) as caught:
        split_windows(encoding, around, source=1, location="a.json:3")
    assert (caught.value.code, caught.value.location) == ("other_text_too_long", "a.json:3")


@given(st.integers(1, 60), st.integers(3, 20), st.integers(1, 30))
def test_the_window_that_decides_is_the_release_s(words: int, limit: int, stride: int) -> None:
    cut = split_windows(
        tiny_run.tokenizer().encode(text_of(words), max_length=NO_LIMIT), limit, stride=stride
    )
    found = best_windows(cut)
    for position, number in enumerate(found):
        # run_squad.py, _check_is_max_context, in hundredths
        scores = {
            i: 100 * min(position - w.text_start, w.text_start + w.size - 1 - position) + w.size
            for i, w in enumerate(cut)
            if w.text_start <= position < w.text_start + w.size
        }
        assert number == max(scores, key=scores.__getitem__)
    assert found.dtype == np.int64


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
    assert task.text_stats(tiny_run.tokenizer(), items).total == read


def test_windows_hold_all_tags() -> None:
    facts = {"labels": ["B-X", "O"], "scheme": "iob2", "default_label": "O"}
    task = fitted("tag", facts, max_length=8)
    items = task.encode([tagged(15), tagged(2)], tiny_run.tokenizer())
    account = task.text_stats(tiny_run.tokenizer(), items)
    assert account.total == Coverage(17, 17, 17, 17)
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
    tokenizer = tiny_run.tokenizer()
    account = model.text_stats(tokenizer, model.encode([example], tokenizer))
    assert account.total == read
    assert len(account.messages()) == read.annotations - read.annotations_read


def test_a_relation_far_from_the_beginning_is_read_all_the_same() -> None:
    tokens = [*tiny_run.TOKENS, "@", "#"]
    labels: dict[str, Any] = {"labels": ["a", "b"], "numbered": False, "none": None}
    task = fitted("relate", labels, len(tokens), max_length=12)
    words = WORDS[:9]
    text = " ".join(words)
    spans = [(text.index(word), text.index(word) + len(word)) for word in words[7:]]
    known = Tokenizer.from_vocabulary(tokens, lowercase=True, max_length=64)
    account = task.text_stats(known, task.encode([RelationExample(text, *spans, "a", "here")], known))
    assert account.total == Coverage(13, 10, 1, 1)


def test_accounts_add_up() -> None:
    tokenizer = tiny_run.tokenizer()
    stats = TextStats(tokenizer, 8, hint=" (a remedy)")
    for count in (9, 1, 10):
        encoding = tokenizer.encode(" ".join(WORDS[:count]), max_length=8)
        stats.add([Item(0, (TokenSequence.from_encoding(encoding),))], ["zzz"])
    assert stats.to_dict()["cut"] == {"texts": 2, "tokens": 7}
    assert stats.to_dict()["special_tokens"] == 2
    (message,) = stats.messages()
    assert "2 of 3 texts" in message
    assert "7 tokens (35.0 %)" in message
    assert "12 tokens" in message  # of the longest, with special tokens
    assert message.endswith(" (a remedy)")


@pytest.mark.parametrize(
    "example",
    [
        QuestionExample("kaba", "cafÃ© kaba", (), "here"),
        ChoiceExample("kaba", "lode", ("migi", "cafÃ©"), None, "here"),
        EmbeddingExample("kaba", ("lode",), ("cafÃ©",), None, "here"),
        TextExample("kaba", "cafÃ©", None, "here"),
        TagExample(("kaba", "cafÃ©"), None, "here"),
    ],
)
def test_all_texts_of_an_example_are_judged(example: Any) -> None:
    stats = TextStats(tiny_run.tokenizer(), 8)
    stats.add([], [example])
    assert ["'Ã©' for 'é'" in message for message in stats.messages()] == [True]
