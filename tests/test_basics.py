"""Losses, exit codes of errors, the console, and the machine."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys

import pytest
import torch

from bertsmith import console, hardware
from bertsmith.errors import BertsmithError, InputError, MachineError, Stopped
from bertsmith.formatting import escape_control_characters, format_message
from bertsmith.loss import Loss
from bertsmith.registry import lookup


def test_a_loss_is_divided_by_the_counts_of_the_whole_update() -> None:
    losses = [
        Loss({"mlm": torch.tensor(6.0), "nsp": torch.tensor(1.0)}, {"mlm": 3, "nsp": 1}),
        Loss({"mlm": torch.tensor(2.0), "nsp": torch.tensor(3.0)}, {"mlm": 1, "nsp": 3}),
    ]
    total = sum(float(loss.reduce({"mlm": 4, "nsp": 4})) for loss in losses)
    assert total == pytest.approx(8 / 4 + 4 / 4)
    assert float(Loss({"mlm": torch.tensor(0.0)}, {"mlm": 0}).reduce({"mlm": 0})) == 0.0


def test_an_unknown_name_of_a_registry_lists_its_names() -> None:
    table: dict[str, str | int] = {"one": 1, "zero": 0}
    assert lookup(table, "one", "there is no number 'one'") == 1
    assert lookup({"name": "bertsmith.loss:Loss"}, "name", "") is Loss
    with pytest.raises(InputError) as caught:
        lookup(table, "two", "there is no number 'two'", "number")
    assert (caught.value.code, caught.value.argument) == ("unknown_name", "number")
    assert caught.value.hint == "known: one, zero"


def test_errors_have_exit_codes() -> None:
    assert [kind("code", "x").exit_code for kind in (BertsmithError, MachineError, InputError)] == [1, 1, 2]
    assert Stopped(15, "x").exit_code == 143
    assert Stopped(2, "x").exit_code == 130
    assert str(InputError("code", "what", hint="how")) == "what\nhow"


def test_json_is_one_document_and_nan_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"ä": [1, None]})
    out, err = capsys.readouterr()
    assert (json.loads(out), out.count("\n"), err) == ({"ä": [1, None]}, 1, "")
    with pytest.raises(ValueError, match="JSON"):
        console.print_json(float("nan"))


def test_results_go_to_stdout_and_notes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_note("a [note] " + "long " * 60)
    console.print_result("a [result]")
    console.print_table("title", ["name", "n"], [("[MASK]", 1), ("ünï", 1234)])
    out, err = capsys.readouterr()
    assert err == "a [note] " + "long " * 60 + "\n"  # neither markup nor wrapping
    assert "[MASK]" in out
    assert "\x1b" not in out + err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert console.format_duration(seconds) == text


def test_the_machine_is_described() -> None:
    machine = hardware.describe()
    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0.25
    assert hardware.configure_process(1) == 1
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("flags", "precision", "has_int8"),
    [
        ({"flags": "fpu avx2 avx512f"}, "fp32", False),
        ({"flags": "fpu avx2 avx512_bf16 avx512_vnni", "vendor_id": "AuthenticAMD"}, "bf16", True),
        ({"flags": "fpu avx2 avx512_bf16 avx512_vnni", "vendor_id": "GenuineIntel"}, "fp32", True),
        ({"flags": "fpu avx512_bf16 amx_bf16 avx512_vnni", "vendor_id": "GenuineIntel"}, "bf16", True),
        ({"Features": "asimd bf16"}, "fp32", False),
        ({}, "fp32", False),
    ],
)
def test_instruction_sets_decide_the_precision(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, str], precision: str, has_int8: bool
) -> None:
    monkeypatch.setattr(hardware, "_cpu_info", lambda: flags)
    assert hardware.choose_precision() == precision
    assert hardware.choose_precision(torch.device("meta")) == "fp32"
    assert hardware.has_int8_matmul() is has_int8


def test_errors_survive_pickling() -> None:
    for error in (InputError("what", "how"), MachineError("what", "how"), Stopped(15, "what", "how")):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert copy.args == error.args
        assert copy.is_reported == error.is_reported
        assert copy.to_dict() == error.to_dict()


# --- control characters from users' files --------------------------------------------------------------------

CONTROL = "a\x1b[31mb\x07\r\x9b2J\u202ec\udcff\x7f"
ESCAPED = r"a\x1b[31mb\x07\r\x9b2J\u202ec\xff\x7f"


def test_control_characters_are_printed_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert escape_control_characters("blank, tab\t, ü, 字, line\n") == "blank, tab\t, ü, 字, line\n"
    assert escape_control_characters("one\nline\t", one_line=True) == r"one\nline\t"
    console.print_note(CONTROL)
    console.print_result(CONTROL)
    console.print_table(CONTROL, [CONTROL], [(CONTROL + "\nb",)])
    with console.ProgressBar(CONTROL, 2) as bar:
        bar._last_note -= 60
        bar.update(1, CONTROL)
    out, err = capsys.readouterr()
    assert not set(out + err) & set("\x1b\x07\r\x9b\u202e\udcff\x7f")
    assert out.count(ESCAPED) == 4
    assert err.count(ESCAPED) == 3
    assert ESCAPED + r"\nb" in out


def test_control_characters_in_json_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {CONTROL: ["\u2028", "字"]}
    console.print_json(document)
    out, _ = capsys.readouterr()
    assert json.loads(out) == document
    assert not set(out[:-1]) & set(map(chr, [*range(32), *range(127, 160), 0x202E, 0x2028, 0xDCFF]))
    assert "字" in out
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", ascii_only)
    console.print_json(document)
    ascii_only.seek(0)
    assert json.loads(ascii_only.read()) == document


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), BrokenPipeError()])
def test_a_closed_stderr_is_ignored(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    monkeypatch.setattr("sys.stderr", Closed())
    console.print_note("still there?")
    with console.ProgressBar("title", 2) as bar:
        bar._last_note -= 60
        bar.update(1, "text")


def test_a_message_is_one_short_line_without_control_characters() -> None:
    value = "it's\n\x1b[31m" + "x" * 1_000_000
    for text in (
        f"the label '{value}' is unknown",
        f"no file {value}",
        f"the label '{value[:1000]}' is unknown",
    ):
        error = InputError("unknown", text, location=value, hint=text)
        for line in (error.sentence_for("python"), str(error.hint_for("command line"))):
            assert len(line) < 10_000
            assert line.isprintable()
    assert len(format_message(f"the label '{value[:3000]}' is unknown, not '{value[:9]}'")) < 200
    text = "'a' is short, " + "and " * 100 + "'b' is, too; it's so"
    assert format_message(text) == text


# --- memory --------------------------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_into_memory_is_an_error() -> None:
    hardware.check_memory(10**6, 16 * 10**6)
    hardware.check_memory(10**15, 0)  # the limit is unknown
    with pytest.raises(InputError) as caught:
        hardware.check_memory(10**9, 15 * 10**9)
    assert caught.value.code == "model_too_large"
    assert "16.0 GB" in caught.value.message
    assert "15.0 GB" in caught.value.message


def test_ulimit_restricts_the_memory() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30));"
        "from bertsmith import hardware; print(hardware.memory_bytes())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 2**30 < hardware.memory_bytes()


def test_all_out_of_memory_errors_are_recognized() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.float64)
    assert hardware.is_out_of_memory(caught.value)
    assert hardware.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert hardware.is_out_of_memory(MemoryError())
    assert hardware.is_out_of_memory(RuntimeError("can't start new thread"))
    assert hardware.is_out_of_memory(ImportError("x.so: failed to map segment from shared object"))
    assert not hardware.is_out_of_memory(ImportError("No module named x"))
    assert not hardware.is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


# --- the process ---------------------------------------------------------------------------------------------


def test_threads_wait_briefly_unless_the_user_sets_a_policy() -> None:
    """The command line sets the policy before torch is loaded."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    code = (
        "import os, sys; sys.argv = ['bertsmith', '--version']\n"
        "from bertsmith.cli.main import main\n"
        "try: main()\n"
        f"except SystemExit: set = {{n: os.environ[n] for n in {names} if n in os.environ}}\n"
        "print(set, 'torch' in sys.modules)\n"
    )
    ours = {"GOMP_SPINCOUNT": "3000"} if sys.platform == "linux" else {"OMP_WAIT_POLICY": "PASSIVE"}
    policies: list[dict[str, str]] = [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}]
    for before, after in (({}, ours), *((policy, policy) for policy in policies)):
        variables = {k: v for k, v in os.environ.items() if k not in names} | before
        done = subprocess.run(
            [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == f"{after} False"


def test_omp_num_threads_sets_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, count in ("3", 3), ("4,2", 4), ("", None), ("many", None), ("0", None):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert hardware.omp_num_threads() == count


def test_the_rank_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert hardware.rank_info() == hardware.RankInfo()
    hardware.check_single_process("a command")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert hardware.rank_info() == hardware.RankInfo(3, 4, 1, 2)
    with pytest.raises(InputError) as caught:
        hardware.check_single_process("a command")
    assert caught.value.code == "single_process_only"
    monkeypatch.setenv("RANK", "4")
    with pytest.raises(InputError) as caught:
        hardware.rank_info()
    assert caught.value.code == "invalid_rank"
