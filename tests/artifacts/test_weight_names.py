"""A family's name table reads both ways, and tolerates what the field's files carry beside the weights."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from bertsmith.artifacts.weight_names import canonical, from_field, table_of_file, to_field
from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import FAMILIES, build_encoder, family, preset
from bertsmith.models.heads import PARTS
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
}
CONFIG = ModelConfig(**SMALL)


ALIKE = {"classifier", "tagger", "chooser"}  # parts that a file has one of, at most


def weights(
    config: ModelConfig = CONFIG, without: Collection[str] = ("tagger", "chooser", "detector", "beside")
) -> dict[str, torch.Tensor]:
    """Every tensor by our names; a file never holds two classifiers."""
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    parts = {part: make(config, encoder.generator, 3) for part, make in PARTS.items() if part not in without}
    modules = {"encoder": encoder, **parts}
    return {f"{p}.{n}": t for p, module in modules.items() for n, t in module.state_dict().items()}


def bert() -> NameTable:
    return family("bert").names(CONFIG).without("tagger").without("chooser")


def test_every_family_is_tried() -> None:
    assert PRESETS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("kept", sorted(ALIKE))
def test_there_and_back(name: str, bare: bool, kept: str) -> None:
    config = preset(PRESETS[name], **SMALL, causal=name == "bert")
    table = family(name).names(config)
    for other in ALIKE - {kept}:
        table = table.without(other)
    lacking = (ALIKE - {kept}) | (PARTS.keys() - frozenset().union(*family(name).classes))
    ours = weights(config, lacking)
    assert ours.keys() == table.tensors.keys()
    field = to_field(ours, table, bare=bare)
    assert any(key.startswith(f"{table.base}.") for key in field) != bare
    back = from_field(field, table, "here")
    assert back.keys() == ours.keys()
    assert all(torch.equal(back[key], ours[key]) for key in ours)


def test_rows_that_ours_joins_are_parts_of_the_fields() -> None:
    field = to_field(weights(), bert(), bare=True)
    assert field["encoder.layer.1.attention.self.key.weight"].shape == (4, 4)


def test_old_norm_names_positions_and_tied_copies() -> None:
    ours, table = weights(), bert()
    field = to_field(ours, table, bare=False)
    old = {
        n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): t for n, t in field.items()
    }
    assert old.keys() != field.keys()
    old["bert.embeddings.position_ids"] = torch.arange(5)[None]
    old["cls.predictions.decoder.weight"] = field["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    back = from_field(old, table, "here")
    assert back.keys() == ours.keys()
    assert torch.equal(back["masked.bias"], ours["masked.bias"])
    assert canonical("pooler.dense.bias", "bert") == "bert.pooler.dense.bias"
    old["cls.predictions.decoder.weight"][0, 0] += 1
    with pytest.raises(InputError, match=r"decoder.weight' differs"):
        from_field(old, table, "here")
    del old["bert.embeddings.word_embeddings.weight"]  # a file that kept the copy alone
    assert from_field(old, table, "here").keys() == ours.keys()


def test_unexpected_doubled_and_half_joined_tensors_are_named() -> None:
    table = bert()
    field = to_field(weights(), table, bare=False)
    shallow = family("bert").names(ModelConfig(**{**SMALL, "num_hidden_layers": 1}))
    with pytest.raises(InputError, match=r"here: unexpected .*layer\.1\."):
        from_field(field, shallow, "here")
    with pytest.raises(InputError, match=r"unexpected tensor 'lm_head\.weight'"):
        from_field({**field, "lm_head.weight": torch.zeros(1)}, table, "here")
    with pytest.raises(InputError, match="twice"):
        from_field({**field, "pooler.dense.bias": torch.zeros(4)}, table, "here")
    del field["bert.encoder.layer.0.attention.self.key.weight"]
    with pytest.raises(InputError, match=r"missing tensor .*layer\.0\.attention\.self\.key\.weight"):
        from_field(field, table, "here")


@pytest.mark.parametrize(
    ("name", "architecture", "names", "left"),
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
def test_one_name_for_two_heads_is_told_by_the_class(
    name: str, architecture: str | None, names: list[str], left: str
) -> None:
    kind = family(name)
    table = table_of_file(kind.names(preset(PRESETS[name], **SMALL)), kind, architecture, names)
    found = {ours.partition(".")[0] for ours in table.tensors if "classifier.weight" in table.tensors[ours]}
    assert found == {left}


def test_where_the_field_has_two_names_both_heads_may_be_there() -> None:
    """RoBERTa's sentence classifier has layers of its own; its tagger and its chooser have one name."""
    kind = family("roberta")
    table = kind.names(preset("roberta-base", **SMALL))
    left = {name.partition(".")[0] for name in table_of_file(table, kind, None, []).tensors}
    assert {name.partition(".")[0] for name in table.tensors} - left == {"chooser"}
