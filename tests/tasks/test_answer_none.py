"""Questions that may have no answer (SQuAD 2.0): files, targets, the threshold, scores."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import read_folder
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError, Stopped
from bertsmith.tasks.batching import Outputs
from bertsmith.tasks.question_answering.data import QuestionExample, ReferenceAnswer
from bertsmith.tasks.question_answering.model import AnswerPrediction, QuestionAnsweringDecoder
from bertsmith.training.callbacks import MetricLogger
from squad_data import answerer, asked, data, decode, item_of, logits_of, read, squad, written

UNITS = [(0, 1), (2, 3), (4, 5)]


def none(number: str = "r", **more: Any) -> dict[str, Any]:
    return {"id": number, "question": "lode?", "answers": [], "is_impossible": True, **more}


def test_every_form_of_file_may_have_no_answer(tmp_path: Path) -> None:
    row = {"question": "kaba?", "context": "kaba lode", "answer": "lode", "start": 5}
    bare = {"question": "lode?", "context": "kaba lode"}
    forms = {
        "a.json": squad(asked("kaba", 0), none()),
        "b.json": squad(asked("kaba", 0), {"question": "lode?", "answers": []}),
        "c.json": [row, {**bare, "answers": {"text": [], "answer_start": []}}],
        "d.jsonl": json.dumps(row) + "\n" + json.dumps({**bare, "answer": None}),
        "e.csv": "question,context,answer,start\nkaba?,kaba lode,lode,5\nlode?,kaba lode,,\n",
    }
    for name, document in forms.items():
        found = read(written(tmp_path, document, name))
        assert [example.unanswerable for example in found] == [False, True]
        assert found[1].references == [""]
        again = json.dumps(data().to_row(found[1]))
        (_, same) = read(written(tmp_path, json.dumps(row) + "\n" + again, "again.jsonl"))
        assert (same.unanswerable, same.answers) == (True, ())
        assert not any(
            example.unanswerable for example in read(written(tmp_path, document, name), labeled=False)
        )


def test_a_file_without_any_answer_is_refused(tmp_path: Path) -> None:
    """A column of another name is not taken for questions that have none."""
    other = written(tmp_path, "question,context,antwort\nkaba?,kaba lode,lode\n", "a.csv")
    with pytest.raises(InputError) as caught:
        read(other)
    assert str(caught.value).startswith(f"{other}:2: ")
    assert read(other, answer_column="antwort")[0].answers == (ReferenceAnswer("lode", 5, moved=True),)
    assert read(other, labeled=False)[0].answers == ()
    with pytest.raises(InputError) as caught:
        read(written(tmp_path, "question,context,answer\nkaba?,kaba lode,\n", "b.csv"))
    assert (caught.value.code, caught.value.location) == ("no_answers", str(tmp_path / "b.csv"))


ROW = {"f": "kaba?", "p": "kaba lode", "a": "lode", "s": 5, "answer": "kaba", "start": 0}
NAMED = {"question_column": "f", "context_column": "p", "answer_column": "a", "start_column": "s"}


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("a.csv", "f,p,a,s,answer,start\nkaba?,kaba lode,lode,5,kaba,0\nwho?,kaba lode,,,lode,5\n"),
        ("a.jsonl", "\n".join(json.dumps(row) for row in (ROW, {**ROW, "f": "who?", "a": "", "s": None}))),
        ("a.json", json.dumps([ROW, {**ROW, "f": "who?", "a": None, "s": None}])),
    ],
)
def test_rows_with_columns_of_other_names(tmp_path: Path, name: str, document: str) -> None:
    found = read(written(tmp_path, document, name), **NAMED)
    assert [(one.question, one.answers) for one in found] == [
        ("kaba?", (ReferenceAnswer("lode", 5),)),
        ("who?", ()),
    ]
    again = "".join(json.dumps(data(**NAMED).to_row(one)) + "\n" for one in found)
    assert [one.answers for one in read(written(tmp_path, again, "again.jsonl"), **NAMED)] == [
        one.answers for one in found
    ]
    with pytest.raises(InputError) as caught:
        read(tmp_path / name, **{**NAMED, "start_column": "gone"})
    assert str(caught.value).startswith(str(tmp_path / name))


def test_a_table_without_a_header_has_numbers_for_names(tmp_path: Path) -> None:
    file = written(tmp_path, "kaba?\tkaba lode\tlode\t5\n", "a.tsv")
    names = dict(zip(NAMED, "1234", strict=True))
    assert read(file, header=False, **names)[0].answers == (ReferenceAnswer("lode", 5),)


def test_answer_text_and_answer_start_are_known_in_a_table(tmp_path: Path) -> None:
    table = "question,context,answer_text,answer_start\nkaba?,lode kaba lode,lode,10\n"
    assert read(written(tmp_path, table, "a.csv"))[0].answers == (ReferenceAnswer("lode", 10),)


def test_errors_locate_a_missing_answer_and_all_repeated_ids(tmp_path: Path) -> None:
    rows = [{"id": i % 3, "question": "?", "context": "kaba", "answer": "kaba"} for i in range(6)]
    file = written(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl")
    with pytest.raises(InputError) as caught:
        read(file)
    assert (caught.value.code, caught.value.location) == ("duplicate_id", f"{file}:4")
    lost = [{**row, "answer": "migi"} for row in rows]
    file = written(tmp_path, "\n".join(map(json.dumps, lost)), "b.jsonl")
    with pytest.raises(InputError) as caught:
        read(file)
    assert (caught.value.code, caught.value.location) == ("answer_not_in_passage", f"{file}:1")


def test_each_window_of_a_question_without_an_answer_points_at_its_first_token() -> None:
    context = " ".join(["lode"] * 30)
    some = [QuestionExample("kaba", context, (), "here", unanswerable=True)]
    items = answerer(max_length=16, stride=4).encode(some, tiny_run.tokenizer())
    assert len(items) > 3
    assert {item.target for item in items} == {(0, 0)}


def decoded(nulls: list[float], threshold: float | None, *, may_be_none: bool = True) -> AnswerPrediction:
    """Of windows with the same best span, log(0.06), and these sums of logits for none."""
    task = answerer({"unanswerable": may_be_none}, {"null_threshold": 0.5}, null_threshold=threshold)
    some = []
    for null in nulls:
        logits = logits_of([0.1, 0.3, 0.1], [0.1, 0.2, 0.1])
        logits[0] = null / 2
        some.append(logits)
    examples = [QuestionExample("q", "a b c", (), "here")]
    (found,) = decode(task, some, [item_of(UNITS) for _ in nulls], examples)
    return found


def test_there_is_an_answer_where_its_score_is_more_than_the_threshold_above_none() -> None:
    best = float(torch.tensor(0.06).log())
    found = decoded([best - 0.6], None)
    assert (found.answer, found.start, found.end) == ("b", 2, 3)
    assert found.null_score == pytest.approx(-0.6, abs=1e-5)
    found = decoded([best - 0.4], None)
    assert (found.answer, found.start, found.end) == ("", None, None)
    assert found.n_best[0]["answer"] == "b"
    assert decoded([best - 0.4], 0.3).answer == "b"  # the setting wins
    assert decoded([best + 50], -1e9).answer == "b"
    assert decoded([best - 50], 1e9).answer == ""


def test_of_several_windows_the_least_score_of_none_counts() -> None:
    """As in the release: each window without the answer is sure that there is none."""
    found = decoded([20.0, -30.0], None)
    assert found.answer == "b"
    assert found.null_score == pytest.approx(-30 - float(torch.tensor(0.06).log()), abs=1e-4)


def test_a_model_whose_questions_all_had_answers_never_says_none() -> None:
    found = decoded([100.0], None, may_be_none=False)
    assert found.answer == "b"
    assert found.null_score is None
    assert "null_score" not in found.to_dict()


def said(answer: str, null: float, best: str) -> AnswerPrediction:
    return AnswerPrediction(
        answer=answer, null_score=null, n_best=[{"answer": best}], tokens=1, tokens_read=1
    )


def test_scores_are_those_of_the_second_script() -> None:
    with_answer = [
        QuestionExample("q", "x", (ReferenceAnswer("a black cat", 0), ReferenceAnswer("cat", 0)), "1"),
        QuestionExample("q", "x", (ReferenceAnswer("red dog", 0),), "2"),
    ]
    without = [QuestionExample("q", "x", (), str(i), unanswerable=True) for i in (3, 4)]
    predictions = [
        said("Cat.", -5, "Cat."), said("", 2, "dog"), said("", 3, "x"), said("x", -1, "x"),
    ]  # fmt: skip
    scores = answerer().metrics.compute(predictions, [*with_answer, *without])
    assert scores.values == {
        "f1": 0.5, "exact_match": 0.5, "examples": 4,
        "answerable_f1": 0.5, "answerable_exact_match": 0.5, "unanswerable_accuracy": 0.5,
    }  # fmt: skip
    # All above -3 are none: the cat is right, and both without an answer. The dog's 2/3 is not worth one of them.
    assert scores.details["best_f1"] == pytest.approx(3 / 4)
    assert scores.details["best_f1_threshold"] == 3
    assert scores.details["best_exact_match"] == pytest.approx(3 / 4)


def test_chinese_answers_are_compared_by_their_characters() -> None:
    some = [QuestionExample("q", "x", (ReferenceAnswer("光荣公司", 0),), "1")]
    scores = answerer().metrics.compute([AnswerPrediction(answer="光荣", tokens=1, tokens_read=1)], some)
    assert scores.values["f1"] == pytest.approx(2 / 3)
    assert scores.details["rules"] == "cmrc"
    assert "CMRC 2018" in scores.notes[-1]
    scores = answerer(rules="squad").metrics.compute(
        [AnswerPrediction(answer="光荣", tokens=1, tokens_read=1)], some
    )
    assert scores.values["f1"] == 0


def test_the_baseline_may_be_that_there_is_no_answer() -> None:
    examples = [QuestionExample("q", "x", (), str(i), unanswerable=True) for i in range(3)]
    one = QuestionExample("q", "x", (ReferenceAnswer("x", 0),), "4")
    scores = answerer().metrics.baseline([*examples, one, one], [*examples, one])
    assert scores.values["f1"] == 0.75
    assert "best_f1" not in scores.details


# From a file to a finished model


def passages(number: int, seed: int) -> dict[str, Any]:
    """The answer is "kaba", which half of the passages hold."""
    draw = random.Random(seed)
    paragraphs = []
    for i in range(number):
        words = draw.choices(tiny_run.WORDS[3:], k=draw.randint(3, 20))
        if i % 2:
            words.insert(draw.randrange(len(words) + 1), "kaba")
        context = " ".join(words)
        answers = [{"text": "kaba", "answer_start": context.index("kaba")}] if i % 2 else []
        qas = [{"id": str(i), "question": "lofo", "answers": answers, "is_impossible": not answers}]
        paragraphs.append({"context": context, "qas": qas})
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def trained(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """A tiny model that has learnt to find the word, and when there is none."""
    folder = tmp_path_factory.mktemp("none")
    settings = ["task.max_length=16", "task.stride=6", "train.num_train_epochs=8", "train.learning_rate=3e-3"]
    # beside other work a trial may choose bf16, and answers be in fp32
    settings.append("train.precision=fp32")
    return bs.finetune(
        "answer",
        base,
        folder / "run",
        train=written(folder, passages(80, 0), "train.json"),
        validation=written(folder, passages(40, 1), "validation.json"),
        settings=[*settings, "train.batch_size=8", "train.threads=1", "train.report_to=none"],
    )


def test_the_threshold_is_chosen_on_validation_and_kept_with_the_model(
    trained: bs.Model, tmp_path: Path
) -> None:
    threshold = read_folder(trained.model_folder).record["decoder_state"]["null_threshold"]
    validation = trained.path.parent / "validation.json"
    again = bs.load(trained.path).evaluate(validation)
    assert again.f1 == trained.report["validation"]["f1"] == pytest.approx(again.best_f1)
    assert again.f1 > 0.8 > trained.report["baseline"]["f1"]
    assert again.best_f1_threshold == pytest.approx(threshold)
    file = written(tmp_path, passages(30, 2))
    answers = list(trained.predict_file(file))
    for answer in answers:
        assert (answer["answer"] == "") == (-answer["null_score"] <= threshold) == (answer["start"] is None)
    scores = trained.evaluate(file)
    assert scores.f1 <= scores.best_f1
    right = [(a["answer"] == "") == e.unanswerable for a, e in zip(answers, read(file), strict=True)]
    assert sum(right[::2]) / 15 == pytest.approx(scores.unanswerable_accuracy)
    assert {a["answer"] for a in trained.predict_file(file, null_threshold=1e6)} == {""}
    assert "" not in {a["answer"] for a in trained.predict_file(file, null_threshold=-1e6)}


def test_a_table_of_answers_has_empty_cells_where_there_is_none(trained: bs.Model, tmp_path: Path) -> None:
    file = written(tmp_path, passages(6, 3))
    arguments = [
        "predict",
        str(trained.path),
        "--input",
        str(file),
        "--format",
        "csv",
        "--null-threshold",
        "1e6",
    ]
    lines = CliRunner().invoke(bertsmith, arguments, catch_exceptions=False).stdout.splitlines()
    assert lines[0] == "place,id,question,prediction,start,end,score,null_score"
    assert all(",lofo,,,,0." in line for line in lines[1:7])


def test_an_unfinished_model_has_the_threshold_of_its_best_evaluation(
    trained: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is chosen anew at each evaluation; the one after the best must not change it."""
    stepped, calibrate, first = MetricLogger.on_step_end, QuestionAnsweringDecoder.calibrate, list[Tensor]()

    def signal_then_step(self: MetricLogger, trainer: Any, result: Any) -> None:
        if trainer.state.step == 8:
            os.kill(os.getpid(), signal.SIGINT)
        stepped(self, trainer, result)

    def worse_after_the_first(self: QuestionAnsweringDecoder, outputs: Outputs, *rest: Any) -> None:
        calibrate(self, outputs, *rest)
        first.append(outputs.per_item[0])
        if not torch.equal(outputs.per_item[0], first[0]):
            self.state["null_threshold"] = 1e6

    monkeypatch.setattr(MetricLogger, "on_step_end", signal_then_step)
    monkeypatch.setattr(QuestionAnsweringDecoder, "calibrate", worse_after_the_first)
    settings = ["train.max_steps=60", "train.batch_size=4", "train.learning_rate=1e-6", "train.threads=1"]
    more = ["train.eval_steps=1", "train.report_to=none"]
    files = {name: trained.path.parent / f"{name}.json" for name in ("train", "validation")}
    sources = {"train": files["train"], "validation": files["validation"]}
    with pytest.raises(Stopped):
        bs.finetune("answer", trained.path, tmp_path / "run", **sources, settings=[*settings, *more])
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    scores = [line["f1"] for line in log if line["kind"] == "evaluation"]
    assert scores[-1] < max(scores)
    model = bs.load(tmp_path / "run")
    assert model.unfinished is not None
    assert model.evaluate(files["validation"]).f1 == max(scores)


def test_validation_with_unanswerable_questions_alone_is_a_warning(tmp_path: Path) -> None:
    train = read(written(tmp_path, squad(asked("kaba", 0))))
    validation = read(written(tmp_path, squad(asked("kaba", 0), none())))
    (warning,) = answerer().report.data_summary(train, validation).warnings
    assert warning.startswith("1 validation question has no answer, and all training questions have one")
