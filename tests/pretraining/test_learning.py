"""Pre-training learns: the masked LM loss falls far below chance, and a pre-trained model beats random weights."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.demo.quickstart import write_untrained_model

OPTIONS: dict[str, Any] = {"learning_rate": 1e-3, "threads": 1, "precision": "fp32", "report_to": "none"}
TOPICS = [tiny_run.WORDS[i : i + 10] for i in range(0, 40, 10)]


def sentence(draw: random.Random, topic: int, words: int) -> str:
    return " ".join(draw.choices(TOPICS[topic], k=words))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """A tiny model of texts with one of four topics, whose words are known by their company only."""
    folder, draw = tmp_path_factory.mktemp("topics"), random.Random(0)
    documents = [" ".join(sentence(draw, i % 4, 8).capitalize() + "." for _ in range(6)) for i in range(160)]
    (folder / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    shards = bs.prepare(folder / "corpus.txt", tiny_run.tokenizer(), folder / "shards", workers=1)
    settings = ["train.max_steps=250", "train.learning_rate=3e-3", "data.sentence_task=none"]
    settings += ["train.batch_size=16", "train.gradient_accumulation_steps=1", "model.hidden_dropout_prob=0"]
    return tiny_run.run(shards, folder / "bert", *settings)


def test_the_masked_lm_loss_falls_far_below_chance(pretrained: bs.Model) -> None:
    """S53: it starts near ln V = 3.83; where the topic is known, ten words are left, ln 10 = 2.30."""
    chance = math.log(len(tiny_run.TOKENS))
    first = json.loads((pretrained.path / "log.jsonl").read_text().splitlines()[0])
    assert first["mlm"] == pytest.approx(chance, abs=0.3)
    assert pretrained.report["held_out"]["mlm_loss"] < 2.6 < chance - 1


@pytest.mark.slow
def test_a_pretrained_model_beats_random_weights_over_three_seeds(
    pretrained: bs.Model, tmp_path: Path
) -> None:
    """S60: with three labeled sentences a topic, most words of the other sentences were never labeled."""
    draw = random.Random(1)
    rows = [{"text": sentence(draw, i % 4, 3), "label": str(i % 4)} for i in range(212)]
    untrained = bs.load(write_untrained_model(tmp_path / "untrained", pretrained))
    means = {}
    for model in (pretrained, untrained):
        runs = bs.finetune_repeatedly(
            "classify",
            model,
            tmp_path / f"runs-{len(means)}",
            train=rows[:12],
            validation=rows[12:],
            restarts=3,
            num_train_epochs=20,
            **OPTIONS,
        )
        means[model.path] = runs.summary.mean
    assert means[pretrained.path] > means[untrained.path] + 0.1
