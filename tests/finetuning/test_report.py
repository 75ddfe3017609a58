"""Logs and report of a fine-tuning run: evaluations, the best one, warnings."""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError, Stopped
from bertsmith.finetuning.report import (
    FROZEN_ENCODER,
    describe_doubled_special_tokens,
    evaluations,
    learning_warnings,
    log_examples,
)
from bertsmith.finetuning.settings import FileSettings
from bertsmith.tasks.results import DataSummary, Diagnostic, Metrics
from bertsmith.training.callbacks import MetricLogger

SETTINGS = ["train.batch_size=6", "train.threads=1", "train.report_to=none", "train.precision=fp32"]
LEARN = [*SETTINGS, "train.num_train_epochs=4", "train.learning_rate=3e-3"]


def test_doubled_special_tokens_are_counted() -> None:
    texts = ["[CLS] the cat [SEP]", "the [SEP] mat", "the mat", " [CLS] sat"]
    message = describe_doubled_special_tokens(texts, tiny_run.tokenizer())
    assert message is not None
    assert message.startswith("2 of 4 texts")
    assert describe_doubled_special_tokens(["the [SEP] mat"], tiny_run.tokenizer()) is None


def tuned(base: bs.Model, out: Path, *settings: str, resume: bool = False) -> bs.Model:
    out.parent.mkdir(exist_ok=True)
    return bs.finetune(
        "classify",
        base,
        out,
        train=tiny_run.table(out.parent / "train.csv", tiny_run.examples(36)),
        validation=tiny_run.table(out.parent / "validation.csv", tiny_run.examples(12, seed=1)),
        settings=[*LEARN, *settings],
        resume=resume,
    )


def test_each_evaluation_stands_in_the_report(base: bs.Model, tmp_path: Path) -> None:
    run = tuned(base, tmp_path / "run", "train.logging_steps=4")
    rows = run.report["evaluations"]
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 6), (2, 12), (3, 18), (4, 24)]
    (kept,) = (row for row in rows if row["best"])
    assert kept["step"] == run.report["best_step"]
    assert kept["accuracy"] == max(row["accuracy"] for row in rows) == run.report["validation"]["accuracy"]
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in log if line["kind"] == "train"}
    assert sorted(losses) == [4, 6, 8, 12, 16, 18, 20, 24]  # each evaluation has a loss beside it
    assert rows[1]["loss"] == pytest.approx((losses[8] + losses[12]) / 2)


def test_a_resumed_run_has_the_same_report(
    base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = tuned(base, tmp_path / "a" / "run")
    stepped = MetricLogger.on_step_end

    def signal_then_step(self: MetricLogger, trainer: Any, result: Any) -> None:
        if trainer.state.step == 15:
            os.kill(os.getpid(), signal.SIGINT)
        stepped(self, trainer, result)

    with monkeypatch.context() as patch:
        patch.setattr(MetricLogger, "on_step_end", signal_then_step)
        with pytest.raises(Stopped):
            tuned(base, tmp_path / "b" / "run")
    resumed = tuned(base, tmp_path / "b" / "run", resume=True)
    for name in ("evaluations", "best_step", "validation", "examples"):
        assert resumed.report[name] == straight.report[name]
    assert len(resumed.report["evaluations"]) == 4


def test_the_command_line_shows_them(base: bs.Model, tmp_path: Path) -> None:
    train = tiny_run.table(tmp_path / "train.csv", [*tiny_run.examples(36), ("kaba", "awe")])
    call = [
        "finetune",
        "classify",
        "--model",
        base.path,
        "--train",
        train,
        "--validation-split",
        "0.3",
        "--output-dir",
    ]
    some = [word for setting in LEARN for word in ("--set", setting)]
    done = CliRunner().invoke(bertsmith, [*map(str, call), str(tmp_path / "run"), *some])
    assert done.exit_code == 0, done.output
    (kept,) = (line for line in done.stdout.splitlines() if "← best" in line)
    best = json.loads((tmp_path / "run" / "report.json").read_text())
    assert str(best["best_step"]) in kept
    assert f"{best['validation']['accuracy']:.4f}" in kept
    assert "4 labels" in done.stderr
    assert "1 label with a single training example" in done.stderr
    assert "'awe' (train.csv:38)" in done.stderr
    assert any("'awe'" in line for line in best["warnings"])
    assert best["examples"]["labels"]["train"]["awe"] == 1


def test_all_findings_stand_in_one_table_of_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    monkeypatch.setenv("COLUMNS", "80")
    files = [str(tmp_path / name / "some_examples.csv") for name in ("train", "validation")]
    overview = DataSummary(
        diagnostics=[
            Diagnostic(
                "a", "7 things are odd", [f"{files[0]}:{i}" for i in range(2, 9)], consequence="mend them"
            ),
            Diagnostic(
                "b", "2 validation texts are trained on", excerpts=[f"{files[1]}:3 is {files[0]}:9"] * 2
            ),
            Diagnostic("c", "all is one"),
            Diagnostic("d", "1 label has spaces around", ["x:1"], ["' joy' (x:1)"]),
        ]
    )
    log_examples(overview, FileSettings(train=files[0], validation="validation.csv"))
    (table,) = caplog.messages
    assert all(len(line) <= 80 for line in table.splitlines())
    for shown in ("some_examples.csv:2 ", "some_examples.csv:6 ", "and 2 more", "' joy' (x:1)", "all is one"):
        assert shown in table
    # Equal names are shown with their folders.
    assert "some_examples.csv:7" not in table
    assert files[0] not in table
    log_examples(overview, FileSettings(train=files[0], validation=files[1]))
    assert files[0] in "".join(caplog.messages[1].replace("│", "").split())
    places = ", ".join(f"{files[0]}:{i}" for i in range(2, 7))
    assert overview.diagnostics[0].text == f"7 things are odd: {places} and 2 more: mend them"
    caplog.clear()
    log_examples(DataSummary(), FileSettings())
    assert not caplog.messages


def test_no_better_than_the_most_frequent_label_is_a_warning(
    base: bs.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tuned(base, tmp_path / "run", "train.max_steps=1", "train.learning_rate=1e-9")
    report = run.report
    assert report["validation"]["accuracy"] <= report["baseline"]["accuracy"]
    (said,) = (line for line in report["warnings"] if "no better" in line)
    assert said in [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "after 1 update:" in said
    assert "train.max_steps=3" in said
    better, worse = Metrics({"f1": 0.5}), Metrics({"f1": 0.4})
    majority, tfidf = {"majority": {"f1": 0.4}}, {"TF-IDF": {"f1": 0.5}}
    epochs = {"num_train_epochs": 10.0}
    assert learning_warnings("f1", better, majority, 500, epochs) == []
    (rival,) = learning_warnings("f1", worse, majority | tfidf, 500, epochs)
    assert "no better than TF-IDF" in rival
    (said,) = learning_warnings("f1", worse, majority, 500, epochs, {"joy", "anger"})
    assert "train.learning_rate" in said
    assert "train.num_train_epochs=30" in said
    assert "train.max_tokens=3000000" in learning_warnings("f1", worse, majority, 5, {"max_tokens": 1e6})[0]
    (frozen,) = learning_warnings("f1", better, majority | {FROZEN_ENCODER: {"f1": 0.5}}, 5, epochs)
    assert "frozen encoder" in frozen
    perfect = Metrics({"f1": 1.0})
    (enough,) = learning_warnings("f1", perfect, {"TF-IDF": {"f1": 1.0}}, 5, epochs)
    assert "train longer" not in enough


def test_a_validation_of_one_label_gets_a_warning(
    base: bs.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    train = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(36))
    rows = tiny_run.examples(12, seed=1)
    validation = tiny_run.table(tmp_path / "validation.csv", [row for row in rows if row[1] == rows[0][1]])
    few = [*SETTINGS, "train.max_steps=1", "train.learning_rate=1e-9"]
    run = bs.finetune("classify", base, tmp_path / "run", train=train, validation=validation, settings=few)
    assert not any("train longer" in line for line in caplog.messages)
    score, beside = run.report["validation"]["accuracy"], run.report["baseline"]["accuracy"]
    said = any("all validation examples have the" in line for line in caplog.messages)
    assert said == (score <= beside)
    one = learning_warnings(
        "accuracy",
        Metrics({"accuracy": 1.0}),
        {"majority": {"accuracy": 1.0}},
        9,
        {"num_train_epochs": 3},
        {"a"},
    )
    assert len(one) == 1
    assert "'a'" in one[0]


def test_a_label_of_validation_that_training_lacks_is_an_error_before_anything_else(
    base: bs.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith.finetuning")
    train = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(36))
    validation = tiny_run.table(tmp_path / "validation.csv", [*tiny_run.examples(6, seed=1), ("wow", "awe")])
    with pytest.raises(bs.InputError) as error:
        bs.finetune("classify", base, tmp_path / "run", train=train, validation=validation)
    assert (error.value.code, error.value.location) == ("unknown_label", f"{validation}:8")
    assert not [record for record in caplog.records if record.name.startswith("bertsmith.finetuning")]
    assert not (tmp_path / "run").exists()
    more = [*tiny_run.examples(6, seed=1), ("wow", "awe"), ("oh", "pity"), ("ah", "awe"), ("so", "care")]
    tiny_run.table(tmp_path / "validation.csv", more)
    with pytest.raises(bs.InputError) as error:
        bs.finetune("classify", base, tmp_path / "run", train=train, validation=validation)
    assert error.value.code == "unknown_label"
    assert "'pity' (" in error.value.message
    assert "validation.csv:11)" in error.value.message


def test_spaces_around_labels_are_counted(
    base: bs.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    rows = tiny_run.examples(36)
    rows[4] = (rows[4][0], f" {rows[4][1]} ")
    train = tiny_run.table(tmp_path / "train.csv", rows)
    validation = tiny_run.table(tmp_path / "validation.csv", tiny_run.examples(6, seed=1))
    few = [*SETTINGS, "train.max_steps=1"]
    bs.finetune("classify", base, tmp_path / "run", train=train, validation=validation, settings=few)
    label = rows[4][1].strip()
    assert any(
        "1 label with spaces around" in one and f"'{label}' (train.csv:6)" in one for one in caplog.messages
    )


def test_more_tokens_than_a_model_reads_are_refused(base: bs.Model, tmp_path: Path) -> None:
    train = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(36))
    with pytest.raises(bs.InputError) as caught:
        bs.finetune("classify", base, tmp_path / "run", train=train, validation=train, max_length=5000)
    assert (caught.value.code, caught.value.argument) == ("max_length_too_large", "max_length")
    assert not (tmp_path / "run").exists()
    run = tuned(base, tmp_path / "b" / "run", "train.max_steps=1")
    with pytest.raises(bs.InputError) as caught:
        run.predict(["a text"], max_length=5000)
    assert (caught.value.code, caught.value.argument) == ("max_length_too_large", "max_length")


def test_an_evaluation_without_a_loss_before_it(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 3, "kind": "evaluation", "f1": 0.5}\n')
    assert evaluations(tmp_path, 2.0, None) == [
        {"step": 3, "epoch": 1.5, "loss": None, "f1": 0.5, "best": False}
    ]


@pytest.mark.parametrize("content", [b'{"kind": "train"', b"\xff\xfe", b"[" * 100])
def test_a_log_that_another_program_changed_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.jsonl").write_bytes(b'{"kind": "train", "step": 1}\n' + content)
    with pytest.raises(InputError) as caught:
        evaluations(tmp_path, 2.0, None)
    assert (caught.value.code, caught.value.location) == ("invalid_json", str(tmp_path / "log.jsonl"))
