"""Folders of other tools and bent ones: told apart, read as what they are, or refused by file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from bertsmith.artifacts import safetensors_io as stored
from bertsmith.artifacts.folder import ModelFolder, read_folder, write_folder
from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.heads import ClassHead, Pooler, SentenceHead, SpanHead, TokenHead
from bertsmith.models.layers import ACTIVATIONS

SMALL: dict[str, Any] = {
    "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": 7,
}  # fmt: skip
PRESETS = {"bert": "bert-tiny-cased", "roberta": "roberta-base", "albert": "albert-base-v2"}


def small(name: str) -> ModelConfig:
    return preset(PRESETS[name], **SMALL)


def written(path: Path, name: str = "bert", head: str | None = None, **more: Any) -> Path:
    config = small(name)
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    g = encoder.generator
    heads = {
        "sentence": lambda: SentenceHead(config, g, 3).parts,
        "tokens": lambda: TokenHead(config, g, 3).parts,
        "span": lambda: SpanHead(config, g).parts,
        None: dict,
    }[head]()
    return write_folder(path, config, {"encoder": encoder, **heads}, **more)


def bend(path: Path, **changes: Any) -> None:
    """Change keys of config.json; None takes one out."""
    file = path / "config.json"
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def weigh(path: Path, **changes: torch.Tensor) -> None:
    """Change tensors in the file, and forget its hash."""
    (path / "bertsmith.json").unlink(missing_ok=True)
    save_file(load_file(path / "model.safetensors") | changes, path / "model.safetensors")


class NothingLarge(TorchDispatchMode):
    """Refuses tensors with memory of more than 10^5 numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not out.is_meta and out.numel() > 100_000:
            raise AssertionError(f"{func} made {list(out.shape)}")
        return out


# Fault 7: the family where config.json does not say it.


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("head", ["sentence", "tokens", "span"])
def test_without_model_type_the_tensors_tell_the_family(tmp_path: Path, name: str, head: str) -> None:
    path = written(tmp_path / "m", name, head)
    whole = read_folder(path)
    bend(path, model_type=None)
    assert read_folder(path).config == whole.config
    bend(path, architectures=None)
    found = read_folder(path)
    assert (found.config, found.parts, found.architecture) == (whole.config, whole.parts, whole.architecture)


@pytest.mark.parametrize("name", PRESETS)
def test_a_bare_encoder_is_told_by_its_class_or_refused(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "m", name)
    bend(path, model_type=None)
    assert read_folder(path).config == small(name)
    bend(path, architectures=None)
    with pytest.raises(InputError, match=r"config\.json: 'model_type' is missing") as caught:
        read_folder(path)
    assert "bert, roberta, albert" in (caught.value.remedy or "")


def test_a_class_of_another_family_is_a_contradiction(tmp_path: Path) -> None:
    path = written(tmp_path / "m", "roberta", "sentence")
    bend(path, model_type="bert")
    with pytest.raises(InputError, match="'model_type' is 'bert', and 'architectures' names RobertaFor"):
        read_folder(path)


# Heads of others are read as what they are; a class that we have no task for keeps its name.


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
def test_a_folder_says_whose_it_is(tmp_path: Path, architecture: str, parts: set[str]) -> None:
    transformers = pytest.importorskip("transformers")
    kind = architecture.partition("For")[0]
    sizes = {**SMALL, "embedding_size": 4} if kind == "Albert" else SMALL
    config = getattr(transformers, f"{kind}Config")(**sizes)
    getattr(transformers, architecture)(config).save_pretrained(tmp_path)
    folder = read_folder(tmp_path)
    assert (folder.architecture, folder.parts) == (architecture, parts)


def test_a_token_classifier_whose_file_holds_a_pooler_is_one(tmp_path: Path) -> None:
    path = written(tmp_path / "m", "bert", "tokens")
    pooler = {
        f"bert.pooler.dense.{kind}": torch.zeros(8, 8)[: 8 if kind == "weight" else 1] for kind in ("weight",)
    }
    weigh(path, **pooler, **{"bert.pooler.dense.bias": torch.zeros(8)})
    folder = read_folder(path)
    assert folder.parts == {"encoder", "pooler", "tagger"}
    assert not folder.has("classifier")
    assert folder.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_the_problem_type_stays_with_the_folder(tmp_path: Path) -> None:
    path = written(tmp_path / "m", "bert", "sentence", problem_type="multi_label_classification")
    assert json.loads((path / "config.json").read_text())["problem_type"] == "multi_label_classification"
    assert read_folder(path).problem_type == "multi_label_classification"
    assert read_folder(written(tmp_path / "n", "bert", "sentence")).problem_type is None


def test_parts_without_a_class_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = small("roberta")
    encoder = build_encoder(config, torch.Generator())
    parts = {
        "encoder": encoder,
        "pooler": Pooler(config, encoder.generator),
        "classifier": ClassHead(config, encoder.generator),
    }
    with pytest.raises(InputError, match="roberta has no class with these heads: classifier, pooler"):
        write_folder(tmp_path / "m", config, parts)
    assert list(tmp_path.iterdir()) == []


# Sharded weights.


def sharded(path: Path, pieces: int = 3) -> tuple[ModelFolder, dict[str, str]]:
    """A folder's weights over several files, as the field splits them."""
    whole = read_folder(path)
    tensors = sorted(load_file(path / "model.safetensors").items())
    (path / "model.safetensors").unlink()
    (path / "bertsmith.json").unlink()
    index = {}
    for i in range(pieces):
        name = f"model-{i + 1:05}-of-{pieces:05}.safetensors"
        some = dict(tensors[i::pieces])
        save_file(some, path / name)
        index |= dict.fromkeys(some, name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return whole, index


def test_sharded_weights_are_the_same_model(tmp_path: Path) -> None:
    path = written(tmp_path / "m")
    before = read_folder(path).encoder().state_dict()
    sharded(path)
    folder = read_folder(path)
    after = folder.encoder().state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    digest = folder.weights_digest()
    weigh_shard = next(path.glob("model-00002*"))
    save_file({name: tensor + 1 for name, tensor in load_file(weigh_shard).items()}, weigh_shard)
    assert read_folder(path).weights_digest() != digest


def test_shards_of_the_reference_are_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    other = transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)).eval()
    other.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    encoder = read_folder(tmp_path).encoder().eval()
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        theirs = other.bert(ids).last_hidden_state
        torch.testing.assert_close(encoder(ids), theirs, atol=1e-5, rtol=0)


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
def test_an_index_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "m")
    _, index = sharded(path)
    save_file({"x": torch.zeros(1)}, tmp_path / "outside.safetensors")
    index[next(iter(index))] = name
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(
        InputError, match=r"index\.json: .* is not the name of a safetensors file in this folder"
    ):
        read_folder(path)


def test_an_index_that_its_files_do_not_bear_out_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m")
    _, index = sharded(path)
    place = path / "model.safetensors.index.json"
    first = next(iter(index))

    def refused(values: Any, said: str) -> None:
        place.write_text(json.dumps(values))
        with pytest.raises(InputError, match=said):
            read_folder(path)

    others = {name: file for name, file in index.items() if name != first}
    refused({"weight_map": others}, "lacks the tensors that")
    refused({"weight_map": {**index, "more": index[first]}}, "lacks the tensors that")
    refused(
        {"weight_map": {**index, "more": "none.safetensors"}}, "none.safetensors is missing from the folder"
    )
    refused({"weight_map": {}}, "names no tensor")
    refused({"weight_map": [1]}, "'weight_map' should be a valid dictionary")
    refused({"weight_map": {first: 3}}, "should be a valid string")
    refused({}, "'weight_map' [Ff]ield required")
    place.write_text(json.dumps({"weight_map": index}))
    torn = path / index[first]
    torn.write_bytes(torn.read_bytes()[:-3])
    with pytest.raises(InputError, match=f"{index[first]}: this is not a whole safetensors file"):
        read_folder(path)


def test_weights_that_were_split_afterwards_are_not_those_that_were_written(tmp_path: Path) -> None:
    path = written(tmp_path / "m")
    record = (path / "bertsmith.json").read_text()
    sharded(path)
    (path / "bertsmith.json").write_text(record)
    with pytest.raises(InputError, match="are not those that were written"):
        read_folder(path).encoder()


# Numbers: finite, fp32, of the config's shapes.


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite_are_refused_by_name(
    tmp_path: Path, bad: float, dtype: torch.dtype
) -> None:
    path = written(tmp_path / "m", "bert", "sentence")
    tensor = torch.zeros(8, 8, dtype=dtype)
    tensor[3, 4] = bad
    weigh(path, **{"bert.pooler.dense.weight": tensor})
    with pytest.raises(
        InputError, match=r"tensor 'bert\.pooler\.dense\.weight' has values that are infinite"
    ):
        read_folder(path).encoder()


def test_doubles_that_fp32_cannot_hold_are_refused_and_others_read(tmp_path: Path) -> None:
    path = written(tmp_path / "m")
    name = "embeddings.word_embeddings.weight"
    table = load_file(path / "model.safetensors")[name].double()
    weigh(path, **{name: table})
    assert read_folder(path).encoder().embeddings.token.weight.dtype == torch.float32
    table[1, 1] = 1e300
    weigh(path, **{name: table})
    with pytest.raises(InputError, match="infinite"):
        read_folder(path).encoder()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float8_e4m3fn, torch.bool])
def test_weights_of_other_kinds_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    path = written(tmp_path / "m")
    weigh(path, **{"embeddings.LayerNorm.bias": torch.zeros(8).to(dtype)})
    with pytest.raises(InputError, match="not floating-point numbers"):
        read_folder(path).encoder()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_fp32(tmp_path: Path, dtype: torch.dtype) -> None:
    path = written(tmp_path / "m", "albert", "tokens")
    weigh(path, **{name: t.to(dtype) for name, t in load_file(path / "model.safetensors").items()})
    folder = read_folder(path)
    head = TokenHead(folder.config, torch.Generator(), 3)
    folder.fill("tagger", head.tagger)
    assert {p.dtype for m in (folder.encoder(), head) for p in m.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": 4096}, r"\[11, 8\] should be \[11, 4096\]"),
        ({"intermediate_size": 60_000}, "should be"),
        ({"vocab_size": 3_000_000}, "should be"),
        ({"max_position_embeddings": 1_000_000}, "should be"),
        ({"num_hidden_layers": 250}, "missing tensors"),
        (
            {"id2label": {str(i): "x" for i in range(100_000)}},
            "id2label names other ids than the classifier's, 0 to 2",
        ),
    ],
)
@pytest.mark.parametrize("head", ["sentence", "tokens"])
def test_shapes_are_compared_before_anything_is_allocated(
    tmp_path: Path, head: str, changes: dict[str, Any], said: str
) -> None:
    path = written(tmp_path / "m", "bert", head)
    bend(path, **changes)
    with NothingLarge(), pytest.raises(InputError, match=said) as caught:
        read_folder(path)
    assert str(path) in caught.value.sentence


def test_a_file_that_may_not_be_read_is_not_called_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(stored, "safe_open", refuse)
    with pytest.raises(InputError, match="you may not read this file"):
        read_folder(path)


# config.json and bertsmith.json, typed.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"hidden_size": "8"}', "'hidden_size' should be a valid integer"),
        ('{"hidden_size": 8.5}', "'hidden_size' should be a valid integer"),
        ('{"hidden_size": [8]}', "'hidden_size' should be a valid integer"),
        ('{"hidden_act": {"gelu": 1}}', "'hidden_act' should be"),
        ('{"hidden_act": "silu"}', "'hidden_act' should be"),
        ('{"layer_norm_eps": 1e999}', "'layer_norm_eps' is not a finite number"),
        ('{"classifier_dropout": -Infinity}', "'classifier_dropout' is not a finite number"),
        ('{"task_specific_params": {"a": [1, NaN]}}', "'task_specific_params.a.1' is not a finite number"),
        ('{"initializer_range": "0.02"}', "'initializer_range' should be a valid number"),
        ('{"model_type": 3}', "'model_type' should be a valid string"),
        ('{"model_type": ["bert"]}', "'model_type' should be a valid string"),
        ('{"architectures": [3]}', "'architectures.0' should be a valid string"),
        ('{"architectures": {"a": "BertModel"}}', "'architectures' should be a valid list"),
        ('{"id2label": ["a", "b"]}', "'id2label' should be a valid dictionary"),
        ('{"id2label": {"0": ["a"]}}', "id2label"),
        ('{"problem_type": "ranking"}', "'problem_type' should be"),
        ('{"problem_type": true}', "'problem_type' should be"),
        ('{"pad_token_id": -1}', "'pad_token_id' should be greater"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "config.json"),
    ],
)
def test_wrong_kinds_in_a_config_are_named_by_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path / "m", "bert", "sentence")
    values = json.loads((path / "config.json").read_text())
    kept = json.dumps({key: value for key, value in values.items() if f'"{key}"' not in text})
    (path / "config.json").write_text(kept[:-1] + ", " + text[1:])
    with pytest.raises(InputError, match=said) as caught:
        read_folder(path)
    assert str(path / "config.json") in caught.value.sentence
    assert len(caught.value.sentence) < 400 + len(str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"settings": [1]}', "'settings' should be a valid dictionary"),
        ('{"settings": "none"}', "'settings' should be a valid dictionary"),
        ('{"facts": ["a"]}', "'facts' should be a valid dictionary"),
        ('{"facts": null}', "'facts' should be a valid dictionary"),
        ('{"task": 3}', "'task' should be a valid string"),
        ('{"numbered": "yes"}', "'numbered' should be a valid boolean"),
        ('{"weights_sha256": 12}', "'weights_sha256' should be a valid string"),
        ('{"tokens": 1e999}', "'tokens' is not a finite number"),
        ('{"dev": {"accuracy": NaN}}', "'dev.accuracy' is not a finite number"),
        ('{"extended": {"words": 3}}', "'extended' should be a valid list"),
        ("[]", "is not a JSON object"),
        ("{", "this is not JSON"),
        ("[" * 100_000, "this is not JSON"),
    ],
)
def test_wrong_kinds_in_a_record_are_named_by_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path / "m")
    (path / "bertsmith.json").write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        read_folder(path)
    assert str(path / "bertsmith.json") in caught.value.sentence


def test_what_is_not_finite_is_written_as_null(tmp_path: Path) -> None:
    record = {"dev": {"loss": float("nan"), "scores": [1.0, float("inf")]}, "steps": 3}
    assert read_folder(written(tmp_path / "m", record=record)).record["dev"] == {
        "loss": None,
        "scores": [1.0, None],
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [("inner_group_num", 2), ("is_decoder", True), ("add_cross_attention", True)],
)
def test_fixed_keys_of_a_family_are_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    path = written(tmp_path / "m", "albert")
    bend(path, **{key: value})
    with pytest.raises(InputError, match=f"{key} {value} cannot be read"):
        read_folder(path)


def test_activations_by_other_names_are_the_same_functions(tmp_path: Path) -> None:
    activations = pytest.importorskip("transformers.activations")
    x = torch.linspace(-6, 6, 301)
    path = written(tmp_path / "m")
    for name, ours in {
        "gelu": "gelu",
        "gelu_python": "gelu",
        "gelu_new": "gelu_new",
        "gelu_pytorch_tanh": "gelu_new",
        "gelu_python_tanh": "gelu_new",
        "gelu_fast": "gelu_new",
        "gelu_accurate": "gelu_new",
        "relu": "relu",
    }.items():
        bend(path, hidden_act=name)
        assert read_folder(path).config.hidden_act == ours
        torch.testing.assert_close(activations.ACT2FN[name](x), ACTIVATIONS[ours](x), atol=1e-6, rtol=0)
