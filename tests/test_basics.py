"""Losses, errors, the console and the machine."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import time

import pytest
import torch

from bertsmith import console, hardware
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
    assert [kind("code", "x").exit_code for kind in (BertsmithError, MachineError, InputError)] == [1, 1, 2]
    assert Stopped(15, "x").exit_code == 143
    assert Stopped(2, "x").exit_code == 130
    assert str(InputError("code", "what", hint="how")) == "what\nhow"


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
    found = hardware.describe()
    assert found.cores >= 1
    assert found.memory > 2**28
    choice = hardware.choose_precision()
    assert choice.precision in ("fp32", "bf16")
    assert "GFLOP/s" in choice.reason
    assert hardware.prepare_process(1) == 1
    assert torch.get_num_threads() == 1


def test_a_busy_machine_chooses_as_an_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread waits for a core is not counted."""
    product, device, wait = torch.mm, torch.device("cpu"), 0.1

    def kept_waiting(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        time.sleep(wait)
        return product(x, y)

    monkeypatch.setattr(torch, "mm", kept_waiting)
    at_most = 2 * 256**3 / wait  # operations a second, if the wait counts
    assert hardware.product_rate(device, "fp32", 256, 0.0) < at_most
    assert hardware.product_rate(device, "fp32", 256, 0.0, time.thread_time) > at_most
    clocks: list[object] = []
    monkeypatch.setattr(hardware, "product_rate", lambda *given: clocks.append(given[-1]) or 1e9)
    hardware.choose_precision.cache_clear()
    assert hardware.choose_precision().precision == "fp32"
    assert set(clocks) == {time.thread_time}
    hardware.choose_precision.cache_clear()


def test_errors_survive_being_sent_to_another_process() -> None:
    for error in (InputError("what", "how"), MachineError("what"), Stopped(15, "what", "how")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert vars(again) == vars(error)


# --- what other people's characters may do ------------------------------------------------------------------

ACTING = "a\x1b[31mb\x07\r\x9b2J\u202ec\udcff\x7f"
SHOWN = r"a\x1b[31mb\x07\r\x9b2J\u202ec\xff\x7f"


def test_what_would_act_on_a_terminal_is_shown_as_an_escape(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.text import Text

    assert console.visible("blank, tab\t, ü, 字, line\n") == "blank, tab\t, ü, 字, line\n"
    assert console.visible("one\nline\t", one_line=True) == r"one\nline\t"
    console.note(ACTING)
    console.result(ACTING)
    console.result_text(Text("x").append(ACTING, style="bold"))
    console.result_table(ACTING, [ACTING], [(ACTING + "\nb",)])
    with console.Bar(ACTING, 2) as bar:
        bar._told -= 60
        bar.advance_to(1, ACTING)
    out, told = capsys.readouterr()
    assert not set(out + told) & set("\x1b\x07\r\x9b\u202e\udcff\x7f")
    assert out.count(SHOWN) == 4
    assert r"xa\x1b[31mb" in out
    assert told.count(SHOWN) == 3
    assert SHOWN + r"\nb" in out


def test_json_with_such_characters_is_the_same_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {ACTING: ["\u2028", "字"]}
    console.result_json(document)
    out, _ = capsys.readouterr()
    assert json.loads(out) == document
    assert not set(out[:-1]) & set(map(chr, [*range(32), *range(127, 160), 0x202E, 0x2028, 0xDCFF]))
    assert "字" in out
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", ascii_only)
    console.result_json(document)
    ascii_only.seek(0)
    assert json.loads(ascii_only.read()) == document


def test_a_terminal_that_is_gone_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("sys.stderr", Gone())
    console.note("still there?")
    with console.Bar("title", 2) as bar:
        bar._told -= 60
        bar.advance_to(1, "text")


# --- memory --------------------------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_is_told_with_its_sizes() -> None:
    hardware.check_memory(10**6, 16 * 10**6)
    hardware.check_memory(10**15, 0)  # nobody knows how much there is
    with pytest.raises(
        InputError, match=r"million parameters takes 16\.0 GB to train .*15\.0 GB may be used"
    ):
        hardware.check_memory(10**9, 15 * 10**9)


def test_less_memory_is_allowed_where_a_limit_says_so() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30));"
        "from bertsmith import machine; print(machine.memory_bytes())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 2**30 < hardware.memory_bytes()


def test_every_way_of_having_no_memory_is_known() -> None:
    with pytest.raises(RuntimeError) as torches:
        torch.empty(2**50, dtype=torch.float64)
    assert hardware.is_out_of_memory(torches.value)
    assert hardware.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert hardware.is_out_of_memory(MemoryError())
    assert not hardware.is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_threads_wait_briefly_unless_the_user_says_otherwise() -> None:
    """On the command line, before torch is loaded."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    code = (
        "import os, sys; sys.argv = ['bertsmith', '--version']\n"
        "from bertsmith.cli.main import main\n"
        "try: main()\n"
        f"except SystemExit: set = {{n: os.environ[n] for n in {names} if n in os.environ}}\n"
        "print(set, 'torch' in sys.modules)\n"
    )
    ours = {"GOMP_SPINCOUNT": "3000"} if sys.platform == "linux" else {"OMP_WAIT_POLICY": "PASSIVE"}
    asked: list[dict[str, str]] = [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}]
    for given, wanted in (({}, ours), *((one, one) for one in asked)):
        variables = {k: v for k, v in os.environ.items() if k not in names} | given
        done = subprocess.run(
            [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == f"{wanted} False"


def test_a_number_of_threads_in_the_environment_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, number in ("3", 3), ("4,2", 4), ("", None), ("many", None), ("0", None):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert hardware.asked_threads() == number
