"""Switches that no published BERT has: fixed positions, LayerNorm first, and an untied decoder.

Models with each of them train, resume bit for bit, and are saved and loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.errors import InputError
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.parameter_count import count_parameters
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.models.weight_init import sinusoidal_positions
from bertsmith.packed import Packed
from bertsmith.training import checkpoint
from family_harness import SMALL, transformers
from run_equality import Killed, assert_same, outcome

SWITCHES = [
    "model.position=sinusoidal",
    "model.position=none",
    "model.norm=pre",
    "model.tie_word_embeddings=false",
]


def encoder_with(name: str = "bert-base-uncased", **switches: Any) -> Encoder:
    return build_encoder(preset(name, **{**SMALL, **switches}), torch.Generator().manual_seed(3)).eval()


def test_sinusoids_equal_the_paper_and_rotate_with_the_distance() -> None:
    table = encoder_with(position="sinusoidal").embeddings.position
    assert not table.weight.requires_grad
    rows, size = table.weight.shape
    expected = torch.empty(rows, size, dtype=torch.float64)
    for i in range(size // 2):
        angle = torch.arange(rows, dtype=torch.float64) / 10_000 ** (2 * i / size)
        expected[:, 2 * i], expected[:, 2 * i + 1] = angle.sin(), angle.cos()
    torch.testing.assert_close(table.weight.double(), expected, atol=1e-5, rtol=0)
    assert table.weight[0].tolist() == [0, 1] * (size // 2)
    distance = 7  # each pair of columns is rotated by an angle that depends on the distance only
    for i in range(size // 2):
        angle = torch.tensor(distance / 10_000 ** (2 * i / size), dtype=torch.float64)
        rotation = torch.stack(
            [torch.stack([angle.cos(), angle.sin()]), torch.stack([-angle.sin(), angle.cos()])]
        )
        pair = expected[:, 2 * i : 2 * i + 2]
        torch.testing.assert_close(pair[distance:], pair[:-distance] @ rotation.T, atol=1e-6, rtol=0)


def test_sinusoids_start_at_the_first_position() -> None:
    config = preset("roberta-base", **{**SMALL, "position": "sinusoidal"})
    table = build_encoder(config, torch.Generator().manual_seed(3)).embeddings.position.weight
    assert not table[: config.position_offset].any()
    assert torch.equal(
        table[config.position_offset :], sinusoidal_positions(config.max_length, config.embedding_dim)
    )


@pytest.mark.parametrize(
    ("position", "is_equivariant"), [("none", True), ("learned", False), ("sinusoidal", False)]
)
def test_without_positions_outputs_are_shuffled_as_tokens_are(position: str, is_equivariant: bool) -> None:
    encoder = encoder_with(position=position)
    ids = torch.tensor([7, 3, 90, 41, 12, 7, 66])
    order = torch.tensor([4, 0, 6, 2, 1, 5, 3])
    plain, shuffled = (
        encoder(Packed.from_lists([tokens.tolist()], [[0] * 7])) for tokens in (ids, ids[order])
    )
    assert torch.allclose(shuffled, plain[order], atol=1e-6) == is_equivariant


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_decoder_shares_the_token_embeddings(tied: bool) -> None:
    config = preset("bert-base-uncased", **{**SMALL, "tie_word_embeddings": tied})
    encoder = build_encoder(config, torch.Generator().manual_seed(3))
    head = MaskedLMHead(config, encoder.generator)
    tokens = encoder.embeddings.token.weight
    assert (head.decoder_weight(tokens).data_ptr() == tokens.data_ptr()) == tied
    num_parameters = sum(weight.numel() for part in (encoder, head) for weight in part.parameters())
    assert sum(term.size for term in count_parameters(config, ("masked",))) == num_parameters
    hidden, labels = torch.randn(5, config.hidden_size), torch.tensor([1, 2, 3, 4, 5])
    head.loss(hidden, tokens, labels)[0].backward()
    assert (tokens.grad is not None) == tied
    if not tied:
        assert head.decoder is not None
        assert head.decoder.weight.grad is not None


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_run_resumes_bit_for_bit_and_its_model_is_loaded(
    switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = tiny_run.make_shards(tmp_path)
    steps = [switch, "train.max_steps=6", "train.save_steps=3"]
    model = tiny_run.run(shards, tmp_path / "uninterrupted", *steps)
    save = checkpoint.save

    def save_and_die(*arguments: Any) -> Path:
        save(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", save_and_die)
        with pytest.raises(Killed):
            tiny_run.run(shards, tmp_path / "interrupted", *steps)
    tiny_run.run(shards, tmp_path / "interrupted", *steps, resume=True)
    assert_same(tmp_path / "interrupted", outcome(tmp_path / "uninterrupted"))

    setting, value = switch.removeprefix("model.").split("=")
    assert str(getattr(model.encoder.config, setting)).lower() == value
    if setting == "position":
        table = read_folder(locate(model.path)).weights()["encoder.embeddings.position.weight"]
        expected = sinusoidal_positions(*table.shape) if value == "sinusoidal" else torch.zeros_like(table)
        assert torch.equal(table, expected)
    texts = ["kaba lode [MASK] soba", "mide nugi"]
    assert len(model.fill_mask(texts[0])[0]) > 0
    single_scores = [model.score([text])[0].score for text in texts]
    assert [result.score for result in model.score(texts)] == pytest.approx(single_scores, abs=1e-5)


@pytest.mark.parametrize(
    "switch", ["model.position=sinusoidal", "model.position=none", "model.tie_word_embeddings=false"]
)
def test_the_reference_loads_the_same_model(switch: str, tmp_path: Path) -> None:
    model = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "run", switch, "train.max_steps=2")
    library = transformers()
    reference = library.BertForPreTraining.from_pretrained(locate(model.path), attn_implementation="eager")
    ids = torch.tensor([[2, 9, 20, 4, 12, 3]])
    expected = reference.eval()(ids, output_hidden_states=True)
    hidden = model.encoder(Packed.from_lists(ids.tolist(), [[0] * 6]))
    torch.testing.assert_close(hidden, expected.hidden_states[-1][0], atol=1e-5, rtol=0)
    head = MaskedLMHead(model.encoder.config, torch.Generator())
    read_folder(locate(model.path)).load_into("masked", head)
    logits = head(hidden, model.encoder.embeddings.token.weight)
    torch.testing.assert_close(logits, expected.prediction_logits[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("switch", SWITCHES)
def test_fine_tuning_with_and_without_a_frozen_encoder(switch: str, tmp_path: Path) -> None:
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "run", switch, "train.max_steps=2")
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    settings = ["train.max_steps=6", "train.threads=1", "train.precision=fp32", "train.learning_rate=1e-2"]
    before = read_folder(locate(base.path)).weights()
    for name, extra in {"all": [], "frozen": ["train.freeze_encoder=true"]}.items():
        out = tmp_path / name
        bs.finetune("classify", base, out, train=rows, validation=rows, settings=[*settings, *extra])
        after = read_folder(locate(out)).weights()
        changed = {n for n, weight in after.items() if n in before and not torch.equal(weight, before[n])}
        assert ("encoder.embeddings.position.weight" in changed) == (
            "position" not in switch and name != "frozen"
        )
        assert ("encoder.embeddings.token.weight" in changed) == (name != "frozen")
        assert ("encoder.norm.weight" in changed) == (switch == "model.norm=pre" and name != "frozen")


def test_an_extended_vocabulary_has_rows_in_an_untied_decoder(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    base = tiny_run.run(shards, tmp_path / "run", "model.tie_word_embeddings=false", "train.max_steps=2")
    words = tmp_path / "words.txt"
    words.write_text("zzz\n", encoding="utf-8")
    try:
        report = bs.extend_tokenizer((), tmp_path / "grown", model=base.path, word_list=words)
    except InputError as error:
        pytest.fail(str(error))
    table = read_folder(tmp_path / "grown").weights()["masked.decoder.weight"]
    assert len(table) == report["vocab_size"] == len(tiny_run.TOKENS) + 1
    assert torch.equal(table[:-1], read_folder(locate(base.path)).weights()["masked.decoder.weight"])


def test_models_without_positions_refuse_initial_positions(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    with pytest.raises(InputError):
        tiny_run.run(shards, tmp_path / "run", "model.position=none", "start.positions=sinusoidal")
    model = bs.pretrain(
        shards,
        tmp_path / "tiny",
        preset="bert-tiny-uncased",
        settings=["model.position=none", "train.max_steps=1", "train.threads=1"],
    )
    assert not model.encoder.embeddings.position.weight.any()
