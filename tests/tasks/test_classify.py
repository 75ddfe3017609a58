"""Classification: labels, reading, encoding, scores; a fine-tuned folder in the reference library."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path

import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.inference.output import csv_lines
from bertsmith.io.sources import to_table
from bertsmith.models.family import build_encoder
from bertsmith.tasks.classification import TASK
from bertsmith.tasks.classification.data import ClassificationData, collect_labels, label_ids
from bertsmith.tasks.classification.model import ClassPrediction
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.labels import LabelMap
from bertsmith.tasks.settings import ClassSettings
from bertsmith.tasks.texts import TextExample

NAMES = ["no", "yes"]


def example(label: str, text: str = "kaba") -> TextExample:
    return TextExample(text, None, label, f"file.csv:{label}")


def classifier(labels: list[str], settings: ClassSettings, *, pairs: bool) -> FittedTask:
    config = bs.ModelConfig(
        vocab_size=tiny_run.tokenizer().vocab_size,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=64,
    )
    metadata = {"labels": labels, "pairs": pairs}
    return FittedTask.create(TASK, config, torch.Generator(), metadata, settings)


def label_id(example: TextExample, label_map: LabelMap) -> int:
    (only,) = label_ids(example, label_map, None)
    return only


@pytest.fixture(scope="module")
def moods(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """A tiny classifier fine-tuned until it knows its training rows."""
    folder = tmp_path_factory.mktemp("moods")
    return bs.finetune(
        "classify",
        base,
        folder / "run",
        train=tiny_run.table(folder / "train.csv", tiny_run.examples(60)),
        validation=tiny_run.table(folder / "validation.csv", tiny_run.examples(21, seed=1)),
        settings=[
            "train.num_train_epochs=60",
            "train.learning_rate=3e-3",
            "train.threads=1",
            "train.report_to=none",
        ],
    )


def test_labels_are_sorted_and_numbers_by_value() -> None:
    assert collect_labels([example(label) for label in ("b", "a", "b")]) == ["a", "b"]
    assert collect_labels([example(label) for label in ("10", "9", "-1")]) == ["-1", "9", "10"]


def test_one_label_is_no_task() -> None:
    with pytest.raises(InputError) as caught:
        collect_labels([example("a")])
    assert (caught.value.code, caught.value.location) == ("single_label", "file.csv:a")


def test_numbers_stand_for_names_only_where_names_were_given() -> None:
    assert label_id(example("1"), LabelMap({"labels": NAMES, "numbered": True})) == 1
    assert label_id(example("yes"), LabelMap({"labels": NAMES})) == 1
    for label, numbered in (("1", False), ("2", True), ("-1", True), ("maybe", True)):
        with pytest.raises(InputError) as caught:
            label_id(example(label), LabelMap({"labels": NAMES, "numbered": numbered}))
        assert (caught.value.code, caught.value.location) == ("unknown_label", f"file.csv:{label}")


def test_a_number_that_is_a_label_is_that_label() -> None:
    assert label_id(example("3"), LabelMap({"labels": ["3", "5"], "numbered": True})) == 0


def test_pairs_become_two_segments(tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("a,b,label\nkaba lode,migi,x\nnufo,pezu riba,y\n")
    settings = ClassSettings(text_column="a", second_column="b")
    tokenizer = tiny_run.tokenizer()
    head = classifier(["x", "y"], settings, pairs=True)
    items = head.encode(head.data.read(file), tokenizer)
    ((first,), _) = (item.sequences for item in items)
    assert [tokenizer.tokens[i] for i in first.ids] == ["[CLS]", "kaba", "lode", "[SEP]", "migi", "[SEP]"]
    assert first.segments.tolist() == [0, 0, 0, 0, 1, 1]
    assert [item.target for item in items] == [0, 1]
    assert [item.example for item in items] == [0, 1]


def test_what_is_not_read_is_counted(moods: bs.Model) -> None:
    text = " ".join(tiny_run.WORDS * 3)  # 120 words
    (answer,) = moods.predict([text])
    assert json.loads(json.dumps(dataclasses.asdict(answer)))["scores"] == answer.scores
    assert (answer.tokens, answer.tokens_read) == (120, moods.folder.config.max_position_embeddings - 2)


def test_answers_are_the_same_alone_and_in_any_batch(moods: bs.Model) -> None:
    texts = [text for text, _ in tiny_run.examples(200, seed=5)]
    together = [one.to_dict() for one in moods.predict(texts)]
    assert [answer["label"] for answer in together] == [moods.predict([text])[0].label for text in texts]
    for text, answer in list(zip(texts, together, strict=True))[:20]:
        assert moods.predict([text])[0].score == pytest.approx(answer["score"], abs=1e-6)
    for answer in together:
        assert sum(answer["scores"].values()) == pytest.approx(1, abs=1e-5)
        assert answer["score"] == max(answer["scores"].values()) == answer["scores"][answer["label"]]


def test_scores_equal_those_computed_by_hand(moods: bs.Model, tmp_path: Path) -> None:
    rows = [
        (text, ("joy", "anger", label)[i % 3])
        for i, (text, label) in enumerate(tiny_run.examples(40, seed=7))
    ]
    scores = moods.evaluate(tiny_run.table(tmp_path / "test.csv", rows))
    guesses = [answer.label for answer in moods.predict([text for text, _ in rows])]
    truth = [label for _, label in rows]
    assert moods.labels == ["anger", "fear", "joy"]
    f1 = []
    for label in moods.labels:
        hit = sum(g == t == label for g, t in zip(guesses, truth, strict=True))
        found, there = guesses.count(label), truth.count(label)
        assert scores.classes[label]["support"] == there
        f1.append(2 * hit / (found + there) if found + there else 0.0)
        assert scores.classes[label]["f1"] == pytest.approx(f1[-1])
    right = sum(g == t for g, t in zip(guesses, truth, strict=True))
    assert 0 < right < 40
    assert scores.accuracy == pytest.approx(right / 40)
    assert scores.macro_f1 == pytest.approx(sum(f1) / 3)
    assert sum(map(sum, scores.confusion)) == 40


def test_the_reference_library_gives_the_same_answers(moods: bs.Model) -> None:
    from transformers import AutoTokenizer, BertForSequenceClassification

    theirs, report = BertForSequenceClassification.from_pretrained(
        moods.model_folder, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ours = bs.load(moods.path, precision="fp32")
    texts = [text for text, _ in tiny_run.examples(9, seed=2)]
    inputs = AutoTokenizer.from_pretrained(moods.model_folder)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        shares = theirs.eval()(**inputs).logits.softmax(-1)
    assert [theirs.config.id2label[i] for i in range(3)] == moods.labels
    for row, answer in zip(shares.tolist(), [one.to_dict() for one in ours.predict(texts)], strict=True):
        assert list(answer["scores"].values()) == pytest.approx(row, abs=1e-5)


def test_names_that_are_numbers_are_names_only() -> None:
    assert label_id(example("2"), LabelMap({"labels": ["1", "2"], "numbered": True})) == 1
    with pytest.raises(InputError) as caught:
        label_id(example("0"), LabelMap({"labels": ["1", "2"], "numbered": True}))
    assert caught.value.code == "unknown_label"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("1 01 0", "0 1"), ("1 1.0 0", "0 1"), ("02 1.0 1.", "1. 02"), ("1.5 1.50 -0.5 -00.50", "-0.5 1.5")],
)
def test_a_whole_number_is_one_label_in_training_and_elsewhere(labels: str, expected: str) -> None:
    names = collect_labels([example(label) for label in labels.split()])
    assert names == expected.split()
    data = ClassificationData(ClassSettings(), {"labels": names})
    (respelled,) = data.read_warnings(
        [example(label) for label in (f"00{names[1]}0" if "." in names[1] else "001", *names)]
    )
    assert (respelled.kind, len(respelled.locations)) == ("labels read as others", 1)
    assert data.read_warnings([example(label) for label in names]) == []


def test_integers_of_a_data_frame_with_nan_are_integers() -> None:
    rows = [{"text": "a", "label": 1.0}, {"text": "b", "label": 0.0}]
    data = ClassificationData(ClassSettings(), {})
    examples = data.read(to_table(rows, "train"))
    metadata = data.fit_metadata(examples, None)
    assert (metadata["labels"], metadata["integer_labels"]) == (["0", "1"], True)


def test_labels_that_are_texts_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        collect_labels([example(f"text {i}") for i in range(200)])
    assert (caught.value.code, caught.value.argument) == ("labels_are_texts", "label_column")
    rows = [{"text": "a", "label": "sad"}, {"text": "b", "label": "sad" * 500}]
    with pytest.raises(InputError) as caught:
        ClassificationData(ClassSettings(), {}).read(to_table(rows, "train"))
    assert (caught.value.code, caught.value.location) == ("label_too_long", "train (in memory):2")


def test_any_label_and_a_single_one_can_be_scored() -> None:
    head = classifier(["accuracy", "macro avg"], ClassSettings(), pairs=False)
    answer = ClassPrediction("accuracy", None, {})
    scores = head.metrics.compute([answer] * 3, [example("accuracy")] * 3).to_dict()
    assert scores["classes"]["accuracy"]["support"] == 3
    assert (scores["accuracy"], scores["matthews"]) == (1.0, 0.0)


def test_pairs_are_refused_where_single_texts_were_learnt(moods: bs.Model, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        moods.predict(["kaba"], ["lode"])
    assert (caught.value.code, caught.value.location) == ("single_texts_expected", "text 1")
    file = tmp_path / "pairs.csv"
    file.write_text("text,other,label\nkaba,lode,joy\nnufo,riba,fear\n")
    with pytest.raises(InputError) as caught:
        moods.evaluate(file, second_column="other")
    assert (caught.value.code, caught.value.location) == ("single_texts_expected", f"{file}:2")


def test_the_report_has_the_figures_of_a_calculation_by_hand() -> None:
    """S87: of each class in the given order, their macro and weighted means, and the confusion matrix."""
    labels = ["sadness", "joy", "anger"]
    head = classifier(labels, ClassSettings(), pairs=False)
    truth = ["sadness", "sadness", "sadness", "joy", "joy", "anger"]
    guesses = ["sadness", "sadness", "joy", "joy", "anger", "anger"]
    answers = [ClassPrediction(label, None, {}, tokens=1, tokens_read=1) for label in guesses]
    scores = head.metrics.compute(answers, [example(label) for label in truth])
    assert scores.confusion == [[2, 1, 0], [0, 1, 1], [0, 0, 1]]
    rows = {**scores.classes, **scores.averages}
    assert list(rows) == [*labels, "macro average", "weighted average"]
    cells = [[row[name] for name in ("precision", "recall", "f1", "support")] for row in rows.values()]
    assert cells == [
        pytest.approx([1, 2 / 3, 4 / 5, 3]),
        pytest.approx([1 / 2, 1 / 2, 1 / 2, 2]),
        pytest.approx([1 / 2, 1, 2 / 3, 1]),
        pytest.approx([2 / 3, 13 / 18, 59 / 90, 6]),
        pytest.approx([3 / 4, 4 / 6, 61 / 90, 6]),
    ]
    assert scores.accuracy == pytest.approx(4 / 6)
    assert [row[0] for row in scores.tables[0].rows] == list(rows)
    assert scores.tables[0].rows[3] == ["macro average", "0.6667", "0.7222", "0.6556", "6"]


def test_many_labels_have_a_sparse_confusion_matrix() -> None:
    labels = [f"l{i}" for i in range(5_000)]
    head = classifier(labels, ClassSettings(), pairs=False)
    answers = [ClassPrediction(label, None, {}, tokens=1, tokens_read=1) for label in ("l7", "l7", "l4999")]
    scores = head.metrics.compute(answers, [example(label) for label in ("l7", "l8", "l4999")])
    assert scores.details["confusion"] == [
        {"truth": "l7", "prediction": "l7", "times": 1},
        {"truth": "l8", "prediction": "l7", "times": 1},
        {"truth": "l4999", "prediction": "l4999", "times": 1},
    ]
    assert scores.values["accuracy"] == pytest.approx(2 / 3)


def test_a_file_without_lines_is_refused(moods: bs.Model, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError) as caught:
        list(moods.predict_file(tmp_path / "empty.txt"))
    assert str(caught.value).startswith(str(tmp_path / "empty.txt"))


def test_settings_of_the_call_hold_for_reading_and_for_encoding(moods: bs.Model, tmp_path: Path) -> None:
    """`--max-length` was offered, and ignored but by the reader of the file."""
    file = tiny_run.table(tmp_path / "test.csv", [("kaba lode migi nufo pezu", "joy")])
    (answer,) = moods.predict_file(file, max_length=4)
    assert (answer["tokens"], answer["tokens_read"]) == (5, 2)
    assert moods.predict(["kaba lode migi"], max_length=4)[0].tokens_read == 2
    assert moods.evaluate(file, max_length=4).truncation["cut"] == {"texts": 1, "tokens": 3}
    assert moods.evaluate(file).truncation["cut"] == {"texts": 0, "tokens": 0}


def test_many_fractions_are_no_labels() -> None:
    scores = [example(f"{i % 31 / 5:.3f}", f"text {i}") for i in range(500)]  # as STS-B has them
    with pytest.raises(InputError) as caught:
        collect_labels(scores)
    assert (caught.value.code, caught.value.argument) == ("labels_are_numbers", "label_column")
    stars = [example(f"{i % 5}.0") for i in range(500)]
    assert collect_labels(stars) == ["0.0", "1.0", "2.0", "3.0", "4.0"]


def test_empty_texts_contradict_nothing() -> None:
    train = [example("joy", ""), example("fear", ""), example("joy", "so"), example("fear", "so")]
    warnings = (
        classifier(["fear", "joy"], ClassSettings(), pairs=False).report.data_summary(train, []).warnings
    )
    (said,) = (text for text in warnings if "different labels" in text)
    assert said.startswith("1 text occurs with different labels: 'so' has")


def test_empty_lines_of_a_sheet_keep_their_rows(
    moods: bs.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "all.csv"
    file.write_text("id,text\n1,kaba lo\n\n\n2,mine so\n")
    lines = "".join(csv_lines(moods.task.report, moods.predictor.answered_file(file))).splitlines()
    assert [line.split(",")[:2] for line in lines] == [
        ["id", "text"],
        ["1", "kaba lo"],
        ["", ""],
        ["", ""],
        ["2", "mine so"],
    ]
    assert caplog.messages[0] == f"2 texts are empty and not predicted: {file}:3, {file}:4"


def test_a_model_of_pairs_refuses_a_single_text() -> None:
    settings = ClassSettings(second_column="second")
    with pytest.raises(InputError) as caught:
        ClassificationData(settings, {}).from_inputs({"text": ["a", "b"]}, ["text 1", "text 2"])
    assert (caught.value.code, caught.value.location) == ("pairs_expected", "text 1")
    assert "second_column" in (caught.value.hint or "")


def test_balanced_weights_make_labels_count_alike() -> None:
    examples = [example(label) for label in ("a", "a", "a", "b")]
    balanced = ClassSettings(class_weights="balanced")
    found = ClassificationData(balanced, {}).fit_metadata(examples, None)
    assert found["weights"] == [pytest.approx(4 / 6), 2.0]
    assert "weights" not in ClassificationData(ClassSettings(), {}).fit_metadata(examples, None)
    config = classifier(["a", "b"], ClassSettings(), pairs=False).model.config
    head = FittedTask.create(TASK, config, torch.Generator(), found, ClassSettings())
    encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    batch = head.model.collate(head.encode(examples, tiny_run.tokenizer()))
    logits = torch.cat(list(head.model.eval().outputs(encoder, batch)))
    wanted = torch.tensor([0, 0, 0, 1])
    theirs = torch.nn.CrossEntropyLoss(torch.tensor(found["weights"]))(logits, wanted)
    loss = head.model.loss(encoder, batch)
    torch.testing.assert_close(
        loss.sums["task"] / 4, theirs
    )  # the weights of all examples sum to their number


def test_probabilities_are_calibrated_on_validation_where_that_is_asked(
    moods: bs.Model, tmp_path: Path
) -> None:
    """A new head, judged on labels of which half are wrong: the temperature lowers the cross-entropy."""
    draw = random.Random(0)
    rows = [(text, draw.choice([label, "joy", "fear"])) for text, label in tiny_run.examples(120, seed=3)]
    file = tiny_run.table(tmp_path / "noisy.csv", rows)
    settings = ["train.max_steps=1", "train.learning_rate=1e-9", "train.threads=1", "train.report_to=none"]
    kept = ["task.calibrate=true", *settings]
    run = bs.finetune(
        "classify", moods.path, tmp_path / "run", train=file, validation=file, settings=settings
    )
    calibrated = bs.finetune(
        "classify", moods.path, tmp_path / "kept", train=file, validation=file, settings=kept
    )
    temperature = calibrated.folder.record["decoder_state"]["temperature"]
    assert temperature != 1.0
    assert calibrated.report["chosen_on_validation"] == {"temperature": temperature}
    assert f"{temperature:.4g}, chosen on the validation data" in (calibrated.path / "report.html").read_text(
        encoding="utf-8"
    )
    again = bs.load(tmp_path / "kept")
    assert again.task.decoder.state == {"temperature": temperature}
    assert again.evaluate(file).calibration_error == pytest.approx(
        calibrated.report["validation"]["calibration_error"]
    )
    losses = [_cross_entropy(model, rows) for model in (run, calibrated)]
    assert losses[1] < losses[0]
    texts = [text for text, _ in rows[:20]]
    labels = [[answer.label for answer in model.predict(texts)] for model in (run, again)]
    assert labels[0] == labels[1]


def _cross_entropy(model: bs.Model, rows: list[tuple[str, str]]) -> float:
    predictions = model.predict([text for text, _ in rows])
    scores = [
        prediction.to_dict()["scores"][label]
        for prediction, (_, label) in zip(predictions, rows, strict=True)
    ]
    return -sum(map(math.log, scores)) / len(rows)
