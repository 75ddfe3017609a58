"""What heads look at: the reference's weights, rows that sum to 1, habits by hand, and a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import write_folder
from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.explain.attention import AttentionMaps, attention_maps, cross_attention_maps
from bertsmith.models.family import build_encoder
from bertsmith.packed import Packed
from family_harness import CASES, a_batch, config_of, ours_at_random, reference_config, transformers

CROSS_WEIGHTS = [torch.tensor([[[0.25, 0.5, 0.25]]]), torch.tensor([[[0.0, 1.0, 0.0]]])]  # of [CLS]
CAUSAL = ("objective.name=causal", "data.instances=full_sentences", "data.sentence_task=none")


@pytest.mark.parametrize("case", [case for case in CASES if "decoder" not in case])
def test_the_weights_are_the_references(case: str, tmp_path: Path) -> None:
    config = config_of(case)
    ours = ours_at_random(config, frozenset({"encoder"}))
    write_folder(tmp_path / "m", config, {"encoder": ours.encoder})
    other = transformers().AutoModel.from_pretrained(
        tmp_path / "m", config=reference_config(config), attn_implementation="eager"
    )
    packed, batch = a_batch(config)
    call = {"input_ids": batch["ids"], "attention_mask": batch["mask"]}
    if config.type_vocab_size:
        call["token_type_ids"] = batch["segments"]
    theirs = other.eval()(**call, output_attentions=True).attentions
    mine = ours.encoder.eval().attention_maps(packed)
    assert len(mine) == len(theirs) == config.num_hidden_layers
    for of_layer, wanted in zip(mine, theirs, strict=True):
        for weights, row, length in zip(of_layer, wanted, packed.lengths, strict=True):
            torch.testing.assert_close(weights, row[:, :length, :length], atol=1e-6, rtol=0)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_watching_changes_nothing_and_a_causal_model_looks_back_alone(norm: str) -> None:
    config = config_of("bert", causal=True, norm=norm)
    encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    packed = Packed.from_lists([[5, 6, 7, 8, 9], [], [10, 11]], [[0] * 5, [], [0] * 2])
    before = encoder(packed)
    maps = encoder.attention_maps(packed)
    assert torch.equal(encoder(packed), before)
    for of_layer in maps:
        assert [weights.shape[-1] for weights in of_layer] == [5, 0, 2]
        for weights in of_layer:
            assert not weights.triu(1).any()
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def by_hand() -> AttentionMaps:
    """One head on [CLS] a , [SEP]."""
    weights = np.array([[1, 0, 0, 0], [0.4, 0.1, 0.2, 0.3], [0, 0.5, 0.5, 0], [0, 0, 0, 1]], dtype=np.float32)
    sources = np.array([-1, 0, 0, -1], dtype=np.int8)
    return AttentionMaps(
        ["[CLS]", "a", ",", "[SEP]"], sources, np.arange(4) == 2, weights[None, None], [0], [0]
    )


def test_the_summary_has_means_over_tokens_that_are_not_special() -> None:
    (row,) = by_hand().summary()
    of_a = -sum(p * np.log(p) for p in (0.4, 0.1, 0.2, 0.3))
    expected = {
        "layer": 0,
        "head": 0,
        "entropy": (of_a + np.log(2)) / 2,
        "distance": (0.2 + 0.5) / (0.3 + 1.0),
        "cls": 0.2,
        "sep": 0.15,
        "punctuation": 0.35,
        "previous": 0.25,
        "next": 0.1,
        "itself": 0.3,
    }
    assert row == pytest.approx(expected, abs=1e-7)


def test_a_head_without_attention_between_tokens_has_no_distance() -> None:
    maps = by_hand()
    maps.weights[0, 0, 1:3] = [1, 0, 0, 0]
    (row,) = maps.summary()
    assert (row["distance"], row["entropy"], row["cls"]) == (None, 0, 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("attention")
    return tiny_run.run(tiny_run.make_shards(folder), folder / "run", "train.max_steps=2")


def test_from_python(model: bs.Model, tmp_path: Path) -> None:
    found = model.attention("Kaba lode.", "mide")
    assert found.tokens == ["[CLS]", "kaba", "lode", ".", "[SEP]", "mide", "[SEP]"]
    assert found.sources.tolist() == [-1, 0, 0, 0, -1, 1, -1]
    assert found.punctuation.tolist() == [token == "." for token in found.tokens]
    assert found.weights.shape == (2, 2, 7, 7)
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-6)
    for row in model.attention("kaba lode").summary():  # of which nothing is left for other tokens
        assert sum(row[name] for name in ("cls", "sep", "itself", "previous", "next")) == pytest.approx(1)
    one = found.select([1], [0])
    assert (one.layers, one.heads) == ([1], [0])
    assert np.array_equal(one.weights[0, 0], found.weights[1, 0])
    for maps, name in ((found, "all.png"), (one, "one.png"), (found.select(heads=[1, 0, 1]), "some.png")):
        assert maps.save(tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["byte_level_bpe", "unigram"])
def test_other_tokenizers_have_texts_and_punctuation_too(tmp_path: Path, kind: str) -> None:
    (tmp_path / "corpus.txt").write_text(tiny_run.corpus(60), encoding="utf-8")
    tokenizer = bs.train_tokenizer(tmp_path / "corpus.txt", tmp_path / "tokenizer", vocab_size=400, kind=kind)
    config = config_of("roberta", vocab_size=tokenizer.vocab_size)
    encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    encoding = tokenizer.encode("Kaba lode.", "mide!")
    packed = Packed.from_lists([encoding.ids], [encoding.type_ids])
    (maps,) = attention_maps(encoder, tokenizer, packed)
    assert maps.tokens == encoding.tokens
    assert maps.sources.tolist() == [-1 if source is None else source for source in encoding.sequence_ids]
    marks = [i for i, token in enumerate(maps.tokens) if "." in token or "!" in token]
    assert np.flatnonzero(maps.punctuation).tolist() == marks != []


def test_what_cannot_be_shown(model: bs.Model, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        model.attention("kaba").select([2])
    assert (caught.value.code, caught.value.argument) == ("attention_index_out_of_range", "layers")
    with pytest.raises(InputError) as caught:
        model.attention("  ")
    assert caught.value.code == "no_tokens"
    with pytest.raises(InputError) as caught:
        model.attention(["kaba"])  # type: ignore[arg-type]
    assert caught.value.code == "not_a_string"
    with pytest.raises(InputError) as caught:
        model.attention("kaba " * 100)
    assert (caught.value.code, caught.value.hint) == ("text_too_long", "use a shorter text")
    ones = np.ones((1, 1, 65, 65), np.float32)
    wide = AttentionMaps(["a"] * 65, np.zeros(65, np.int8), np.zeros(65, bool), ones, [0], [0])
    with pytest.raises(InputError) as caught:
        wide.save(tmp_path / "wide.png")
    assert caught.value.code == "too_many_tokens_to_plot"
    assert not (tmp_path / "wide.png").exists()


def test_from_the_command_line(
    model: bs.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def called(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["bertsmith", "attention", str(model.path), *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    assert called("kaba lode", "--layer", "1", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["tokens"] == ["[CLS]", "kaba", "lode", "[SEP]"]
    assert answer == {
        "tokens": answer["tokens"],
        "heads": list(model.attention("kaba lode").select([1]).to_rows()),
    }
    assert [(row["layer"], row["head"]) for row in answer["heads"]] == [(1, 0), (1, 1)]
    np.testing.assert_allclose(
        answer["heads"][0]["weights"], model.attention("kaba lode").weights[1, 0], atol=1e-6
    )
    assert called("kaba lode", "--output", str(tmp_path / "heads.png")) == 0
    assert (tmp_path / "heads.png").stat().st_size > 1000
    shown = capsys.readouterr()
    assert "entropy" in shown.out
    assert "heads.png" in shown.err
    assert called("kaba lode", "--output", str(tmp_path / "heads.html")) == 0
    assert (tmp_path / "heads.html").read_text(encoding="utf-8").endswith("</html>")
    capsys.readouterr()
    assert called("kaba lode", "--output", str(tmp_path / "heads.pdf"), "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "wrong_file_suffix"
    assert not (tmp_path / "heads.pdf").exists()
    assert called("kaba lode", "--head", "9") == 2


def test_a_decoder_that_writes_nothing_has_a_page(tmp_path: Path) -> None:
    tokenizer = tiny_run.tokenizer()
    source = np.array([tokenizer.cls_token_id, 7, tokenizer.sep_token_id])
    maps = cross_attention_maps(tokenizer, source, source[:1], CROSS_WEIGHTS)
    assert maps.tokens == [*maps.tokens[:3], "[CLS]"]
    first, second = maps.summary()
    assert (first["cls"], first["sep"], second["sep"]) == pytest.approx((0.25, 0.25, 0.0))
    assert maps.save(tmp_path / "page.html").exists()
