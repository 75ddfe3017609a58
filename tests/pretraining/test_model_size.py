"""How large a model `--minutes` alone makes: by a look at the machine, within the sizes measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bertsmith as bs
import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.pretraining import resolve_settings
from bertsmith.pretraining.resolve_settings import SIZES, MeasuredSize, largest_size
from bertsmith.pretraining.settings import PretrainSettings


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("size"))


@given(st.floats(1, 1e6), st.floats(1, 1e7))
def test_a_larger_model_is_taken_only_where_it_sees_the_tokens_that_it_needs(
    seconds: float, tokens_a_second: float
) -> None:
    speed = {size: tokens_a_second / 4**i for i, size in enumerate(SIZES)}
    found, tokens = largest_size(lambda size: seconds * speed[size])
    assert tokens == seconds * speed[found]
    assert tokens >= found.min_tokens
    above = SIZES[SIZES.index(found) + 1 :]
    assert all(seconds * speed[size] < size.min_tokens for size in above[:1])
    assert SIZES.index(largest_size(lambda size: 2 * seconds * speed[size])[0]) >= SIZES.index(found)


def test_every_size_is_some_budgets() -> None:
    found = {largest_size(dict.fromkeys(SIZES, 10.0 ** (i / 4)).__getitem__)[0] for i in range(36)}
    assert found == set(SIZES)
    assert [size.min_tokens for size in SIZES] == sorted(size.min_tokens for size in SIZES)
    assert SIZES[0].min_tokens == 0


def test_sizes_that_would_be_too_slow_are_not_looked_at() -> None:
    asked = []

    def slow(size: MeasuredSize) -> float:
        asked.append(size)
        return 0.0

    assert largest_size(slow) == (SIZES[0], 0.0)
    assert asked == list(SIZES[:2])


def never(*given: Any) -> Any:
    pytest.fail("the speed of an update was measured")


QUICK = ["train.max_steps=1", "train.threads=1", "train.precision=fp32", "train.report_to=none"]


def test_minutes_alone_choose_the_size_and_say_so(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resolve_settings, "probe_speed", lambda *_: 3600.0)
    caplog.clear()
    model = bs.pretrain(shards, tmp_path / "a", minutes=1, settings=QUICK)
    (line,) = (line for line in caplog.messages if "on this machine: " in line and "layers of" in line)
    assert line.startswith(
        "for 1 min 00 s on this machine: 2 layers of 128, as in bert-tiny-uncased, which will see about "
    )
    assert model.encoder.config.hidden_size == 128
    assert "hidden_size: 128" in (tmp_path / "a" / "settings.yaml").read_text()
    # the same command with --resume has its size already
    monkeypatch.setattr(resolve_settings, "probe_speed", never)
    bs.pretrain(shards, tmp_path / "a", minutes=1, settings=QUICK, resume=True)
    monkeypatch.setattr(resolve_settings, "probe_speed", lambda *_: 1e-9)
    other = resolve_settings.choose_preset({"train.max_minutes": 1}, tiny_run.tokenizer())
    assert other == SIZES[-1].preset


def test_a_size_is_chosen_by_the_tokens_of_a_whole_update_and_of_no_more_of_them_than_asked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resolve_settings, "probe_speed", lambda *_: 0.5)

    def said(*more: str) -> str:
        caplog.clear()
        resolve_settings.choose_preset(
            PretrainSettings.dotted(["train.max_minutes=1", *more]), tiny_run.tokenizer()
        )
        (line,) = (line for line in caplog.messages if "which will see about " in line)
        return line.partition("which will see about ")[2].partition(" million tokens")[0]

    assert said() == "0.22"  # 120 updates of 32 sequences of 64, 91 % full
    assert said("train.gradient_accumulation_steps=4") == "0.89"
    assert said("train.max_steps=3") == "0.0056"
    # by mini, whose updates are twice as large
    assert said("train.gradient_accumulation_steps=50") == "22"


@pytest.mark.parametrize(
    "changes",
    [
        {"train.max_minutes": 1, "model.hidden_size": 16, "model.num_attention_heads": 2},
        {"train.max_steps": 3},
        {"train.max_minutes": None},
    ],
)
def test_a_size_that_is_said_stays(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    monkeypatch.setattr(resolve_settings, "probe_speed", never)
    assert resolve_settings.choose_preset(changes, tiny_run.tokenizer()) is None


def test_a_preset_or_a_recipe_stays_as_it_is(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve_settings, "probe_speed", never)
    sizes = [*QUICK, *(s for s in tiny_run.SETTINGS if s.startswith(("model.", "data.sequence")))]
    bs.pretrain(shards, tmp_path / "preset", preset="bert-tiny-uncased", minutes=1, settings=sizes)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("preset: bert-tiny-uncased\ndata:\n  sequence_length: 32\n")
    bs.pretrain(shards, tmp_path / "run", recipe=recipe, minutes=1, settings=sizes)
    text = (tmp_path / "run" / "settings.yaml").read_text()
    assert "optim: adamw" in text
    assert "sequence_length: 32" in text
