"""Classification: labels, reading, encoding, scores; a fine-tuned folder in the reference library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.tasks.classify import Classify, ClassifySettings, Example, label_id, label_names
from bertsmith.tasks.task import EncodedRow, run_over


def example(label: str, text: str = "kaba") -> Example:
    return Example(text, None, label, f"file.csv:{label}")


@pytest.fixture(scope="module")
def moods(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """A tiny classifier fine-tuned until it knows its training rows."""
    folder = tmp_path_factory.mktemp("moods")
    base = tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=2")
    return bs.finetune(
        "classify",
        base,
        folder / "run",
        train=tiny_run.table(folder / "train.csv", tiny_run.examples(60)),
        dev=tiny_run.table(folder / "dev.csv", tiny_run.examples(21, seed=1)),
        settings=[
            "train.epochs=12",
            "train.learning_rate=3e-3",
            "train.threads=1",
            "train.tensorboard=false",
        ],
    )


def test_labels_are_sorted_and_numbers_by_value() -> None:
    assert label_names([example(label) for label in ("b", "a", "b")], None) == ["a", "b"]
    assert label_names([example(label) for label in ("10", "9", "-1")], None) == ["-1", "9", "10"]
    assert label_names([example("0"), example("1")], ["no", "yes"]) == ["no", "yes"]


def test_one_label_is_no_task() -> None:
    with pytest.raises(InputError, match=r"file\.csv:a: all examples have the label 'a'"):
        label_names([example("a")], None)


def test_numbers_stand_for_names_only_where_names_were_given() -> None:
    assert label_id(example("1"), ["no", "yes"], numbered=True) == 1
    assert label_id(example("yes"), ["no", "yes"], numbered=False) == 1
    for label, numbered in (("1", False), ("2", True), ("-1", True), ("maybe", True)):
        with pytest.raises(InputError, match=f"file.csv:{label}: the label '{label}' is unknown"):
            label_id(example(label), ["no", "yes"], numbered=numbered)


def test_a_number_that_is_a_label_is_that_label() -> None:
    assert label_id(example("3"), ["3", "5"], numbered=True) == 0


def test_pairs_become_two_segments(tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("a,b,label\nkaba lode,migi,x\nnufo,pezu riba,y\n")
    settings = ClassifySettings(text_column="a", second_column="b")
    tokenizer = tiny_run.tokenizer()
    config = bs.ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    head = Classify(config, torch.Generator(), ["x", "y"], settings)
    rows = head.encode(head.read(file, settings), tokenizer, 64)
    first = [tokenizer.tokens[i] for i in rows[0].ids]
    assert first == ["[CLS]", "kaba", "lode", "[SEP]", "migi", "[SEP]"]
    assert rows[0].segments == [0, 0, 0, 0, 1, 1]
    assert [row.target for row in rows] == [0, 1]


def test_what_is_not_read_is_counted(moods: bs.Model) -> None:
    text = " ".join(tiny_run.WORDS * 3)  # 120 words
    (answer,) = moods.predict([text])
    assert (answer["tokens"], answer["tokens_read"]) == (120, moods.folder.config.max_position_embeddings - 2)


def test_answers_are_the_same_alone_and_in_any_batch(moods: bs.Model) -> None:
    texts = [text for text, _ in tiny_run.examples(200, seed=5)]
    together = moods.predict(texts)
    assert [answer["label"] for answer in together] == [moods.predict([text])[0]["label"] for text in texts]
    for text, answer in list(zip(texts, together, strict=True))[:20]:
        assert moods.predict([text])[0]["score"] == pytest.approx(answer["score"], abs=1e-6)
    for answer in together:
        assert sum(answer["scores"].values()) == pytest.approx(1, abs=1e-5)
        assert answer["score"] == max(answer["scores"].values()) == answer["scores"][answer["label"]]


def test_scores_equal_those_computed_by_hand(moods: bs.Model, tmp_path: Path) -> None:
    rows = [
        (text, ("joy", "anger", label)[i % 3])
        for i, (text, label) in enumerate(tiny_run.examples(40, seed=7))
    ]
    scores = moods.evaluate(tiny_run.table(tmp_path / "test.csv", rows))
    guesses = [answer["label"] for answer in moods.predict([text for text, _ in rows])]
    truth = [label for _, label in rows]
    assert moods.labels == ["anger", "fear", "joy"]
    f1 = []
    for label in moods.labels:
        hit = sum(g == t == label for g, t in zip(guesses, truth, strict=True))
        found, there = guesses.count(label), truth.count(label)
        assert scores["classes"][label]["support"] == there
        f1.append(2 * hit / (found + there) if found + there else 0.0)
        assert scores["classes"][label]["f1"] == pytest.approx(f1[-1])
    right = sum(g == t for g, t in zip(guesses, truth, strict=True))
    assert 0 < right < 40
    assert scores["accuracy"] == pytest.approx(right / 40)
    assert scores["macro_f1"] == pytest.approx(sum(f1) / 3)
    assert sum(map(sum, scores["confusion"])) == 40


def test_the_reference_library_gives_the_same_answers(moods: bs.Model) -> None:
    from transformers import AutoTokenizer, BertForSequenceClassification

    theirs, report = BertForSequenceClassification.from_pretrained(
        moods.model_folder, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    texts = [text for text, _ in tiny_run.examples(9, seed=2)]
    inputs = AutoTokenizer.from_pretrained(moods.model_folder)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        shares = theirs.eval()(**inputs).logits.softmax(-1)
    assert [theirs.config.id2label[i] for i in range(3)] == moods.labels
    for row, answer in zip(shares.tolist(), moods.predict(texts), strict=True):
        assert list(answer["scores"].values()) == pytest.approx(row, abs=1e-5)


def test_rows_come_back_in_their_order() -> None:
    rows = [EncodedRow([7] * n, [0] * n, -1, n, n) for n in (5, 3000, 2, 9, 2500, 1)]
    lengths = run_over(rows, lambda batch: batch.packed.lengths[:, None])
    assert lengths[:, 0].tolist() == [5, 3000, 2, 9, 2500, 1]


def test_names_that_are_numbers_are_names_only() -> None:
    assert label_id(example("2"), ["1", "2"], numbered=True) == 1
    with pytest.raises(InputError, match="the label '0' is unknown"):
        label_id(example("0"), ["1", "2"], numbered=True)


def test_labels_equal_as_numbers_have_one_order() -> None:
    assert label_names([example(label) for label in ("1", "01", "0")], None) == ["0", "01", "1"]


def test_any_label_and_a_single_one_can_be_scored(moods: bs.Model) -> None:
    config = moods.folder.config
    labels = ["accuracy", "macro avg"]
    head = Classify(config, torch.Generator(), labels, ClassifySettings())
    rows = [EncodedRow([2, 3], [0, 0], 0, 1, 1)] * 3
    scores = head.score([{"label": "accuracy"}] * 3, rows)
    assert scores["classes"]["accuracy"]["support"] == 3
    assert (scores["accuracy"], scores["matthews"]) == (1.0, 0.0)


def test_one_text_alone_is_refused(moods: bs.Model) -> None:
    with pytest.raises(InputError, match="takes a list of texts"):
        moods.predict("kaba lode")


def test_a_file_without_lines_is_refused(moods: bs.Model, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match="empty"):
        list(moods.predict_file(tmp_path / "empty.txt"))
