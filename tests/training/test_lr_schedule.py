"""The learning rate of each update: warm-up and decay of spec 2.7, the reference library's, and torch's."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.training.lr_schedule import adam_beta1, learning_rate, warmup_updates
from bertsmith.training.settings import SchedulerType, TrainSettings


def bert(update: int, shape: SchedulerType = "linear") -> float:
    return learning_rate(update, 10_000, 1_000_000, schedule(1e-4, shape))


def schedule(peak: float, shape: SchedulerType, **others: Any) -> TrainSettings:
    return TrainSettings(learning_rate=peak, lr_scheduler_type=shape, **others)


def test_the_papers_values() -> None:
    """Spec 2.7 and S35: lr·t/W, then lr·(N-t)/(N-W)."""
    assert bert(1) == pytest.approx(1e-8, rel=1e-12)
    assert bert(5_000) == pytest.approx(5e-5, rel=1e-12)
    assert bert(10_000) == pytest.approx(1e-4, rel=1e-12)
    assert bert(505_000) == pytest.approx(5e-5, rel=1e-12)
    assert bert(1_000_000) == 0


def test_the_peak_comes_once() -> None:
    for shape in ("linear", "cosine"):
        around = [bert(t, shape) for t in (9_999, 10_000, 10_001)]  # type: ignore[arg-type]
        assert around.index(max(around)) == 1
        assert around[0] < around[1] > around[2]


def test_the_releases_decay_falls_from_the_first_update_on() -> None:
    """lr·(1-t/N) where t is no longer below W, as its `polynomial_decay` and `is_warmup` have it."""
    assert bert(5_000, "linear_google") == pytest.approx(5e-5, rel=1e-12)
    assert bert(9_999, "linear_google") == pytest.approx(9.999e-5, rel=1e-12)
    assert bert(10_000, "linear_google") == pytest.approx(9.9e-5, rel=1e-12)
    assert bert(500_000, "linear_google") == pytest.approx(5e-5, rel=1e-12)
    assert bert(1_000_000, "linear_google") == 0


def test_every_rate_is_the_references() -> None:
    """Its schedulers count from 0."""
    transformers = pytest.importorskip("transformers")
    for shape in ("linear", "cosine", "inverse_sqrt"):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        steps = (7,) if shape == "inverse_sqrt" else (7, 40)
        name = f"get_{shape}_schedule" + ("" if shape == "inverse_sqrt" else "_with_warmup")
        theirs = getattr(transformers, name)(optimizer, *steps)
        for update in range(1, 41):
            optimizer.step()
            theirs.step()
            ours = learning_rate(update, 7, 40, schedule(1.0, shape))  # type: ignore[arg-type]
            assert ours == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)


def rates_of(schedule: Any, optimizer: torch.optim.Optimizer, updates: int) -> list[float]:
    """What torch gives each update; its schedulers are stepped behind an update."""
    found = []
    for update in range(updates):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if update < updates - 1:
            schedule.step()
    return found


def sgd() -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3.0, momentum=0.9)


@pytest.mark.parametrize(("updates", "warmup_steps"), [(40, 12), (40, 2), (100, 30), (37, 37), (10, 4)])
def test_one_cycle_is_torchs(updates: int, warmup_steps: int) -> None:
    optimizer = sgd()
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3.0, total_steps=updates, pct_start=warmup_steps / updates, cycle_momentum=False
    )
    settings = schedule(3.0, "one_cycle")
    ours = [learning_rate(u, warmup_steps, updates, settings) for u in range(1, updates + 1)]
    assert ours == pytest.approx(rates_of(theirs, optimizer, updates), rel=1e-12)
    assert (ours[0], ours[warmup_steps - 1]) == (pytest.approx(3.0 / 25), 3.0)


@pytest.mark.parametrize("pct_start", [0.5, 0.25])
@pytest.mark.parametrize("updates", [8001, 40])
def test_one_cycle_of_lines_is_torchs_with_its_cycle_of_the_momentum(updates: int, pct_start: float) -> None:
    """S86: 16,000 rows in batches of 6 are 8,001 updates in 3 epochs; lr/10, lr in the middle, lr/100."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=2e-5)
    cycle: dict[str, Any] = {"anneal_strategy": "linear", "div_factor": 10, "final_div_factor": 10}
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-5, total_steps=updates, pct_start=pct_start, **cycle
    )
    settings = schedule(2e-5, "one_cycle_linear", pct_start=pct_start)
    for update in range(1, updates + 1):
        group = optimizer.param_groups[0]
        assert learning_rate(update, 0, updates, settings) == pytest.approx(group["lr"], rel=1e-9)
        assert adam_beta1(update, updates, settings) == pytest.approx(group["betas"][0], rel=1e-9)
        optimizer.step()
        if update < updates:
            theirs.step()
    rates = [learning_rate(update, 0, updates, settings) for update in range(1, updates + 1)]
    assert rates[-1] == pytest.approx(2e-7)
    assert abs(rates.index(max(rates)) + 1 - pct_start * updates) < 1


def test_beta_1_is_the_setting_in_all_other_schedules() -> None:
    others = [name for name in get_args(SchedulerType) if name != "one_cycle_linear"]
    assert {adam_beta1(5, 10, schedule(1.0, name, adam_beta1=0.8)) for name in others} == {0.8}


@pytest.mark.parametrize("lr_milestones", [(0.5, 0.75), (0.29,), (0.1, 0.7, 0.9)])
def test_steps_are_torchs_milestones(lr_milestones: tuple[float, ...]) -> None:
    optimizer = sgd()
    milestones = [round(share * 100) for share in lr_milestones]
    theirs = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.2)
    settings = schedule(3.0, "step", lr_decay_factor=0.2, lr_milestones=lr_milestones)
    ours = [learning_rate(u, 0, 100, settings) for u in range(1, 101)]
    assert ours == pytest.approx(rates_of(theirs, optimizer, 100), rel=1e-12)
    assert len({round(rate, 9) for rate in ours}) == len(lr_milestones) + 1


@given(
    updates=st.integers(1, 400),
    warmup_steps=st.one_of(st.floats(0, 1, exclude_max=True, allow_subnormal=False), st.integers(1, 500)),
    shape=st.sampled_from(get_args(SchedulerType)),
)
def test_rates_rise_to_the_peak_then_fall_and_only_the_last_may_be_none(
    updates: int, warmup_steps: float, shape: SchedulerType
) -> None:
    first = warmup_updates(warmup_steps, updates)
    assert 0 <= first <= updates
    settings = schedule(2.0, shape)
    rates = [learning_rate(u, first, updates, settings) for u in range(1, updates + 1)]
    assert all(0 < rate <= 2.0 for rate in rates[:-1])
    assert 0 <= rates[-1] <= 2.0
    if shape == "one_cycle_linear":  # without a warm-up
        first = max(1, updates // 2)  # the peak is at this update, or between it and the next
        assert max(rates) == max(rates[first - 1 : first + 1])
    elif first and shape != "linear_google":
        assert max(rates) == rates[first - 1] == 2.0
        stays = ("constant_with_warmup", "warmup_stable_decay", "reduce_lr_on_plateau", "step")
        assert shape in stays or rates.count(2.0) == 1
    rising = first - (shape in ("linear_google", "one_cycle_linear"))
    assert rates[: max(0, rising)] == sorted(rates[: max(0, rising)])
    assert rates[first:] == sorted(rates[first:], reverse=True)


def test_constant_then_down_falls_over_its_share_alone() -> None:
    def rate(update: int, down: float = 0.4, warmup_steps: int = 100) -> float:
        settings = schedule(2.0, "warmup_stable_decay", decay_ratio=down)
        return learning_rate(update, warmup_steps, 1000, settings)

    assert [rate(t) for t in (50, 100, 101, 600)] == [1.0, 2.0, 2.0, 2.0]
    assert [rate(t) for t in (700, 800, 900, 1000)] == pytest.approx([1.5, 1.0, 0.5, 0.0])
    # a fall that would begin within the warm-up is the linear schedule's
    assert [rate(t, down=1.0) for t in (100, 550, 1000)] == pytest.approx([2.0, 1.0, 0.0])


def test_warmup_as_a_share_or_a_number() -> None:
    assert warmup_updates(0.1, 1000) == 100
    assert warmup_updates(0, 1000) == 0
    assert warmup_updates(0.1, 3) == 1
    assert warmup_updates(1, 1000) == 1
    assert warmup_updates(250, 1000) == 250
    assert warmup_updates(5000, 1000) == 1000
