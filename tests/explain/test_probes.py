"""Test linear probes: on states that hold labels, on states that hold words, and by the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import bertsmith as bs
import task_files
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.explain import probes
from bertsmith.explain.probes import LabeledWords, ProbeReport, probe_layers

NUM_LABELS, NUM_WORDS, SIZE = 3, 40, 48


def words_with_states(number: int, seed: int, passes: list[int] | None = None) -> LabeledWords:
    """Return words whose state holds their label in layer 0, and the word in layer 1."""
    generator = np.random.default_rng(seed)
    indices = generator.integers(NUM_WORDS, size=number)
    labels = generator.choice(NUM_LABELS, size=number, p=[0.6, 0.2, 0.2])
    noise = generator.normal(0, 0.1, (2, number, SIZE))
    states = np.stack([np.eye(SIZE)[labels], np.eye(SIZE)[indices]]) + noise

    def compute(layers: Sequence[int]) -> np.ndarray:
        if passes is not None:
            passes.append(len(layers))
        return states[list(layers)].astype(np.float32)

    return LabeledWords([f"w{i}" for i in indices], labels.astype(np.int64), compute)


def test_a_probe_of_labels_is_selective_and_one_of_words_is_not() -> None:
    report = probe_layers(words_with_states(2000, 1), words_with_states(500, 2), 1, SIZE, seed=0)
    labels, words = report.layers
    assert labels.accuracy > 0.99
    assert labels.control_accuracy < 0.75  # no more than the most frequent label
    assert labels.selectivity == pytest.approx(labels.accuracy - labels.control_accuracy)
    assert words.control_accuracy > 0.95
    assert words.accuracy < 0.75  # labels do not depend on the word
    assert words.selectivity < -0.2
    assert report.majority == pytest.approx(0.6, abs=0.06)
    assert report.word_majority == pytest.approx(0.6, abs=0.06)
    assert (report.train_words, report.validation_words, report.labels) == (2000, 500, NUM_LABELS)


def test_layers_are_computed_in_passes_that_bound_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_NUM_STEPS", 20)
    whole = probe_layers(words_with_states(300, 1), words_with_states(100, 2), 1, SIZE, seed=0)
    passes: list[int] = []
    monkeypatch.setattr(probes, "_MAX_BYTES", 4 * SIZE * 400)
    train, validation = words_with_states(300, 1, passes), words_with_states(100, 2, passes)
    assert probe_layers(train, validation, 1, SIZE, seed=0) == whole
    assert passes == [1, 1, 1, 1]


def test_the_command(base: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_NUM_STEPS", 50)
    train = task_files.tagged(tmp_path / "train.jsonl", 0)
    validation = task_files.tagged(tmp_path / "validation.jsonl", 1)
    arguments = ["probe", str(base.path), "--train", str(train), "--validation", str(validation)]
    picture = tmp_path / "probes.png"
    result = CliRunner().invoke(bertsmith, [*arguments, "--output", str(picture)])
    assert result.exit_code == 0, result.output
    assert "selectivity" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    document = json.loads(CliRunner().invoke(bertsmith, [*arguments, "--json"]).stdout)
    assert [row["layer"] for row in document["layers"]] == [0, 1, 2]
    assert all(row["accuracy"] >= document["majority"] - 0.2 for row in document["layers"])


def test_data_without_tags_are_an_error(base: bs.Model, tmp_path: Path) -> None:
    file = tmp_path / "train.conll"
    file.write_text("word\n")
    with pytest.raises(InputError):
        base.probe(file, file)


def test_the_plot_is_a_png(base: bs.Model, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        ProbeReport([], 0.5, 0.5, 1, 1, 2).plot(tmp_path / "page.html")
    assert caught.value.code == "wrong_file_suffix"
    assert not any(tmp_path.iterdir())
