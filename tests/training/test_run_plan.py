"""A run's plan: progress and rate that follow its entries, and what a resume makes of another budget."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny_run
from bertsmith.errors import InputError
from bertsmith.training.budget import TrainingBudget
from bertsmith.training.run_plan import (
    PLAN,
    PlanEntry,
    RunPlan,
    learning_rate,
    read_plan,
    warmup_updates,
    write_plan,
)
from bertsmith.training.settings import SchedulerType, TrainSettings

SHAPES = st.sampled_from(["linear", "linear_google", "cosine", "constant_with_warmup"])
RUN = Path("run")


def entry(step: int, updates: int, progress: float = 0.0, threads: int = 1) -> PlanEntry:
    return PlanEntry(step=step, updates=updates, progress=progress, threads=threads, budget={}, why="")


def settings(shape: SchedulerType = "linear", warmup_steps: float = 0.1) -> TrainSettings:
    return TrainSettings(learning_rate=1e-3, warmup_steps=warmup_steps, lr_scheduler_type=shape)


def changed(plan: RunPlan, step: int, updates: int) -> RunPlan:
    values = {"step": step, "updates": updates, "progress": plan.progress(step)}
    return RunPlan([*plan.entries, plan.last.model_copy(update=values)])


@given(
    updates=st.integers(1, 10**7),
    share=st.floats(0, 1, allow_subnormal=False),
    warmup_steps=st.one_of(st.floats(0, 1, exclude_max=True, allow_subnormal=False), st.integers(1, 10**6)),
    shape=SHAPES,
)
def test_with_one_entry_rates_are_the_schedules_to_the_bit(
    updates: int, share: float, warmup_steps: float, shape: SchedulerType
) -> None:
    step = max(1, round(share * updates))
    wanted = settings(shape, warmup_steps)
    expected = learning_rate(step, warmup_updates(warmup_steps, updates), updates, wanted)
    assert RunPlan([entry(0, updates)]).learning_rate(step, wanted) == expected


@given(
    first=st.integers(20, 500),
    at=st.floats(0, 0.95, allow_subnormal=False),
    more=st.integers(1, 500),
    warmup_steps=st.one_of(st.floats(0.05, 0.5), st.integers(1, 15)),
    shape=SHAPES,
)
def test_another_end_leaves_the_rate_where_it_is_and_brings_the_schedule_to_it(
    first: int, at: float, more: int, warmup_steps: float, shape: SchedulerType
) -> None:
    before = RunPlan([entry(0, first)])
    step = math.floor(at * first)
    after = changed(before, step, step + more)
    wanted = settings(shape, warmup_steps)
    assert [after.learning_rate(n, wanted) for n in range(1, step + 1)] == [
        before.learning_rate(n, wanted) for n in range(1, step + 1)
    ]
    assert after.progress(step) == pytest.approx(before.progress(step))
    assert after.progress(step + more) == pytest.approx(1.0)
    progress = [after.progress(n) for n in range(step + more + 1)]
    assert progress == sorted(progress)
    if shape in ("linear", "cosine") and more > 1 and step >= 16:
        assert after.learning_rate(step + more, wanted) == pytest.approx(0.0, abs=1e-9)


def test_phases_keep_their_shares_of_the_progress() -> None:
    plan = changed(RunPlan([entry(0, 100)]), 50, 250)  # half of the progress is left for 200 updates
    phases = [plan.phase_index(step, [0.9, 0.1]) for step in range(1, 251)]
    assert phases == [0] * 210 + [1] * 40
    assert [RunPlan([entry(0, 10)]).phase_index(step, [0.9, 0.1]) for step in range(1, 11)] == [0] * 9 + [1]


def test_a_plan_is_read_back_whole_and_never_contradicts_the_checkpoint(tmp_path: Path) -> None:
    plan = changed(RunPlan([entry(0, 100)]), 33, 97)
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path, []) == plan.entries
    assert read_plan(tmp_path, plan.entries[:1]) == plan.entries
    other = [entry(0, 100, threads=2)]
    assert read_plan(tmp_path, other) == other
    for damage in (b"", b"{}\n", b"\xff\n", b'{"step": 3}\n', (tmp_path / PLAN).read_bytes()[:-20]):
        (tmp_path / PLAN).write_bytes(damage)
        assert read_plan(tmp_path, plan.entries) == plan.entries


def resumed(aim: TrainingBudget, plan: RunPlan, step: int, spent: float = 60.0) -> tuple[RunPlan, str]:
    """Return the plan of a resumed run, and what is logged."""
    with tiny_run.logged() as messages:
        return aim.resumed_plan(RUN, plan.entries, step, spent), "\n".join(messages)


def of_steps(number: int, threads: int | None = None) -> TrainingBudget:
    return TrainingBudget({"max_steps": number}, number, threads or 1, keeps_threads=threads is None)


def test_a_larger_budget_continues_an_unfinished_run_from_its_rate() -> None:
    plan, messages = resumed(of_steps(300), of_steps(100, 1).new_plan(), 50)
    assert [(e.step, e.updates, e.progress) for e in plan.entries] == [(0, 100, 0.0), (50, 300, 0.5)]
    assert "the learning rate continues at its current value" in messages
    rates = [plan.learning_rate(step, settings()) for step in (50, 51, 300)]
    assert rates[0] > rates[1] > 0.99 * rates[0]
    assert rates[2] == 0


def test_a_larger_budget_warms_a_finished_run_up_again() -> None:
    plan, messages = resumed(of_steps(300), of_steps(100, 1).new_plan(), 100)
    assert (plan.last.step, plan.last.updates, plan.last.progress) == (100, 300, 0.0)
    assert "adds 200 updates" in messages
    assert "warms up again" in messages
    rates = [plan.learning_rate(step, settings()) for step in range(101, 301)]
    assert rates.index(max(rates)) + 1 == pytest.approx(20, abs=1)
    assert (max(rates), rates[-1]) == (pytest.approx(1e-3, rel=0.05), 0)
    counted = [plan.learning_rate(step, settings(warmup_steps=5)) for step in range(101, 301)]
    assert counted[:5] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 1e-3])
    assert counted[5:] == sorted(counted[5:], reverse=True)


def test_the_same_budget_changes_nothing_and_one_used_up_is_refused() -> None:
    first = of_steps(100, 1).new_plan()
    for step in (40, 100):
        plan, messages = resumed(of_steps(100), first, step)
        assert (plan.entries, messages) == (first.entries, "")
    with pytest.raises(InputError) as caught:
        resumed(of_steps(60), first, 100)
    assert (caught.value.code, caught.value.location) == ("budget_exceeded", str(RUN))
    with pytest.raises(InputError) as caught:
        resumed(TrainingBudget({"max_minutes": 5}, 20, keeps_threads=True), first, 50, spent=600.0)
    assert (caught.value.code, caught.value.argument) == ("time_exceeded", "minutes")


def test_minutes_on_resume_are_the_runs_in_all() -> None:
    plan, messages = resumed(
        TrainingBudget({"max_minutes": 3}, 20, keeps_threads=True),
        of_steps(100, 1).new_plan(),
        50,
        spent=60.0,
    )
    assert plan.last.updates == 150  # 50 in the first minute, 100 in the two that are left
    assert "the run now ends after about 150 updates (train.max_minutes=3), not after 100" in messages
    assert "minutes count from the beginning of the run; the number of updates is corrected" in messages


def test_another_number_of_threads_is_said_and_written_down() -> None:
    first = of_steps(100, 2).new_plan()
    recorded = changed(first, 60, 90)
    plan, messages = resumed(of_steps(100, 1), recorded, 50)
    assert [(e.step, e.updates, e.threads) for e in plan.entries] == [(0, 100, 2), (50, 90, 1)]
    assert "no longer bit-identical" in messages
    assert resumed(of_steps(100, 2), first, 50)[1] == ""
    assert resumed(of_steps(100), recorded, 50)[0].entries == recorded.entries
