"""Test `data show`: the instance equals the one of a run, and its output formats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tiny_run
from bertsmith.cli.data import data
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.inspection.show import show_instance
from bertsmith.instances.holdout_split import split_documents
from bertsmith.pretraining.data import create_stream
from bertsmith.pretraining.settings import PretrainSettings

SETTINGS = [
    "data.sequence_length=32",
    "data.masking=whole_word",
    "data.validation_split=0.1",
    "data.mlm_probability=0.5",
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("show"))


def test_it_shows_the_instance_that_training_reads(shards: Shards) -> None:
    settings = PretrainSettings().changed(SETTINGS)
    stream = create_stream(shards, split_documents(shards.hashes, 0.1)[0], settings, 32)
    kinds = []
    for index in range(stream.size(2)):
        instance = show_instance(shards.folder, index, 2, settings=SETTINGS)
        batch = stream.batch(2, index, index + 1)
        assert instance["ids"] == batch.packed.tokens.tolist()
        assert instance["rows"] == batch.rows.tolist()
        assert instance["labels"] == batch.labels.tolist()
        assert instance["label"] == int(batch.pair_labels)
        assert instance["label_name"] == ("IsNext", "NotNext")[instance["label"]]
        a, b = instance["parts"]
        assert (a["document"] == b["document"]) == (instance["label"] == 0)
        plan = stream.plan(2)
        first = int(plan.a.starts[index])
        ids = shards.take(np.arange(first, first + a["tokens"])).tolist()
        assert instance["original_ids"][1 : 1 + a["tokens"]] == ids
        assert a["place"].startswith(str(shards.folder.parent / "corpus.txt"))
        assert instance["counts"]["predicted"] == len(instance["rows"])
        kinds += instance["kinds"]
    assert set(kinds) == {"mask", "random", "kept"}


def test_settings_seed_and_order_are_those_of_a_run(shards: Shards, tmp_path: Path) -> None:
    settings = ["train.max_steps=1", "train.seed=5", "train.batch_tokens=64", "data.long_sequence_length=48"]
    tiny_run.run(shards, tmp_path / "run", *settings)
    file = tmp_path / "run" / "settings.yaml"
    resolved = PretrainSettings.from_file(file)
    training = split_documents(shards.hashes, resolved.data.validation_split)[0]
    for phase, length in ((1, 32), (2, 48)):
        stream = create_stream(shards, training, resolved, length, 64)
        instance = show_instance(shards.folder, 3, 1, settings_file=file, phase=phase)
        assert instance["ids"] == stream.batch(1, 3, 4).packed.tokens.tolist()
        assert instance["seed"] == 5
    other = show_instance(shards.folder, 3, 1, settings_file=file, seed=6)
    assert other["ids"] != show_instance(shards.folder, 3, 1, settings_file=file)["ids"]
    with pytest.raises(InputError) as caught:
        show_instance(shards.folder, 0, phase=2)
    assert (caught.value.code, caught.value.argument) == ("no_second_phase", "phase")


def call(*arguments: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(data, ["show", *arguments], env=environment)
    if isinstance(result.exception, InputError):
        return 2, result.exception.code
    assert result.exception is None, result.exception
    return 0, result.stdout


def test_the_command_line_prints_marks_or_json(shards: Shards) -> None:
    folder = str(shards.folder)
    options = [folder, "--index", "4", "--epoch", "3", *(x for s in SETTINGS for x in ("--set", s))]
    code, plain = call(*options)
    assert code == 0
    assert "\x1b" not in plain
    assert "{[MASK]←" in plain
    assert "label (nsp): " in plain
    _, text = call(*options, "--json")
    instance = json.loads(text)
    assert instance["epoch"] == 3
    assert len(instance["ids"]) == len(instance["tokens"]) == len(instance["original_tokens"])
    assert instance["label_tokens"] == [instance["original_tokens"][r] for r in instance["rows"]]


def test_an_index_beyond_the_epoch_is_refused(shards: Shards) -> None:
    num_instances = show_instance(shards.folder, 0)["instances_of_epoch"]
    show_instance(shards.folder, num_instances - 1)
    assert call(str(shards.folder), "--index", str(num_instances)) == (2, "instance_missing")


def test_a_corpus_too_small_for_a_split_is_used_without_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_run.make_shards(tmp_path, documents=2).folder
    assert show_instance(folder, 0)["parts"]
    assert caplog.records
    with pytest.raises(InputError):
        show_instance(folder, 0, settings=["data.validation_split=0.5"])
