"""The plan of a run: the paper's budget, this corpus, and both learning rates."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import main
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.pretraining.data import PretrainData
from bertsmith.pretraining.resolve_settings import new_settings

PAPER = Path(__file__).parents[2] / "recipes" / "bert-paper.yaml"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("plan"))


def test_the_papers_budget_in_two_phases(shards: Shards) -> None:
    precision = {"train.precision": "bf16"}
    plan = bs.plan_pretraining(shards, recipe=PAPER, settings=precision, benchmark=False)
    assert [(phase.sequence_length, phase.sequences, phase.updates) for phase in plan.phases] == [
        (128, 256, 900_000),
        (512, 256, 100_000),
    ]
    assert plan.tokens == 42_598_400_000  # 4.26e10
    assert plan.seconds is None
    assert plan.corpus_tokens == shards.counts["tokens"]
    assert plan.epochs == pytest.approx(sum(phase.epochs for phase in plan.phases))
    # base's encoder without 30,522 rows of the vocabulary but 46, its heads, and no decoder of its own
    assert plan.parameters == 110_106_428 - (30_522 - 46) * (768 + 1)
    # 34 bytes a layer and hidden unit, and the logits of 15 % of the tokens
    activations = 256 * 512 * (12 * 34 * 768 + 0.15 * 46 * 4)
    assert plan.memory_bytes == pytest.approx(16 * plan.parameters + activations)
    assert plan.disk_bytes == (4 + 3 * 12) * plan.parameters


def test_the_papers_budget_as_it_is_printed(shards: Shards) -> None:
    changes = {"data.sequence_length": 512, "data.long_sequence_length": None}
    changes |= {"data.max_predictions_per_seq": 77, "data.long_max_predictions_per_seq": None}
    plan = bs.plan_pretraining(shards, recipe=PAPER, settings=changes, benchmark=False)
    (phase,) = plan.phases
    assert phase.tokens_per_update == 131_072
    assert plan.tokens == 131_072_000_000  # 1.31e11


def test_the_passes_are_those_of_the_run(shards: Shards) -> None:
    settings = [*tiny_run.SETTINGS, "train.max_steps=30"]
    plan = bs.plan_pretraining(shards, preset="bert-tiny-uncased", settings=settings)
    (phase,) = plan.phases
    data = PretrainData.from_shards(
        shards, new_settings("bert-tiny-uncased", None, dict(map(parsed, settings)), shards.tokenizer)
    )
    assert plan.epochs == pytest.approx(30 / data.updates_per_epoch)
    assert phase.sequences == 8  # two batches of 4 for an update
    assert plan.seconds is not None
    assert plan.seconds > 0
    minutes = bs.plan_pretraining(shards, preset="bert-tiny-uncased", settings=tiny_run.SETTINGS, minutes=1)
    assert minutes.seconds == pytest.approx(60, rel=0.1)


def test_batches_of_tokens_hold_as_many_sequences_as_this_corpus_fits(shards: Shards) -> None:
    """Each phase's passes and filling are those of its own batches, not of a usual corpus."""
    long = ["data.long_sequence_length=48", "data.long_sequence_ratio=0.3", "train.batch_tokens=200"]
    settings = [*tiny_run.SETTINGS, *long, "train.max_steps=30"]
    plan = bs.plan_pretraining(shards, preset="bert-tiny-uncased", settings=settings, benchmark=False)
    changes = dict(map(parsed, settings))
    data = PretrainData.from_shards(
        shards, new_settings("bert-tiny-uncased", None, changes, shards.tokenizer)
    )
    for phase, stream in zip(plan.phases, data.streams, strict=True):
        updates, start, tokens = 0.0, 0, 0
        while start < stream.size(0):
            stop = stream.stop(0, start, 4)
            tokens += len(stream.batch(0, start, stop).packed.tokens)
            updates, start = updates + 1 / 2, stop  # two batches for an update
        assert phase.epochs == pytest.approx(phase.updates / updates)
        assert data.fill_ratio(stream, phase.sequence_length) == pytest.approx(tokens / (updates * 400))
    assert [phase.updates for phase in plan.phases] == [21, 9]


def parsed(assignment: str) -> tuple[str, object]:
    import yaml

    name, _, value = assignment.partition("=")
    return name, yaml.safe_load(value) if "e-" not in value else float(value)


def test_the_command_trains_nothing_and_needs_no_output(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr("sys.argv", ["bertsmith", "pretrain", "--data", str(shards.folder), *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == code
        return capsys.readouterr().out

    settings = [word for setting in tiny_run.SETTINGS for word in ("--set", setting)]
    plan = [*settings, "--preset", "bert-tiny-uncased", "--steps", "5", "--plan"]
    assert json.loads(run(*plan, "--json"))["updates"] == 5
    assert "passes over it" in run(*plan)
    run(*plan, "--resume", code=2)
    run("--steps", "5", code=2)  # without --plan there must be a folder
    assert not list(tmp_path.iterdir())


def test_each_phase_has_its_own_limit_of_predictions(shards: Shards) -> None:
    limits = [
        "data.mlm_probability=0.9",
        "data.max_predictions_per_seq=2",
        "data.long_max_predictions_per_seq=5",
    ]
    long = ["data.long_sequence_length=48", *limits]
    changes = dict(map(parsed, [*tiny_run.SETTINGS, *long]))
    settings = new_settings("bert-tiny-uncased", None, changes, shards.tokenizer)
    data = PretrainData.from_shards(shards, settings)
    for stream, limit in zip(data.streams, (2, 5), strict=True):
        batch = stream.batch(0, 0, stream.size(0))
        bounds = batch.packed.cu_seqlens
        counts = [((batch.rows >= a) & (batch.rows < b)).sum().item() for a, b in pairwise(bounds)]
        assert max(counts) == limit
    with pytest.raises(InputError) as caught:
        new_settings("bert-tiny-uncased", None, {"data.long_max_predictions_per_seq": 5}, shards.tokenizer)
    assert "data.long_sequence_length" in str(caught.value)


def test_the_log_has_the_tokens_of_all_updates_so_far(shards: Shards, tmp_path: Path) -> None:
    run = tiny_run.run(shards, tmp_path / "run", "train.max_steps=4", "data.long_sequence_length=48")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    tokens = [line["tokens"] for line in lines if line["kind"] == "train"]
    assert len(tokens) == 4
    assert tokens == sorted(set(tokens))
    assert tokens[-1] == run.report["tokens"]


@pytest.mark.parametrize("recipe", [None, "laptop"])
def test_a_learning_rate_alone_scales_muons_too(recipe: str | None, shards: Shards) -> None:
    file = None if recipe is None else PAPER.with_name(f"{recipe}.yaml")
    preset = "bert-mini-uncased" if recipe is None else None

    def rates(**train: object) -> tuple[float, float]:
        changes = {f"train.{name}": value for name, value in train.items()}
        settings = new_settings(preset, file, changes, shards.tokenizer).train
        assert settings.optim == train.get("optim", "muon")
        return settings.learning_rate, settings.muon_learning_rate

    assert rates() == (1e-3, 5e-3)
    assert rates(learning_rate=2e-3) == (2e-3, 1e-2)
    assert rates(learning_rate=2e-3, muon_learning_rate=3e-3) == (2e-3, 3e-3)
    assert rates(learning_rate=2e-3, optim="adamw") == (2e-3, 5e-3)
