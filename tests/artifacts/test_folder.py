"""Model folders are written atomically, verified when read, and refused if they are invalid."""

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
from bertsmith.artifacts.folder import check_replaceable, read_folder, write_folder
from bertsmith.artifacts.locate import locate
from bertsmith.errors import InputError, MachineError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.pretraining_heads import MaskedLMHead, Pooler
from bertsmith.models.task_heads import LinearHead
from bertsmith.tokenizer.tokenizer import Tokenizer

CONFIG = ModelConfig(
    vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
    max_position_embeddings=6,
)  # fmt: skip


class FakeTokenizer:
    """A tokenizer that saves one file."""

    def save(self, folder: Path) -> None:
        (folder / "vocab.txt").write_text("[PAD]\n")


def encoder(seed: int = 0) -> Encoder:
    return Encoder(CONFIG, torch.Generator().manual_seed(seed))


def write_model(path: Path, seed: int = 0, **options) -> Path:
    base = encoder(seed)
    parts = {"encoder": base, "pooler": Pooler(CONFIG, base.generator)}
    return write_folder(path, CONFIG, parts, architecture="BertModel", tokenizer=FakeTokenizer(), **options)


def test_round_trip_is_bit_equal(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a" / "m", record={"task": "none", "tokens_seen": 12})
    folder = read_folder(path)
    assert folder.config == CONFIG
    assert folder.record["tokens_seen"] == 12
    assert (path / "vocab.txt").exists()
    again = folder.encoder(torch.Generator().manual_seed(5))
    for name, tensor in encoder().state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert all(p.requires_grad for p in again.parameters())
    assert again.generator.initial_seed() == 5
    assert [p.name for p in path.parent.iterdir()] == ["m"]  # no temporary files


def test_a_loaded_encoder_has_memory_of_its_own(tmp_path: Path) -> None:
    folder = read_folder(write_model(tmp_path / "m"))
    first, second = folder.encoder(), folder.encoder()
    with torch.no_grad():
        first.embeddings.token.weight.fill_(7)
    assert not torch.equal(first.embeddings.token.weight, second.embeddings.token.weight)


def test_labels_are_saved_with_the_classifier(tmp_path: Path) -> None:
    base = encoder()
    g = base.generator
    parts = {"encoder": base, "pooler": Pooler(CONFIG, g), "classifier": LinearHead(CONFIG, g, 3)}
    labels = ["froh", "traurig", "<script>"]
    path = write_folder(
        tmp_path / "m", CONFIG, parts, architecture="BertForSequenceClassification", labels=labels
    )
    folder = read_folder(path)
    assert folder.labels == labels
    with pytest.raises(InputError) as caught:
        folder.load_into("classifier", LinearHead(CONFIG, g, 4))
    assert caught.value.code == "shape_mismatch"
    assert caught.value.location == str(path / "model.safetensors")
    with pytest.raises(InputError) as caught:
        folder.load_into("masked", MaskedLMHead(CONFIG, g))
    assert caught.value.code == "tensor_missing"


def test_replacing_leaves_the_new_folder_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(tmp_path / "m", seed=1)
    before = (path / "model.safetensors").read_bytes()
    write_model(path, seed=2)
    assert (path / "model.safetensors").read_bytes() != before
    monkeypatch.setattr(ctypes, "CDLL", lambda *a, **k: object())  # a system that cannot exchange two folders
    write_model(path, seed=1)
    assert (path / "model.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("step", ["save_file", "atomic._exchange", "atomic.fsync", "atomic.sha256_of_file"])
def test_a_full_disk_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = write_model(tmp_path / "m", seed=1)
    before = (path / "model.safetensors").read_bytes()

    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    owner, _, name = step.rpartition(".")
    monkeypatch.setattr(getattr(folders, owner) if owner else folders, name, full)
    with pytest.raises(MachineError) as caught:
        write_model(path, seed=2)
    assert caught.value.code == "model_not_written"
    assert caught.value.location == str(path)
    monkeypatch.undo()
    assert (path / "model.safetensors").read_bytes() == before
    read_folder(path).encoder()
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_other_folders_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    for path in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(InputError) as caught:
            check_replaceable(path)
        assert caught.value.code == "not_a_model_folder"
        assert caught.value.location == str(path)
    with pytest.raises(InputError):
        write_model(tmp_path)
    (tmp_path / "empty").mkdir()
    write_model(tmp_path / "empty")


def test_flipped_bits_and_truncated_files_are_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m")
    file = path / "model.safetensors"
    content = file.read_bytes()
    rng = random.Random(4)
    for _ in range(60):
        bit = rng.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        with pytest.raises(InputError) as caught:
            read_folder(path).encoder()
        assert caught.value.location == str(file)
    for length in [0, 1, 7, 8, 9, len(content) // 2, len(content) - 1]:
        file.write_bytes(content[:length])
        with pytest.raises(InputError) as caught:
            read_folder(path)
        assert caught.value.location == str(file)
    file.write_bytes(content)
    read_folder(path).encoder()


def test_a_header_of_absurd_length_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m")
    (path / "model.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(InputError) as caught:
        read_folder(path)
    assert caught.value.code == "invalid_safetensors"


def test_a_pickle_is_refused_unopened(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m")
    (path / "model.safetensors").unlink()
    with pytest.raises(InputError) as caught:
        read_folder(path)
    assert caught.value.code == "weights_missing"
    pickle = path / "pytorch_model.bin"
    pickle.write_bytes(b"\x80\x04cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(InputError) as caught:
        read_folder(path)
    assert caught.value.code == "pickle"
    assert caught.value.location == str(pickle)


def rewrite(path: Path, **changes: object) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "code", "file"),
    [
        ({"model_type": "xlnet"}, "unknown_model_type", "config.json"),
        ({"model_type": "roberta"}, "model_type_mismatch", "config.json"),
        ({"hidden_size": 10**9}, "invalid_value", "config.json"),
        ({"vocab_size": 4_000_000, "hidden_size": 16_384}, "invalid_value", "config.json"),
        ({"hidden_size": "eight"}, "invalid_value", "config.json"),
        ({"num_hidden_layers": True}, "invalid_value", "config.json"),
        ({"num_hidden_layers": 1}, "unexpected_tensors", "model.safetensors"),
        ({"num_hidden_layers": 3}, "tensor_missing", "model.safetensors"),
        ({"hidden_size": 6, "num_attention_heads": 1}, "shape_mismatch", "model.safetensors"),
        ({"position_embedding_type": "relative_key"}, "unsupported_config", "config.json"),
        ({"add_cross_attention": True}, "unsupported_config", "config.json"),
        ({"architectures": "BertModel"}, "invalid_value", "config.json"),
        ({"layer_norm_eps": float("nan")}, "not_finite", "config.json"),
    ],
)
def test_invalid_configs_are_refused(
    tmp_path: Path, changes: dict[str, object], code: str, file: str
) -> None:
    path = write_model(tmp_path / "m")
    rewrite(path, **changes)
    with pytest.raises(InputError) as caught:
        read_folder(path).encoder()
    assert caught.value.code == code
    assert caught.value.location == str(path / file)


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff", "[" * 200_000])
def test_a_config_that_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    path = write_model(tmp_path / "m")
    (path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError) as caught:
        read_folder(path)
    assert caught.value.code == ("not_a_json_object" if text == "[]" else "invalid_json")
    assert caught.value.location == str(path / "config.json")


def test_foreign_keys_and_half_precision_are_read(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m")
    rewrite(path, gradient_checkpointing=False, torch_dtype="float16", _name_or_path="/etc/passwd")
    (path / "bertsmith.json").unlink()
    weights = {name: tensor.half() for name, tensor in load_file(path / "model.safetensors").items()}
    save_file(weights, path / "model.safetensors")
    assert all(p.dtype == torch.float32 for p in read_folder(path).encoder().parameters())


@pytest.mark.parametrize(("entries", "fits"), [(10, True), (11, True), (12, False)])
def test_a_tokenizer_with_more_entries_than_the_model_is_refused(
    entries: int, fits: bool, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"][:entries]
    Tokenizer.from_vocabulary(words, lowercase=True, max_length=6).save(path)
    if fits:
        assert read_folder(path).tokenizer().vocab_size == entries
    else:
        with pytest.raises(InputError) as caught:
            read_folder(path).tokenizer()
        assert caught.value.code == "tokenizer_too_large"
        with pytest.raises(InputError) as caught:
            bs.load(path).embed(["a"])
        assert caught.value.code == "tokenizer_too_large"


def test_locate_finds_runs_and_model_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path / "run" / "model")
    assert locate(tmp_path / "run") == model
    assert locate(str(model)) == model
    with pytest.raises(InputError) as caught:
        locate(tmp_path)
    assert caught.value.code == "not_a_model"
    monkeypatch.chdir(tmp_path / "run")
    for path in (tmp_path / "nowhere", "../x"):
        with pytest.raises(InputError):
            locate(path)
    with pytest.raises(InputError):
        read_folder(tmp_path / "nowhere")


def test_published_names_come_from_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path / "snapshot")
    calls: list[tuple[str, bool]] = []

    def snapshot_download(name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        assert not any("bin" in pattern for pattern in allow_patterns)
        calls.append((name, local_files_only))
        if name != "owner/known":
            raise OSError("not cached")
        return str(model)

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.chdir(tmp_path)
    assert locate("owner/known") == model
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError) as caught:
        locate("owner/unknown")
    assert caught.value.code == "model_not_found"
    assert caught.value.location == "owner/unknown"
    assert calls == [("owner/known", True), ("owner/unknown", True)]
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with pytest.raises(InputError) as caught:
        locate("owner/unknown")
    assert caught.value.code == "model_not_found"
    assert calls[2:] == [("owner/unknown", True), ("owner/unknown", False)]

    def http_error(name: str, **options: object) -> str:
        error = OSError("401: no such repository")
        error.response = object()  # type: ignore[attr-defined]  # an attribute of HTTP errors
        raise error

    hub.snapshot_download = http_error
    with pytest.raises(InputError) as caught:
        locate("owner/unknown")
    assert caught.value.code == "model_not_found"
    assert "401: no such repository" in caught.value.message
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError) as caught:
        locate("owner/known")
    assert caught.value.code == "hub_not_installed"


def test_folders_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m")
    assert path.stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
