"""Test masked LM and sentence tasks: losses and label ids against transformers."""

from __future__ import annotations

import math

import pytest
import torch

from bertsmith.device import ComputeContext
from bertsmith.instances.batches import MaskedBatch
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.language_modeling import MaskedLM
from bertsmith.objectives.objective import evaluate_objective
from bertsmith.packed import Packed

CONFIG = ModelConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=40,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.3,
)


def make_batch(sequences: int = 5, task: str = "nsp") -> MaskedBatch:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(6, 30, (sequences,), generator=generator).tolist()
    tokens = [torch.randint(5, 50, (n,), generator=generator).tolist() for n in lengths]
    segments = [[0] * (n // 2) + [1] * (n - n // 2) for n in lengths]
    packed = Packed.from_lists(tokens, segments)
    rows = torch.randperm(sum(lengths), generator=generator)[: sum(lengths) // 4].sort().values
    labels = torch.randint(5, 50, (len(rows),), generator=generator)
    pair_labels = torch.randint(0, 2, (sequences,), generator=generator)
    return MaskedBatch(packed, rows, labels, pair_labels if task != "none" else pair_labels[:0], 0, 0, task)


def evaluate(encoder: Encoder, objective: MaskedLM, batches: list[MaskedBatch]) -> dict[str, float]:
    return evaluate_objective(objective, encoder, batches, ComputeContext.create("cpu", "fp32"))


@pytest.fixture(scope="module")
def model() -> tuple[Encoder, MaskedLM]:
    generator = torch.Generator().manual_seed(0)
    return Encoder(CONFIG, generator), MaskedLM(CONFIG, generator)


def test_losses_and_label_ids_equal_the_references(
    model: tuple[Encoder, MaskedLM], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Label 0 means that B follows A; the loss of BertForPreTraining is the sum of both means."""
    transformers = pytest.importorskip("transformers")
    from bertsmith.artifacts.folder import write_folder

    encoder, objective = model
    folder = tmp_path_factory.mktemp("written") / "model"
    parts = objective.export(encoder)["model"]
    write_folder(folder, parts.config, parts.modules)
    reference = transformers.BertForPreTraining.from_pretrained(folder, attn_implementation="eager").eval()

    batch = make_batch()
    packed = batch.packed
    labels = torch.full_like(packed.tokens, -100)
    labels[batch.rows] = batch.labels
    mask = packed.pad(torch.ones_like(packed.tokens))
    padded = {
        "input_ids": packed.pad(packed.tokens),
        "attention_mask": mask,
        "token_type_ids": packed.pad(packed.segments),
        "labels": packed.pad(labels, fill=-100),
    }
    with torch.inference_mode():
        loss = objective.loss(encoder, batch)
    mlm, nsp = (float(loss.sums[part]) / loss.counts[part] for part in ("mlm", "nsp"))
    with torch.inference_mode():
        expected = float(reference(**padded, next_sentence_label=batch.pair_labels).loss)
        swapped = float(reference(**padded, next_sentence_label=1 - batch.pair_labels).loss)
    assert mlm + nsp == pytest.approx(expected, abs=1e-5)
    assert abs(mlm + nsp - swapped) > 1e-2


def test_a_batch_without_masked_tokens_has_a_finite_loss(model: tuple[Encoder, MaskedLM]) -> None:
    encoder, objective = model
    batch = make_batch()
    empty = MaskedBatch(batch.packed, batch.rows[:0], batch.labels[:0], batch.pair_labels, 0, 0)
    total = objective.loss(encoder, empty).reduce(empty.counts)
    assert math.isfinite(total.item())
    torch.autograd.backward(total)
    assert all(p.grad is None or p.grad.isfinite().all() for p in objective.parameters())


def test_losses_of_an_untrained_model() -> None:
    """The losses start at ln V and ln 2."""
    config = CONFIG.model_copy(update={"initializer_range": 0.02})
    generator = torch.Generator().manual_seed(0)
    encoder, objective = Encoder(config, generator).eval(), MaskedLM(config, generator).eval()
    with torch.inference_mode():
        values = evaluate(encoder, objective, [make_batch(), make_batch(3)])
    assert values["mlm_loss"] == pytest.approx(math.log(50), abs=0.05)
    assert values["nsp_loss"] == pytest.approx(math.log(2), abs=0.01)


def test_metrics_are_means_over_all_batches(model: tuple[Encoder, MaskedLM]) -> None:
    encoder, objective = model
    batches = [make_batch(2), make_batch(9)]
    with torch.inference_mode():
        values = evaluate(encoder, objective, batches)
        losses = [objective.loss(encoder, batch) for batch in batches]
        table = encoder.embeddings.token.weight
        logits = [objective.masked(encoder(b.packed)[b.rows], table) for b in batches]
    for part in ("mlm", "nsp"):
        mean = sum(float(loss.sums[part]) for loss in losses) / sum(loss.counts[part] for loss in losses)
        assert values[f"{part}_loss"] == pytest.approx(mean, rel=1e-6)
    correct = sum(int((mlm.argmax(-1) == b.labels).sum()) for mlm, b in zip(logits, batches, strict=True))
    assert values["mlm_accuracy"] == correct / sum(len(b.labels) for b in batches)
    assert values["mlm_perplexity"] == pytest.approx(math.exp(values["mlm_loss"]))


def test_without_a_sentence_task_there_is_no_pair_head() -> None:
    generator = torch.Generator().manual_seed(0)
    encoder, objective = Encoder(CONFIG, generator), MaskedLM(CONFIG, generator, "none")
    assert set(objective.export(encoder)["model"].modules) == {"encoder", "masked"}
    batch = make_batch(task="none")
    loss = objective.loss(encoder, batch)
    assert set(loss.sums) == set(loss.counts) == {"mlm"}
    torch.autograd.backward(loss.reduce(batch.counts))
    assert all(p.grad is not None for p in objective.parameters())
    with torch.inference_mode():
        assert set(evaluate(encoder, objective, [batch])) == {"mlm_loss", "mlm_accuracy", "mlm_perplexity"}


def test_sop_uses_the_pair_head(model: tuple[Encoder, MaskedLM]) -> None:
    encoder, objective = model
    order = MaskedLM(CONFIG, torch.Generator().manual_seed(0), "sop")
    order.load_state_dict(objective.state_dict())
    with torch.inference_mode():
        nsp, sop = objective.loss(encoder, make_batch()), order.loss(encoder, make_batch(task="sop"))
        values = evaluate(encoder, order, [make_batch(task="sop")])
    assert float(nsp.sums["nsp"]) == float(sop.sums["sop"])
    assert set(sop.sums) == {"mlm", "sop"}
    assert values["sop_loss"] == pytest.approx(float(sop.sums["sop"]) / 5, rel=1e-6)
    assert "sop_accuracy" in values
    assert "nsp_loss" not in values
