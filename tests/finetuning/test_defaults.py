"""Defaults by the size of the model and the number of examples: learning rate, epochs, and the head probe."""

from __future__ import annotations

from pathlib import Path

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.finetuning.defaults import default_epochs, default_learning_rate
from bertsmith.models.family import preset

SETTINGS = ("train.report_to=none", "train.threads=1", "train.kernels=torch")


@pytest.fixture(scope="module")
def run(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """A run whose length is left open, of a tag that depends on the word."""
    words = sorted({word for text, _ in tiny_run.examples(40) for word in text.split()})
    rows = [
        {
            "words": [first, second],
            "tags": ["A" if word < words[len(words) // 2] else "B" for word in (first, second)],
        }
        for first, second in zip(words * 2, words[::-1] * 2, strict=True)
    ][:40]
    out = tmp_path_factory.mktemp("run") / "run"
    return bs.finetune("tag", base, out, train=rows, validation=rows, settings=SETTINGS)


def test_small_models_get_higher_rates() -> None:
    bert = preset("bert-base-uncased", vocab_size=10)
    rates = [
        default_learning_rate(bert.model_copy(update={"hidden_size": size}))
        for size in (1024, 768, 384, 256, 128, 16)
    ]
    assert rates == sorted(rates)
    assert rates[:2] == [5e-5, 5e-5]
    assert rates[3] == 2.6e-4
    assert rates[-1] == 1e-3


@pytest.mark.parametrize("name", ["nnlm", "lstm", "elmo"])
def test_families_without_normalized_states_get_their_own_rate(name: str) -> None:
    config = preset(f"{name}-mini", vocab_size=10)
    assert default_learning_rate(config) >= 1e-3


@pytest.mark.parametrize(
    ("updates_per_epoch", "epochs"), [(1, 50), (4, 20), (19, 20), (40, 10), (157, 3), (2000, 3)]
)
def test_few_examples_get_more_epochs(updates_per_epoch: int, epochs: int) -> None:
    assert default_epochs(updates_per_epoch, preset("bert-base-uncased", vocab_size=10)) == epochs


@pytest.mark.parametrize(("updates_per_epoch", "epochs"), [(1, 50), (19, 20), (157, 8), (2000, 3)])
def test_small_models_get_more_epochs(updates_per_epoch: int, epochs: int) -> None:
    assert default_epochs(updates_per_epoch, preset("bert-mini-uncased", vocab_size=10)) == epochs


def test_the_settings_record_what_was_chosen(run: bs.Model) -> None:
    train = run.report["settings"]["train"]
    assert train["learning_rate"] == default_learning_rate(run.folder.config)
    assert train["num_train_epochs"] == default_epochs(2, run.folder.config)
    assert train["head_probe"] is True
    assert (train["eval_steps"], train["patience"]) == (3, 10)


def test_the_trained_head_is_the_first_evaluation_and_a_baseline(run: bs.Model) -> None:
    first, *_ = run.report["evaluations"]
    assert first["step"] == 0
    baselines = run.report["baselines"]
    assert list(baselines) == ["without looking at the text", "frequent tag of each word", "frozen encoder"]
    assert baselines["frozen encoder"]["accuracy"] == first["accuracy"]
    assert first["accuracy"] > baselines["without looking at the text"]["accuracy"]
    assert run.report["validation"]["accuracy"] >= first["accuracy"]


def test_an_explicit_length_or_rate_is_kept(run: bs.Model, tmp_path: Path) -> None:
    train = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(12))
    settings = [*SETTINGS, "train.max_steps=1", "train.learning_rate=5e-5"]
    explicit = bs.finetune(
        "classify", run.report["base"], tmp_path / "run", train=train, validation=train, settings=settings
    ).report
    chosen = explicit["settings"]["train"]
    assert (chosen["learning_rate"], chosen["num_train_epochs"], chosen["patience"]) == (5e-5, None, None)
    assert chosen["head_probe"] is False
    assert [row["step"] for row in explicit["evaluations"]] == [1]
