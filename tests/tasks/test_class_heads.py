"""What stands between the encoder and a text's label (the pooler, or nothing), and what the head is at first."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.models.family import build_encoder, preset
from bertsmith.tasks.classification import TASK
from bertsmith.tasks.fitted_task import FittedTask
from bertsmith.tasks.settings import ClassSettings

FEW = ["train.max_steps=6", "train.threads=1", "train.precision=fp32", "train.report_to=none"]
LEFT_TO_RIGHT = ["objective.name=causal", "data.instances=full_sentences", "data.sentence_task=none"]


def test_without_a_pooler_the_logits_are_a_product_with_the_first_hidden_state(
    base: bs.Model, tmp_path: Path
) -> None:
    """C·Wᵀ of the paper's section 4.1, and the bias that the release adds; with it, tanh(Linear(C)) in between."""
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    made = {
        pooler: bs.finetune(
            "classify", base, tmp_path / str(pooler), train=rows, validation=rows, settings=FEW, pooler=pooler
        )
        for pooler in (True, False)
    }
    assert made[True].folder.parts == {"encoder", "pooler", "classifier"}
    assert made[False].folder.parts == {"encoder", "classifier"}
    assert made[False].folder.architecture == "BertForUnpooledSequenceClassification"
    for pooler, model in made.items():
        assert model.info()["parameters"] == sum(tensor.numel() for tensor in model.folder.weights().values())
        again = bs.load(tmp_path / str(pooler))
        weights = load_file(model.model_folder / "model.safetensors")
        encoding = again.tokenizer.encode("kaba lode mi")
        with torch.no_grad():
            first = again.encoder(torch.tensor([encoding.ids]))[0, 0]
        if pooler:
            first = torch.tanh(
                weights["bert.pooler.dense.weight"] @ first + weights["bert.pooler.dense.bias"]
            )
        wanted = (weights["classifier.weight"] @ first + weights["classifier.bias"]).softmax(0)
        found = list(again.predict(["kaba lode mi"])[0].scores.values())
        assert found == pytest.approx(wanted.tolist(), abs=1e-6)


def test_what_was_trained_without_a_pooler_is_asked_without_one(base: bs.Model, tmp_path: Path) -> None:
    rows = [(text, str(len(text))) for text, _ in tiny_run.examples(20)]
    file = tiny_run.table(tmp_path / "train.csv", rows)
    model = bs.finetune(
        "regress", base, tmp_path / "run", train=file, validation=file, settings=[*FEW, "task.pooler=false"]
    )
    assert model.folder.parts == {"encoder", "classifier"}
    with pytest.raises(InputError) as caught:
        model.predict(["kaba"], pooler=True)
    assert (caught.value.code, caught.value.argument) == ("fixed_setting_changed", "pooler")


def test_a_model_that_reads_from_left_to_right_may_do_without(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    base = tiny_run.run(shards, tmp_path / "bert", *LEFT_TO_RIGHT, "train.max_steps=2")
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    made = bs.finetune(
        "classify", base, tmp_path / "run", train=rows, validation=rows, settings=FEW, pooler=False
    )
    assert made.folder.parts == {"encoder", "classifier"}
    assert bs.load(tmp_path / "run").predict(["kaba lode"]) == made.predict(["kaba lode"])


@pytest.mark.parametrize("name", ["roberta-base", "distilbert-base-uncased", "electra-small-discriminator"])
def test_a_family_without_a_pooler_has_none_to_leave_out(name: str) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = build_encoder(preset(name, **sizes, vocab_size=60), torch.Generator()).config
    with pytest.raises(InputError) as caught:
        FittedTask.create(
            TASK, config, torch.Generator(), {"labels": ["a", "b"]}, ClassSettings(pooler=False)
        )
    assert (caught.value.code, caught.value.argument) == ("pooler_not_applicable", "pooler")


STILL = ["train.max_steps=1", "train.learning_rate=1e-30", "train.weight_decay=0", *FEW[1:]]


def two_labels(folder: Path) -> Path:
    rows = [(text, "far" if label == "joy" else "near") for text, label in tiny_run.examples(30)]
    return tiny_run.table(folder / "two.csv", rows)


@pytest.mark.parametrize("is_next", [0, 1])
def test_two_labels_may_begin_as_the_head_for_the_next_sentence(
    is_next: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first logits are those of the pre-trained head on its own pooler; by default they are not."""
    caplog.set_level(logging.INFO, "bertsmith")
    shards = tiny_run.make_shards(tmp_path)
    base = tiny_run.run(shards, tmp_path / "bert", "train.max_steps=3", f"data.is_next_label={is_next}")
    file = two_labels(tmp_path)
    before = load_file(base.model_folder / "model.safetensors")
    for start, equal in (("nsp", True), ("none", False)):
        settings = [*STILL, f"task.init_head_from={start}"]
        made = bs.finetune("classify", base, tmp_path / start, train=file, validation=file, settings=settings)
        after = load_file(made.model_folder / "model.safetensors")
        same = torch.equal(before["cls.seq_relationship.weight"], after["classifier.weight"])
        assert same is equal
        assert torch.equal(before["bert.pooler.dense.weight"], after["bert.pooler.dense.weight"])
    (said,) = (line for line in caplog.messages if "the head is initialized from" in line)
    assert said.endswith("'near' is IsNext" if is_next else "'far' is IsNext")


def test_where_there_is_no_such_head_that_is_said(base: bs.Model, tmp_path: Path) -> None:
    two, three = two_labels(tmp_path), tiny_run.table(tmp_path / "three.csv", tiny_run.examples(30))
    shards = tiny_run.make_shards(tmp_path)
    sop = tiny_run.run(shards, tmp_path / "sop", "data.sentence_task=sop", "train.max_steps=1")
    tuned = bs.finetune("classify", base, tmp_path / "tuned", train=two, validation=two, settings=FEW)
    ask = "task.init_head_from=nsp"
    for file, more in (
        (three, ()),
        (two, ("task.pooler=false",)),
        (two, ("task.head=bilstm",)),
        (two, ("task.multi_label=true",)),
    ):
        with pytest.raises(InputError) as caught:
            bs.finetune(
                "classify", base, tmp_path / "no", train=file, validation=file, settings=[*FEW, ask, *more]
            )
        assert (caught.value.code, caught.value.argument) == ("init_head_not_applicable", "init_head_from")
        assert not (tmp_path / "no").exists()
    for model in (sop, tuned):
        with pytest.raises(InputError) as caught:
            bs.finetune("classify", model, tmp_path / "no", train=two, validation=two, settings=[*FEW, ask])
        assert (caught.value.code, caught.value.argument) == ("nsp_head_missing", "task.init_head_from")
        assert not (tmp_path / "no").exists()
