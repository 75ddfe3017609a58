"""Minimal pairs read, drawn and counted; a model whose answers follow from word frequencies; the Python face."""

from __future__ import annotations

import gzip
import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import write_folder
from bertsmith.errors import InputError
from bertsmith.inference.minimal_pairs import MinimalPairs, Pair, PairScores, read_pairs
from bertsmith.inference.scoring import TextScore
from bertsmith.models.encoder import Encoder
from bertsmith.models.pretraining_heads import MaskedLMHead

ROWS = [
    {"good": "kaba lode", "bad": "kaba mizu", "phenomenon": "a", "paradigm": "a1"},
    {"good": "mizu", "bad": "lode", "phenomenon": "a", "paradigm": "a2"},
    {"good": "lode mizu kaba", "bad": "kaba mizu lode", "phenomenon": "b", "paradigm": "b1"},
    {"good": "kaba kaba", "bad": "kaba kaba kaba", "phenomenon": "b", "paradigm": "b1"},
    {"good": "Kaba.", "bad": "kaba.", "phenomenon": "b", "paradigm": "b2"},
]


@pytest.fixture(scope="module")
def frequencies(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """A model of word frequencies alone: kaba is likelier than lode, and lode than mizu."""
    config = bs.ModelConfig(
        vocab_size=len(tiny_run.TOKENS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=64,
    )
    encoder, head = Encoder(config), MaskedLMHead(config, torch.Generator().manual_seed(0))
    with torch.no_grad():
        head.norm.weight.zero_()
        head.norm.bias.zero_()
        for word, bias in (("kaba", 3.0), ("lode", 2.0), ("mizu", 1.0)):
            head.bias[tiny_run.TOKENS.index(word)] = bias
    folder = tmp_path_factory.mktemp("model") / "model"
    write_folder(folder, config, {"encoder": encoder, "masked": head}, tokenizer=tiny_run.tokenizer())
    return bs.load(folder)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the messages that `bertsmith.inference` has logged so far."""
    caplog.set_level(logging.INFO, logger="bertsmith")
    return lambda: [r.getMessage() for r in caplog.records if r.name.startswith("bertsmith.inference")]


def test_accuracy_by_group_ties_and_means_of_a_model_whose_answers_are_known(
    frequencies: bs.Model, logged: Callable[[], list[str]]
) -> None:
    """Right: lode above mizu, and two words above three. Wrong: mizu below lode; one order is the other; case."""
    found = frequencies.score_pairs(ROWS)
    assert found["accuracy"] == 2 / 5
    assert found["ties"] == 2
    assert found["by_phenomenon"] == {
        "a": {"pairs": 2, "accuracy": 0.5},
        "b": {"pairs": 3, "accuracy": 1 / 3},
    }
    assert found["by_paradigm"]["b1"] == {"pairs": 2, "accuracy": 0.5}
    assert found["mean_over"] == {"phenomenon": pytest.approx(5 / 12), "paradigm": pytest.approx(1.5 / 4)}
    assert logged() == ["2 pairs are ties: both sentences have the same score; ties count as wrong"]
    scores = [row.score for row in frequencies.score(["kaba", "lode", "mizu"])]
    assert np.diff(scores) == pytest.approx([-1, -1], abs=1e-5)


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "csv", "tsv", "arrow", "dicts"])
def test_pairs_come_from_any_table(frequencies: bs.Model, tmp_path: Path, form: str) -> None:
    data: Any = tmp_path / f"pairs.{form}"
    if form == "arrow":
        data = pa.Table.from_pylist(ROWS)
    elif form == "dicts":
        data = ROWS
    elif form.startswith("jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
        data.write_bytes(gzip.compress(text) if form.endswith("gz") else text)
    else:
        mark = "," if form == "csv" else "\t"
        data.write_text(
            "\n".join(mark.join(line) for line in [ROWS[0], *(row.values() for row in ROWS)]) + "\n"
        )
    found = read_pairs(data)
    assert [(pair.good, pair.bad) for pair in found.pairs] == [(row["good"], row["bad"]) for row in ROWS]
    assert [pair.groups["phenomenon"] for pair in found.pairs] == ["a", "a", "b", "b", "b"]
    assert frequencies.score_pairs(data)["accuracy"] == 2 / 5


def test_columns_are_blimps_own_or_those_named(tmp_path: Path) -> None:
    names = {
        "good": "sentence_good",
        "bad": "sentence_bad",
        "phenomenon": "linguistics_term",
        "paradigm": "UID",
    }
    found = read_pairs([{names[key]: value for key, value in row.items()} for row in ROWS])
    assert (found.group_columns, found.sentences[1]) == (("linguistics_term", "UID"), "mizu")
    turned = read_pairs(ROWS, good_column="bad", bad_column="good", group_columns=["paradigm"])
    assert (turned.sentences[1], turned.group_columns) == ("lode", ("paradigm",))
    bare = read_pairs([{"good": "kaba", "bad": "lode"}])
    assert bare.group_columns == ()
    with pytest.raises(InputError) as caught:
        read_pairs([ROWS[0], {**ROWS[1], "good": None}])
    assert (caught.value.code, caught.value.location) == ("sentence_empty", "pairs (in memory):2")


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), min_size=1, max_size=60),
    st.integers(1, 60),
    st.integers(0, 3),
)
@example([("a", "x")] * 3 + [("a", "y")] * 3 + [("b", "x")] * 3 + [("b", "y")] + [("c", "y")] * 9, 2, 2)
def test_a_sample_has_of_each_group_its_share(groups: list[tuple[str, str]], number: int, seed: int) -> None:
    pairs = [Pair(i, f"g{i}", f"b{i}", {"one": one, "two": two}) for i, (one, two) in enumerate(groups)]
    every = MinimalPairs("file", pairs, ("one", "two"), len(pairs))
    some = every.sample(number, seed)
    assert len(some) == min(number, len(every))
    assert [pair.line for pair in some.pairs] == sorted({pair.line for pair in some.pairs})
    assert some.total == len(pairs)
    assert some.pairs == every.sample(number, seed).pairs
    whole, drawn = Counter(groups), Counter(tuple(pair.groups.values()) for pair in some.pairs)
    for group, size in whole.items():
        assert abs(drawn[group] - size * len(some) / len(every)) < 1


def test_other_seeds_draw_other_pairs() -> None:
    pairs = [Pair(i, "g", "b", {}) for i in range(100)]
    every = MinimalPairs("file", pairs, (), 100)
    assert every.sample(10, 0).pairs != every.sample(10, 1).pairs
    assert every.sample(None) is every


def test_a_sentence_without_a_token_is_never_the_likelier_one(
    frequencies: bs.Model, logged: Callable[[], list[str]]
) -> None:
    """Its sum is 0, which is above that of every other."""
    rows = [{"good": "\ue000", "bad": "kaba"}, {"good": "kaba", "bad": "\ue000"}]
    report = frequencies.score_pairs(rows)
    assert (report["accuracy"], report["ties"]) == (0, 0)
    assert logged()[0].startswith("2 pairs have a sentence without tokens")


def test_both_sentences_in_one_column_are_refused(frequencies: bs.Model) -> None:
    with pytest.raises(InputError) as caught:
        frequencies.score_pairs([{"good": "a", "bad": "b"}], good_column="bad")
    assert (caught.value.code, caught.value.argument) == ("same_column", "bad_column")


def test_a_score_that_is_no_number_is_not_right() -> None:
    pairs = MinimalPairs("file", [Pair(1, "g", "b", {})], (), 1)
    one, none = TextScore(-3.0, 2, 2, 0), TextScore(float("nan"), 2, 2, 0)
    assert PairScores(pairs, [none], [one], "token").accuracy == 0
    assert PairScores(pairs, [one], [none], "token").accuracy == 0


@pytest.mark.parametrize(
    "column", [list, np.array, pa.array, lambda texts: pytest.importorskip("pandas").Series(texts)]
)
def test_texts_come_in_any_column_and_missing_ones_keep_their_place(
    frequencies: bs.Model, column: Any, logged: Callable[[], list[str]]
) -> None:
    found = frequencies.score(column(["kaba lode", None, "mizu", ""]))
    assert "2 texts are empty and not scored: text 2, text 4" in logged()
    assert [row.score is None for row in found] == [False, True, False, True]
    assert found[1].to_dict() == {
        "score": None,
        "tokens": 0,
        "words": 0,
        "unknown": 0,
        "pseudo_perplexity": None,
    }
    assert found[0].pseudo_perplexity == pytest.approx(np.exp(-found[0].score / 2))


def test_what_is_no_list_of_texts_is_told(frequencies: bs.Model) -> None:
    with pytest.raises(InputError) as caught:
        frequencies.score(["kaba", ["lode"]])
    assert (caught.value.code, caught.value.location) == ("not_a_string", "text 2")
    with pytest.raises(InputError) as caught:
        frequencies.score({"text": ["kaba"]})
    assert caught.value.code == "is_a_table"
    with pytest.raises(InputError) as caught:
        frequencies.score_pairs(ROWS, sample=0)
    assert (caught.value.code, caught.value.argument) == ("sample_too_small", "sample")
    with pytest.raises(AttributeError, match=r"it is a method of a Model, load\(…\).score_pairs"):
        bs.score_pairs  # noqa: B018


def test_long_and_unknown_texts_are_logged(frequencies: bs.Model, logged: Callable[[], list[str]]) -> None:
    frequencies.score(["kaba " * 100, "zzz kaba"])
    assert logged() == [
        "1 of 102 tokens is not in the vocabulary and scored as the unknown token",
        "1 text is longer than the model's maximum length: each token is predicted from the text around it",
    ]
