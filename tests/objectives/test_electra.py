"""ELECTRA's objective against the reference's two models, and what reaches whom."""

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
from bertsmith.device import Place
from bertsmith.errors import InputError
from bertsmith.instances.batches import PairBatch
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.parameter_count import count_parameters
from bertsmith.objectives.electra import Replaced, ReplacedSettings, generator_config
from bertsmith.objectives.objective import GENERATOR, MODEL, held_out_figures, objective_of
from bertsmith.packed import Packed
from family_harness import transformers
from outcomes import killed_in

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
ELECTRA = "electra-small-discriminator"
TINY = ("model.hidden_size=32", "model.num_attention_heads=4", "model.embedding_size=16", "train.max_steps=6")


def made(size: float = 0.5, **sizes: object) -> tuple[Encoder, Replaced]:
    config = preset(ELECTRA, **{**SMALL, **sizes})
    generator = torch.Generator().manual_seed(3)
    encoder = build_encoder(config, generator)
    return encoder, Replaced(encoder, generator, ReplacedSettings(generator_size=size))


def a_batch(sequences: int = 5, first: int = 0) -> PairBatch:
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(6, 30, (sequences,), generator=draw).tolist()
    tokens = [torch.randint(5, 60, (n,), generator=draw).tolist() for n in lengths]
    packed = Packed.of_lists(tokens, [[0] * n for n in lengths])
    rows = torch.randperm(sum(lengths), generator=draw)[: sum(lengths) // 4].sort().values
    labels = torch.randint(5, 60, (len(rows),), generator=draw)
    return PairBatch(packed, rows, labels, labels[:0], 0, first, "none")


def test_generators_have_the_published_sizes() -> None:
    """Spec 2.8: a quarter of small, a third of base, a quarter of large, with the masked head."""
    for size, share, total in (
        ("small", 1 / 4, 4_620_026),
        ("base", 1 / 3, 33_740_602),
        ("large", 1 / 4, 51_295_290),
    ):
        config = generator_config(preset(f"electra-{size}-discriminator"), share)
        assert sum(term.size for term in count_parameters(config, ["masked"])) == total
    assert generator_config(preset("electra-base-discriminator"), 1 / 3) == preset("electra-base-generator")


def test_both_losses_are_the_references(tmp_path: Path) -> None:
    """The reference's generator and discriminator on the same tokens: the guesses are ours, all else its own."""
    library = transformers()
    encoder, objective = made()
    for name, parts in objective.folders(encoder).items():
        write_folder(tmp_path / name, parts.config, parts.modules)
    generator = library.ElectraForMaskedLM.from_pretrained(tmp_path / GENERATOR).eval()
    discriminator = library.ElectraForPreTraining.from_pretrained(tmp_path / MODEL).eval()
    batch = a_batch()
    packed = batch.packed
    objective.eval(), encoder.eval()
    found = objective.loss(encoder, batch)
    mask = packed.pad(torch.ones_like(packed.tokens))
    labels = torch.full_like(packed.tokens, -100)
    labels[batch.rows] = batch.labels
    with torch.no_grad():
        theirs = generator(packed.pad(packed.tokens), attention_mask=mask, labels=packed.pad(labels, -100))
        rows = objective.generator(packed)[batch.rows]
        guesses = objective._guesses(rows, encoder.embeddings.token.weight, batch)
        tokens, wanted = packed.tokens.clone(), torch.zeros_like(packed.tokens)
        tokens[batch.rows], wanted[batch.rows] = guesses, (guesses != batch.labels).long()
        told = discriminator(packed.pad(tokens), attention_mask=mask, labels=packed.pad(wanted))
    torch.testing.assert_close(found.sums["mlm"] / len(batch.rows), theirs.loss, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.sums["replaced"] / batch.tokens, told.loss, atol=1e-5, rtol=0)
    right = ((told.logits > 0) == packed.pad(wanted).bool())[mask.bool()].sum()
    assert found.right["replaced"] == right
    assert found.counts == {"mlm": len(batch.rows), "replaced": batch.tokens}


def test_a_token_guessed_right_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, objective = made()
    batch = a_batch()
    whole = batch.packed.tokens.clone()
    whole[batch.rows] = batch.labels
    monkeypatch.setattr(objective, "_guesses", lambda rows, table, batch: batch.labels)
    found = objective.loss(encoder, batch)
    scores = objective.detector(encoder(replace(batch.packed, tokens=whole)))
    none = F.binary_cross_entropy_with_logits(scores, torch.zeros_like(scores), reduction="sum")
    assert torch.equal(found.sums["replaced"], none)


def test_nothing_reaches_the_generator_through_its_guesses() -> None:
    """But through the tables, which both have."""
    encoder, objective = made()
    objective.loss(encoder, a_batch()).sums["replaced"].backward()
    of_generator = [*objective.generator.blocks.parameters(), *objective.masked.parameters()]
    assert all(weight.grad is None for weight in of_generator)
    assert encoder.embeddings.token.weight.grad is not None
    for weight in (*encoder.parameters(), *objective.detector.parameters()):
        assert weight.grad is not None
        weight.grad = None
    objective.loss(encoder, a_batch()).sums["mlm"].backward()
    assert all(weight.grad is not None for weight in of_generator)
    assert all(weight.grad is None for weight in encoder.blocks.parameters())


def test_guesses_are_drawn_from_what_the_generator_expects() -> None:
    encoder, objective = made()
    table = encoder.embeddings.token.weight
    row = torch.randn(1, objective.generator.config.hidden_size, generator=torch.Generator().manual_seed(2))
    batch = a_batch()
    with torch.no_grad():
        shares = objective.masked(row, table)[0].softmax(-1).numpy()
    drawn = objective._guesses(row.expand(20_000, -1), table, batch)
    times = np.bincount(drawn.numpy(), minlength=60)
    expected = 20_000 * shares
    assert (
        float(((times - expected) ** 2 / np.maximum(expected, 1e-9))[expected > 5].sum()) < 100
    )  # 59 degrees
    assert torch.equal(drawn, objective._guesses(row.expand(20_000, -1), table, batch))
    assert not torch.equal(drawn, objective._guesses(row.expand(20_000, -1), table, a_batch(first=5)))


def test_judging_moves_no_state_of_the_training() -> None:
    encoder, objective = made(hidden_dropout_prob=0.1)
    before = encoder.generator.get_state()
    place = Place.of("cpu", "fp32")
    objective.eval(), encoder.eval()
    first = held_out_figures(objective, encoder, [a_batch()], place)
    assert torch.equal(encoder.generator.get_state(), before)
    assert first == held_out_figures(objective, encoder, [a_batch()], place)
    assert first.keys() >= {"mlm_loss", "mlm_perplexity", "replaced_loss", "replaced_accuracy"}


def test_a_preset_is_trained_so_and_leaves_both_models(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    settings = [*tiny_run.SETTINGS, *TINY]
    model = bs.pretrain(shards, tmp_path / "run", preset=ELECTRA, settings=settings, generator_size=0.5)
    assert model.report["objective"] == "replaced"
    assert {"mlm_loss", "replaced_loss", "replaced_accuracy", "unigram_mlm_loss"} <= model.report[
        "held_out"
    ].keys()
    with pytest.raises(InputError, match="no masked-LM head") as caught:
        model.fill_mask("kaba [MASK]")
    generator = bs.load(tmp_path / "run" / GENERATOR)
    assert caught.value.remedy == f"its generator has one: {generator.path}"
    assert len(generator.fill_mask("kaba [MASK]")[0]) == 5
    assert generator.folder.config.hidden_size == 16
    tables = [m.encoder.embeddings.token.weight for m in (model, generator)]
    assert torch.equal(*tables)
    library = transformers()
    for folder, kind in ((MODEL, "ElectraForPreTraining"), (GENERATOR, "ElectraForMaskedLM")):
        _, report = getattr(library, kind).from_pretrained(
            tmp_path / "run" / folder, output_loading_info=True
        )
        assert {key: list(found) for key, found in report.items() if found} == {}


def test_a_run_is_replaced_with_its_generator(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    settings = [*tiny_run.SETTINGS, *TINY, "train.max_steps=1"]
    for seed in (0, 1):
        run = bs.pretrain(
            shards,
            tmp_path / "run",
            preset=ELECTRA,
            settings=[*settings, f"train.seed={seed}"],
            overwrite=True,
        )
    assert (run.path / GENERATOR / "model.safetensors").exists()


def test_it_resumes_to_the_bit(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    settings = [*tiny_run.SETTINGS, *TINY, "train.checkpoint_every=2"]

    def trained(out: str, *, resume: bool = False) -> bs.Model:
        return bs.pretrain(shards, tmp_path / out, preset=ELECTRA, settings=settings, resume=resume)

    straight = trained("straight")
    with killed_in(5):
        trained("resumed")
    resumed = trained("resumed", resume=True)
    for file in ("log.jsonl", "model/model.safetensors", "generator/model.safetensors"):
        assert (straight.path / file).read_bytes() == (resumed.path / file).read_bytes()


def test_a_model_shows_what_it_was_trained_with(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    settings = [*tiny_run.SETTINGS, *TINY]
    model = bs.pretrain(shards, tmp_path / "run", preset=ELECTRA, settings=settings)
    generator = bs.load(tmp_path / "run" / GENERATOR)
    assert [objective_of(one.folder.config, one.folder.parts) for one in (model, generator)] == [
        "replaced",
        "mlm_nsp",
    ]
    said: list[str] = []
    few = [one for one in tiny_run.SETTINGS if not one.startswith(("model.", "start."))]
    again = bs.pretrain(
        shards, tmp_path / "again", model=model, settings=[*few, "train.max_steps=2"], tell=said.append
    )
    assert again.report["objective"] == "replaced"
    assert not any("starts anew" in line for line in said)
    still = bs.pretrain(
        shards,
        tmp_path / "still",
        model=model,
        settings=[*few, "train.max_steps=1", "train.learning_rate=1e-30"],
    )
    assert same_weights(bs.load(still.path / GENERATOR), generator)
    (tmp_path / "moved").mkdir()
    shutil.copytree(model.model_folder, tmp_path / "moved" / "model")
    bs.pretrain(
        shards,
        tmp_path / "alone",
        model=tmp_path / "moved",
        settings=[*few, "train.max_steps=1"],
        tell=said.append,
    )
    assert any("is not there: the generator beside the model starts anew" in line for line in said)


def test_a_generator_from_elsewhere_is_gone_on_with(tmp_path: Path) -> None:
    """Published pairs stand in two folders that know nothing of each other."""
    shards = tiny_run.make_shards(tmp_path)
    settings = [*tiny_run.SETTINGS, *TINY]
    model = bs.pretrain(shards, tmp_path / "run", preset=ELECTRA, settings=settings)
    for folder in (MODEL, GENERATOR):
        shutil.copytree(model.path / folder, tmp_path / "published" / f"electra-{folder}")
    few = [one for one in tiny_run.SETTINGS if not one.startswith(("model.", "start."))]
    still = [*few, "train.max_steps=1", "train.learning_rate=1e-30"]

    def taken_further(out: str, *more: str, base: Path | None) -> bs.Model:
        return bs.pretrain(shards, tmp_path / out, model=base, settings=[*still, *more])

    base, named = tmp_path / "published" / "electra-model", tmp_path / "published" / "electra-generator"
    again = taken_further("again", f"objective.generator={named}", base=base)
    assert same_weights(bs.load(again.path / GENERATOR), bs.load(named))
    with pytest.raises(InputError, match=r"objective\.generator=.*: its hidden_size is 8, and this run's"):
        taken_further("wide", f"objective.generator={named}", "objective.generator_size=1", base=base)
    with pytest.raises(InputError, match="neither a run nor a model"):
        taken_further("none", f"objective.generator={tmp_path / 'published'}", base=base)
    with pytest.raises(InputError, match="goes on beside the model"):
        bs.pretrain(
            shards, tmp_path / "new", preset=ELECTRA, settings=[*settings, f"objective.generator={named}"]
        )
    assert not any((tmp_path / name).exists() for name in ("wide", "none", "new"))
    shutil.move(named, tmp_path / "put away")  # a run that has begun has the generator in its checkpoint
    further = bs.pretrain(shards, again.path, resume=True, settings=["train.max_steps=2"])
    assert further.report["steps"] == 2
    within = taken_further("within", f"objective.generator={model.path}", base=base)
    assert same_weights(bs.load(within.path / GENERATOR), bs.load(tmp_path / "put away"))
    other = bs.pretrain(shards, tmp_path / "other", preset=ELECTRA, settings=[*settings, "train.seed=7"])
    with pytest.raises(InputError, match="has other embeddings"):
        taken_further("mixed", f"objective.generator={other.path}", base=base)


def same_weights(a: bs.Model, b: bs.Model) -> bool:
    own = [one.folder.encoder(torch.Generator()).state_dict() for one in (a, b)]
    return all(torch.allclose(own[0][name], own[1][name], atol=1e-6) for name in own[1])


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        (ELECTRA, ["data.instances=segment_pair", "data.sentence_task=nsp"], "asks nothing of pairs"),
        (
            "bert-tiny-uncased",
            ["objective.name=replaced", "data.sentence_task=none"],
            "bert has no class with these",
        ),
        (ELECTRA, ["objective.generator_size=2"], "generator_size"),
    ],
)
def test_what_it_cannot_do_is_refused(name: str, more: list[str], said: str, tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    with pytest.raises(InputError, match=said):
        bs.pretrain(shards, tmp_path / "run", preset=name, settings=[*tiny_run.SETTINGS, *more])
    assert not (tmp_path / "run" / "checkpoints").exists()
