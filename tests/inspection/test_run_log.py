"""Test that curves follow a log while it is written, cut, and replaced."""

from __future__ import annotations

import json
from pathlib import Path

from bertsmith.inspection.run_log import RunLog


def line(step: int, **values: object) -> str:
    return json.dumps({"step": step, "kind": "train", **values}) + "\n"


def test_a_half_written_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    log, file = RunLog(tmp_path), tmp_path / "log.jsonl"
    assert (log.update(), log.curves, log.step) == (False, {}, 0)  # not started
    text = line(1, loss=2.0) + line(2, loss=1.0)
    file.write_text(text[:-9])
    assert log.update()
    assert log.curves == {"loss": {1: 2.0}}
    assert not log.update()
    file.write_text(text)
    assert log.update()
    assert log.curves == {"loss": {1: 2.0, 2: 1.0}}
    assert (log.step, log.last("loss"), log.num_damaged) == (2, 1.0, 0)


def test_a_log_that_was_cut_or_replaced_is_read_again(tmp_path: Path) -> None:
    log, file = RunLog(tmp_path), tmp_path / "log.jsonl"
    file.write_text(line(1, loss=3.0) + line(2, loss=2.0))
    log.update()
    file.write_text(line(1, loss=3.0))  # a resumed run cuts the log at its checkpoint
    assert log.update()
    assert log.curves == {"loss": {1: 3.0}}
    file.write_text(
        line(1, loss=9.0) + line(2, loss=8.0) + line(3, loss=7.0)
    )  # another run, with a longer log
    assert log.update()
    assert log.curves == {"loss": {1: 9.0, 2: 8.0, 3: 7.0}}
    file.unlink()
    assert log.update()
    assert log.curves == {}


def test_repeated_updates_replace_earlier_ones(tmp_path: Path) -> None:
    """speed.jsonl is appended to by a resumed run."""
    speeds = [(1, 0.0), (2, 10.0), (3, 11.0), (2, 12.0)]
    lines = [json.dumps({"step": step, "time": 1.0, "tokens_per_second": speed}) for step, speed in speeds]
    (tmp_path / "speed.jsonl").write_text("\n".join(lines) + "\n")
    log = RunLog(tmp_path)
    log.update()
    assert log.curves == {"tokens_per_second": {2: 12.0}}


def test_evaluations_are_apart_and_damaged_lines_are_counted(tmp_path: Path) -> None:
    evaluation = json.dumps({"step": 1, "kind": "evaluation", "accuracy": 0.5, "loss": 4})
    damaged = ["{", "[1]", '{"step": "x"}', "\x00\x00"]
    infinite = line(2, loss=float("nan"), gradient_norm=float("inf"), epoch=True)
    text = line(1, loss=1.0) + evaluation + "\n" + "\n".join(damaged) + "\n" + infinite
    (tmp_path / "log.jsonl").write_bytes(text.encode() + b"\xff\n")
    log = RunLog(tmp_path)
    log.update()
    assert log.curves["loss"] == {1: 1.0}
    assert log.validation_metric == "validation accuracy"
    assert log.curves["validation accuracy"] == {1: 0.5}
    assert log.curves["validation loss"] == {1: 4}
    assert log.num_damaged == len(damaged) + 1


def test_a_number_that_no_float_can_hold_is_left_out(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    (tmp_path / "log.jsonl").write_text(line(1, loss=10**400, norm=1.0))
    assert log.update()
    assert log.curves == {"norm": {1: 1.0}}


def test_a_replaced_log_with_the_same_last_line_is_read_again(tmp_path: Path) -> None:
    log, file = RunLog(tmp_path), tmp_path / "log.jsonl"
    file.write_text(line(1, loss=5.0) + line(2, loss=4.0))
    log.update()
    (tmp_path / "other").write_text(line(1, loss=7.0) + line(2, loss=4.0) + line(3, loss=3.0))
    (tmp_path / "other").rename(file)
    assert log.update()
    assert log.curves == {"loss": {1: 7.0, 2: 4.0, 3: 3.0}}
