"""Losses, errors, the console and the machine."""

from __future__ import annotations

import json
import pickle

import pytest
import torch

from bertsmith import console, machine
from bertsmith.errors import BertsmithError, InputError, MachineError, Stopped
from bertsmith.loss import Loss


def test_a_loss_is_divided_by_the_counts_of_the_whole_update() -> None:
    parts = [
        Loss({"mlm": torch.tensor(6.0), "nsp": torch.tensor(1.0)}, {"mlm": 3, "nsp": 1}),
        Loss({"mlm": torch.tensor(2.0), "nsp": torch.tensor(3.0)}, {"mlm": 1, "nsp": 3}),
    ]
    total = sum(float(part.over({"mlm": 4, "nsp": 4})) for part in parts)
    assert total == pytest.approx(8 / 4 + 4 / 4)
    assert float(Loss({"mlm": torch.tensor(0.0)}, {"mlm": 0}).over({"mlm": 0})) == 0.0


def test_errors_carry_their_exit_codes() -> None:
    assert [kind("x").exit_code for kind in (BertsmithError, MachineError, InputError)] == [1, 1, 2]
    assert Stopped(15, "x").exit_code == 143
    assert Stopped(2, "x").exit_code == 130
    assert str(InputError("what", "how")) == "what\nhow"


def test_json_is_one_document_and_refuses_what_json_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    console.result_json({"ä": [1, None]})
    out, told = capsys.readouterr()
    assert (json.loads(out), out.count("\n"), told) == ({"ä": [1, None]}, 1, "")
    with pytest.raises(ValueError, match="JSON"):
        console.result_json(float("nan"))


def test_results_go_out_and_notes_beside(capsys: pytest.CaptureFixture[str]) -> None:
    console.note("a [note] " + "long " * 60)
    console.result("a [result]")
    console.result_table("title", ["name", "n"], [("[MASK]", 1), ("ünï", 1234)])
    out, told = capsys.readouterr()
    assert told == "a [note] " + "long " * 60 + "\n"  # neither markup nor wrapping
    assert "[MASK]" in out
    assert "\x1b" not in out + told


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert console.duration(seconds) == text


def test_the_machine_is_described_and_its_precision_is_measured() -> None:
    found = machine.describe()
    assert found.cores >= 1
    assert found.memory > 2**28
    choice = machine.choose_precision()
    assert choice.precision in ("fp32", "bf16")
    assert "GFLOP/s" in choice.reason
    assert machine.prepare_process(1) == 1
    assert torch.get_num_threads() == 1


def test_errors_survive_being_sent_to_another_process() -> None:
    for error in (InputError("what", "how"), MachineError("what"), Stopped(15, "what", "how")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert vars(again) == vars(error)
