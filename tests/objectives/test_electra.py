"""Test ELECTRA's objective: losses against transformers, gradients, sampling, and runs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import write_folder
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.instances.batches import MaskedBatch
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.parameter_count import count_parameters
from bertsmith.objectives.electra import Electra, generator_config
from bertsmith.objectives.objective import GENERATOR, MODEL, evaluate_objective, infer_objective
from bertsmith.objectives.settings import ElectraSettings
from bertsmith.packed import Packed
from family_harness import transformers
from run_equality import killed_in

SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "embedding_size": 12,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
PRESET = "electra-small-discriminator"
TINY = ("model.hidden_size=32", "model.num_attention_heads=4", "model.embedding_size=16", "train.max_steps=6")


def build_model(size: float = 0.5, **sizes: object) -> tuple[Encoder, Electra]:
    config = preset(PRESET, **{**SMALL, **sizes})
    generator = torch.Generator().manual_seed(3)
    encoder = build_encoder(config, generator)
    return encoder, Electra(encoder, generator, ElectraSettings(generator_size=size))


def make_batch(sequences: int = 5, first: int = 0) -> MaskedBatch:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(6, 30, (sequences,), generator=generator).tolist()
    tokens = [torch.randint(5, 60, (n,), generator=generator).tolist() for n in lengths]
    packed = Packed.from_lists(tokens, [[0] * n for n in lengths])
    rows = torch.randperm(sum(lengths), generator=generator)[: sum(lengths) // 4].sort().values
    labels = torch.randint(5, 60, (len(rows),), generator=generator)
    return MaskedBatch(packed, rows, labels, labels[:0], 0, first, "none")


def test_generators_have_the_published_sizes() -> None:
    """The published generators have 1/4, 1/3, and 1/4 of the size of small, base, and large."""
    for name, size, total in (
        ("small", 1 / 4, 4_620_026),
        ("base", 1 / 3, 33_740_602),
        ("large", 1 / 4, 51_295_290),
    ):
        config = generator_config(preset(f"electra-{name}-discriminator"), size)
        assert sum(term.size for term in count_parameters(config, ["masked"])) == total
    assert generator_config(preset("electra-base-discriminator"), 1 / 3) == preset("electra-base-generator")


def test_losses_equal_the_references(tmp_path: Path) -> None:
    """Run transformers' generator and discriminator on the same sampled tokens."""
    library = transformers()
    encoder, objective = build_model()
    for name, parts in objective.export(encoder).items():
        write_folder(tmp_path / name, parts.config, parts.modules)
    generator = library.ElectraForMaskedLM.from_pretrained(tmp_path / GENERATOR).eval()
    discriminator = library.ElectraForPreTraining.from_pretrained(tmp_path / MODEL).eval()
    batch = make_batch()
    packed = batch.packed
    objective.eval(), encoder.eval()
    loss = objective.loss(encoder, batch)
    mask = packed.pad(torch.ones_like(packed.tokens))
    labels = torch.full_like(packed.tokens, -100)
    labels[batch.rows] = batch.labels
    with torch.no_grad():
        generator_output = generator(
            packed.pad(packed.tokens), attention_mask=mask, labels=packed.pad(labels, -100)
        )
        hidden = objective.generator(packed)[batch.rows]
        samples = objective._sample(hidden, encoder.embeddings.token.weight, batch)
        tokens, is_replaced = packed.tokens.clone(), torch.zeros_like(packed.tokens)
        tokens[batch.rows], is_replaced[batch.rows] = samples, (samples != batch.labels).long()
        output = discriminator(packed.pad(tokens), attention_mask=mask, labels=packed.pad(is_replaced))
    torch.testing.assert_close(loss.sums["mlm"] / len(batch.rows), generator_output.loss, atol=1e-5, rtol=0)
    torch.testing.assert_close(loss.sums["replaced"] / batch.tokens, output.loss, atol=1e-5, rtol=0)
    correct = ((output.logits > 0) == packed.pad(is_replaced).bool())[mask.bool()].sum()
    assert loss.num_correct["replaced"] == correct
    assert loss.counts == {"mlm": len(batch.rows), "replaced": batch.tokens}


def test_a_sample_that_equals_the_original_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, objective = build_model()
    batch = make_batch()
    original = batch.packed.tokens.clone()
    original[batch.rows] = batch.labels
    monkeypatch.setattr(objective, "_sample", lambda hidden, decoder_weight, batch: batch.labels)
    loss = objective.loss(encoder, batch)
    logits = objective.detector(encoder(replace(batch.packed, tokens=original)))
    expected = F.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits), reduction="sum")
    assert torch.equal(loss.sums["replaced"], expected)


def test_no_gradient_flows_through_the_samples() -> None:
    """Gradients reach the generator only through the shared embeddings."""
    encoder, objective = build_model()
    objective.loss(encoder, make_batch()).sums["replaced"].backward()
    generator_weights = [*objective.generator.blocks.parameters(), *objective.masked.parameters()]
    assert all(weight.grad is None for weight in generator_weights)
    assert encoder.embeddings.token.weight.grad is not None
    for weight in (*encoder.parameters(), *objective.detector.parameters()):
        assert weight.grad is not None
        weight.grad = None
    objective.loss(encoder, make_batch()).sums["mlm"].backward()
    assert all(weight.grad is not None for weight in generator_weights)
    assert all(weight.grad is None for weight in encoder.blocks.parameters())


def test_tokens_are_sampled_from_the_generators_distribution() -> None:
    encoder, objective = build_model()
    table = encoder.embeddings.token.weight
    hidden = torch.randn(
        1, objective.generator.config.hidden_size, generator=torch.Generator().manual_seed(2)
    )
    batch = make_batch()
    with torch.no_grad():
        probabilities = objective.masked(hidden, table)[0].softmax(-1).numpy()
    rows = hidden.expand(20_000, -1)
    samples = objective._sample(rows, table, batch)
    frequencies = np.bincount(samples.numpy(), minlength=60)
    expected = 20_000 * probabilities
    chi_squared = ((frequencies - expected) ** 2 / np.maximum(expected, 1e-9))[expected > 5].sum()
    assert float(chi_squared) < 100  # 59 degrees of freedom
    assert torch.equal(samples, objective._sample(rows, table, batch))
    assert not torch.equal(samples, objective._sample(rows, table, make_batch(first=5)))


def test_evaluation_changes_no_training_state() -> None:
    encoder, objective = build_model(hidden_dropout_prob=0.1)
    before = encoder.generator.get_state()
    context = ComputeContext.create("cpu", "fp32")
    objective.eval(), encoder.eval()
    first = evaluate_objective(objective, encoder, [make_batch()], context)
    assert torch.equal(encoder.generator.get_state(), before)
    assert first == evaluate_objective(objective, encoder, [make_batch()], context)
    assert first.keys() >= {"mlm_loss", "mlm_perplexity", "replaced_loss", "replaced_accuracy"}


def test_a_run_saves_discriminator_and_generator(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    settings = [*tiny_run.SETTINGS, *TINY]
    model = bs.pretrain(shards, tmp_path / "run", preset=PRESET, settings=settings, generator_size=0.5)
    assert model.report["objective"] == "replaced"
    assert {"mlm_loss", "replaced_loss", "replaced_accuracy", "unigram_mlm_loss"} <= model.report[
        "held_out"
    ].keys()
    with pytest.raises(InputError) as caught:
        model.fill_mask("kaba [MASK]")
    generator = bs.load(tmp_path / "run" / GENERATOR)
    assert caught.value.code == "no_masked_lm_head"
    assert generator.fill_mask("kaba [MASK]")
    assert len(generator.fill_mask("kaba [MASK]")[0]) == 5
    assert generator.folder.config.hidden_size == 16
    tables = [m.encoder.embeddings.token.weight for m in (model, generator)]
    assert torch.equal(*tables)
    library = transformers()
    for folder, architecture in ((MODEL, "ElectraForPreTraining"), (GENERATOR, "ElectraForMaskedLM")):
        _, report = getattr(library, architecture).from_pretrained(
            tmp_path / "run" / folder, output_loading_info=True
        )
        assert {key: list(names) for key, names in report.items() if names} == {}


def test_overwriting_a_run_replaces_its_generator(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    settings = [*tiny_run.SETTINGS, *TINY, "train.max_steps=1"]
    for seed in (0, 1):
        run = bs.pretrain(
            shards,
            tmp_path / "run",
            preset=PRESET,
            settings=[*settings, f"train.seed={seed}"],
            overwrite=True,
        )
    assert (run.path / GENERATOR / "model.safetensors").exists()


def test_resuming_is_bit_exact(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    settings = [*tiny_run.SETTINGS, *TINY, "train.save_steps=2"]

    def train(out: str, *, resume: bool = False) -> bs.Model:
        return bs.pretrain(shards, tmp_path / out, preset=PRESET, settings=settings, resume=resume)

    straight = train("straight")
    with killed_in(5):
        train("resumed")
    resumed = train("resumed", resume=True)
    for file in ("log.jsonl", "model/model.safetensors", "generator/model.safetensors"):
        assert (straight.path / file).read_bytes() == (resumed.path / file).read_bytes()


def test_the_objective_is_inferred_from_a_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards = tiny_run.make_shards(tmp_path)
    settings = [*tiny_run.SETTINGS, *TINY]
    model = bs.pretrain(shards, tmp_path / "run", preset=PRESET, settings=settings)
    generator = bs.load(tmp_path / "run" / GENERATOR)
    assert [infer_objective(m.folder.config, m.folder.parts) for m in (model, generator)] == [
        "replaced",
        "mlm_nsp",
    ]
    caplog.clear()
    base_settings = [s for s in tiny_run.SETTINGS if not s.startswith(("model.", "start."))]
    again = bs.pretrain(
        shards, tmp_path / "again", model=model, settings=[*base_settings, "train.max_steps=2"]
    )
    assert again.report["objective"] == "replaced"
    assert not any("a new one is trained" in message for message in caplog.messages)
    still = bs.pretrain(
        shards,
        tmp_path / "still",
        model=model,
        settings=[*base_settings, "train.max_steps=1", "train.learning_rate=1e-30"],
    )
    assert same_weights(bs.load(still.path / GENERATOR), generator)
    (tmp_path / "moved").mkdir()
    shutil.copytree(model.model_folder, tmp_path / "moved" / "model")
    bs.pretrain(
        shards, tmp_path / "alone", model=tmp_path / "moved", settings=[*base_settings, "train.max_steps=1"]
    )
    assert any("generator of this model; a new one is trained" in line for line in caplog.messages)
    other = bs.pretrain(
        shards, tmp_path / "other", preset=PRESET, settings=[*settings, "train.seed=7", "train.max_steps=1"]
    )
    shutil.copytree(other.path / GENERATOR, tmp_path / "moved" / GENERATOR)
    caplog.clear()
    bs.pretrain(
        shards, tmp_path / "mixed", model=tmp_path / "moved", settings=[*base_settings, "train.max_steps=1"]
    )
    assert any("generator of this model; a new one is trained" in line for line in caplog.messages)


def same_weights(a: bs.Model, b: bs.Model) -> bool:
    weights_a, weights_b = (model.folder.encoder(torch.Generator()).state_dict() for model in (a, b))
    return all(torch.allclose(weights_a[name], weights_b[name], atol=1e-6) for name in weights_b)


@pytest.mark.parametrize(
    ("name", "settings", "pattern"),
    [
        (PRESET, ["data.instances=segment_pair", "data.sentence_task=nsp"], r"data\.sentence_task"),
        ("bert-tiny-uncased", ["objective.name=replaced", "data.sentence_task=none"], "detector"),
        (PRESET, ["objective.generator_size=2"], "generator_size"),
    ],
)
def test_unsupported_settings_are_refused(
    name: str, settings: list[str], pattern: str, tmp_path: Path
) -> None:
    shards = tiny_run.make_shards(tmp_path)
    with pytest.raises(InputError, match=pattern):
        bs.pretrain(shards, tmp_path / "run", preset=name, settings=[*tiny_run.SETTINGS, *settings])
    assert not (tmp_path / "run" / "checkpoints").exists()
