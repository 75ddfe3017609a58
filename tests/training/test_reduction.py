"""`objective.reduction`: what an update minimises of the predicted tokens' losses, their mean or their sum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tiny_run
from bertsmith.errors import InputError
from bertsmith.instances.batches import MaskedBatch, SyntheticStream
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.language_modeling import MaskedLM
from bertsmith.objectives.objective import objective_type
from bertsmith.objectives.settings import OBJECTIVES
from bertsmith.pretraining.run import pretrain

CONFIG = ModelConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
)  # fmt: skip


def logits_of(encoder: Encoder, objective: MaskedLM, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
    hidden = encoder(batch.packed)
    pairs = objective.pair(objective.pooler(hidden[batch.packed.first_token_rows]))
    return objective.masked(hidden[batch.rows], encoder.embeddings.token.weight), pairs


def test_the_sum_is_the_mean_times_the_number_of_predicted_tokens() -> None:
    """Over all batches of an update; what is asked of pairs stays a mean. Gradients are cross-entropy's own."""
    generator = torch.Generator().manual_seed(0)
    encoder, objective = Encoder(CONFIG, generator), MaskedLM(CONFIG, generator)
    stream = SyntheticStream(50, 12, 0.3)
    batches = [stream.batch(0, 0, 3), stream.batch(0, 3, 8)]
    totals = {part: sum(batch.counts[part] for batch in batches) for part in ("mlm", "nsp")}
    assert totals["mlm"] != totals["nsp"]
    losses = [objective.loss(encoder, batch) for batch in batches]
    wanted = torch.zeros(())
    for batch in batches:
        mlm, pairs = logits_of(encoder, objective, batch)
        wanted = wanted + F.cross_entropy(mlm, batch.labels, reduction="sum")
        wanted = wanted + F.cross_entropy(pairs, batch.pair_labels, reduction="sum") / totals["nsp"]
    summed = torch.stack([loss.reduce(totals, sum_parts=("mlm",)) for loss in losses]).sum()
    torch.testing.assert_close(summed, wanted, atol=1e-4, rtol=1e-6)
    table = encoder.embeddings.token.weight
    ours, theirs = (torch.autograd.grad(value, table, retain_graph=True)[0] for value in (summed, wanted))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    means = torch.stack([Loss({"mlm": one.sums["mlm"]}, {}).reduce(totals) for one in losses]).sum()
    sums = torch.stack(
        [Loss({"mlm": one.sums["mlm"]}, {}).reduce(totals, sum_parts=("mlm",)) for one in losses]
    ).sum()
    torch.testing.assert_close(sums, means * totals["mlm"], atol=1e-4, rtol=1e-6)


def test_a_run_minimises_the_sum_and_logs_means(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    logs = {}
    for reduction in ("mean", "sum"):
        run = tiny_run.run(
            shards, tmp_path / reduction, f"objective.reduction={reduction}", "train.max_steps=1"
        )
        lines = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
        (logs[reduction],) = (line for line in lines if line["kind"] == "train")
    mean, total = logs["mean"], logs["sum"]
    assert total["mlm"] == mean["mlm"]
    assert total["nsp"] == mean["nsp"]
    assert mean["loss"] == pytest.approx(mean["mlm"] + mean["nsp"], rel=1e-6)
    predicted = (total["loss"] - total["nsp"]) / total["mlm"]
    assert predicted == pytest.approx(round(predicted), rel=1e-6)
    assert predicted > 8  # two batches of four
    assert total["gradient_norm"] > 4 * mean["gradient_norm"]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_objective_has_a_part_that_it_is_about(name: str) -> None:
    assert objective_type(name).perplexity_parts
    assert objective_type(name).summed_parts == ()


def test_a_sum_is_not_weighed_against_means(tmp_path: Path) -> None:
    more = ["data.instances=full_sentences", "data.sentence_task=none", "objective.reduction=sum"]
    with pytest.raises(InputError) as caught:
        pretrain(
            tiny_run.make_shards(tmp_path),
            tmp_path / "run",
            preset="electra-small-discriminator",
            settings=[*tiny_run.SETTINGS, "model.embedding_size=16", *more],
        )
    assert (caught.value.code, caught.value.argument) == ("reduction_not_applicable", "objective.reduction")
    assert not (tmp_path / "run").exists()
