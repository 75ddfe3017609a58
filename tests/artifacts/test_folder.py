"""Model folders: whole or not there, verified, and refused by a sentence where they are not what they say."""

from __future__ import annotations

import ctypes
import json
import os
import random
import struct
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import bertsmith as bs
from bertsmith.artifacts import folder as folders
from bertsmith.artifacts.folder import read_folder, refuse_foreign, write_folder
from bertsmith.artifacts.locate import locate
from bertsmith.errors import InputError, MachineError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import ClassHead, MaskedHead, Pooler
from bertsmith.tokenizer.tokenizer import Tokenizer

CONFIG = ModelConfig(
    vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
    max_position_embeddings=6,
)  # fmt: skip


class Words:
    """Stands for a tokenizer."""

    def save(self, folder: Path) -> None:
        (folder / "vocab.txt").write_text("[PAD]\n")


def encoder(seed: int = 0) -> Encoder:
    return Encoder(CONFIG, torch.Generator().manual_seed(seed))


def written(path: Path, seed: int = 0, **more) -> Path:
    made = encoder(seed)
    parts = {"encoder": made, "pooler": Pooler(CONFIG, made.generator)}
    return write_folder(path, CONFIG, parts, architecture="BertModel", tokenizer=Words(), **more)


def test_round_trip_is_bit_equal(tmp_path: Path) -> None:
    path = written(tmp_path / "a" / "m", record={"task": "none", "tokens_seen": 12})
    folder = read_folder(path)
    assert folder.config == CONFIG
    assert folder.record["tokens_seen"] == 12
    assert (path / "vocab.txt").exists()
    again = folder.encoder(torch.Generator().manual_seed(5))
    for name, tensor in encoder().state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert all(p.requires_grad for p in again.parameters())
    assert again.generator.initial_seed() == 5
    assert [p.name for p in path.parent.iterdir()] == ["m"]  # nothing half-written beside it


def test_a_filled_encoder_owns_its_weights(tmp_path: Path) -> None:
    folder = read_folder(written(tmp_path / "m"))
    one, two = folder.encoder(), folder.encoder()
    with torch.no_grad():
        one.embeddings.token.weight.fill_(7)
    assert not torch.equal(one.embeddings.token.weight, two.embeddings.token.weight)


def test_labels_stay_with_the_classifier(tmp_path: Path) -> None:
    made = encoder()
    g = made.generator
    parts = {"encoder": made, "pooler": Pooler(CONFIG, g), "classifier": ClassHead(CONFIG, g, 3)}
    labels = ["froh", "traurig", "<script>"]
    path = write_folder(
        tmp_path / "m", CONFIG, parts, architecture="BertForSequenceClassification", labels=labels
    )
    folder = read_folder(path)
    assert folder.labels == labels
    with pytest.raises(InputError, match=r"'classifier\.weight' \[3, 8\] should be \[4, 8\]"):
        folder.fill("classifier", ClassHead(CONFIG, g, 4))
    with pytest.raises(InputError, match=r"missing tensors 'cls\.predictions\.bias'"):
        folder.fill("masked", MaskedHead(CONFIG, g))


def test_replacing_leaves_the_new_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "m", seed=1)
    before = (path / "model.safetensors").read_bytes()
    written(path, seed=2)
    assert (path / "model.safetensors").read_bytes() != before
    monkeypatch.setattr(ctypes, "CDLL", lambda *a, **k: object())  # a system without the exchange
    written(path, seed=1)
    assert (path / "model.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("step", ["save_file", "disk._exchange", "disk.synchronise", "disk.digest"])
def test_a_full_disk_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = written(tmp_path / "m", seed=1)
    before = (path / "model.safetensors").read_bytes()

    def full(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    owner, _, name = step.rpartition(".")
    monkeypatch.setattr(getattr(folders, owner) if owner else folders, name, full)
    with pytest.raises(MachineError, match="No space left"):
        written(path, seed=2)
    monkeypatch.undo()
    assert (path / "model.safetensors").read_bytes() == before
    read_folder(path).encoder()
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_what_we_did_not_write_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="is not a model folder of bertsmith"):
        written(tmp_path)
    with pytest.raises(InputError, match="thesis"):
        refuse_foreign(tmp_path / "thesis.tex")
    (tmp_path / "empty").mkdir()
    written(tmp_path / "empty")


def test_each_flipped_bit_and_each_cut_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m")
    file = path / "model.safetensors"
    whole = file.read_bytes()
    draw = random.Random(4)
    for _ in range(60):
        place = draw.randrange(8 * len(whole))
        torn = bytearray(whole)
        torn[place // 8] ^= 1 << place % 8
        file.write_bytes(torn)
        with pytest.raises(InputError, match=r"model\.safetensors"):
            read_folder(path).encoder()
    for length in [0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 1]:
        file.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"model\.safetensors"):
            read_folder(path)
    file.write_bytes(whole)
    read_folder(path).encoder()


def test_a_header_of_absurd_length_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m")
    (path / "model.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(InputError, match=r"not a whole safetensors file"):
        read_folder(path)


def test_a_pickle_is_refused_unopened(tmp_path: Path) -> None:
    path = written(tmp_path / "m")
    (path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"there is no model\.safetensors"):
        read_folder(path)
    bomb = path / "pytorch_model.bin"
    bomb.write_bytes(b"\x80\x04cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(InputError, match=r"pytorch_model\.bin: this is a pickle") as caught:
        read_folder(path)
    assert "save_pretrained" in (caught.value.remedy or "")


def rewrite(path: Path, **changes: object) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "xlnet"}, "model of type 'xlnet'"),
        ({"model_type": "roberta"}, "'model_type' is 'roberta', and 'architectures' names BertModel"),
        ({"hidden_size": 10**9}, "hidden_size"),
        ({"vocab_size": 4_000_000, "hidden_size": 16_384}, "the limit is"),
        ({"hidden_size": "eight"}, "hidden_size"),
        ({"num_hidden_layers": True}, "'num_hidden_layers' should be a valid integer"),
        ({"num_hidden_layers": 1}, "unexpected tensors"),
        ({"num_hidden_layers": 3}, r"missing tensors 'bert\.encoder\.layer\.2"),
        ({"hidden_size": 6, "num_attention_heads": 1}, "should be"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"architectures": "BertModel"}, "architectures"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps"),
    ],
)
def test_configs_that_cannot_be_are_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    path = written(tmp_path / "m")
    rewrite(path, **changes)
    with pytest.raises(InputError, match=said) as caught:
        read_folder(path).encoder()
    assert str(path) in caught.value.sentence


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff", "[" * 200_000])
def test_a_config_that_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "m")
    (path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"config\.json"):
        read_folder(path)


def test_foreign_keys_and_half_precision_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "m")
    rewrite(path, gradient_checkpointing=False, torch_dtype="float16", _name_or_path="/etc/passwd")
    (path / "bertsmith.json").unlink()
    weights = {name: tensor.half() for name, tensor in load_file(path / "model.safetensors").items()}
    save_file(weights, path / "model.safetensors")
    made = read_folder(path).encoder()
    assert all(p.dtype == torch.float32 for p in made.parameters())


@pytest.mark.parametrize(("entries", "fits"), [(10, True), (11, True), (12, False)])
def test_a_tokenizer_with_tokens_that_the_model_has_no_row_for_is_refused(
    entries: int, fits: bool, tmp_path: Path
) -> None:
    path = written(tmp_path / "m")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"][:entries]
    Tokenizer.of_vocabulary(words, lowercase=True, max_length=6).save(path)
    if fits:
        assert read_folder(path).tokenizer().vocab_size == entries
    else:
        with pytest.raises(
            InputError, match=r"the tokenizer has 12 entries, the model 11\nthey do not belong"
        ):
            read_folder(path).tokenizer()
        with pytest.raises(
            InputError, match=r"the tokenizer has 12 entries, the model 11\nthey do not belong"
        ):
            bs.load(path).embed(["a"])


def test_locate_finds_runs_and_model_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = written(tmp_path / "run" / "model")
    assert locate(tmp_path / "run") == model
    assert locate(str(model)) == model
    with pytest.raises(InputError, match="neither a run nor a model folder"):
        locate(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        locate(tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(InputError, match="no such folder"):
        locate("../x")
    with pytest.raises(InputError, match="no such folder"):
        read_folder(tmp_path / "nowhere")


def test_published_names_come_from_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = written(tmp_path / "snapshot")
    asked: list[tuple[str, bool]] = []

    def snapshot_download(name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        assert not any("bin" in pattern for pattern in allow_patterns)
        asked.append((name, local_files_only))
        if name != "owner/known":
            raise OSError("not cached")
        return str(model)

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.chdir(tmp_path)
    assert locate("owner/known") == model
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        locate("owner/unknown")
    assert asked == [("owner/known", True), ("owner/unknown", True)]
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with pytest.raises(InputError) as unreached:
        locate("owner/unknown")
    assert str(unreached.value).splitlines()[0] == (
        "owner/unknown: there is no run or model folder of this name, "
        "and the Hugging Face hub could not be reached"
    )
    assert asked[2:] == [("owner/unknown", True), ("owner/unknown", False)]

    def answered(name: str, **rest: object) -> str:
        error = OSError("401: no such repository")
        error.response = object()  # type: ignore[attr-defined]  # as errors of HTTP have it
        raise error

    hub.snapshot_download = answered
    with pytest.raises(InputError, match=r"on the Hugging Face hub \(401: no such repository\)"):
        locate("owner/unknown")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match="pip install 'bertsmith"):
        locate("owner/known")


def test_folders_are_for_everyone_to_read(tmp_path: Path) -> None:
    path = written(tmp_path / "m")
    assert path.stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
