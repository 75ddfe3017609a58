"""Test causal language modeling against transformers, in both directions, and in runs."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import read_folder, write_folder
from bertsmith.errors import InputError
from bertsmith.instances.batches import MaskedBatch
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.task_heads import SequenceClassificationHead
from bertsmith.objectives.language_modeling import CausalLM
from bertsmith.objectives.objective import infer_objective
from bertsmith.packed import Packed
from family_harness import transformers

SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "causal": True,
}
CAUSAL_SETTINGS = ("objective.name=causal", "data.instances=full_sentences", "data.sentence_task=none")


def build_model() -> tuple[Encoder, CausalLM]:
    config = preset("bert-tiny-uncased", **SMALL)
    generator = torch.Generator().manual_seed(3)
    return build_encoder(config, generator), CausalLM(config, generator)


def make_batch(lengths: tuple[int, ...] = (7, 13, 1, 29, 13)) -> MaskedBatch:
    generator = torch.Generator().manual_seed(1)
    token_lists = [torch.randint(5, 60, (n,), generator=generator).tolist() for n in lengths]
    packed = Packed.from_lists(token_lists, [[0] * n for n in lengths])
    rows = torch.arange(2, sum(lengths), 5)
    labels = packed.tokens[rows].clone()
    packed.tokens[rows] = 4  # [MASK]
    return MaskedBatch(packed, rows, labels, labels[:0], 0, 0, "none")


def test_loss_and_gradients_equal_the_references(tmp_path: Path) -> None:
    """The reference is BertLMHeadModel, which shifts the labels itself."""
    encoder, objective = build_model()
    config = encoder.config
    write_folder(tmp_path / "m", config, {"encoder": encoder, "masked": objective.masked})
    reference, report = transformers().BertLMHeadModel.from_pretrained(
        tmp_path / "m", output_loading_info=True
    )
    assert {key: list(names) for key, names in report.items() if names} == {}
    assert type(reference).__name__ == read_folder(tmp_path / "m").architecture
    assert reference.config.is_decoder
    batch = make_batch()
    packed = batch.unmasked
    loss = objective.loss(encoder, batch)
    mask = packed.pad(torch.ones_like(packed.tokens))
    labels = packed.pad(packed.tokens, -100)
    expected = reference(packed.pad(packed.tokens), attention_mask=mask, labels=labels).loss
    assert loss.counts == {"lm": sum(n - 1 for n in packed.lengths)}
    torch.testing.assert_close(loss.sums["lm"] / loss.counts["lm"], expected, atol=1e-5, rtol=0)
    (loss.sums["lm"] / loss.counts["lm"]).backward()
    expected.backward()
    for name in ("encoder.layer.0.output.dense.weight", "embeddings.position_embeddings.weight"):
        expected_grad = dict(reference.bert.named_parameters())[name].grad
        grad = {
            "encoder.layer.0.output.dense.weight": encoder.blocks[0].feed_forward.output.weight,
            "embeddings.position_embeddings.weight": encoder.embeddings.position.weight,
        }[name].grad
        torch.testing.assert_close(grad, expected_grad, atol=1e-5, rtol=1e-5)


def test_states_do_not_depend_on_later_tokens() -> None:
    encoder, _ = build_model()
    packed = make_batch().packed
    with torch.no_grad():
        before = encoder.eval()(packed)
        changed = packed.tokens.clone()
        last = packed.last_token_rows
        changed[last] = 5 + (changed[last] + 1) % 50
        after = encoder(Packed(changed, packed.segments, packed.positions, packed.cu_seqlens, packed.lengths))
    unchanged = torch.ones(len(changed), dtype=torch.bool)
    unchanged[last] = False
    assert torch.equal(before[unchanged], after[unchanged])
    assert not torch.equal(before[last], after[last])


def test_a_backwards_model_equals_a_forward_model_on_reversed_sequences() -> None:
    """Compare states, loss, and gradients with the same weights and positions."""
    encoder, objective = build_model()
    backwards = build_encoder(encoder.config.model_copy(update={"backwards": True}), torch.Generator())
    backwards.load_state_dict(encoder.state_dict())
    head = CausalLM(backwards.config, torch.Generator())
    head.load_state_dict(objective.state_dict())
    batch = make_batch()
    packed = batch.unmasked
    order = torch.cat([torch.arange(b - 1, a - 1, -1) for a, b in pairwise(packed.cu_seqlens.tolist())])
    reversed_ = Packed(
        packed.tokens[order],
        packed.segments[order],
        packed.positions[order],
        packed.cu_seqlens,
        packed.lengths,
    )
    torch.testing.assert_close(backwards(reversed_)[order], encoder(packed), atol=1e-5, rtol=0)
    loss = objective.loss(encoder, batch)
    empty = torch.empty(0, dtype=torch.long)
    backwards_loss = head.loss(backwards, MaskedBatch(reversed_, empty, empty, empty, 0, 0, "none"))
    assert backwards_loss.counts == loss.counts
    torch.testing.assert_close(backwards_loss.sums["lm"], loss.sums["lm"], atol=1e-3, rtol=1e-6)
    loss.sums["lm"].backward()
    backwards_loss.sums["lm"].backward()
    for (name, weight), other in zip(encoder.named_parameters(), backwards.parameters(), strict=True):
        torch.testing.assert_close(
            other.grad, weight.grad, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_backwards_model_is_fine_tuned_and_rejected_by_transformers(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    model = tiny_run.run(
        shards, tmp_path / "run", *CAUSAL_SETTINGS, "model.backwards=true", "train.max_steps=4"
    )
    assert model.folder.config.backwards
    with pytest.raises(InputError):
        model.fill_mask("kaba [MASK]")
    with pytest.raises(ValueError, match="bertsmith-bert"):
        transformers().AutoModel.from_pretrained(model.folder.path)
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    settings = ["train.max_steps=4", "train.threads=1", "train.precision=fp32", "train.batch_size=4"]
    moods = bs.finetune("classify", model, tmp_path / "moods", train=rows, validation=rows, settings=settings)
    assert moods.folder.config.backwards
    texts = ["kaba lode", "mi so", "kaba lode mide nugi soba"]
    scores = [moods.predict([text])[0].score for text in texts]
    assert [prediction.score for prediction in moods.predict(texts)] == pytest.approx(scores, abs=1e-5)
    with pytest.raises(InputError):
        tiny_run.run(shards, tmp_path / "no", "model.backwards=true", "train.max_steps=2")


def test_a_causal_run(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    model = tiny_run.run(shards, tmp_path / "run", *CAUSAL_SETTINGS, "train.max_steps=6")
    assert model.folder.config.causal
    assert model.folder.architecture == "BertLMHeadModel"
    metrics = model.report["held_out"]
    assert metrics["lm_perplexity"] == pytest.approx(math.exp(metrics["lm_loss"]))
    assert metrics["unigram_lm_loss"] > 0
    assert infer_objective(model.folder.config, model.folder.parts) == "causal"
    again = tiny_run.run(shards, tmp_path / "run", *CAUSAL_SETTINGS, "train.max_steps=6", resume=True)
    assert again.folder.weights_digest() == model.folder.weights_digest()
    with pytest.raises(InputError):
        model.fill_mask("kaba [MASK]")


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        (
            ("objective.name=causal", "data.sentence_task=nsp", "data.instances=segment_pair"),
            "data.sentence_task",
        ),
        ((*CAUSAL_SETTINGS, "model.causal=false"), "model.causal"),
        (("model.causal=true",), "model.causal"),
    ],
)
def test_conflicting_settings_are_refused(settings: tuple[str, ...], argument: str, tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    with pytest.raises(InputError, match=argument):
        tiny_run.run(shards, tmp_path / "run", *settings, "train.max_steps=2")


def test_its_data_settings_are_defaults_also_for_continued_runs(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    model = tiny_run.run(shards, tmp_path / "run", "objective.name=causal", "train.max_steps=2")
    settings = [setting for setting in tiny_run.SETTINGS if not setting.startswith(("model.", "start."))]
    continued = bs.pretrain(shards, tmp_path / "more", model=model, settings=[*settings, "train.max_steps=2"])
    for run in (model, continued):
        assert run.report["objective"] == "causal"
        data = yaml.safe_load((run.path / "settings.yaml").read_text(encoding="utf-8"))["data"]
        assert (data["instances"], data["sentence_task"]) == ("full_sentences", "none")


def test_a_causal_model_with_a_head_on_the_first_token_is_refused(tmp_path: Path) -> None:
    """transformers writes such models; their outputs depend only on that token."""
    encoder, _ = build_model()
    config = encoder.config
    head = SequenceClassificationHead(config, torch.Generator(), 2)
    parts = {"encoder": encoder, **head.parts}
    path = write_folder(tmp_path / "m", config, parts, architecture="BertForSequenceClassification")
    with pytest.raises(InputError):
        read_folder(path)


def test_a_classifier_reads_the_last_token(tmp_path: Path) -> None:
    """The first token attends to no other; attention stays causal in fine-tuning."""
    shards = tiny_run.make_shards(tmp_path)
    base = tiny_run.run(shards, tmp_path / "run", *CAUSAL_SETTINGS, "train.max_steps=2")
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    settings = ["train.max_steps=4", "train.threads=1", "train.precision=fp32", "train.batch_size=4"]
    model = bs.finetune("classify", base, tmp_path / "moods", train=rows, validation=rows, settings=settings)
    assert model.folder.config.causal
    assert model.folder.architecture == "BertForLastTokenSequenceClassification"
    predictions = bs.load(tmp_path / "moods").predict(["kaba lode mi", "kaba lode"])
    assert predictions[0].scores != predictions[1].scores
