"""Name tables convert both ways, and accept old names and buffers of Hugging Face's files."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from bertsmith.artifacts.weights import canonical_name, from_hf_names, select_checkpoint_parts, to_hf_names
from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import FAMILIES, build_encoder, get_family, preset
from bertsmith.models.task_heads import PART_BUILDERS
from bertsmith.models.tensor_names import NameTable

SMALL = {
    "vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 6,
    "max_position_embeddings": 5,
}  # fmt: skip
PRESETS = {
    "bert": "bert-tiny-cased",
    "roberta": "roberta-base",
    "albert": "albert-base-v2",
    "distilbert": "distilbert-base-cased",
    "electra": "electra-small-discriminator",
    "transformer": "transformer-base",
}
CONFIG = ModelConfig(**SMALL)


CLASSIFIERS = {"classifier", "tagger", "chooser"}  # a file has at most one of these parts


def weights(
    config: ModelConfig = CONFIG,
    without: Collection[str] = ("tagger", "chooser", "detector", "beside", "masked_backward"),
) -> dict[str, torch.Tensor]:
    """Return every tensor by bertsmith's names; a file never holds two classifiers."""
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    parts = {
        part: make(config, encoder.generator, 3)
        for part, make in PART_BUILDERS.items()
        if part not in without
    }
    modules = {"encoder": encoder, **parts}
    return {f"{p}.{n}": t for p, module in modules.items() for n, t in module.state_dict().items()}


def bert() -> NameTable:
    return get_family("bert").names(CONFIG).without_part("tagger").without_part("chooser")


def test_every_family_is_tested() -> None:
    recurrent = {
        name for name in FAMILIES if not get_family(name).is_transformer
    }  # in test_recurrent_families.py
    left_to_right = {"openai-gpt", "gpt2"}  # in parity/test_gpt.py
    assert PRESETS.keys() | recurrent | left_to_right == FAMILIES.keys()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("classifier", sorted(CLASSIFIERS))
def test_round_trip(name: str, bare: bool, classifier: str) -> None:
    config = preset(PRESETS[name], **SMALL, causal=name == "bert")
    table = get_family(name).names(config)
    for other in CLASSIFIERS - {classifier}:
        table = table.without_part(other)
    absent = (CLASSIFIERS - {classifier}) | (
        PART_BUILDERS.keys() - frozenset().union(*get_family(name).classes)
    )
    original = weights(config, absent)
    assert original.keys() == table.tensors.keys()
    converted = to_hf_names(original, table, is_base_model=bare)
    assert any(key.startswith(f"{table.base_model_prefix}.") for key in converted) != bare
    restored = from_hf_names(converted, table, "file")
    assert restored.keys() == original.keys()
    assert all(torch.equal(restored[key], original[key]) for key in original)


def test_joined_rows_are_split_in_hugging_face_files() -> None:
    converted = to_hf_names(weights(), bert(), is_base_model=True)
    assert converted["encoder.layer.1.attention.self.key.weight"].shape == (4, 4)


def test_old_norm_names_positions_and_tied_copies() -> None:
    original, table = weights(), bert()
    converted = to_hf_names(original, table, is_base_model=False)
    old = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): tensor
        for name, tensor in converted.items()
    }
    assert old.keys() != converted.keys()
    old["bert.embeddings.position_ids"] = torch.arange(5)[None]
    old["cls.predictions.decoder.weight"] = converted["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    restored = from_hf_names(old, table, "file")
    assert restored.keys() == original.keys()
    assert torch.equal(restored["masked.bias"], original["masked.bias"])
    assert canonical_name("pooler.dense.bias", "bert") == "bert.pooler.dense.bias"
    old["cls.predictions.decoder.weight"][0, 0] += 1
    with pytest.raises(InputError) as caught:
        from_hf_names(old, table, "file")
    assert caught.value.code == "tied_tensors_differ"
    del old["bert.embeddings.word_embeddings.weight"]  # a file with the copy alone
    assert from_hf_names(old, table, "file").keys() == original.keys()


def test_unexpected_duplicate_and_missing_tensors_are_refused() -> None:
    table = bert()
    tensors = to_hf_names(weights(), table, is_base_model=False)
    one_layer = get_family("bert").names(ModelConfig(**{**SMALL, "num_hidden_layers": 1}))

    def check_error(tensors: dict[str, torch.Tensor], table: NameTable, code: str, name: str) -> None:
        with pytest.raises(InputError) as caught:
            from_hf_names(tensors, table, "file")
        assert caught.value.code == code
        assert caught.value.location == "file"
        assert name in caught.value.message

    check_error(tensors, one_layer, "unexpected_tensors", "layer.1.")
    unexpected = {**tensors, "lm_head.weight": torch.zeros(1)}
    check_error(unexpected, table, "unexpected_tensors", "'lm_head.weight'")
    duplicate = {**tensors, "pooler.dense.bias": torch.zeros(4)}
    check_error(duplicate, table, "duplicate_tensor", "pooler.dense.bias")
    del tensors["bert.encoder.layer.0.attention.self.key.weight"]
    check_error(tensors, table, "tensor_missing", "layer.0.attention.self.key.weight")


@pytest.mark.parametrize(
    ("name", "architecture", "names", "part"),
    [
        ("bert", "BertForTokenClassification", ["classifier.weight", "bert.pooler.dense.weight"], "tagger"),
        ("bert", "BertForSequenceClassification", ["classifier.weight"], "classifier"),
        ("bert", "BertForMultipleChoice", ["classifier.weight"], "chooser"),
        ("roberta", "RobertaForMultipleChoice", ["classifier.weight"], "chooser"),
        ("roberta", "RobertaForTokenClassification", ["classifier.weight"], "tagger"),
        ("roberta", None, ["classifier.weight"], "tagger"),
        ("bert", "BertCRFForTokenClassification", ["classifier.weight"], "tagger"),
        ("bert", None, ["classifier.weight", "pooler.dense.weight"], "classifier"),
        ("bert", None, ["classifier.weight"], "tagger"),
        ("albert", None, ["classifier.weight", "albert.pooler.weight"], "classifier"),
        ("albert", None, ["classifier.weight"], "tagger"),
    ],
)
def test_the_class_decides_between_heads_of_one_name(
    name: str, architecture: str | None, names: list[str], part: str
) -> None:
    model_family = get_family(name)
    full_table = model_family.names(preset(PRESETS[name], **SMALL))
    table = select_checkpoint_parts(full_table, architecture, names)
    parts = {
        tensor.partition(".")[0] for tensor in table.tensors if "classifier.weight" in table.tensors[tensor]
    }
    assert parts == {part}


def test_heads_of_two_names_may_both_be_present() -> None:
    """RoBERTa's sequence classifier has its own tensor names; its tagger and its chooser share one."""
    roberta = get_family("roberta")
    full_table = roberta.names(preset("roberta-base", **SMALL))
    table = select_checkpoint_parts(full_table, None, [])
    parts = {name.partition(".")[0] for name in table.tensors}
    assert {name.partition(".")[0] for name in full_table.tensors} - parts == {"chooser"}
