"""The quickstart: the whole way with a tiny budget, and a task that gives nothing away."""

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
from bertsmith.io.documentation import Library, documents, installed
from bertsmith.io.files import Document
from bertsmith.quickstart import quickstart as steps
from bertsmith.quickstart.pairs import by_bigrams, make_pairs
from bertsmith.quickstart.quickstart import quickstart, show
from bertsmith.quickstart.task import QuickstartTask, make_task, sentences_of

FEW = ("python", "networkx", "numpy", "scikit-learn")  # quick to read, and large enough for classes
ROWS = ["majority", "TF-IDF + linear", "BERT without pre-training", "pre-trained BERT"]


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text)).lower()


@pytest.fixture(scope="module")
def few() -> list[Library]:
    return [library for library in installed() if library.name in FEW]


@pytest.fixture(scope="module")
def corpus(few: list[Library]) -> list[Document]:
    return list(documents(few))


@pytest.fixture(scope="module")
def task(corpus: list[Document]) -> QuickstartTask:
    return make_task(corpus, seed=0)


def test_no_sentence_is_in_two_parts(task: QuickstartTask) -> None:
    sentences = [_letters(text) for rows in task.parts.values() for text, _ in rows]
    assert len(sentences) == len(set(sentences))


def test_the_tasks_text_is_not_in_the_pretraining_text(task: QuickstartTask, corpus: list[Document]) -> None:
    rest = {document.place for document in task.rest}
    held = {document.place for document in task.held_out}
    assert not rest & held
    assert len(rest) + len(held) == len(corpus)
    text = _letters("".join(document.text for document in task.held_out))
    seen = "\n".join(_letters(document.text) for document in task.rest)
    for rows in task.parts.values():
        assert all(_letters(sentence) in text for sentence, _ in rows)
        alone = [sentence for sentence, _ in rows if _letters(sentence) not in seen]
        assert len(alone) > 0.97 * len(rows)  # a part of a longer sentence may stand elsewhere


def test_parts_come_from_different_documents(task: QuickstartTask) -> None:
    at: dict[str, set[str]] = {}
    texts = {d.place: _letters(d.text) for d in task.held_out}
    for part, rows in task.parts.items():
        for sentence, _ in rows:
            homes = {place for place, text in texts.items() if _letters(sentence) in text}
            if len(homes) == 1:
                at.setdefault(part, set()).update(homes)
    assert not at["train"] & at["test"]
    assert not at["dev"] & at["test"]
    assert not at["train"] & at["dev"]


def test_classes_are_even_and_are_not_named(task: QuickstartTask) -> None:
    assert task.labels == sorted(FEW)
    for rows in task.parts.values():
        assert len(set(Counter(label for _, label in rows).values())) == 1
        for sentence, _ in rows:
            low = sentence.lower()
            assert not any(name in low for name in (*FEW, "sklearn", "scikit"))


def test_the_task_is_a_function_of_the_seed(corpus: list[Document], task: QuickstartTask) -> None:
    assert make_task(corpus, seed=0) == task
    assert make_task(corpus, seed=1).parts["test"] != task.parts["test"]


def test_the_standard_library_alone_makes_a_task(corpus: list[Document]) -> None:
    own = make_task([d for d in corpus if d.place.startswith("python:")], seed=0)
    assert own.kind == "families of standard modules"
    assert 3 <= len(own.labels) <= 5
    assert len(own.parts["test"]) >= 90


def test_too_little_text_is_said() -> None:
    with pytest.raises(InputError, match="too little documentation"):
        make_task([Document("A sentence that stands all alone in here.", "python:a.py")], seed=0)


def test_an_out_that_holds_something_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="already exists and is not empty"):
        quickstart(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.fixture(scope="module")
def report(few: list[Library], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("quick") / "start"
    return quickstart(out, seed=3, libraries=few[1:], steps=20)


def test_the_table_has_a_row_for_each_way(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [score["model"] for score in report["scores"]] == ROWS
    assert report["scores"][0]["accuracy"] == pytest.approx(1 / 3)
    monkeypatch.setenv("COLUMNS", "80")
    show(report)
    printed = capsys.readouterr().out
    for score in report["scores"]:
        line = next(line for line in printed.split("\n") if f"│ {score['model']}" in line)
        assert f"{score['accuracy']:.1%}" in line
    assert f"{report['pretrain']['held_out']['mlm_loss']:.2f}" in printed
    assert f"{report['pretrain']['held_out']['unigram_mlm_loss']:.2f}" in printed
    assert "bertsmith finetune classify --model bert" in printed
    pairs = report["pairs"]
    assert [score["model"] for score in pairs["scores"]] == ["two words in a row", *ROWS[2:]]
    assert len(Path(pairs["file"]).read_text(encoding="utf-8").splitlines()) == pairs["number"] > 60
    for score in pairs["scores"]:
        line = next(
            line for line in printed.split("Which of two sentences")[1].split("\n") if score["model"] in line
        )
        assert f"{score['accuracy']:.1%}" in line
        assert all(f"{of:.1%}" in line for of in score["by_phenomenon"].values())


def test_everything_that_was_made_can_be_used_again(report: dict[str, Any]) -> None:
    out = Path(report["out"])
    assert json.loads((out / "report.json").read_text()) == report
    with (out / "task" / "test.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == report["task"]["sentences"]["test"]
    for score in report["scores"][2:]:
        again = load(score["run"]).evaluate(out / "task" / "test.csv")
        assert again["accuracy"] == score["accuracy"]
    assert len(load(out / "bert").fill_mask("A [MASK] is returned.")[0]) == 5
    assert all(len(mask["answers"]) == 3 for mask in report["masks"])


def test_a_loss_of_points_is_no_gain_and_a_comma_no_gap(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    scores = [
        {**score, "accuracy": share}
        for score, share in zip(report["scores"], (0.2, 0.4, 0.3, 0.35), strict=True)
    ]
    masks = [{"text": "[MASK]", "answers": [{"token": t, "score": 0.5} for t in ("the", ",", "##s")]}]
    show({**report, "scores": scores, "masks": masks})
    printed = capsys.readouterr().out
    assert "Pre-training: +5.0 points over random weights, 5.0 points below TF-IDF + linear." in printed
    assert 'the 50%, "," 50%, ##s 50%' in printed


def test_minutes_that_cannot_be_are_refused_before_the_text_is_read(tmp_path: Path) -> None:
    for minutes in (1e9, -1.0, float("nan")):
        with pytest.raises(InputError, match="max_minutes"):
            quickstart(tmp_path / "out", minutes=minutes, libraries=[])
        assert not (tmp_path / "out").exists()


def test_a_second_run_into_the_same_folder_refuses(report: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="already exists and is not empty"):
        quickstart(report["out"])


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Stopped(signal.SIGINT, "the run says --resume")])
def test_ctrl_c_says_how_to_start_again(
    stop: BaseException, few: list[Library], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise stop

    monkeypatch.setattr("bertsmith.io.documentation.documents", stopped)
    with pytest.raises(Stopped, match="stopped") as caught:
        quickstart(tmp_path / "out", libraries=few)
    assert caught.value.exit_code == 130
    assert "--resume" not in str(caught.value)
    assert "before anything was written" in str(caught.value)
    (tmp_path / "out").mkdir()
    with pytest.raises(Stopped, match="rm -r"):
        quickstart(tmp_path / "out", libraries=few)


@pytest.mark.slow
def test_pretraining_pays(tmp_path: Path) -> None:
    report = quickstart(tmp_path / "out", seed=0)
    accuracy = {score["model"]: score["accuracy"] for score in report["scores"]}
    assert accuracy[ROWS[3]] >= accuracy[ROWS[2]] + 0.05
    held = report["pretrain"]["held_out"]
    assert held["mlm_loss"] < held["unigram_mlm_loss"] - 1.5


@pytest.fixture(scope="module")
def pairs(task: QuickstartTask) -> list[dict[str, str]]:
    return make_pairs(task.unseen, seed=0)


def test_pairs_differ_in_one_word_and_are_not_in_the_pretraining_text(
    task: QuickstartTask, pairs: list[dict[str, str]]
) -> None:
    partners = {frozenset(pair) for pair in (("a", "an"), ("is", "are"), ("was", "were"), ("has", "have"))}
    partners.add(frozenset(("this", "these")))
    seen = {_letters(sentence) for document in task.rest for sentence in sentences_of(document)}
    assert len(pairs) > 60
    for pair in pairs:
        good, bad = pair["good"].split(" "), pair["bad"].split(" ")
        different = [two for two in zip(good, bad, strict=True) if two[0] != two[1]]
        assert len(different) == 1
        assert frozenset(_letters(word) for word in different[0]) in partners
        assert _letters(pair["good"]) not in seen
    assert len({pair["good"] for pair in pairs}) == len(pairs)
    assert make_pairs(task.unseen, seed=0) == pairs
    assert make_pairs(task.unseen, seed=1) != pairs
    assert max(Counter(pair["phenomenon"] for pair in pairs).values()) <= 100


def test_words_within_names_and_at_the_end_are_left_alone() -> None:
    ten = [f"Nothing {word} here." for word in ("e.g.a b", "is.", "this", "a-b", "self.is ok")]
    assert make_pairs(ten * 3, seed=0) == []
    made = make_pairs([f"Word {i} is an apple." for i in range(12)], seed=0)
    assert {pair["bad"].split(" ", 2)[2] for pair in made} <= {"are an apple.", "is a apple."}


def test_bigrams_know_what_they_have_read() -> None:
    text = "it is a cat. it is an owl. they are cats."
    made = [
        {"good": "It is an owl.", "bad": "It is a owl.", "phenomenon": "a or an"},
        {"good": "they are cats", "bad": "they is cats", "phenomenon": "is or are"},
        {"good": "they is cats", "bad": "they are cats", "phenomenon": "is or are"},
        {"good": "cats", "bad": "cats", "phenomenon": "is or are"},  # a tie is not right
    ]
    found = by_bigrams(made, [Document(text, "x")])
    assert found == {"accuracy": 0.5, "by_phenomenon": {"a or an": 1.0, "is or are": 1 / 3}}


def test_the_time_is_told_before_the_long_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a quick machine, on a slow one, and on one too slow to learn much."""
    told: dict[float, list[str]] = {}
    for seconds in (0.05, 0.2, 4.0):
        monkeypatch.setattr(steps, "timed_on_random_text", lambda *_, seconds=seconds: (seconds, None))
        told[seconds] = []
        budget = [f"train.max_steps={steps._STEPS}", f"train.max_minutes={steps._MINUTES}"]
        steps._tell_time(budget, 10.0, 0, told[seconds].append)
    assert len(told[0.05]) == 1
    assert told[0.05][0].startswith("an update takes about 0.05 s here: 1 min 5")
    assert "for 1,800 updates" in told[0.05][0]
    assert "for 1,500 updates" in told[0.2][0]
    assert "this machine is slow or busy: all 1,800 updates would take 6 min 00 s" in told[0.2][1]
    assert "--minutes 7" in told[0.2][1]
    assert told[4.0][2] == "in 75 updates a BERT learns little but which words are frequent"
