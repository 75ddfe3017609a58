"""Pre-training from a model: it begins where the model is, of whatever family and origin, and resumes exactly."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import write_folder
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.models.config import DROPOUT_SETTINGS
from bertsmith.pretraining.extend_vocabulary import extend_tokenizer
from bertsmith.training import checkpoint

FEW = [
    "data.sequence_length=32",
    "data.validation_split=0.1",
    "train.max_steps=4",
    "train.batch_size=4",
    "train.threads=1",
    "train.precision=fp32",
    "train.logging_steps=1",
    "train.report_to=none",
]


def skewed_corpus(word: str = "") -> str:
    """Nine words of ten are the same, so that a model learns something at once; `word` begins a few documents."""
    texts = []
    for i in range(60):
        rare = tiny_run.WORDS[1 + i % 30]
        sentences = ["kaba kaba kaba kaba kaba.", f"kaba kaba {rare} kaba kaba.", "kaba kaba kaba kaba."]
        texts.append((f"{word} " if i % 10 == 0 and word else "") + " ".join(sentences))
    return "\n\n".join(texts) + "\n"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "corpus.txt").write_text(skewed_corpus())
    tokenizer = bs.train_tokenizer([folder / "corpus.txt"], folder / "tokenizer", vocab_size=60)
    return bs.prepare([folder / "corpus.txt"], tokenizer, folder / "shards", workers=1)


@pytest.fixture(scope="module")
def bert(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    """A model that has learnt something, with dropout of its own."""
    out = tmp_path_factory.mktemp("bert") / "run"
    settings = ["train.max_steps=60", "train.learning_rate=5e-3", "model.hidden_dropout_prob=0.05"]
    return tiny_run.run(shards, out, *settings)


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["mlm"] for line in lines if line["kind"] == "train"]


def test_an_extended_model_is_trained_further_from_where_it_is(
    bert: bs.Model, shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """tokenizer extend --model, data prepare, pretrain --model: the way to a domain."""
    (tmp_path / "domain.txt").write_text(skewed_corpus("kabalode"))
    (tmp_path / "words.txt").write_text("kabalode\n")
    extend_tokenizer([], tmp_path / "extended", model=bert.path, word_list=tmp_path / "words.txt")
    tokenizer = bs.Tokenizer.load(tmp_path / "extended")
    domain = bs.prepare([tmp_path / "domain.txt"], tokenizer, tmp_path / "shards", workers=1)
    caplog.clear()
    with pytest.raises(InputError) as caught:
        bs.pretrain(shards, tmp_path / "run", model=tmp_path / "extended", settings=FEW)
    assert (caught.value.code, caught.value.location) == ("tokenizer_mismatch", str(shards.folder))
    model = bs.pretrain(domain, tmp_path / "run", model=tmp_path / "extended", settings=FEW)
    after, before = (run.report["held_out"]["mlm_loss"] for run in (model, bert))
    assert before < 0.6 * math.log(tokenizer.vocab_size)
    assert after < before + 0.4
    assert not any("a new one is trained" in line for line in caplog.messages)
    assert model.folder.config.hidden_dropout_prob == 0.05
    assert model.report["base"] == model.folder.record["base"] == str(tmp_path / "extended")
    again = bs.pretrain(domain, tmp_path / "again", recipe=tmp_path / "run" / "settings.yaml")
    assert losses(again.path) == losses(tmp_path / "run")


def test_without_an_update_the_weights_are_the_models(bert: bs.Model, shards: Shards, tmp_path: Path) -> None:
    """All heads included; the rate is too small to change them."""
    settings = [*FEW, "train.learning_rate=1e-30", "train.weight_decay=0", "train.max_steps=1"]
    bs.pretrain(shards, tmp_path / "run", model=bert, settings=settings)
    before = load_file(bert.model_folder / "model.safetensors")
    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    assert any("seq_relationship" in name for name in before)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_sizes_are_the_models_and_dropout_may_be_set(bert: bs.Model, shards: Shards, tmp_path: Path) -> None:
    for more, code, argument in (
        ({"preset": "bert-mini-uncased"}, "size_differs_from_model", "model.hidden_size"),
        ({"settings": ["model.num_hidden_layers=3"]}, "size_differs_from_model", "model.num_hidden_layers"),
        ({"settings": ["start.output_bias=unigram"]}, "start_with_model", "start"),
        ({"settings": ["data.sequence_length=65"]}, "sequence_length_too_large", "data.sequence_length"),
    ):
        given: dict[str, Any] = {**more, "settings": [*FEW, *more.get("settings", [])]}
        with pytest.raises(InputError) as caught:
            bs.pretrain(shards, tmp_path / "run", model=bert, **given)
        assert (caught.value.code, caught.value.argument) == (code, argument)
        assert not (tmp_path / "run").exists()
    tiny = tiny_run.make_shards(tmp_path)
    one = ["train.max_steps=1", "data.sequence_length=32", "train.threads=1", "train.report_to=none"]
    usual = bs.pretrain(tiny, tmp_path / "tiny", preset="bert-tiny-uncased", settings=one)
    bs.pretrain(tiny, tmp_path / "on", model=usual, preset="bert-tiny-uncased", settings=one)
    settings = [*FEW, *(f"model.{name}=0.2" for name in DROPOUT_SETTINGS)]
    model = bs.pretrain(shards, tmp_path / "run", model=bert, settings=settings)
    assert [getattr(model.folder.config, name) for name in DROPOUT_SETTINGS] == [0.2] * 3


def test_it_resumes_to_the_bit_and_only_on_the_same_model(
    bert: bs.Model, shards: Shards, tmp_path: Path
) -> None:
    straight, run = tmp_path / "straight", tmp_path / "run"
    bs.pretrain(shards, straight, model=bert, settings=FEW)
    save = checkpoint.save

    def save_and_die(folder: Path, what: checkpoint.Checkpoint, keep: int) -> Path:
        save(folder, what, keep)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", save_and_die)
        with pytest.raises(KeyboardInterrupt):
            bs.pretrain(shards, run, model=bert, settings=[*FEW, "train.save_steps=2"])
    other = tiny_run.run(shards, tmp_path / "other", "train.max_steps=1")
    with pytest.raises(InputError) as caught:
        bs.pretrain(shards, other.path, model=bert, resume=True)
    assert caught.value.code == "run_without_base_model"
    with pytest.raises(InputError) as caught:
        bs.pretrain(shards, run, model=other, resume=True)
    assert caught.value.code == "checkpoint_of_another_run"
    bs.pretrain(shards, run, resume=True)  # the settings of the run name the model
    for file in ("log.jsonl", "model/model.safetensors"):
        assert (run / file).read_bytes() == (straight / file).read_bytes()


def test_heads_that_the_model_lacks_or_has_for_another_question_are_new_and_told(
    bert: bs.Model, shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    sop = [*FEW, "data.sentence_task=sop"]
    model = bs.pretrain(shards, tmp_path / "sop", model=bert, settings=sop)
    assert any("no head 'pair' for sop; a new one is trained" in line for line in caplog.messages)
    again = bs.pretrain(shards, tmp_path / "again", model=model, settings=FEW)
    assert again.folder.record["sentence_task"] == "sop"
    rows = tiny_run.table(tmp_path / "rows.csv", tiny_run.examples(12))
    moods = bs.finetune("classify", bert, tmp_path / "moods", train=rows, validation=rows, settings=FEW[2:])
    caplog.clear()
    bs.pretrain(shards, tmp_path / "from-moods", model=moods, settings=FEW)
    new = [line.partition("has no head ")[2][1:5] for line in caplog.messages if "a new one is" in line]
    assert new == ["mask", "pair"]


@pytest.mark.parametrize("family", ["roberta-base", "albert-base-v2"])
def test_any_family_and_more_rows_than_tokens(family: str, shards: Shards, tmp_path: Path) -> None:
    """A folder of no record, with a table that is larger than its vocabulary, as published ones are."""
    from bertsmith.models.encoder import Encoder
    from bertsmith.models.family import build_encoder, preset
    from bertsmith.models.pretraining_heads import MaskedLMHead

    pad = {"pad_token_id": shards.tokenizer.pad_token_id}
    small: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    small |= {"intermediate_size": 24, "max_position_embeddings": 70, "vocab_size": shards.vocab_size + 9}
    config = preset(family, **small, **pad, **({"embedding_size": 8} if "albert" in family else {}))
    draw = torch.Generator().manual_seed(3)
    encoder: Encoder = build_encoder(config, draw)
    parts = {"encoder": encoder, "masked": MaskedLMHead(config, draw)}
    write_folder(tmp_path / "published", config, parts, tokenizer=shards.tokenizer)
    model = bs.pretrain(shards, tmp_path / "run", model=tmp_path / "published", settings=FEW)
    assert model.folder.config == config
    assert model.folder.record["sentence_task"] == ("sop" if "albert" in family else "none")
    told = bs.load(tmp_path / "published").encoder.embeddings.token.weight
    moved = (model.encoder.embeddings.token.weight - told).abs().max()
    assert 0 < moved < 0.01
