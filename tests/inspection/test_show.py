"""`data show`: the instance that a run reads, told in full, in colours on terminals only."""

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
from bertsmith.pretraining.data import instances_of
from bertsmith.pretraining.settings import PretrainSettings

SETTINGS = ["data.sequence_length=32", "data.masking=whole_word", "data.held_out=0.1", "data.mask_share=0.5"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("show"))


def test_it_is_the_instance_that_training_reads(shards: Shards) -> None:
    chosen = PretrainSettings().changed(SETTINGS)
    stream = instances_of(shards, split_documents(shards.hashes, 0.1)[0], chosen, 32)
    text = shards.take
    kinds = []
    for index in range(stream.size(2)):
        found = show_instance(shards.folder, index, 2, settings=SETTINGS)
        batch = stream.batch(2, index, index + 1)
        assert found["ids"] == batch.packed.tokens.tolist()
        assert found["rows"] == batch.rows.tolist()
        assert found["labels"] == batch.labels.tolist()
        assert found["label"] == int(batch.pair_labels)
        assert found["label_name"] == ("IsNext", "NotNext")[found["label"]]
        a, b = found["parts"]
        assert (a["document"] == b["document"]) == (found["label"] == 0)
        plan = stream.plan(2)
        first = int(plan.a_start[index])
        ids = text(np.arange(first, first + a["tokens"])).tolist()
        assert found["original_ids"][1 : 1 + a["tokens"]] == ids
        assert a["place"].startswith(str(shards.folder.parent / "corpus.txt"))
        assert found["counts"]["predicted"] == len(found["rows"])
        kinds += found["kinds"]
    assert set(kinds) == {"mask", "random", "kept"}


def test_a_runs_settings_seed_and_order_are_its_own(shards: Shards, tmp_path: Path) -> None:
    own = ["train.max_steps=1", "train.seed=5", "train.batch_tokens=64", "data.long_sequence_length=48"]
    tiny_run.run(shards, tmp_path / "run", *own)
    file = tmp_path / "run" / "settings.yaml"
    chosen = PretrainSettings.from_file(file)
    training = split_documents(shards.hashes, chosen.data.held_out)[0]
    for phase, length in ((1, 32), (2, 48)):
        stream = instances_of(shards, training, chosen, length, 64)
        found = show_instance(shards.folder, 3, 1, settings_file=file, phase=phase)
        assert found["ids"] == stream.batch(1, 3, 4).packed.tokens.tolist()
        assert found["seed"] == 5
    other = show_instance(shards.folder, 3, 1, settings_file=file, seed=6)
    assert other["ids"] != show_instance(shards.folder, 3, 1, settings_file=file)["ids"]
    with pytest.raises(InputError, match="one phase"):
        show_instance(shards.folder, 0, phase=2)


def call(*arguments: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(data, ["show", *arguments], env=environment)
    if isinstance(result.exception, InputError):
        return 2, result.exception.sentence
    assert result.exception is None, result.exception
    return 0, result.stdout


def test_the_command_line_prints_marks_colours_or_json(shards: Shards) -> None:
    folder = str(shards.folder)
    options = [folder, "--index", "4", "--epoch", "3", *(x for s in SETTINGS for x in ("--set", s))]
    code, plain = call(*options)
    assert code == 0
    assert "\x1b" not in plain
    assert "{[MASK]←" in plain
    assert "label (nsp): " in plain
    _, coloured = call(*options, FORCE_COLOR="1")
    assert "\x1b[" in coloured
    assert "{[MASK]" not in coloured
    _, none = call(*options, FORCE_COLOR="1", NO_COLOR="1")
    assert "{[MASK]←" in none
    _, text = call(*options, "--json")
    found = json.loads(text)
    assert found["epoch"] == 3
    assert len(found["ids"]) == len(found["tokens"]) == len(found["original_tokens"])
    assert found["label_tokens"] == [found["original_tokens"][r] for r in found["rows"]]


def test_an_index_behind_the_epoch_is_told(shards: Shards) -> None:
    number = show_instance(shards.folder, 0)["instances_of_epoch"]
    show_instance(shards.folder, number - 1)
    code, said = call(str(shards.folder), "--index", str(number))
    assert code == 2
    assert f"epoch 0 has instances 0 to {number - 1}, not {number}" in said


def test_a_corpus_too_small_to_hold_some_out_is_shown_whole(tmp_path: Path) -> None:
    folder = tiny_run.make_shards(tmp_path, documents=2).folder
    told: list[str] = []
    assert show_instance(folder, 0, tell=told.append)["parts"]
    assert told
    with pytest.raises(InputError, match="hold out"):
        show_instance(folder, 0, settings=["data.held_out=0.5"])
