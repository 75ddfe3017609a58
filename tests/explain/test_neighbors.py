"""Test the vectors of a word's occurrences: which senses they separate, beside the static vector and TF-IDF."""

from __future__ import annotations

import csv
import json
import random
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


def test_the_embeddings_are_not_the_default_layer_of_clusters(mini: bs.Model) -> None:
    result = mini.neighbors("bank", BANK)
    silhouettes = [row.silhouette for row in result.separations if isinstance(row.representation, int)]
    assert np.argmax(silhouettes) == 0  # of equal positions, as no layer has read the text
    assert result.layer == 1 + np.argmax(silhouettes[1:])


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


TOPICS = {
    "水果": "吃、甜、酸、果园、香蕉、成熟、市场、买、削皮、果汁、维生素、树上、摘下、蛋糕、冰箱、新鲜、农民、斤",
    "公司": "手机、股价、公司、发布、系统、用户、工程师、电脑、专卖店、专利、三星、首席执行官、销售额、屏幕",
}


def apple_sentence(draw: random.Random, topic: str) -> str:
    words = draw.sample(TOPICS[topic].split("、"), 4)
    words.insert(draw.randrange(5), "苹果")
    return "".join(words) + "。"


def test_a_model_trained_on_chinese_separates_the_senses_of_a_word(tmp_path: Path) -> None:
    """S101: 苹果 as fruit and as company, by the words around it; the static vector is always the same."""
    draw = random.Random(0)
    documents = ["".join(apple_sentence(draw, topic) for _ in range(5)) for topic in list(TOPICS) * 120]
    draw.shuffle(documents)
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents), encoding="utf-8")
    characters = sorted({*"".join(documents), *APPLE.read_text(encoding="utf-8")} - {"\n"})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    tokenizer = Tokenizer.from_vocabulary(tokens, lowercase=True, max_length=64)
    shards = bs.prepare(tmp_path / "corpus.txt", tokenizer, tmp_path / "shards", workers=1)
    settings = ["train.max_steps=600", "train.learning_rate=5e-3", "data.mlm_probability=0.3"]
    settings += ["data.sentence_task=none", "train.batch_size=16", "train.gradient_accumulation_steps=1"]
    settings += ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]
    bert = tiny_run.run(shards, tmp_path / "bert", *settings)
    new = [{"text": apple_sentence(draw, topic), "sense": topic} for topic in list(TOPICS) * 12]
    for texts, least, least_gap in ((new, 0.95, 0.02), (APPLE, 0.75, 0.01)):
        result = bert.neighbors("苹果", texts, sense_column="sense")
        accuracy = {row.representation: row.accuracy for row in result.separations}
        assert accuracy[2] >= least
        assert accuracy["static"] == pytest.approx(11 / 23)
        senses = np.array([row.sense for row in result.occurrences])
        pairs = ~np.eye(24, dtype=bool)
        gaps = []
        for vectors in (result.static_vectors, result.vectors[2]):
            units = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
            cosines, same = units @ units.T, senses[:, None] == senses
            gaps.append(cosines[same & pairs].mean() - cosines[~same].mean())
        assert gaps[0] == pytest.approx(0, abs=1e-6)
        assert gaps[1] > least_gap


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
