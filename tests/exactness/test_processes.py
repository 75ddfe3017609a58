"""Several processes make the run that one makes, to rounding; resumed they make the same run, to the bit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import bertsmith as bs
import of_several
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.hardware import RankInfo
from bertsmith.training import checkpoint
from bertsmith.training.data_loader import EmptyRankBatch
from bertsmith.training.distributed import RankGroup, count_batch
from bertsmith.training.run_plan import read_plan

NO_DROPOUT, STEPS = of_several.NO_DROPOUT, of_several.STEPS


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("several"))


def two_processes(shards: Shards, out: Path, what: str) -> subprocess.CompletedProcess[str]:
    """torchrun with two processes of `of_several.py`."""
    home = Path(__file__).parents[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, str(home / "of_several.py"), str(shards.folder), str(out), what],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(home), *sys.path]),
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def runs(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Where two processes have made their runs, and what they told of errors."""
    return made_by_two(shards, tmp_path_factory.mktemp("two"), "runs")


@pytest.fixture(scope="module")
def sharded(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes have made runs of which each holds a part."""
    return made_by_two(shards, tmp_path_factory.mktemp("sharded"), "sharded")[0]


def made_by_two(shards: Shards, out: Path, what: str) -> tuple[Path, list[str]]:
    done = two_processes(shards, out, what)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr.replace("OMP_NUM_THREADS", "")
    # A thread that has just passed on an order and lives on while Python ends can abort the process. FSDP2 keeps
    # the group of all processes, with two threads; no run's own is left.
    kept = "2" if what == "sharded" else "0"
    assert sys.platform != "linux" or {(out / f"at-exit-{n}").read_text() for n in (0, 1)} == {kept}
    return out, [line for line in done.stdout.splitlines() if line[:2] in ("0:", "1:")]


def assert_weights_alike(one: Path, other: Path) -> None:
    """To rounding."""
    left, right = (load_file(run / "model" / "model.safetensors") for run in (one, other))
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=2e-5, atol=2e-6)


def assert_alike(one: Path, other: Path) -> None:
    """Weights and figures of two runs, to rounding; what is counted, exactly."""
    assert_weights_alike(one, other)
    logs = [(run / "log.jsonl").read_text().splitlines() for run in (one, other)]
    for first, second in zip(*(map(json.loads, lines) for lines in logs), strict=True):
        assert first.pop("kind") == second.pop("kind")
        assert first.get("tokens") == second.get("tokens")
        assert first == pytest.approx(second, rel=1e-4, abs=1e-9)


def test_two_processes_make_what_one_makes(
    shards: Shards, runs: tuple[Path, list[str]], tmp_path: Path
) -> None:
    out, _ = runs
    one = tiny_run.run(shards, tmp_path / "plain", *NO_DROPOUT, *STEPS)
    assert_alike(one.path, out / "plain")


def test_the_main_process_alone_logs_to_trackers(runs: tuple[Path, list[str]]) -> None:
    out, _ = runs
    assert (out / "wandb-0").read_text().split() == ["1", "2", "2"]  # the last with the evaluation
    assert not (out / "wandb-1").exists()


def test_two_processes_are_one_with_accumulation_2(
    shards: Shards, runs: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """Half of a batch of 8 each is two batches of 4, as long as no epoch ends between them."""
    out, _ = runs
    settings = (*NO_DROPOUT, "train.max_steps=3", "train.batch_size=4", "train.gradient_accumulation_steps=2")
    one = tiny_run.run(shards, tmp_path / "accumulated", *settings)
    assert_alike(one.path, out / "halved")


def test_parts_that_are_uneven_or_empty_are_one_process_too(
    shards: Shards, runs: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """Batches of 7, and what an epoch leaves for its last; Muon's matrices."""
    out, _ = runs
    settings = (*NO_DROPOUT, *STEPS, *of_several.MUON, "train.batch_size=7")
    one = tiny_run.run(shards, tmp_path / "uneven", *settings)
    assert_alike(one.path, out / "uneven")


def test_resumed_is_straight_to_the_bit(runs: tuple[Path, list[str]]) -> None:
    """With dropout, which each process draws for itself; the leader was asked to stop after update 6."""
    out, told = runs
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (out / "resumed" / file).read_bytes() == (out / "straight" / file).read_bytes()
    stops = [line for line in told if line[1:].startswith(": Stopped: ")]
    assert sum("after step 6 of 9" in line for line in stops) == 2  # of two runs, each told by one rank
    assert sum(line.endswith(": Stopped: exit code 143") for line in stops) == 2


def test_another_number_of_processes_goes_on_to_rounding(
    shards: Shards, runs: tuple[Path, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    out, _ = runs
    assert 6 in checkpoint.steps(out / "moved" / "checkpoints")
    moved = tiny_run.run(shards, out / "moved", *NO_DROPOUT, *STEPS, resume=True)
    assert any("on 1 thread from here on, not on 1 thread in each of 2" in line for line in caplog.messages)
    assert [entry.processes for entry in read_plan(moved.path, [])] == [2, 1]
    assert (moved.report["processes"], bs.load(out / "plain").report["processes"]) == (1, 2)
    assert_alike(moved.path, out / "plain")


def test_a_mistake_is_told_once_and_ends_all(runs: tuple[Path, list[str]]) -> None:
    _, told = runs
    assert sum("this folder already holds a run" in line for line in told) == 1


def test_other_families_are_shared_out_too(
    shards: Shards, runs: tuple[Path, list[str]], tmp_path: Path
) -> None:
    out, _ = runs
    for name in of_several.FAMILIES:
        settings = [*tiny_run.SETTINGS, *NO_DROPOUT, "train.max_steps=3"]
        one = bs.pretrain(shards, tmp_path / "one" / name, preset=name, settings=settings)
        if name.startswith("electra"):  # which guesses are drawn is each process's own
            assert one.report["steps"] == bs.load(out / name).report["steps"]
        else:
            assert_alike(one.path, out / name)
    timed = bs.load(out / "minutes")  # rank 0 reads the clock, and all ranks follow its plan
    entries = read_plan(timed.path, [])
    assert len(entries) > 1
    assert timed.report["steps"] == entries[-1].updates
    assert {entry.processes for entry in entries} == {2}


def test_sharded_over_two_processes_is_one(shards: Shards, sharded: Path, tmp_path: Path) -> None:
    """With evaluations on the way, with batches that are uneven and accumulated, beside a teacher that stays as it
    is, and in other families."""
    one = tiny_run.run(shards, tmp_path / "plain", *NO_DROPOUT, *STEPS, "train.eval_steps=2")
    assert_alike(one.path, sharded / "plain")
    uneven = ("train.batch_size=7", "train.gradient_accumulation_steps=2")
    one = tiny_run.run(shards, tmp_path / "uneven", *NO_DROPOUT, *STEPS, *uneven)
    assert_alike(one.path, sharded / "uneven")
    one = bs.distill(shards, tmp_path / "student", sharded / "plain", settings=[*of_several.STUDENT])
    assert_weights_alike(one.path, sharded / "student")  # its distance from the teacher is all rounding
    for name in of_several.FAMILIES[:2]:
        settings = [*tiny_run.SETTINGS, *NO_DROPOUT, "train.max_steps=3"]
        one = bs.pretrain(shards, tmp_path / name, preset=name, settings=settings)
        assert_alike(one.path, sharded / name)
    assert bs.load(sharded / of_several.FAMILIES[2]).report["steps"] == 3


def test_sharded_each_holds_half(sharded: Path) -> None:
    """Of weights, gradients and the optimiser's two means; a row more where rows are odd in number."""
    weights = load_file(sharded / "plain" / "checkpoints" / "step-9" / "weights.safetensors")
    whole = 4 * sum(tensor.numel() for tensor in weights.values())
    held = [int((sharded / f"held-{number}").read_text()) for number in (0, 1)]
    assert whole <= sum(held) < 1.02 * whole
    assert max(held) < 0.53 * whole


def test_sharded_and_resumed_is_straight_to_the_bit(
    shards: Shards, sharded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (sharded / "resumed" / file).read_bytes() == (sharded / "straight" / file).read_bytes()
    assert 6 in checkpoint.steps(sharded / "moved" / "checkpoints")
    more = (*NO_DROPOUT, *STEPS, of_several.SHARD)
    moved = tiny_run.run(shards, sharded / "moved", *more, resume=True)
    assert any("not on 1 thread in each of 2 processes" in line for line in caplog.messages)
    assert any("train.fsdp has no effect" in line for line in caplog.messages)
    one = tiny_run.run(shards, sharded / "one", *NO_DROPOUT, *STEPS)
    assert_alike(moved.path, one.path)


def test_all_processes_hear_what_is_changed_when_a_run_is_resumed(shards: Shards, sharded: Path) -> None:
    """Whether weights are kept in parts: the file of settings has what the run began with."""
    tiny_run.run(shards, sharded / "as one", *NO_DROPOUT, "train.max_steps=4", "train.save_steps=4")
    one = tiny_run.run(shards, sharded / "as one", *NO_DROPOUT, *STEPS, resume=True)
    for name in ("turned", "turned back"):
        assert_weights_alike(one.path, sharded / name)


def test_muon_needs_whole_matrices(shards: Shards, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Muon needs whole matrices: set train\.optim=adamw"):
        tiny_run.run(shards, tmp_path / "out", "train.optim=muon", of_several.SHARD)
    assert not (tmp_path / "out").exists()


def test_a_lost_process_ends_the_run_with_a_sentence(shards: Shards, tmp_path: Path) -> None:
    done = two_processes(shards, tmp_path, "lost")
    assert done.returncode != 0
    assert "a process of this run has ended" in done.stdout or "SIGKILL" in done.stderr
    assert checkpoint.steps(tmp_path / "lost" / "checkpoints") == [4]
    resumed = tiny_run.run(shards, tmp_path / "lost", *NO_DROPOUT, *STEPS, resume=True)
    assert resumed.report["steps"] == 9


def two_ranks(*command: str) -> list[tuple[int, str, str]]:
    """Exit code, stdout, and stderr of two ranks that nobody supervises."""
    home = Path(__file__).parents[1]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, *command],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(home), *sys.path]),
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [rank.communicate(timeout=100) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]


@pytest.fixture(scope="module")
def failed(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the output files and the exit codes of two ranks after an error on one of them."""
    home, out = Path(__file__).parents[1], tmp_path_factory.mktemp("failed")
    process = subprocess.Popen(
        [sys.executable, of_several.__file__, str(shards.folder), str(out), "fails"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(home), *sys.path]), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        assert process.wait(timeout=200) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return out


@pytest.mark.parametrize("failing", ["main", "other"])
def test_an_error_on_one_rank_ends_all_with_one_message(failed: Path, failing: str) -> None:
    printed = [(failed / f"fails-{failing}-{rank}.out").read_text() for rank in (0, 1)]
    errors = [(failed / f"fails-{failing}-{rank}.err").read_text() for rank in (0, 1)]
    assert json.loads((failed / f"fails-{failing}.json").read_text()) == [2, 2], errors
    said = [line for out in printed for line in out.splitlines() if "InputError" in line]
    assert sorted(line.partition("InputError: ")[2] for line in said) == [
        "exit code 2",
        "this rank has failed",
    ]


def test_the_command_line_tells_an_error_of_all_ranks_once(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    ranks = two_ranks("-m", "bertsmith", "pretrain", "--data", str(tmp_path / "missing"), "--output-dir", out)
    assert [code for code, _, _ in ranks] == [2, 2], ranks
    assert sum(error.count("error: ") for _, _, error in ranks) == 1
    assert not any("Traceback" in error for _, _, error in ranks)


def test_parts_are_the_whole(shards: Shards) -> None:
    """Of any batch, for any number of processes; one without a part counts nothing."""

    class Numbers:
        def size(self, epoch: int) -> int:
            return 10

        def batch(self, epoch: int, start: int, stop: int) -> range:
            return range(start, stop)

    whole: Any = Numbers()  # its batches are ranges
    for count in (1, 2, 3, 7):
        parts = [RankGroup(RankInfo(number, count)).rank_stream(whole) for number in range(count)]
        for start, stop in ((0, 10), (3, 9), (4, 5)):
            found = [part.batch(0, start, stop) for part in parts]
            own = [batch for batch in found if isinstance(batch, range)]
            assert [n for batch in own for n in batch] == list(range(start, stop))
            assert len(found) - len(own) == max(0, count - (stop - start))
            for batch in found:
                assert isinstance(batch, range | EmptyRankBatch)
                counts = count_batch(lambda batch: {"mlm": len(batch)}, batch)
                assert counts == {"mlm": len(batch) if isinstance(batch, range) else 0}


def test_what_one_process_does_is_refused_to_several(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = CliRunner().invoke(bertsmith, ["finetune", "classify", "--help"])
    assert isinstance(done.exception, InputError)
    assert "torchrun has started 2 of it" in done.exception.sentence_for("command line")
    with pytest.raises(InputError) as caught:
        bs.finetune("classify", "model", tmp_path / "out", train="train.csv")
    assert caught.value.code == "single_process_only"
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(InputError) as refused:
        bs.pretrain(tmp_path / "shards", tmp_path / "out")
    assert refused.value.code == "invalid_rank"
    assert "RANK='2' and WORLD_SIZE='2'" in refused.value.message
    assert refused.value.code == "invalid_rank"
