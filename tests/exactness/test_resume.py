"""A run that was killed and resumed is the run that was not: weights, optimiser, generator and log, to the bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, Stopped
from bertsmith.finetuning.run import finetune
from bertsmith.kernels import backend_selection
from bertsmith.training import checkpoint
from bertsmith.training.callbacks import MetricLogger
from run_equality import Killed, assert_same, outcome

STEPS = 8  # two epochs of the tiny corpus
TWO_EPOCHS = ["train.num_train_epochs=2"]
FOUR_STEPS = ["train.max_steps=4"]  # for two threads, which wait for each other on a machine under load
TWO_PHASES = [
    "train.max_steps=9",
    "data.sequence_length=16",
    "data.long_sequence_length=32",
    "data.long_sequence_ratio=0.45",
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def straight(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("straight") / "run"
    tiny_run.run(shards, run, *TWO_EPOCHS, "train.dataloader_num_workers=0")
    return outcome(run)


def kill_at(patch: pytest.MonkeyPatch, step: int, *, saved: bool) -> None:
    """Die right after the update of `step`, or right after the first checkpoint from `step` on was saved."""
    if saved:
        save = checkpoint.save

        def save_and_die(folder: Path, what: checkpoint.Checkpoint, keep: int) -> Path:
            path = save(folder, what, keep)
            if what.state.step >= step:
                raise Killed
            return path

        patch.setattr(checkpoint, "save", save_and_die)
        return
    stepped = MetricLogger.on_step_end

    def step_and_die(self: MetricLogger, trainer: Any, result: Any) -> None:
        stepped(self, trainer, result)
        if trainer.state.step == step:
            raise Killed

    patch.setattr(MetricLogger, "on_step_end", step_and_die)


def run_until_killed(shards: Shards, run: Path, step: int, *settings: str, saved: bool, resume: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, step, saved=saved)
        with pytest.raises(Killed):
            tiny_run.run(shards, run, *settings, resume=resume)


@pytest.mark.parametrize(("workers", "every"), [(0, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_killed_at_a_step_twice_and_resumed_is_straight(
    shards: Shards, straight: dict[str, Any], tmp_path: Path, step: int, workers: int, every: int
) -> None:
    settings = [*TWO_EPOCHS, f"train.dataloader_num_workers={workers}", f"train.save_steps={every}"]
    run = tmp_path / "run"
    run_until_killed(shards, run, step, *settings, saved=False, resume=False)
    # The second time the same step kills where it was not saved, or one of the next.
    again = min(step + every % 3, STEPS)
    run_until_killed(shards, run, again, *settings, saved=False, resume=True)
    tiny_run.run(shards, run, *settings, resume=True)
    assert_same(run, straight)


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_killed_right_after_a_checkpoint_and_resumed_is_straight(
    shards: Shards, straight: dict[str, Any], tmp_path: Path, step: int
) -> None:
    settings = [*TWO_EPOCHS, "train.dataloader_num_workers=1", "train.save_steps=2"]
    run_until_killed(shards, tmp_path / "run", step, *settings, saved=True, resume=False)
    tiny_run.run(shards, tmp_path / "run", *settings, resume=True)
    assert_same(tmp_path / "run", straight)


def test_killed_at_every_single_step_in_one_run(
    shards: Shards, straight: dict[str, Any], tmp_path: Path
) -> None:
    settings = [*TWO_EPOCHS, "train.save_steps=1"]
    for step in range(1, STEPS + 1):
        run_until_killed(shards, tmp_path / "run", step, *settings, saved=True, resume=step > 1)
    tiny_run.run(shards, tmp_path / "run", *settings, resume=True)
    assert_same(tmp_path / "run", straight)


def assert_resumed_equals_straight(
    shards: Shards, folder: Path, settings: list[str], steps: tuple[int, ...]
) -> None:
    """Compare the run that nothing stops with one run for each step that is killed there and resumed."""
    tiny_run.run(shards, folder / "straight", *settings)
    expected = outcome(folder / "straight")
    for step in steps:
        run = folder / f"killed at {step}"
        run_until_killed(shards, run, step, *settings, saved=False, resume=False)
        tiny_run.run(shards, run, *settings, resume=True)
        assert_same(run, expected)


@pytest.mark.parametrize("bias_correction", ["true", "false"])
def test_a_run_with_muon_is_resumed_as_exactly(shards: Shards, tmp_path: Path, bias_correction: str) -> None:
    settings = [
        *TWO_EPOCHS,
        "train.optim=muon",
        "train.lr_scheduler_type=warmup_stable_decay",
        f"train.bias_correction={bias_correction}",
        "train.save_steps=2",
    ]
    assert_resumed_equals_straight(shards, tmp_path, settings, (1, 4, 7))


@pytest.mark.skipif(
    not backend_selection.is_numba_available(), reason="Numba, the extra fast, is not installed here"
)
@pytest.mark.parametrize(("threads", "steps"), [(1, (1, 5)), (2, (1, 3))])
def test_a_run_with_compiled_kernels_is_resumed_as_exactly(
    shards: Shards, straight: dict[str, Any], tmp_path: Path, threads: int, steps: tuple[int, ...]
) -> None:
    budget = TWO_EPOCHS if threads == 1 else FOUR_STEPS
    settings = [*budget, "train.kernels=numba", f"train.threads={threads}", "train.save_steps=2"]
    assert_resumed_equals_straight(shards, tmp_path, settings, steps)
    if budget is TWO_EPOCHS:  # as many updates as `straight`, by other kernels
        assert outcome(tmp_path / "straight") != straight


@pytest.mark.skipif(
    not backend_selection.is_numba_available(), reason="Numba, the extra fast, is not installed here"
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_whose_layers_are_computed_as_a_whole_is_resumed_as_exactly(
    shards: Shards, tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertsmith.kernels.cpu import autograd, gemm_avx512bf16, gemm_fp32, matmul

    monkeypatch.setattr(matmul, "GEMM_FP32", gemm_fp32)
    monkeypatch.setattr(matmul, "GEMM_BF16", gemm_avx512bf16)
    layers: list[int] = []
    forward = autograd.EncoderLayerFunction.forward
    monkeypatch.setattr(
        autograd.EncoderLayerFunction, "forward", lambda *given: (layers.append(1), forward(*given))[1]
    )
    settings = [
        *(*FOUR_STEPS, "train.kernels=numba", f"train.precision={precision}", "train.batch_size=8"),
        *("train.threads=2", "train.save_steps=2"),
    ]
    assert_resumed_equals_straight(shards, tmp_path, settings, (3,))
    assert layers


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_number_of_workers_makes_the_same_run(
    shards: Shards, straight: dict[str, Any], tmp_path: Path, workers: int
) -> None:
    tiny_run.run(shards, tmp_path / "run", *TWO_EPOCHS, f"train.dataloader_num_workers={workers}")
    assert_same(tmp_path / "run", straight)


def test_dropout_and_masks_leave_their_mark(shards: Shards, straight: dict[str, Any], tmp_path: Path) -> None:
    """The comparison can fail: another seed is another run."""
    tiny_run.run(shards, tmp_path / "run", *TWO_EPOCHS, "train.seed=1")
    found = outcome(tmp_path / "run")
    same = [name for name in found if found[name] == straight[name]]
    assert same == []


@pytest.fixture(scope="module")
def straight_phases(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("phases") / "run"
    tiny_run.run(shards, run, *TWO_PHASES)
    return outcome(run)


@pytest.mark.parametrize("step", range(1, 10))
def test_two_phases_resume_on_either_side_and_between(
    shards: Shards, straight_phases: dict[str, Any], tmp_path: Path, step: int
) -> None:
    settings = [*TWO_PHASES, f"train.dataloader_num_workers={2 * (step % 2)}", "train.save_steps=1"]
    run_until_killed(shards, tmp_path / "run", step, *settings, saved=True, resume=False)
    tiny_run.run(shards, tmp_path / "run", *settings, resume=True)
    assert_same(tmp_path / "run", straight_phases)


def test_the_second_phase_is_longer(shards: Shards, tmp_path: Path) -> None:
    model = tiny_run.run(shards, tmp_path / "run", *TWO_PHASES)
    state = json.loads((tmp_path / "run" / "checkpoints" / "step-9" / "state.json").read_text())
    assert (state["phase"], model.report["steps"]) == (1, 9)
    short = tiny_run.run(shards, tmp_path / "short", "train.max_steps=9", "data.sequence_length=16")
    assert model.report["tokens"] > short.report["tokens"]


# Batches of unlike numbers of instances, masks of whole words, masks that come again, the other pair task.
BUDGET = [
    "train.num_train_epochs=2",
    "train.batch_tokens=90",
    "data.masking=whole_word",
    "data.sentence_task=sop",
    "data.dynamic_masking=false",
    "data.dupe_factor=2",
]


@pytest.fixture(scope="module")
def straight_budget(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("budget") / "run"
    tiny_run.run(shards, run, *BUDGET, "train.dataloader_num_workers=0")
    return outcome(run)


@pytest.mark.parametrize("step", range(1, 10, 2))
def test_batches_under_a_budget_resume_to_the_bit(
    shards: Shards, straight_budget: dict[str, Any], tmp_path: Path, step: int
) -> None:
    assert straight_budget["state"]["step"] == 10
    settings = [*BUDGET, f"train.dataloader_num_workers={2 * (step % 4 == 1)}", "train.save_steps=2"]
    run_until_killed(shards, tmp_path / "run", step, *settings, saved=False, resume=False)
    run_until_killed(shards, tmp_path / "run", step + 1, *settings, saved=True, resume=True)
    tiny_run.run(shards, tmp_path / "run", *settings, resume=True)
    assert_same(tmp_path / "run", straight_budget)


def test_resuming_a_finished_run_changes_nothing(
    shards: Shards, straight: dict[str, Any], tmp_path: Path
) -> None:
    tiny_run.run(shards, tmp_path / "run", *TWO_EPOCHS)
    tiny_run.run(shards, tmp_path / "run", *TWO_EPOCHS, resume=True)
    assert_same(tmp_path / "run", straight)


def test_evaluations_on_the_way_do_not_touch_the_run(
    shards: Shards, straight: dict[str, Any], tmp_path: Path
) -> None:
    tiny_run.run(shards, tmp_path / "run", *TWO_EPOCHS, "train.eval_steps=3")
    found = outcome(tmp_path / "run")
    for name in ("weights.safetensors", "optimizer.safetensors", "generator.safetensors"):
        assert found[name] == straight[name]


# --- what a resume refuses ----------------------------------------------------------------------------------


def test_a_resume_under_other_settings_or_data_is_refused(shards: Shards, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_until_killed(shards, run, 3, *TWO_EPOCHS, "train.save_steps=1", saved=True, resume=False)
    for other in ("train.seed=1", "train.learning_rate=2e-3", "data.mlm_probability=0.2"):
        with pytest.raises(InputError) as caught:
            tiny_run.run(shards, run, *TWO_EPOCHS, other, resume=True)
        assert caught.value.code == "setting_differs_from_run"
    with pytest.raises(InputError) as caught:
        tiny_run.run(tiny_run.make_shards(tmp_path / "other", seed=5), run, *TWO_EPOCHS, resume=True)
    assert caught.value.code == "checkpoint_of_another_run"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data:\n  mlm_probability: 0.3\n")
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, run, *TWO_EPOCHS, resume=True, recipe=recipe)
    assert (caught.value.code, caught.value.argument) == ("setting_differs_from_run", "data.mlm_probability")
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, run, *TWO_EPOCHS)
    assert (caught.value.code, caught.value.argument) == ("run_exists", "output_dir")


def test_the_same_command_resumes_also_where_the_run_had_choices_of_its_own(
    shards: Shards, tmp_path: Path
) -> None:
    """auto precision, free threads and a budget in tokens are settled when the run begins."""
    command = ["train.max_tokens=900", "train.precision=auto", "train.save_steps=1"]
    run_until_killed(shards, tmp_path / "run", 2, *command, saved=True, resume=False)
    model = tiny_run.run(shards, tmp_path / "run", *command, "train.threads=none", resume=True)
    assert model.report["steps"] > 2


# --- fine-tuning --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("base") / "run"
    tiny_run.run(shards, run, "train.max_steps=2")
    return run


FINETUNE = [
    "train.num_train_epochs=3",
    "train.batch_size=5",
    "train.gradient_accumulation_steps=2",
    "train.learning_rate=2e-3",
    "train.threads=1",
    "train.precision=fp32",
    "train.report_to=none",
    "train.logging_steps=1",
    "train.save_steps=2",
]


def tune(base: Path, files: Path, out: Path, *more: str, resume: bool = False) -> Any:
    return finetune(
        "classify",
        base,
        out,
        train=files / "train.csv",
        validation=files / "validation.csv",
        settings=[*FINETUNE, *more],
        resume=resume,
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    tiny_run.table(folder / "train.csv", tiny_run.examples(36, seed=1))
    tiny_run.table(folder / "validation.csv", tiny_run.examples(15, seed=2))
    return folder


@pytest.fixture(scope="module")
def straight_tuned(base: Path, files: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    run = tmp_path_factory.mktemp("tuned") / "run"
    report = tune(base, files, run).report
    return outcome(run), report["validation"]


@pytest.mark.parametrize("step", range(1, 13))
def test_fine_tuning_killed_and_resumed_is_straight(
    base: Path, files: Path, straight_tuned: tuple[Any, Any], tmp_path: Path, step: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, step, saved=False)
        with pytest.raises(Killed):
            tune(base, files, tmp_path / "run", "train.dataloader_num_workers=2")
    model = tune(base, files, tmp_path / "run", "train.dataloader_num_workers=0", resume=True)
    assert_same(tmp_path / "run", straight_tuned[0])
    assert model.report["validation"] == straight_tuned[1]


def test_fine_tuning_keeps_the_best_epoch(base: Path, files: Path, tmp_path: Path) -> None:
    """A rate that destroys the model after a good start: the kept weights score what the log's best line says."""
    model = tune(
        base,
        files,
        tmp_path / "run",
        "train.lr_scheduler_type=constant_with_warmup",
        "train.learning_rate=0.02",
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    scores = {line["step"]: line["accuracy"] for line in lines if line["kind"] == "evaluation"}
    best = max(scores.values())
    assert model.report["best_step"] == min(step for step, value in scores.items() if value == best)
    assert model.report["validation"]["accuracy"] == best
    assert model.evaluate(files / "validation.csv").accuracy == best


def test_fine_tuning_resumes_only_on_the_same_files(base: Path, files: Path, tmp_path: Path) -> None:
    for name in ("train.csv", "validation.csv"):
        (tmp_path / name).write_text((files / name).read_text())
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, 4, saved=True)
        with pytest.raises(Killed):
            tune(base, tmp_path, tmp_path / "run")
    (tmp_path / "validation.csv").write_text((files / "validation.csv").read_text() + "kaba,fear\n")
    with pytest.raises(InputError) as caught:
        tune(base, tmp_path, tmp_path / "run", resume=True)
    assert caught.value.code == "checkpoint_of_another_run"
    tune(base, files, tmp_path / "run", resume=True)  # the same rows in another place


def test_a_checkpoint_before_damaged_best_weights_is_continued(
    base: Path, files: Path, straight_tuned: tuple[Any, Any], tmp_path: Path
) -> None:
    """The first evaluation is after step 4: a checkpoint of step 2 needs no best weights."""
    run, setting = tmp_path / "run", "train.save_steps=2"
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, 4, saved=True)
        with pytest.raises(Killed):
            tune(base, files, run, setting)
    (best,) = (run / "checkpoints").glob("best-*.safetensors")
    raw = bytearray(best.read_bytes())
    raw[-1] ^= 1
    best.write_bytes(raw)
    tune(base, files, run, setting, resume=True)
    assert_same(run, straight_tuned[0])


# --- signals, through the real command line -----------------------------------------------------------------


LONG = ["train.max_steps=150", "train.save_steps=100000"]


@pytest.fixture(scope="module")
def straight_long(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("long") / "run"
    tiny_run.run(shards, run, *LONG)
    return outcome(run)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
def test_a_signal_saves_exits_and_the_resumed_run_is_straight(
    shards: Shards, straight_long: dict[str, Any], tmp_path: Path, number: int, code: int
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "bertsmith", "pretrain", "--preset", "bert-tiny-uncased"]
    command += ["--data", str(shards.folder), "--output-dir", str(run)]
    for setting in [*tiny_run.SETTINGS, *LONG]:
        command += ["--set", setting]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    log = run / "log.jsonl"
    give_up = time.monotonic() + 60
    while (
        process.poll() is None and not (log.is_file() and log.stat().st_size) and time.monotonic() < give_up
    ):
        time.sleep(0.005)
    process.send_signal(number)
    out, told = process.communicate(timeout=60)
    assert process.returncode == code, told
    assert out == ""
    assert "Traceback" not in told
    assert "--resume" in told
    newest = checkpoint.newest_name(run / "checkpoints")
    assert newest is not None
    assert f"after step {newest.removeprefix('step-')} of 150" in told
    tiny_run.run(shards, run, *LONG, resume=True)
    assert_same(run, straight_long)


def test_a_signal_at_any_step_is_saved_at_that_step(shards: Shards, tmp_path: Path) -> None:
    stepped = MetricLogger.on_step_end
    for step in range(1, STEPS):
        run = tmp_path / f"run-{step}"

        def signal_then_step(self: MetricLogger, trainer: Any, result: Any, at: int = step) -> None:
            if trainer.state.step == at:
                os.kill(os.getpid(), signal.SIGTERM)
            stepped(self, trainer, result)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MetricLogger, "on_step_end", signal_then_step)
            with pytest.raises(Stopped) as stopped:
                tiny_run.run(shards, run, *TWO_EPOCHS)
        assert stopped.value.exit_code == 143
        assert checkpoint.newest_name(run / "checkpoints") == f"step-{step}"


def test_a_signal_just_after_the_moment_of_saving_never_claims_a_checkpoint_that_is_not_there(
    shards: Shards, tmp_path: Path
) -> None:
    """The signal falls into each place between two calls of one step; what the message names is on disk."""
    from bertsmith.training import trainer

    evaluate = trainer.Trainer._evaluate

    def late_signal(running: Any) -> None:
        evaluate(running)
        if running.state.step % 3 == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "_evaluate", late_signal)
        with pytest.raises(Stopped) as stopped:
            tiny_run.run(shards, tmp_path / "run", *TWO_EPOCHS, "train.eval_steps=3")
    newest = checkpoint.newest_name(tmp_path / "run" / "checkpoints")
    assert newest is not None
    assert f"after step {newest.removeprefix('step-')} of" in stopped.value.sentence_for("command line")
