"""Test distillation: the three losses, initialization from the teacher's layers, and runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import read_folder, write_folder
from bertsmith.errors import InputError
from bertsmith.instances.batches import MaskedBatch
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.layers import SharedModule, unwrap_shared
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.objectives.distillation import Distillation, copied_layers, init_from_teacher
from bertsmith.objectives.settings import DistillationSettings
from bertsmith.packed import Packed
from bertsmith.tokenizer.tokenizer import Tokenizer
from run_equality import killed_in

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


def write_teacher(folder: Path, layers: int = 4) -> Path:
    config = preset("bert-tiny-uncased", **SIZES, num_hidden_layers=layers)
    generator = torch.Generator().manual_seed(5)
    parts = {"encoder": build_encoder(config, generator), "masked": MaskedLMHead(config, generator)}
    return write_folder(folder, config, parts)


def build_student(teacher: Path, layers: int = 2, **settings: object) -> tuple[Encoder, Distillation]:
    config = preset("distilbert-base-uncased", **SIZES, num_hidden_layers=layers)
    generator = torch.Generator().manual_seed(6)
    encoder = build_encoder(config, generator)
    distillation_settings = DistillationSettings(teacher=str(teacher), **settings)
    objective = Distillation(encoder, generator, read_folder(teacher), distillation_settings)
    objective.load_teacher(encoder, fresh=True)
    return encoder, objective


def make_batch() -> MaskedBatch:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(6, 30, (5,), generator=generator).tolist()
    tokens = [torch.randint(5, 60, (n,), generator=generator).tolist() for n in lengths]
    packed = Packed.from_lists(tokens, [[0] * n for n in lengths])
    rows = torch.randperm(sum(lengths), generator=generator)[: sum(lengths) // 4].sort().values
    labels = torch.randint(5, 60, (len(rows),), generator=generator)
    return MaskedBatch(packed, rows, labels, labels[:0], 0, 0, "none")


@pytest.mark.parametrize("soft_on", ["masked", "all"])
def test_losses_equal_their_definitions(soft_on: str, tmp_path: Path) -> None:
    """The release uses KLDivLoss of softened distributions times T², cross-entropy, and CosineEmbeddingLoss."""
    folder = write_teacher(tmp_path / "teacher")
    encoder, objective = build_student(folder, soft_on=soft_on, temperature=3.0, start="drawn")
    batch = make_batch()
    with torch.no_grad():
        loss = objective.loss(encoder, batch)
        teacher, head = read_folder(folder), MaskedLMHead(read_folder(folder).config, torch.Generator())
        teacher_encoder = teacher.encoder().eval()
        teacher.load_into("masked", head)
        teacher_hidden, hidden = teacher_encoder(batch.packed), encoder(batch.packed)
        teacher_logits = head(teacher_hidden, teacher_encoder.embeddings.token.weight)
        logits = objective.masked(hidden, encoder.embeddings.token.weight)
        rows = batch.rows if soft_on == "masked" else torch.arange(batch.tokens)
        divergence = torch.nn.KLDivLoss(reduction="batchmean")
        soft = divergence((logits[rows] / 3).log_softmax(-1), (teacher_logits[rows] / 3).softmax(-1)) * 9
        mlm = F.cross_entropy(logits[batch.rows], batch.labels)
        cosine = torch.nn.CosineEmbeddingLoss()(hidden, teacher_hidden, torch.ones(len(hidden)))
    means = {part: float(value) / loss.counts[part] for part, value in loss.sums.items()}
    assert means == pytest.approx({"soft": float(soft), "mlm": float(mlm), "cosine": float(cosine)}, abs=1e-5)
    assert objective.loss_weights == {"soft": 5.0, "mlm": 2.0, "cosine": 1.0}


def test_the_loss_of_a_copy_of_the_teacher_is_zero(tmp_path: Path) -> None:
    """With all layers copied and T = 1, the divergence and the cosine distance are 0."""
    encoder, objective = build_student(write_teacher(tmp_path / "teacher"), layers=4, temperature=1.0)
    with torch.no_grad():
        loss = objective.loss(encoder, make_batch())
    assert float(loss.sums["soft"]) == pytest.approx(0, abs=1e-4)
    assert float(loss.sums["cosine"]) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("teacher", "student", "layers"),
    [(12, 6, [0, 2, 4, 7, 9, 11]), (4, 2, [0, 3]), (6, 1, [0]), (3, 3, [0, 1, 2])],
)
def test_copied_layers_are_evenly_spaced(teacher: int, student: int, layers: list[int]) -> None:
    """The layers for 12 and 6 are the release's (`extract_distilbert.py`)."""
    assert copied_layers(teacher, student) == layers


def test_the_student_starts_with_the_teachers_layers(tmp_path: Path) -> None:
    folder = write_teacher(tmp_path / "teacher")
    encoder, objective = build_student(folder)
    teacher = read_folder(folder).encoder()
    for block, layer in zip(encoder.blocks, (0, 3), strict=True):
        for name, weight in block.state_dict().items():
            assert torch.equal(weight, teacher.blocks[layer].state_dict()[name])
    packed = make_batch().packed
    with torch.no_grad():
        torch.testing.assert_close(encoder.embeddings(packed), teacher.embeddings(packed))
    drawn, _ = build_student(folder, start="drawn")
    assert not torch.equal(drawn.blocks[0].attention.qkv.weight, teacher.blocks[0].attention.qkv.weight)
    assert objective.teacher.training is False


def test_the_teacher_gets_no_gradient_and_parts_can_be_omitted(tmp_path: Path) -> None:
    folder = write_teacher(tmp_path / "teacher")
    encoder, objective = build_student(folder, mlm_weight=0.0, cosine_weight=0.0)
    loss = objective.loss(encoder, make_batch())
    assert loss.sums.keys() == loss.counts.keys() == {"soft"}
    loss.sums["soft"].backward()
    assert all(weight.grad is None for weight in objective.teacher.parameters())
    student, mlm_only = build_student(folder, soft_weight=0.0, cosine_weight=0.0)
    mlm_only.teacher.forward = lambda *_: pytest.fail("the teacher is not needed")
    assert mlm_only.loss(student, make_batch()).sums.keys() == {"mlm"}
    assert all(weight.grad is not None for weight in encoder.blocks.parameters())


def train_teacher(tmp_path: Path) -> tuple[object, bs.Model]:
    shards = tiny_run.make_shards(tmp_path)
    return shards, tiny_run.run(
        shards, tmp_path / "teacher", "model.num_hidden_layers=4", "train.max_steps=4"
    )


SETTINGS = [setting for setting in tiny_run.SETTINGS if not setting.startswith(("model.", "start."))]


def test_distill_writes_a_distilbert_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    shards, teacher = train_teacher(tmp_path)
    settings = [*SETTINGS, "train.save_steps=2", "train.max_steps=6"]
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


def test_minutes_do_not_change_the_model_size(tmp_path: Path) -> None:
    shards, teacher = train_teacher(tmp_path)
    messages: list[str] = []
    with tiny_run.logged(messages):
        student = bs.distill(shards, tmp_path / "student", teacher, layers=1, minutes=0.05, settings=SETTINGS)
    assert student.folder.config.hidden_size == teacher.folder.config.hidden_size
    assert student.folder.config.num_hidden_layers == 1
    assert not [message for message in messages if "bert-mini" in message or "bert-tiny" in message]


def test_resuming_with_another_teacher_is_refused(tmp_path: Path) -> None:
    """The teacher's folder holds another model now."""
    shards, teacher = train_teacher(tmp_path)
    bs.distill(shards, tmp_path / "student", teacher, settings=[*SETTINGS, "train.max_steps=2"])
    tiny_run.run(shards, tmp_path / "other", "model.num_hidden_layers=4", "train.max_steps=5")
    (tmp_path / "teacher" / "model").rename(tmp_path / "aside")
    (tmp_path / "other" / "model").rename(tmp_path / "teacher" / "model")
    with pytest.raises(InputError):
        bs.distill(
            shards,
            tmp_path / "student",
            tmp_path / "teacher",
            settings=[*SETTINGS, "train.max_steps=4"],
            resume=True,
        )


def test_students_that_do_not_fit_their_teacher_are_refused(tmp_path: Path) -> None:
    shards, teacher = train_teacher(tmp_path)

    def assert_refused(code: str, *more: str, **keywords: object) -> None:
        with pytest.raises(InputError) as caught:
            bs.distill(shards, tmp_path / "student", teacher, settings=[*SETTINGS, *more], **keywords)
        assert caught.value.code == code
        assert not (tmp_path / "student" / "checkpoints").exists()

    with pytest.raises(InputError):
        bs.distill(shards, tmp_path / "student", teacher, settings=SETTINGS, layers=9)
    zero_weights = [f"objective.{part}_weight=0" for part in ("soft", "mlm", "cosine")]
    assert_refused("all_weights_zero", *zero_weights)
    assert_refused("student_differs_from_teacher", "model.intermediate_size=16")
    assert_refused("hidden_size_differs", "model.hidden_size=16", "objective.start=drawn")
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    moods = bs.finetune(
        "classify", teacher, tmp_path / "moods", train=rows, validation=rows, max_steps=1, threads=1
    )
    causal = ("objective.name=causal", "data.instances=full_sentences", "data.sentence_task=none")
    causal_teacher = tiny_run.run(shards, tmp_path / "causal", *causal, "train.max_steps=1")
    with pytest.raises(InputError) as caught:
        bs.pretrain(
            shards,
            tmp_path / "student",
            preset="distilbert-base-uncased",
            settings=[
                *tiny_run.SETTINGS,
                "objective.name=distil",
                f"objective.teacher={causal_teacher.path}",
            ],
        )
    assert caught.value.code == "teacher_without_masked_lm"
    with pytest.raises(InputError):
        bs.distill(shards, tmp_path / "student", moods, settings=SETTINGS)
    other = Tokenizer.from_vocabulary([*tiny_run.TOKENS[::-1]], lowercase=True, max_length=64)
    file = tmp_path / "corpus.txt"
    elsewhere = bs.prepare([file], other, tmp_path / "elsewhere", workers=1)
    with pytest.raises(InputError) as caught:
        bs.distill(elsewhere, tmp_path / "student", teacher, settings=SETTINGS)
    assert caught.value.code == "teacher_tokenizer_differs"


@pytest.mark.parametrize("share", ["attention", "feed_forward", "none"])
@pytest.mark.parametrize("groups", [1, 2])
def test_students_with_shared_layers_start_with_the_teachers(share: str, groups: int, tmp_path: Path) -> None:
    """Each part that a layer owns equals that of the teacher's layer, which may share it."""
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 40}
    shared = {"embedding_size": 8, "share": share, "share_groups": groups if share != "none" else 1}
    generator = torch.Generator().manual_seed(0)
    configs = [preset("albert-mini", **sizes, **shared, num_hidden_layers=layers) for layers in (4, 3)]
    teacher, student = (build_encoder(config, generator) for config in configs)
    heads = [MaskedLMHead(config, generator) for config in configs]
    init_from_teacher(student, heads[1], teacher, heads[0])
    for block, layer in zip(student.blocks, copied_layers(4, 3), strict=True):
        for name, part in block.named_children():
            if not isinstance(part, SharedModule):
                teacher_part = unwrap_shared(getattr(teacher.blocks[layer], name)).state_dict()
                assert all(torch.equal(value, teacher_part[key]) for key, value in part.state_dict().items())
