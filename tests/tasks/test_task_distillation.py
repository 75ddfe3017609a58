"""A task learnt from a teacher: each task's distance by its definition, no gradient to the teacher, the verb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.loss import distillation_kl
from bertsmith.tasks.base import TaskModel
from bertsmith.tasks.batching import TaskBatch
from bertsmith.tasks.classification.model import MultilabelModel
from bertsmith.tasks.question_answering.model import QuestionAnsweringModel
from bertsmith.tasks.regression.model import RegressionModel
from bertsmith.tasks.tagging.model import TagModel
from run_equality import killed_in

FEW = ["train.max_steps=4", "train.threads=1", "train.precision=fp32", "train.batch_size=4"]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows(batch_rows: list[int]) -> Any:
    return TaskBatch(None, (), {"token_indices": torch.tensor(batch_rows)}, {})


def kl(wanted: torch.Tensor, own: torch.Tensor) -> float:
    """Of shares, from its definition."""
    return float((wanted * (wanted.log() - own.log())).sum())


def test_shares_are_compared_softened() -> None:
    own, wanted = drawn(5, 3, seed=0), drawn(5, 3, seed=1)
    expected = 9 * kl((wanted / 3).softmax(-1), (own / 3).softmax(-1))
    assert float(distillation_kl(own, wanted, 3.0)) == pytest.approx(expected, abs=1e-4)
    of_task = TaskModel.distillation_loss(None, own.split(1), wanted.split(1), rows([]), 3.0)
    assert float(of_task) == pytest.approx(expected, abs=1e-4)
    assert float(distillation_kl(own, own, 2.0)) == pytest.approx(0, abs=1e-6)


def test_tags_are_compared_at_words() -> None:
    own, wanted = drawn(6, 4, seed=0), drawn(6, 4, seed=1)
    found = TagModel.distillation_loss(None, own.split([4, 2]), wanted.split([4, 2]), rows([1, 3, 4]), 2.0)
    some = [1, 3, 4]
    assert float(found) == pytest.approx(
        4 * kl((wanted[some] / 2).softmax(-1), (own[some] / 2).softmax(-1)), abs=1e-4
    )


def test_ends_of_answers_are_compared_over_the_tokens() -> None:
    own, wanted = drawn(7, 2, seed=0), drawn(7, 2, seed=1)
    found = QuestionAnsweringModel.distillation_loss(
        None, own.split([3, 4]), wanted.split([3, 4]), rows([]), 1.0
    )
    parts = [
        kl(w[:, end].softmax(0), o[:, end].softmax(0))
        for o, w in zip(own.split([3, 4]), wanted.split([3, 4]), strict=True)
        for end in (0, 1)
    ]
    assert float(found) == pytest.approx(sum(parts) / 2, abs=1e-4)


def test_numbers_and_many_labels() -> None:
    own, wanted = drawn(5, 1, seed=0), drawn(5, 1, seed=1)
    found = RegressionModel.distillation_loss(None, own.split(1), wanted.split(1), rows([]), 2.0)
    assert float(found) == pytest.approx(float(((own - wanted) ** 2).sum()), abs=1e-5)
    own, wanted = drawn(5, 3, seed=0), drawn(5, 3, seed=1)
    found = MultilabelModel.distillation_loss(None, own.split(1), wanted.split(1), rows([]), 2.0)
    p, q = (wanted / 2).sigmoid(), (own / 2).sigmoid()
    expected = 4 * (kl(p, q) + kl(1 - p, 1 - q)) / 3
    assert float(found) == pytest.approx(expected, abs=1e-4)
    same = F.binary_cross_entropy(q, p, reduction="sum") - F.binary_cross_entropy(p, p, reduction="sum")
    assert float(found) == pytest.approx(4 * float(same) / 3, abs=1e-4)


@pytest.fixture
def world(tmp_path: Path) -> dict[str, Any]:
    shards = tiny_run.make_shards(tmp_path)
    base = tiny_run.run(shards, tmp_path / "bert", "train.max_steps=2")
    train = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    teacher = bs.finetune("classify", base, tmp_path / "moods", train=train, validation=train, settings=FEW)
    few = [one for one in tiny_run.SETTINGS if not one.startswith(("model.", "start."))]
    student = bs.distill(shards, tmp_path / "student", base, settings=[*few, "train.max_steps=2"])
    return {"teacher": teacher, "model": student, "train": train, "validation": train, "settings": FEW}


def test_a_student_learns_a_task_and_resumes_to_the_bit(world: dict[str, Any], tmp_path: Path) -> None:
    own = [*FEW, "train.save_steps=1"]
    straight = bs.distill_task(**{**world, "settings": own}, output_dir=tmp_path / "straight")
    assert straight.folder.architecture == "DistilBertForSequenceClassification"
    assert straight.labels == world["teacher"].labels
    lines = [json.loads(line) for line in (tmp_path / "straight" / "log.jsonl").read_text().splitlines()]
    for line in (one for one in lines if one["kind"] == "train"):
        assert line["loss"] == pytest.approx(0.5 * line["task"] + 0.5 * line["soft"], rel=1e-6)
    weights = sorted((tmp_path / "straight" / "checkpoints").rglob("weights.safetensors"))
    assert weights
    assert not any(b"teacher" in file.read_bytes()[:20_000] for file in weights)
    with killed_in(3):
        bs.distill_task(**{**world, "settings": own}, output_dir=tmp_path / "resumed")
    resumed = bs.distill_task(**{**world, "settings": own}, output_dir=tmp_path / "resumed", resume=True)
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (straight.path / file).read_bytes() == (resumed.path / file).read_bytes()


def test_the_teacher_matters_and_stays_as_it_is(world: dict[str, Any], tmp_path: Path) -> None:
    before = {name: weight.clone() for name, weight in world["teacher"].encoder.state_dict().items()}
    taught = bs.distill_task(**world, output_dir=tmp_path / "taught")
    alone = bs.finetune(
        "classify",
        world["model"],
        tmp_path / "alone",
        train=world["train"],
        validation=world["validation"],
        settings=FEW,
    )
    mine, its = (m.folder.weights()["classifier.linear.weight"] for m in (taught, alone))
    assert not torch.equal(mine, its)
    after = bs.load(world["teacher"].path).encoder.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_what_does_not_fit_is_refused(world: dict[str, Any], tmp_path: Path) -> None:
    other = tiny_run.table(tmp_path / "other.csv", [("kaba lode", "a"), ("mi so", "b")] * 6)
    with pytest.raises(InputError) as caught:
        bs.distill_task(**{**world, "train": other, "validation": other}, output_dir=tmp_path / "x")
    assert (caught.value.code, caught.value.argument) == ("teacher_labels_differ", "teacher.model")
    with pytest.raises(InputError) as caught:
        bs.distill_task(**{**world, "teacher": world["model"]}, output_dir=tmp_path / "x")
    assert caught.value.code == "not_fine_tuned"
    assert not (tmp_path / "x").exists()
