"""Left to right: against the reference's class for it, and nobody sees what comes."""

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
from bertsmith.instances.batches import PairBatch
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.heads import SentenceHead
from bertsmith.objectives.causal_lm import Causal
from bertsmith.objectives.objective import objective_of
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
CAUSAL = ("objective.name=causal", "data.instances=full_sentences", "data.sentence_task=none")


def made() -> tuple[Encoder, Causal]:
    config = preset("bert-tiny-uncased", **SMALL)
    generator = torch.Generator().manual_seed(3)
    return build_encoder(config, generator), Causal(config, generator)


def a_batch(lengths: tuple[int, ...] = (7, 13, 1, 29, 13)) -> PairBatch:
    draw = torch.Generator().manual_seed(1)
    whole = [torch.randint(5, 60, (n,), generator=draw).tolist() for n in lengths]
    packed = Packed.of_lists(whole, [[0] * n for n in lengths])
    rows = torch.arange(2, sum(lengths), 5)
    labels = packed.tokens[rows].clone()
    packed.tokens[rows] = 4  # masked
    return PairBatch(packed, rows, labels, labels[:0], 0, 0, "none")


def test_loss_and_gradients_are_the_references(tmp_path: Path) -> None:
    """BertLMHeadModel, which shifts the labels itself; it is opened from our folder."""
    encoder, objective = made()
    config = encoder.config
    write_folder(tmp_path / "m", config, {"encoder": encoder, "masked": objective.masked})
    other, report = transformers().BertLMHeadModel.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert {key: list(found) for key, found in report.items() if found} == {}
    assert type(other).__name__ == read_folder(tmp_path / "m").architecture
    assert other.config.is_decoder
    batch = a_batch()
    whole = batch.unmasked
    found = objective.loss(encoder, batch)
    mask = whole.pad(torch.ones_like(whole.tokens))
    their = other(whole.pad(whole.tokens), attention_mask=mask, labels=whole.pad(whole.tokens, -100)).loss
    assert found.counts == {"lm": sum(n - 1 for n in whole.lengths)}
    torch.testing.assert_close(found.sums["lm"] / found.counts["lm"], their, atol=1e-5, rtol=0)
    (found.sums["lm"] / found.counts["lm"]).backward()
    their.backward()
    for name in ("encoder.layer.0.output.dense.weight", "embeddings.position_embeddings.weight"):
        wanted = dict(other.bert.named_parameters())[name].grad
        ours = {
            "encoder.layer.0.output.dense.weight": encoder.blocks[0].feed_forward.output.weight,
            "embeddings.position_embeddings.weight": encoder.embeddings.position.weight,
        }[name].grad
        torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=1e-5)


def test_what_comes_behind_changes_nothing() -> None:
    encoder, _ = made()
    packed = a_batch().packed
    with torch.no_grad():
        before = encoder.eval()(packed)
        changed = packed.tokens.clone()
        last = packed.last_rows
        changed[last] = 5 + (changed[last] + 1) % 50
        after = encoder(Packed(changed, packed.segments, packed.positions, packed.starts, packed.lengths))
    kept = torch.ones(len(changed), dtype=torch.bool)
    kept[last] = False
    assert torch.equal(before[kept], after[kept])
    assert not torch.equal(before[last], after[last])


def test_backwards_is_forwards_in_a_mirror() -> None:
    """The same weights on mirrored sequences, with their positions: states, loss and gradients."""
    encoder, objective = made()
    back = build_encoder(encoder.config.model_copy(update={"backwards": True}), torch.Generator())
    back.load_state_dict(encoder.state_dict())
    head = Causal(back.config, torch.Generator())
    head.load_state_dict(objective.state_dict())
    batch = a_batch()
    whole = batch.unmasked
    order = torch.cat([torch.arange(b - 1, a - 1, -1) for a, b in pairwise(whole.starts.tolist())])
    mirrored = Packed(
        whole.tokens[order], whole.segments[order], whole.positions[order], whole.starts, whole.lengths
    )
    torch.testing.assert_close(back(mirrored)[order], encoder(whole), atol=1e-5, rtol=0)
    found = objective.loss(encoder, batch)
    empty = torch.empty(0, dtype=torch.long)
    theirs = head.loss(back, PairBatch(mirrored, empty, empty, empty, 0, 0, "none"))
    assert theirs.counts == found.counts
    torch.testing.assert_close(theirs.sums["lm"], found.sums["lm"], atol=1e-3, rtol=1e-6)
    found.sums["lm"].backward()
    theirs.sums["lm"].backward()
    for (name, mine), other in zip(encoder.named_parameters(), back.parameters(), strict=True):
        torch.testing.assert_close(
            other.grad, mine.grad, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_backwards_run_scores_fine_tunes_and_is_opened_by_no_other_tool(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    model = tiny_run.run(shards, tmp_path / "run", *CAUSAL, "model.backwards=true", "train.max_steps=4")
    assert model.folder.config.backwards
    with pytest.raises(InputError, match="reads from right to left"):
        model.fill_mask("kaba [MASK]")
    with pytest.raises(ValueError, match="bertsmith-bert"):
        transformers().AutoModel.from_pretrained(model.folder.path)
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    few = ["train.max_steps=4", "train.threads=1", "train.precision=fp32", "train.batch_size=4"]
    moods = bs.finetune("classify", model, tmp_path / "moods", train=rows, dev=rows, settings=few)
    assert moods.folder.config.backwards
    texts = ["kaba lode", "mi so", "kaba lode mide nugi soba"]
    alone = [moods.predict([text])[0]["score"] for text in texts]
    assert [one["score"] for one in moods.predict(texts)] == pytest.approx(alone, abs=1e-5)
    with pytest.raises(InputError, match="backwards turns the direction of a causal model"):
        tiny_run.run(shards, tmp_path / "no", "model.backwards=true", "train.max_steps=2")


def test_a_run_leaves_a_model_that_reads_so(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    model = tiny_run.run(shards, tmp_path / "run", *CAUSAL, "train.max_steps=6")
    assert model.folder.config.causal
    assert model.folder.architecture == "BertLMHeadModel"
    held = model.report["held_out"]
    assert held["lm_perplexity"] == pytest.approx(math.exp(held["lm_loss"]))
    assert held["unigram_lm_loss"] > 0
    assert objective_of(model.folder.config, model.folder.parts) == "causal"
    again = tiny_run.run(shards, tmp_path / "run", *CAUSAL, "train.max_steps=6", resume=True)
    assert again.folder.weights_digest() == model.folder.weights_digest()
    with pytest.raises(InputError, match="reads from left to right"):
        model.fill_mask("kaba [MASK]")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ("objective.name=causal", "data.sentence_task=nsp", "data.instances=segment_pair"),
            "asks nothing of pairs",
        ),
        ((*CAUSAL, "model.causal=false"), "model.causal is False, and the objective 'causal'"),
        (("model.causal=true",), "model.causal is True, and the objective 'mlm_nsp'"),
    ],
)
def test_what_does_not_fit_is_refused(more: tuple[str, ...], said: str, tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    with pytest.raises(InputError, match=said):
        tiny_run.run(shards, tmp_path / "run", *more, "train.max_steps=2")


def test_its_data_goes_with_it_and_with_what_continues_it(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    model = tiny_run.run(shards, tmp_path / "run", "objective.name=causal", "train.max_steps=2")
    few = [one for one in tiny_run.SETTINGS if not one.startswith(("model.", "start."))]
    more = bs.pretrain(shards, tmp_path / "more", model=model, settings=[*few, "train.max_steps=2"])
    for made in (model, more):
        assert made.report["objective"] == "causal"
        own = yaml.safe_load((made.path / "settings.yaml").read_text(encoding="utf-8"))["data"]
        assert (own["instances"], own["sentence_task"]) == ("full_sentences", "none")


def test_a_head_that_reads_the_first_token_of_such_a_model_is_refused(tmp_path: Path) -> None:
    """The reference writes them; their answers depend on nothing but that token."""
    encoder, _ = made()
    config = encoder.config
    head = SentenceHead(config, torch.Generator(), 2)
    other = {"architecture": "BertForSequenceClassification"}
    path = write_folder(tmp_path / "m", config, {"encoder": encoder, **head.parts}, **other)
    with pytest.raises(InputError, match="reads the first token, which sees no other"):
        read_folder(path)


def test_a_classifier_reads_the_last_token(tmp_path: Path) -> None:
    """The first sees nothing of the text; and the constraint is kept in fine-tuning."""
    shards = tiny_run.make_shards(tmp_path)
    base = tiny_run.run(shards, tmp_path / "run", *CAUSAL, "train.max_steps=2")
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    few = ["train.max_steps=4", "train.threads=1", "train.precision=fp32", "train.batch_size=4"]
    model = bs.finetune("classify", base, tmp_path / "moods", train=rows, dev=rows, settings=few)
    assert model.folder.config.causal
    assert model.folder.architecture == "BertForLastTokenSequenceClassification"
    again = bs.load(tmp_path / "moods").predict(["kaba lode mi", "kaba lode"])
    assert again[0]["scores"] != again[1]["scores"]
