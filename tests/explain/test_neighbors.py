"""Test the vectors of a word's occurrences: which senses they separate, beside the static vector and TF-IDF."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import write_folder
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.explain.neighbors import find_occurrences, nearest_accuracy
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import build_encoder
from bertsmith.packed import Packed
from bertsmith.tokenizer.tokenizer import Tokenizer

BANK, APPLE = (Path(__file__).with_name(name) for name in ("bank.csv", "apple.csv"))


@pytest.fixture(scope="module")
def mini() -> bs.Model:
    return bs.load("bert-mini-uncased-en")


def test_upper_layers_separate_the_senses_that_a_static_vector_cannot(mini: bs.Model) -> None:
    result = mini.neighbors("bank", BANK, sense_column="sense")
    accuracy = {row.representation: row.accuracy for row in result.separations}
    silhouette = {row.representation: row.silhouette for row in result.separations}
    assert len(result.occurrences) == 24
    assert accuracy[3] >= 22 / 24
    assert accuracy["static"] == pytest.approx(result.chance) == pytest.approx(11 / 23)
    assert accuracy["TF-IDF"] is not None
    assert accuracy["TF-IDF"] <= 0.7
    assert (silhouette["static"], result.layer) == (0, 3)
    assert silhouette[3] > 0.3
    nearest = [(row.sense, result.occurrences[row.nearest].sense) for row in result.occurrences]
    assert np.mean([a == b for a, b in nearest]) == pytest.approx(accuracy[3])


def test_chinese_words_are_found_within_others(tmp_path: Path) -> None:
    with APPLE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    characters = sorted({c for row in rows for c in row["text"]})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    config = ModelConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    write_folder(
        tmp_path / "m",
        config,
        {"encoder": encoder},
        tokenizer=Tokenizer.from_vocabulary(tokens, lowercase=True),
    )
    result = bs.load(tmp_path / "m").neighbors("苹果", APPLE, sense_column="sense")
    assert len(result.occurrences) == 24
    assert {row.text[row.start : row.end] for row in result.occurrences} == {"苹果"}
    accuracy = {row.representation: row.accuracy for row in result.separations}
    assert accuracy["static"] == pytest.approx(result.chance)


def test_vectors_are_means_of_the_words_tokens(base: bs.Model) -> None:
    word = tiny_run.WORDS[0]
    texts = [f"{other} {word} {other}" for other in tiny_run.WORDS[1:6]]
    result = base.neighbors(word, texts)
    encodings = [base.tokenizer.encode(text) for text in texts]
    for index, encoding in enumerate(encodings):
        states = base.encoder.hidden_states(Packed.from_lists([encoding.ids], [encoding.type_ids]))
        position = encoding.tokens.index(word)
        for layer, state in enumerate(states):
            vector = state[position].detach().numpy()
            np.testing.assert_allclose(result.vectors[layer, index], vector, atol=1e-5)
    assert result.chance is None
    assert set(result.groups) <= {"cluster 1", "cluster 2"}


def test_ties_count_in_proportion() -> None:
    assert nearest_accuracy(np.ones((4, 4)), ["a", "a", "b", "b"]) == pytest.approx(1 / 3)
    cosines = np.array([[1, 0.9, 0.1], [0.9, 1, 0.2], [0.1, 0.2, 1]])
    assert nearest_accuracy(cosines, ["a", "a", "b"]) == pytest.approx(2 / 3)


def test_whole_words_in_any_case_are_found() -> None:
    texts = [("A Bank, a bank; banks and embank.", "1", None), ("U.S. bank", "2", "x")]
    spans = [(row.text[row.start : row.end], row.location) for row in find_occurrences("bank", texts, 10)]
    assert spans == [("Bank", "1"), ("bank", "1"), ("bank", "2")]
    assert len(find_occurrences("bank", texts, 2)) == 2
    assert [row.start for row in find_occurrences("U.S.", texts, 2)] == [0]


def test_errors_name_the_argument(base: bs.Model) -> None:
    word = tiny_run.WORDS[0]
    rows = [{"text": word, "sense": "a"}] * 5
    cases = [
        ("too_few_occurrences", lambda: base.neighbors("absent", [word] * 5)),
        ("senses_not_comparable", lambda: base.neighbors(word, rows, sense_column="sense")),
        ("layer_out_of_range", lambda: base.neighbors(word, [word] * 5, layer=9)),
        ("empty_word", lambda: base.neighbors(" ", [word] * 5)),
    ]
    for code, call in cases:
        with pytest.raises(InputError) as error:
            call()
        assert error.value.code == code
        assert error.value.argument


def test_the_command_prints_tables_and_writes_a_page(mini: bs.Model, tmp_path: Path) -> None:
    file = tmp_path / "senses.csv"
    file.write_text(BANK.read_text().replace("river\n", "<img src=x>\n"))
    arguments = [
        "neighbors",
        "bank",
        "bert-mini-uncased-en",
        "--corpus",
        str(file),
        "--sense-column",
        "sense",
    ]
    page = tmp_path / "bank.html"
    result = CliRunner().invoke(bertsmith, [*arguments, "--output", str(page)])
    assert result.exit_code == 0, result.output
    assert "static" in result.stdout
    text = page.read_text()
    assert "<img" not in text.replace("<svg", "")
    assert "layer 4" in text
    document = json.loads(CliRunner().invoke(bertsmith, [*arguments, "--json"]).stdout)
    assert [row["representation"] for row in document["separations"]] == [0, 1, 2, 3, 4, "static", "TF-IDF"]
    assert len(document["occurrences"]) == 24


def test_pictures_are_png_or_html(base: bs.Model, tmp_path: Path) -> None:
    word = tiny_run.WORDS[0]
    result = base.neighbors(word, [f"{other} {word}" for other in tiny_run.WORDS[1:6]])
    assert result.plot(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError) as error:
        result.plot(tmp_path / "a.pdf")
    assert (error.value.code, error.value.argument) == ("wrong_file_suffix", "output")


@pytest.mark.parametrize(
    ("word", "text"),
    [("りんご", "私はりんごを食べる。"), ("은행", "은행에서 만나자."), ("ธนาคาร", "เขาไปธนาคารวันนี้")],
)
def test_a_word_is_found_where_no_blanks_are_around_it(word: str, text: str) -> None:
    (occurrence,) = find_occurrences(word, [(text, "1", None)], 9)
    assert text[occurrence.start : occurrence.end] == word


def test_texts_without_a_sense_are_left_out_and_counted(
    mini: bs.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "senses.csv"
    file.write_text("text,sense\n" + "the bank,a\nmy bank,a\na bank,b\nour bank,b\nthat bank,\n")
    result = mini.neighbors("bank", file, sense_column="sense")
    assert [occurrence.sense for occurrence in result.occurrences] == ["a", "a", "b", "b"]
    assert any("1 text" in message for message in caplog.messages)
