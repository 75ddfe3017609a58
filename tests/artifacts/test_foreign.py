"""Folders of other tools and invalid ones are read correctly or refused with file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from bertsmith.artifacts import weights as weights_module
from bertsmith.artifacts.folder import read_folder, write_folder
from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.layers import ACTIVATIONS
from bertsmith.models.pretraining_heads import Pooler
from bertsmith.models.task_heads import (
    LinearHead,
    SequenceClassificationHead,
    SpanHead,
    TokenClassificationHead,
)

SMALL: dict[str, Any] = {
    "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": 7,
}  # fmt: skip
PRESETS = {"bert": "bert-tiny-cased", "roberta": "roberta-base", "albert": "albert-base-v2"}


def small(name: str) -> ModelConfig:
    return preset(PRESETS[name], **SMALL)


def write_model(path: Path, name: str = "bert", head: str | None = None, **options: Any) -> Path:
    config = small(name)
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    g = encoder.generator
    heads = {
        "sentence": lambda: SequenceClassificationHead(config, g, 3).parts,
        "tokens": lambda: TokenClassificationHead(config, g, 3).parts,
        "span": lambda: SpanHead(config, g).parts,
        None: dict,
    }[head]()
    return write_folder(path, config, {"encoder": encoder, **heads}, **options)


def change_config(path: Path, **changes: Any) -> None:
    """Change keys of config.json; None removes one."""
    file = path / "config.json"
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def change_weights(path: Path, **changes: torch.Tensor) -> None:
    """Change tensors in the file, and delete the record with its digest."""
    (path / "bertsmith.json").unlink(missing_ok=True)
    save_file(load_file(path / "model.safetensors") | changes, path / "model.safetensors")


def check_error(path: Path, code: str, file: str | None = None, message: str = "") -> None:
    """Check that reading a folder with its encoder fails with this code, location, and part of the message."""
    with pytest.raises(InputError) as caught:
        read_folder(path).encoder()
    assert caught.value.code == code
    if file is not None:
        assert caught.value.location == str(path / file)
    assert message in caught.value.message


class NoLargeTensors(TorchDispatchMode):
    """Refuses to allocate tensors of more than 10^5 elements."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not out.is_meta and out.numel() > 100_000:
            raise AssertionError(f"{func} returned {list(out.shape)}")
        return out


# config.json without the family


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("head", ["sentence", "tokens", "span"])
def test_without_model_type_the_tensors_determine_the_family(tmp_path: Path, name: str, head: str) -> None:
    path = write_model(tmp_path / "m", name, head)
    original = read_folder(path)
    change_config(path, model_type=None)
    assert read_folder(path).config == original.config
    change_config(path, architectures=None)
    folder = read_folder(path)
    assert folder.config == original.config
    assert folder.parts == original.parts
    assert folder.architecture == original.architecture


@pytest.mark.parametrize("name", PRESETS)
def test_the_class_of_a_base_model_determines_the_family(tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path / "m", name)
    change_config(path, model_type=None)
    assert read_folder(path).config == small(name)
    change_config(path, architectures=None)
    check_error(path, "model_type_missing", "config.json")


def test_a_class_of_another_family_is_a_contradiction(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", "roberta", "sentence")
    change_config(path, model_type="bert")
    check_error(path, "model_type_mismatch", "config.json")


# Heads of other tools


@pytest.mark.parametrize(
    ("architecture", "parts"),
    [
        ("BertForNextSentencePrediction", {"encoder", "pooler", "pair"}),
        ("BertForMultipleChoice", {"encoder", "pooler", "chooser"}),
        ("RobertaForMultipleChoice", {"encoder", "pooler", "chooser"}),
        ("AlbertForMultipleChoice", {"encoder", "pooler", "chooser"}),
        ("BertForTokenClassification", {"encoder", "tagger"}),
        ("RobertaForTokenClassification", {"encoder", "tagger"}),
        ("BertForQuestionAnswering", {"encoder", "span"}),
    ],
)
def test_heads_of_the_reference_are_read(tmp_path: Path, architecture: str, parts: set[str]) -> None:
    transformers = pytest.importorskip("transformers")
    prefix = architecture.partition("For")[0]
    sizes = {**SMALL, "embedding_size": 4} if prefix == "Albert" else SMALL
    config = getattr(transformers, f"{prefix}Config")(**sizes)
    getattr(transformers, architecture)(config).save_pretrained(tmp_path)
    folder = read_folder(tmp_path)
    assert (folder.architecture, folder.parts) == (architecture, parts)


def test_a_token_classifier_may_have_a_pooler(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", "bert", "tokens")
    pooler = {"bert.pooler.dense.weight": torch.zeros(8, 8), "bert.pooler.dense.bias": torch.zeros(8)}
    change_weights(path, **pooler)
    folder = read_folder(path)
    assert folder.parts == {"encoder", "pooler", "tagger"}
    assert not folder.has("classifier")
    assert folder.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_the_problem_type_is_saved(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", "bert", "sentence", problem_type="multi_label_classification")
    assert json.loads((path / "config.json").read_text())["problem_type"] == "multi_label_classification"
    assert read_folder(path).problem_type == "multi_label_classification"
    assert read_folder(write_model(tmp_path / "n", "bert", "sentence")).problem_type is None


def test_parts_without_a_class_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = small("roberta")
    encoder = build_encoder(config, torch.Generator())
    parts = {
        "encoder": encoder,
        "pooler": Pooler(config, encoder.generator),
        "classifier": LinearHead(config, encoder.generator),
    }
    with pytest.raises(InputError) as caught:
        write_folder(tmp_path / "m", config, parts)
    assert caught.value.code == "no_class_for_heads"
    assert list(tmp_path.iterdir()) == []


# Sharded weights


def shard(path: Path, num_shards: int = 3) -> dict[str, str]:
    """Split a folder's weights into several files as transformers does, and return the index."""
    tensors = sorted(load_file(path / "model.safetensors").items())
    (path / "model.safetensors").unlink()
    (path / "bertsmith.json").unlink()
    index = {}
    for i in range(num_shards):
        name = f"model-{i + 1:05}-of-{num_shards:05}.safetensors"
        shard_tensors = dict(tensors[i::num_shards])
        save_file(shard_tensors, path / name)
        index |= dict.fromkeys(shard_tensors, name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return index


def test_sharded_weights_are_the_same_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m")
    before = read_folder(path).encoder().state_dict()
    shard(path)
    folder = read_folder(path)
    after = folder.encoder().state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    digest = folder.weights_digest()
    file = next(path.glob("model-00002*"))
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file)
    assert read_folder(path).weights_digest() != digest


def test_shards_of_the_reference_are_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)).eval()
    reference.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    encoder = read_folder(tmp_path).encoder().eval()
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        expected = reference.bert(ids).last_hidden_state
        torch.testing.assert_close(encoder(ids), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "..",
        ".safetensors",
        "x.bin",
        "a\\b.safetensors",
        "",
    ],
)
def test_an_index_with_files_outside_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path / "m")
    index = shard(path)
    save_file({"x": torch.zeros(1)}, tmp_path / "outside.safetensors")
    index[next(iter(index))] = name
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    check_error(path, "weight_index_outside_folder", "model.safetensors.index.json")


def test_an_index_that_contradicts_its_files_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m")
    index = shard(path)
    index_file = path / "model.safetensors.index.json"
    first = next(iter(index))

    def check_index(values: Any, code: str, file: str = index_file.name) -> None:
        index_file.write_text(json.dumps(values))
        check_error(path, code, file)

    others = {name: file for name, file in index.items() if name != first}
    check_index({"weight_map": others}, "weight_index_mismatch", index[first])
    unknown_tensor = {**index, "more": index[first]}
    check_index({"weight_map": unknown_tensor}, "weight_index_mismatch", index[first])
    check_index({"weight_map": {**index, "more": "none.safetensors"}}, "weight_file_missing")
    check_index({"weight_map": {}}, "weight_index_empty")
    check_index({"weight_map": [1]}, "invalid_value")
    check_index({"weight_map": {first: 3}}, "invalid_value")
    check_index({}, "invalid_value")
    index_file.write_text(json.dumps({"weight_map": index}))
    truncated = path / index[first]
    truncated.write_bytes(truncated.read_bytes()[:-3])
    check_error(path, "invalid_safetensors", index[first])


def test_weights_that_were_sharded_afterwards_have_another_digest(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m")
    record = (path / "bertsmith.json").read_text()
    shard(path)
    (path / "bertsmith.json").write_text(record)
    check_error(path, "weights_changed")


# Values, dtypes, and shapes of weights


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, bad: float, dtype: torch.dtype) -> None:
    path = write_model(tmp_path / "m", "bert", "sentence")
    tensor = torch.zeros(8, 8, dtype=dtype)
    tensor[3, 4] = bad
    change_weights(path, **{"bert.pooler.dense.weight": tensor})
    check_error(path, "weights_not_finite", "model.safetensors", "'bert.pooler.dense.weight'")


def test_fp64_values_outside_of_the_range_of_fp32_are_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m")
    name = "embeddings.word_embeddings.weight"
    table = load_file(path / "model.safetensors")[name].double()
    change_weights(path, **{name: table})
    assert read_folder(path).encoder().embeddings.token.weight.dtype == torch.float32
    table[1, 1] = 1e300
    change_weights(path, **{name: table})
    check_error(path, "weights_not_finite", "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.int64, torch.float8_e4m3fn, torch.bool])
def test_weights_of_other_dtypes_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    path = write_model(tmp_path / "m")
    change_weights(path, **{"embeddings.LayerNorm.bias": torch.zeros(8).to(dtype)})
    check_error(path, "weights_not_float", "model.safetensors", "'embeddings.LayerNorm.bias'")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_fp32(tmp_path: Path, dtype: torch.dtype) -> None:
    path = write_model(tmp_path / "m", "albert", "tokens")
    change_weights(path, **{name: t.to(dtype) for name, t in load_file(path / "model.safetensors").items()})
    folder = read_folder(path)
    head = TokenClassificationHead(folder.config, torch.Generator(), 3)
    folder.load_into("tagger", head.tagger)
    assert {p.dtype for m in (folder.encoder(), head) for p in m.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"hidden_size": 4096}, "shape_mismatch"),
        ({"intermediate_size": 60_000}, "shape_mismatch"),
        ({"vocab_size": 3_000_000}, "shape_mismatch"),
        ({"max_position_embeddings": 1_000_000}, "shape_mismatch"),
        ({"num_hidden_layers": 250}, "tensor_missing"),
        ({"id2label": {str(i): "x" for i in range(100_000)}}, "label_ids_mismatch"),
    ],
)
@pytest.mark.parametrize("head", ["sentence", "tokens"])
def test_shapes_are_compared_before_anything_is_allocated(
    tmp_path: Path, head: str, changes: dict[str, Any], code: str
) -> None:
    path = write_model(tmp_path / "m", "bert", head)
    change_config(path, **changes)
    with NoLargeTensors():
        check_error(path, code, "config.json" if "id2label" in changes else "model.safetensors")


def test_a_file_without_read_permission_is_not_reported_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "m")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(weights_module, "safe_open", refuse)
    check_error(path, "permission_denied", "model.safetensors")


# Types in config.json and bertsmith.json


@pytest.mark.parametrize(
    ("text", "code", "key"),
    [
        ('{"hidden_size": "8"}', "invalid_value", "hidden_size"),
        ('{"hidden_size": 8.5}', "invalid_value", "hidden_size"),
        ('{"hidden_size": [8]}', "invalid_value", "hidden_size"),
        ('{"hidden_act": {"gelu": 1}}', "invalid_value", "hidden_act"),
        ('{"hidden_act": "silu"}', "invalid_value", "hidden_act"),
        ('{"layer_norm_eps": 1e999}', "not_finite", "layer_norm_eps"),
        ('{"classifier_dropout": -Infinity}', "not_finite", "classifier_dropout"),
        ('{"task_specific_params": {"a": [1, NaN]}}', "not_finite", "task_specific_params.a.1"),
        ('{"initializer_range": "0.02"}', "invalid_value", "initializer_range"),
        ('{"model_type": 3}', "invalid_value", "model_type"),
        ('{"model_type": ["bert"]}', "invalid_value", "model_type"),
        ('{"architectures": [3]}', "invalid_value", "architectures.0"),
        ('{"architectures": {"a": "BertModel"}}', "invalid_value", "architectures"),
        ('{"id2label": ["a", "b"]}', "invalid_value", "id2label"),
        ('{"id2label": {"0": ["a"]}}', "invalid_value", "id2label"),
        ('{"problem_type": "ranking"}', "invalid_value", "problem_type"),
        ('{"problem_type": true}', "invalid_value", "problem_type"),
        ('{"pad_token_id": -1}', "invalid_value", "pad_token_id"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "invalid_json", ""),
    ],
)
def test_wrong_types_in_a_config_are_refused(tmp_path: Path, text: str, code: str, key: str) -> None:
    path = write_model(tmp_path / "m", "bert", "sentence")
    values = json.loads((path / "config.json").read_text())
    others = json.dumps({name: value for name, value in values.items() if f'"{name}"' not in text})
    (path / "config.json").write_text(others[:-1] + ", " + text[1:])
    with pytest.raises(InputError) as caught:
        read_folder(path)
    assert caught.value.code == code
    assert caught.value.location == str(path / "config.json")
    assert caught.value.message.startswith(f"'{key}" if key else "")
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("text", "code", "key"),
    [
        ('{"settings": [1]}', "invalid_value", "settings"),
        ('{"settings": "none"}', "invalid_value", "settings"),
        ('{"metadata": ["a"]}', "invalid_value", "metadata"),
        ('{"metadata": null}', "invalid_value", "metadata"),
        ('{"task": 3}', "invalid_value", "task"),
        ('{"numbered": "yes"}', "invalid_value", "numbered"),
        ('{"weights_sha256": 12}', "invalid_value", "weights_sha256"),
        ('{"tokens": 1e999}', "not_finite", "tokens"),
        ('{"validation": {"accuracy": NaN}}', "not_finite", "validation.accuracy"),
        ('{"extended": {"words": 3}}', "invalid_value", "extended"),
        ("[]", "not_a_json_object", ""),
        ("{", "invalid_json", ""),
        ("[" * 100_000, "invalid_json", ""),
    ],
)
def test_wrong_types_in_a_record_are_refused(tmp_path: Path, text: str, code: str, key: str) -> None:
    path = write_model(tmp_path / "m")
    (path / "bertsmith.json").write_text(text)
    check_error(path, code, "bertsmith.json", f"'{key}'" if key else "")


def test_values_that_are_not_finite_are_written_as_null(tmp_path: Path) -> None:
    record = {"validation": {"loss": float("nan"), "scores": [1.0, float("inf")]}, "steps": 3}
    assert read_folder(write_model(tmp_path / "m", record=record)).record["validation"] == {
        "loss": None,
        "scores": [1.0, None],
    }


@pytest.mark.parametrize(
    ("key", "value"), [("inner_group_num", 2), ("is_decoder", True), ("add_cross_attention", True)]
)
def test_unsupported_values_of_a_family_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    path = write_model(tmp_path / "m", "albert")
    change_config(path, **{key: value})
    check_error(path, "unsupported_config", "config.json", f"'{key}'")


def test_activations_by_other_names_are_the_same_functions(tmp_path: Path) -> None:
    activations = pytest.importorskip("transformers.activations")
    x = torch.linspace(-6, 6, 301)
    path = write_model(tmp_path / "m")
    for name, canonical_name in {
        "gelu": "gelu",
        "gelu_python": "gelu",
        "gelu_new": "gelu_new",
        "gelu_pytorch_tanh": "gelu_new",
        "gelu_python_tanh": "gelu_new",
        "gelu_fast": "gelu_new",
        "gelu_accurate": "gelu_new",
        "relu": "relu",
    }.items():
        change_config(path, hidden_act=name)
        assert read_folder(path).config.hidden_act == canonical_name
        torch.testing.assert_close(
            activations.ACT2FN[name](x), ACTIVATIONS[canonical_name](x), atol=1e-6, rtol=0
        )
