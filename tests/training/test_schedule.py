"""The learning rate of each update: warm-up and decay of spec 2.7, and the reference library's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.training.schedule import learning_rate, warmup_updates


def bert(update: int) -> float:
    return learning_rate(update, peak=1e-4, warmup=10_000, updates=1_000_000)


def test_the_papers_values() -> None:
    """Warm-up lr·t/W counts updates from 1; decay lr·(N-t)/(N-W) those already made, as the release does."""
    assert bert(5_000) == pytest.approx(5e-5)
    assert bert(10_000) == pytest.approx(1e-4)
    assert bert(505_001) == pytest.approx(5e-5)
    assert bert(1) == pytest.approx(1e-8)
    assert 0 < bert(1_000_000) < 1.1e-10


def test_after_warmup_the_decay_is_the_references() -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    for shape in ("linear", "cosine"):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = getattr(transformers, f"get_{shape}_schedule_with_warmup")(optimizer, 7, 40)
        for update in range(1, 41):
            if update > 7:
                ours = learning_rate(update, peak=1.0, warmup=7, updates=40, shape=shape)
                assert ours == pytest.approx(schedule.get_last_lr()[0], abs=1e-12)
            optimizer.step()
            schedule.step()


@given(
    updates=st.integers(1, 400),
    warmup=st.one_of(st.floats(0, 1, exclude_max=True, allow_subnormal=False), st.integers(1, 500)),
    shape=st.sampled_from(["linear", "cosine", "constant"]),
)
def test_rates_rise_to_the_peak_then_fall_and_no_update_is_wasted(
    updates: int, warmup: float, shape: str
) -> None:
    first = warmup_updates(warmup, updates)
    assert 0 <= first <= updates
    rates = [
        learning_rate(u, peak=2.0, warmup=first, updates=updates, shape=shape) for u in range(1, updates + 1)
    ]  # type: ignore[arg-type]
    assert all(0 < rate <= 2.0 for rate in rates)
    assert max(rates) == pytest.approx(2.0)
    assert rates[:first] == sorted(rates[:first])
    assert rates[first:] == sorted(rates[first:], reverse=True)


def test_warmup_as_a_share_or_a_number() -> None:
    assert warmup_updates(0.1, 1000) == 100
    assert warmup_updates(0, 1000) == 0
    assert warmup_updates(1, 1000) == 1
    assert warmup_updates(250, 1000) == 250
    assert warmup_updates(5000, 1000) == 1000
