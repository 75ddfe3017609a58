"""Test the quickstart with a small budget, and that its task has no leaks."""

from __future__ import annotations

import csv
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bertsmith.errors import InputError, Stopped
from bertsmith.inference.model import load
from bertsmith.io.documents import Document
from bertsmith.quickstart import quickstart as quickstart_module
from bertsmith.quickstart.documentation import Library, documents, installed
from bertsmith.quickstart.pairs import make_pairs, score_bigram_model
from bertsmith.quickstart.quickstart import print_report, quickstart
from bertsmith.quickstart.task import QuickstartTask, make_task, sentences_of

LIBRARIES = ("python", "networkx", "numpy", "scikit-learn")  # fast to read, and large enough for classes
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
    assert not part_locations["dev"] & part_locations["test"]
    assert not part_locations["train"] & part_locations["dev"]


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


def test_the_standard_library_is_enough_for_a_task(corpus: list[Document]) -> None:
    standard_task = make_task([d for d in corpus if d.location.startswith("python:")], seed=0)
    assert standard_task.label_noun == "families of standard modules"
    assert 3 <= len(standard_task.labels) <= 5
    assert len(standard_task.parts["test"]) >= 90


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
def report(libraries: list[Library], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("quick") / "start"
    return quickstart(out, seed=3, libraries=libraries[1:], steps=20)


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
    pairs = report["pairs"]
    assert [score["model"] for score in pairs["scores"]] == ["two words in a row", *MODELS[2:]]
    assert len(Path(pairs["file"]).read_text(encoding="utf-8").splitlines()) == pairs["number"] > 60
    for score in pairs["scores"]:
        line = next(
            line for line in printed.split("Which of two sentences")[1].split("\n") if score["model"] in line
        )
        assert f"{score['accuracy']:.1%}" in line
        assert all(f"{accuracy:.1%}" in line for accuracy in score["by_phenomenon"].values())


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

    monkeypatch.setattr("bertsmith.quickstart.documentation.documents", raise_stop)
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


@pytest.fixture(scope="module")
def pairs(task: QuickstartTask) -> list[dict[str, str]]:
    return make_pairs(task.unseen_sentences, seed=0)


def test_pairs_differ_in_one_word_and_are_not_in_the_pretraining_text(
    task: QuickstartTask, pairs: list[dict[str, str]]
) -> None:
    partners = {frozenset(pair) for pair in (("a", "an"), ("is", "are"), ("was", "were"), ("has", "have"))}
    partners.add(frozenset(("this", "these")))
    seen = {
        _letters(sentence) for document in task.pretraining_documents for sentence in sentences_of(document)
    }
    assert len(pairs) > 60
    for pair in pairs:
        good, bad = pair["good"].split(" "), pair["bad"].split(" ")
        different = [(a, b) for a, b in zip(good, bad, strict=True) if a != b]
        assert len(different) == 1
        assert frozenset(_letters(word) for word in different[0]) in partners
        assert _letters(pair["good"]) not in seen
    assert len({pair["good"] for pair in pairs}) == len(pairs)
    assert make_pairs(task.unseen_sentences, seed=0) == pairs
    assert make_pairs(task.unseen_sentences, seed=1) != pairs
    assert max(Counter(pair["phenomenon"] for pair in pairs).values()) <= 100


def test_words_in_names_and_at_the_end_are_not_replaced() -> None:
    sentences = [f"Nothing {word} here." for word in ("e.g.a b", "is.", "this", "a-b", "self.is ok")]
    assert make_pairs(sentences * 3, seed=0) == []
    pairs = make_pairs([f"Word {i} is an apple." for i in range(12)], seed=0)
    assert {pair["bad"].split(" ", 2)[2] for pair in pairs} <= {"are an apple.", "is a apple."}


def test_bigram_model() -> None:
    text = "it is a cat. it is an owl. they are cats."
    pairs = [
        {"good": "It is an owl.", "bad": "It is a owl.", "phenomenon": "a or an"},
        {"good": "they are cats", "bad": "they is cats", "phenomenon": "is or are"},
        {"good": "they is cats", "bad": "they are cats", "phenomenon": "is or are"},
        {"good": "cats", "bad": "cats", "phenomenon": "is or are"},  # a tie is not correct
    ]
    scores = score_bigram_model(pairs, [Document(text, "x")])
    assert scores == {"accuracy": 0.5, "by_phenomenon": {"a or an": 1.0, "is or are": 1 / 3}}


def test_the_time_is_estimated_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Test a fast machine, a slow one, and one that is too slow to learn much."""
    caplog.set_level("INFO", "bertsmith")
    messages: dict[float, list[str]] = {}
    module = quickstart_module
    for seconds in (0.05, 0.2, 4.0):
        monkeypatch.setattr(module, "probe_speed", lambda *_, seconds=seconds: seconds)
        budget = {"train.max_steps": module._MAX_STEPS, "train.max_minutes": module._MAX_MINUTES}
        caplog.clear()
        module._log_estimated_time(budget, 10.0, 0)
        messages[seconds] = [r.getMessage() for r in caplog.records if r.name == module.__name__]
    assert len(messages[0.05]) == 1
    assert messages[0.05][0].startswith(
        "an update takes about 0.05 s on this machine; all steps take about 1 min 5"
    )
    assert "for 1,800 updates" in messages[0.05][0]
    assert "for 1,500 updates" in messages[0.2][0]
    assert "all 1,800 updates would take 6 min 00 s" in messages[0.2][1]
    assert "set minutes to 7" in messages[0.2][1]
    assert messages[4.0][2] == "in 75 updates a BERT learns little more than word frequencies"
