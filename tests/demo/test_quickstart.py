"""Test the quickstart with a small budget, and that its task has no leaks."""

from __future__ import annotations

import csv
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bertsmith.demo.documentation import Library, documents, installed
from bertsmith.demo.quickstart import FINETUNING_SETTINGS, print_report, quickstart
from bertsmith.demo.task import QuickstartTask, make_task
from bertsmith.errors import InputError, Stopped
from bertsmith.inference.model import load
from bertsmith.io.documents import Document

LIBRARIES = ("networkx", "numpy", "scikit-learn")  # fast to read, and large enough for classes
MODELS = ["majority", "TF-IDF + linear", "BERT without pre-training", "pre-trained BERT"]


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text)).lower()


@pytest.fixture(scope="module")
def libraries() -> list[Library]:
    return [library for library in installed() if library.name in LIBRARIES]


@pytest.fixture(scope="module")
def corpus(libraries: list[Library]) -> list[Document]:
    return list(documents(libraries))


@pytest.fixture(scope="module")
def task(corpus: list[Document]) -> QuickstartTask:
    return make_task(corpus, seed=0)


def test_no_sentence_is_in_two_parts(task: QuickstartTask) -> None:
    sentences = [_letters(text) for rows in task.parts.values() for text, _ in rows]
    assert len(sentences) == len(set(sentences))


def test_task_sentences_are_not_in_the_pretraining_text(task: QuickstartTask, corpus: list[Document]) -> None:
    rest = {document.location for document in task.pretraining_documents}
    held_out = {document.location for document in task.held_out_documents}
    assert not rest & held_out
    assert len(rest) + len(held_out) == len(corpus)
    text = _letters("".join(document.text for document in task.held_out_documents))
    seen = "\n".join(_letters(document.text) for document in task.pretraining_documents)
    for rows in task.parts.values():
        assert all(_letters(sentence) in text for sentence, _ in rows)
        unseen = [sentence for sentence, _ in rows if _letters(sentence) not in seen]
        assert len(unseen) > 0.97 * len(rows)  # others are parts of longer sentences


def test_parts_come_from_different_documents(task: QuickstartTask) -> None:
    part_locations: dict[str, set[str]] = {}
    texts = {d.location: _letters(d.text) for d in task.held_out_documents}
    for part, rows in task.parts.items():
        for sentence, _ in rows:
            locations = {location for location, text in texts.items() if _letters(sentence) in text}
            if len(locations) == 1:
                part_locations.setdefault(part, set()).update(locations)
    assert not part_locations["train"] & part_locations["test"]
    assert not part_locations["validation"] & part_locations["test"]
    assert not part_locations["train"] & part_locations["validation"]


def test_classes_are_balanced_and_not_named(task: QuickstartTask) -> None:
    assert task.labels == sorted(LIBRARIES)
    for rows in task.parts.values():
        assert len(set(Counter(label for _, label in rows).values())) == 1
        for sentence, _ in rows:
            lower = sentence.lower()
            assert not any(name in lower for name in (*LIBRARIES, "sklearn", "scikit"))


def test_the_task_depends_only_on_the_seed(corpus: list[Document], task: QuickstartTask) -> None:
    assert make_task(corpus, seed=0) == task
    assert make_task(corpus, seed=1).parts["test"] != task.parts["test"]


def test_too_little_text_is_an_error() -> None:
    with pytest.raises(InputError) as caught:
        make_task([Document("This is the only sentence in this document.", "python:a.py")], seed=0)
    assert caught.value.code == "too_little_documentation"


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError):
        quickstart(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.fixture(scope="module")
def report(
    libraries: list[Library], corpus: list[Document], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Return the report of a quickstart with a small vocabulary, few updates, and the documents read before."""
    out = tmp_path_factory.mktemp("quick") / "start"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertsmith.demo.documentation.documents", lambda *_: corpus)
        patch.setattr("bertsmith.demo.quickstart._VOCAB_SIZE", 1_000)
        patch.setitem(FINETUNING_SETTINGS, "train.max_steps", 6)
        return quickstart(out, seed=3, libraries=libraries, steps=6)


def test_the_table_has_a_row_for_each_model(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [score["model"] for score in report["scores"]] == MODELS
    assert report["scores"][0]["accuracy"] == pytest.approx(1 / 3)
    monkeypatch.setenv("COLUMNS", "80")
    print_report(report)
    printed = capsys.readouterr().out
    for score in report["scores"]:
        line = next(line for line in printed.split("\n") if f"│ {score['model']}" in line)
        assert f"{score['accuracy']:.1%}" in line
    assert f"{report['pretrain']['held_out']['mlm_loss']:.2f}" in printed
    assert f"{report['pretrain']['held_out']['unigram_mlm_loss']:.2f}" in printed
    assert "bertsmith finetune classify --model bert" in printed


def test_all_outputs_can_be_loaded(report: dict[str, Any]) -> None:
    out = Path(report["output_dir"])
    assert json.loads((out / "report.json").read_text()) == report
    with (out / "task" / "test.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == report["task"]["sentences"]["test"]
    for score in report["scores"][2:]:
        scores = load(score["run"]).evaluate(out / "task" / "test.csv")
        assert scores.accuracy == score["accuracy"]
    assert len(load(out / "bert").fill_mask("A [MASK] is returned.")[0]) == 5
    assert all(len(mask["answers"]) == 3 for mask in report["masks"])


def test_lower_scores_and_punctuation_are_printed(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    scores = [
        {**score, "accuracy": accuracy}
        for score, accuracy in zip(report["scores"], (0.2, 0.4, 0.3, 0.35), strict=True)
    ]
    masks = [{"text": "[MASK]", "answers": [{"token": t, "score": 0.5} for t in ("the", ",", "##s")]}]
    print_report({**report, "scores": scores, "masks": masks})
    printed = capsys.readouterr().out
    assert "Pre-training: +5.0 points over random weights, 5.0 points below TF-IDF + linear." in printed
    assert 'the 50%, "," 50%, ##s 50%' in printed


def test_invalid_minutes_are_refused_before_reading(tmp_path: Path) -> None:
    for minutes in (1e9, -1.0, float("nan")):
        with pytest.raises(InputError) as caught:
            quickstart(tmp_path / "out", minutes=minutes, libraries=[])
        assert (caught.value.code, caught.value.argument) == ("invalid_setting", "train.max_minutes")
        assert not (tmp_path / "out").exists()


def test_a_second_run_into_the_same_folder_is_refused(report: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        quickstart(report["output_dir"])


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Stopped(signal.SIGINT, "resume with --resume")])
def test_ctrl_c_explains_how_to_start_again(
    stop: BaseException, libraries: list[Library], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_stop(*_: Any, **__: Any) -> None:
        raise stop

    monkeypatch.setattr("bertsmith.demo.documentation.documents", raise_stop)
    with pytest.raises(Stopped, match="stopped") as caught:
        quickstart(tmp_path / "out", libraries=libraries)
    assert caught.value.exit_code == 130
    assert "--resume" not in str(caught.value)
    assert "before it wrote anything" in str(caught.value)
    (tmp_path / "out").mkdir()
    with pytest.raises(Stopped, match="rm -r"):
        quickstart(tmp_path / "out", libraries=libraries)


@pytest.mark.slow
def test_pretraining_improves_accuracy(tmp_path: Path) -> None:
    report = quickstart(tmp_path / "out", seed=0)
    accuracy = {score["model"]: score["accuracy"] for score in report["scores"]}
    assert accuracy[MODELS[3]] >= accuracy[MODELS[2]] + 0.05
    metrics = report["pretrain"]["held_out"]
    assert metrics["mlm_loss"] < metrics["unigram_mlm_loss"] - 1.5
