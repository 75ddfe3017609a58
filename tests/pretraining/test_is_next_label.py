"""`data.is_next_label`: which of the two labels IsNext is, in the data, in the head, in what is kept of both."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import bertsmith as bs
import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.instances.batches import InstanceStream, MaskedBatch
from bertsmith.instances.settings import DataSettings
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.language_modeling import MaskedLM
from bertsmith.pretraining.model import swap_labels

STILL = [
    "data.sequence_length=32",
    "data.validation_split=0.1",
    "train.max_steps=1",
    "train.learning_rate=1e-30",
    "train.weight_decay=0",
    "train.threads=1",
    "train.precision=fp32",
    "train.report_to=none",
]
PAIR = "cls.seq_relationship.weight"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def other(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    out = tmp_path_factory.mktemp("other") / "run"
    return tiny_run.run(shards, out, "data.is_next_label=1", "train.max_steps=4")


def batch(shards: Shards, **settings: object) -> MaskedBatch:
    chosen = DataSettings(**settings)  # type: ignore[arg-type]
    documents = torch.arange(shards.documents).numpy()
    stream = InstanceStream(shards, documents, shards.tokenizer, chosen, length=32, seed=3)
    return stream.batch(0, 0, 40)


def test_data_and_head_change_together(shards: Shards) -> None:
    """The same instances under the other label; a head whose answers changed places loses the same on them."""
    plain, flipped = batch(shards), batch(shards, is_next_label=1)
    assert torch.equal(plain.packed.tokens, flipped.packed.tokens)
    assert torch.equal(plain.pair_labels, 1 - flipped.pair_labels)
    assert 0 < int(plain.pair_labels.sum()) < len(plain.pair_labels)
    config = bs.ModelConfig(
        vocab_size=shards.tokenizer.vocab_size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=32, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    encoder, objective = Encoder(config, generator), MaskedLM(config, generator)
    torch.nn.init.normal_(objective.pair.linear.weight, generator=generator)
    with torch.no_grad():
        before = objective.loss(encoder, plain)
        wrong = objective.loss(encoder, flipped)
        swap_labels(objective.pair)
        after = objective.loss(encoder, flipped)
    assert float(after.sums["nsp"]) == pytest.approx(float(before.sums["nsp"]), rel=1e-6)
    assert int(after.num_correct["nsp"]) == int(before.num_correct["nsp"])
    assert float(wrong.sums["nsp"]) != pytest.approx(float(before.sums["nsp"]), rel=1e-3)


def test_it_is_kept_and_read_back(
    other: bs.Model, shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert other.folder.is_next_label == 1
    assert bs.load(other.path).folder.record["is_next_label"] == 1
    caplog.clear()
    same = bs.pretrain(shards, tmp_path / "same", model=other, settings=STILL)
    turned = bs.pretrain(shards, tmp_path / "turned", model=other, settings=[*STILL, "data.is_next_label=0"])
    assert (same.folder.is_next_label, turned.folder.is_next_label) == (1, 0)
    assert "is_next_label" not in turned.folder.record
    head, kept, flipped = (
        load_file(model.model_folder / "model.safetensors")[PAIR] for model in (other, same, turned)
    )
    assert torch.equal(head, kept)
    assert torch.equal(head.flip(0), flipped)
    assert any("IsNext is 1 there and 0 here: the outputs of the head" in line for line in caplog.messages)
    held = same.report["held_out"], turned.report["held_out"]
    assert held[0]["nsp_loss"] == pytest.approx(held[1]["nsp_loss"], rel=1e-6)
    assert held[0]["nsp_accuracy"] == held[1]["nsp_accuracy"]


def test_a_run_without_pairs_goes_on_from_such_a_model(
    other: bs.Model, shards: Shards, tmp_path: Path
) -> None:
    settings = [*STILL, "data.sentence_task=none", "data.instances=full_sentences"]
    assert bs.pretrain(shards, tmp_path / "run", model=other, settings=settings).folder.is_next_label == 0


def test_an_instance_is_shown_by_its_name(shards: Shards) -> None:
    usual, other_ = (
        [bs.show_instance(shards, i, is_next_label=label, sequence_length=32) for i in range(6)]
        for label in (0, 1)
    )
    assert [one["label"] for one in usual] == [1 - one["label"] for one in other_]
    assert [one["label_name"] for one in usual] == [one["label_name"] for one in other_]
    assert {one["label"] for one in usual if one["label_name"] == "IsNext"} == {0}


def test_where_there_is_no_next_it_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        DataSettings.of({"sentence_task": "sop", "is_next_label": 1}, "settings")
    assert caught.value.code == "invalid_setting"
    assert "is_next_label" in caught.value.message
    with pytest.raises(InputError) as caught:
        DataSettings.of({"is_next_label": 2}, "settings")
    assert (caught.value.code, caught.value.argument) == ("invalid_setting", "is_next_label")
