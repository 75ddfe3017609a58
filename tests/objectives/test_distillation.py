"""Distillation: the release's three losses by their definitions, the start from the teacher's layers, the verb."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import read_folder, write_folder
from bertsmith.errors import InputError
from bertsmith.instances.batches import PairBatch
from bertsmith.models.encoder import Borrowed, Encoder, owner
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.heads import MaskedHead
from bertsmith.objectives.distillation import Distil, DistilSettings, layers_of_teacher, start_from_teacher
from bertsmith.packed import Packed
from bertsmith.tokenizer.tokenizer import Tokenizer
from outcomes import killed_in

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def a_teacher(folder: Path, layers: int = 4) -> Path:
    config = preset("bert-tiny-uncased", **SIZES, num_hidden_layers=layers)
    generator = torch.Generator().manual_seed(5)
    parts = {"encoder": build_encoder(config, generator), "masked": MaskedHead(config, generator)}
    return write_folder(folder, config, parts)


def a_student(teacher: Path, layers: int = 2, **settings: object) -> tuple[Encoder, Distil]:
    config = preset("distilbert-base-uncased", **SIZES, num_hidden_layers=layers)
    generator = torch.Generator().manual_seed(6)
    encoder = build_encoder(config, generator)
    own = DistilSettings(teacher=str(teacher), **settings)
    objective = Distil(encoder, generator, read_folder(teacher), own)
    objective.bring(encoder, fresh=True)
    return encoder, objective


def a_batch() -> PairBatch:
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(6, 30, (5,), generator=draw).tolist()
    tokens = [torch.randint(5, 60, (n,), generator=draw).tolist() for n in lengths]
    packed = Packed.of_lists(tokens, [[0] * n for n in lengths])
    rows = torch.randperm(sum(lengths), generator=draw)[: sum(lengths) // 4].sort().values
    labels = torch.randint(5, 60, (len(rows),), generator=draw)
    return PairBatch(packed, rows, labels, labels[:0], 0, 0, "none")


@pytest.mark.parametrize("soft_on", ["masked", "all"])
def test_the_three_losses_by_their_definitions(soft_on: str, tmp_path: Path) -> None:
    """As the release writes them: KLDivLoss of softened shares times T², cross-entropy, CosineEmbeddingLoss."""
    folder = a_teacher(tmp_path / "teacher")
    encoder, objective = a_student(folder, soft_on=soft_on, temperature=3.0, start="drawn")
    batch = a_batch()
    with torch.no_grad():
        found = objective.loss(encoder, batch)
        teacher, head = read_folder(folder), MaskedHead(read_folder(folder).config, torch.Generator())
        its = teacher.encoder().eval()
        teacher.fill("masked", head)
        wanted, own = its(batch.packed), encoder(batch.packed)
        theirs = head(wanted, its.embeddings.token.weight)
        mine = objective.masked(own, encoder.embeddings.token.weight)
        rows = batch.rows if soft_on == "masked" else torch.arange(batch.tokens)
        divergence = torch.nn.KLDivLoss(reduction="batchmean")
        soft = divergence((mine[rows] / 3).log_softmax(-1), (theirs[rows] / 3).softmax(-1)) * 9
        mlm = F.cross_entropy(mine[batch.rows], batch.labels)
        cosine = torch.nn.CosineEmbeddingLoss()(own, wanted, torch.ones(len(own)))
    means = {part: float(value) / found.counts[part] for part, value in found.sums.items()}
    assert means == pytest.approx({"soft": float(soft), "mlm": float(mlm), "cosine": float(cosine)}, abs=1e-5)
    assert objective.weights == {"soft": 5.0, "mlm": 2.0, "cosine": 1.0}


def test_a_student_that_is_its_teacher_has_nothing_to_learn(tmp_path: Path) -> None:
    """As deep, begun with its weights, T = 1: no distance in shares, none in direction (spec S58)."""
    encoder, objective = a_student(a_teacher(tmp_path / "teacher"), layers=4, temperature=1.0)
    with torch.no_grad():
        found = objective.loss(encoder, a_batch())
    assert float(found.sums["soft"]) == pytest.approx(0, abs=1e-4)
    assert float(found.sums["cosine"]) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("teacher", "student", "chosen"),
    [(12, 6, [0, 2, 4, 7, 9, 11]), (4, 2, [0, 3]), (6, 1, [0]), (3, 3, [0, 1, 2])],
)
def test_layers_are_chosen_evenly(teacher: int, student: int, chosen: list[int]) -> None:
    """The release's choice for 12 and 6 (`extract_distilbert.py`)."""
    assert layers_of_teacher(teacher, student) == chosen


def test_the_student_begins_with_the_teachers_layers(tmp_path: Path) -> None:
    folder = a_teacher(tmp_path / "teacher")
    encoder, objective = a_student(folder)
    its = read_folder(folder).encoder()
    for own, layer in zip(encoder.blocks, (0, 3), strict=True):
        for name, weight in own.state_dict().items():
            assert torch.equal(weight, its.blocks[layer].state_dict()[name])
    packed = a_batch().packed
    with torch.no_grad():
        torch.testing.assert_close(encoder.embeddings(packed), its.embeddings(packed))
    assert not torch.equal(
        a_student(folder, start="drawn")[0].blocks[0].attention.qkv.weight, its.blocks[0].attention.qkv.weight
    )
    assert objective.teacher.training is False


def test_no_gradient_reaches_the_teacher_and_parts_can_be_left_out(tmp_path: Path) -> None:
    folder = a_teacher(tmp_path / "teacher")
    encoder, objective = a_student(folder, mlm_weight=0.0, cosine_weight=0.0)
    found = objective.loss(encoder, a_batch())
    assert found.sums.keys() == found.counts.keys() == {"soft"}
    found.sums["soft"].backward()
    assert all(weight.grad is None for weight in objective.teacher.parameters())
    alone, without = a_student(folder, soft_weight=0.0, cosine_weight=0.0)
    without.teacher.forward = lambda *_: pytest.fail("nobody asked the teacher")
    assert without.loss(alone, a_batch()).sums.keys() == {"mlm"}
    assert all(weight.grad is not None for weight in encoder.blocks.parameters())


def taught(tmp_path: Path) -> tuple[object, bs.Model]:
    shards = tiny_run.make_shards(tmp_path)
    return shards, tiny_run.run(
        shards, tmp_path / "teacher", "model.num_hidden_layers=4", "train.max_steps=4"
    )


FEW = [one for one in tiny_run.SETTINGS if not one.startswith(("model.", "start."))]


def test_the_verb_makes_a_distilbert_and_resumes_to_the_bit(tmp_path: Path) -> None:
    shards, teacher = taught(tmp_path)
    settings = [*FEW, "train.checkpoint_every=2", "train.max_steps=6"]
    straight = bs.distill(shards, tmp_path / "straight", teacher, settings=settings)
    assert straight.folder.architecture == "DistilBertForMaskedLM"
    assert straight.folder.config.num_hidden_layers == 2
    assert {"soft_loss", "mlm_loss", "cosine_loss", "mlm_accuracy"} <= straight.report["held_out"].keys()
    assert straight.folder.record["teacher"] == str(teacher.model_folder)
    weights = sorted((tmp_path / "straight" / "checkpoints").rglob("weights.safetensors"))
    assert weights
    assert not any(b"teacher" in file.read_bytes()[:20_000] for file in weights)
    with killed_in(5):
        bs.distill(shards, tmp_path / "resumed", teacher, settings=settings)
    resumed = bs.distill(shards, tmp_path / "resumed", teacher, settings=settings, resume=True)
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (straight.path / file).read_bytes() == (resumed.path / file).read_bytes()


def test_minutes_choose_no_size(tmp_path: Path) -> None:
    shards, teacher = taught(tmp_path)
    told: list[str] = []
    student = bs.distill(
        shards, tmp_path / "student", teacher, layers=1, minutes=0.05, settings=FEW, tell=told.append
    )
    assert student.folder.config.hidden_size == teacher.folder.config.hidden_size
    assert student.folder.config.num_hidden_layers == 1
    assert not [sentence for sentence in told if "bert-mini" in sentence or "bert-tiny" in sentence]


def test_a_resumed_run_knows_its_teacher(tmp_path: Path) -> None:
    """Another model at the same place is not the one that the run began with."""
    shards, teacher = taught(tmp_path)
    bs.distill(shards, tmp_path / "student", teacher, settings=[*FEW, "train.max_steps=2"])
    tiny_run.run(shards, tmp_path / "other", "model.num_hidden_layers=4", "train.max_steps=5")
    (tmp_path / "teacher" / "model").rename(tmp_path / "aside")
    (tmp_path / "other" / "model").rename(tmp_path / "teacher" / "model")
    with pytest.raises(InputError):
        bs.distill(
            shards,
            tmp_path / "student",
            tmp_path / "teacher",
            settings=[*FEW, "train.max_steps=4"],
            resume=True,
        )


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    shards, teacher = taught(tmp_path)

    def refused(said: str, *more: str, **keywords: object) -> None:
        with pytest.raises(InputError, match=said):
            bs.distill(shards, tmp_path / "student", teacher, settings=[*FEW, *more], **keywords)
        assert not (tmp_path / "student" / "checkpoints").exists()

    refused("a student of 9 layers: the teacher has 4", layers=9)
    refused("all three weights are 0", *(f"objective.{part}_weight=0" for part in ("soft", "mlm", "cosine")))
    refused("the student cannot begin with its layers", "model.intermediate_size=16")
    refused(
        "the teacher's hidden size is 32, the student's 16", "model.hidden_size=16", "objective.start=drawn"
    )
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    moods = bs.finetune("classify", teacher, tmp_path / "moods", train=rows, dev=rows, max_steps=1, threads=1)
    causal = ("objective.name=causal", "data.instances=full_sentences", "data.sentence_task=none")
    left = tiny_run.run(shards, tmp_path / "left", *causal, "train.max_steps=1")
    with pytest.raises(InputError, match="reads in one direction, and expects nothing behind a mask"):
        bs.pretrain(
            shards,
            tmp_path / "student",
            preset="distilbert-base-uncased",
            settings=[*tiny_run.SETTINGS, "objective.name=distil", f"objective.teacher={left.path}"],
        )
    with pytest.raises(InputError, match="no masked-LM head"):
        bs.distill(shards, tmp_path / "student", moods, settings=FEW)
    other = Tokenizer.of_vocabulary([*tiny_run.TOKENS[::-1]], lowercase=True, max_length=64)
    file = tmp_path / "corpus.txt"
    elsewhere = bs.prepare([file], other, tmp_path / "elsewhere", workers=1)
    with pytest.raises(InputError, match="the teacher's tokenizer is another than the data's"):
        bs.distill(elsewhere, tmp_path / "student", teacher, settings=FEW)


@pytest.mark.parametrize("share", ["attention", "feed_forward", "none"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_student_begins_with_shared_layers_too(share: str, groups: int, tmp_path: Path) -> None:
    """Each part of its own begins as that of the teacher's layer, wherever the teacher keeps it."""
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 40}
    shared = {"embedding_size": 8, "share": share, "share_groups": groups if share != "none" else 1}
    draw = torch.Generator().manual_seed(0)
    configs = [preset("albert-mini", **sizes, **shared, num_hidden_layers=layers) for layers in (4, 3)]
    teacher, student = (build_encoder(config, draw) for config in configs)
    heads = [MaskedHead(config, draw) for config in configs]
    start_from_teacher(student, heads[1], teacher, heads[0])
    for block, layer in zip(student.blocks, layers_of_teacher(4, 3), strict=True):
        for name, part in block.named_children():
            if not isinstance(part, Borrowed):
                its = owner(getattr(teacher.blocks[layer], name)).state_dict()
                assert all(torch.equal(value, its[key]) for key, value in part.state_dict().items())
