"""The name table reads both ways, and tolerates what the field's files carry beside the weights."""

from __future__ import annotations

import pytest
import torch

from bertsmith.artifacts.names import canonical, from_field, table, to_field
from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import ClassHead, MaskedHead, PairHead, Pooler

CONFIG = ModelConfig(
    vocab_size=9, hidden_size=4, num_hidden_layers=2, num_attention_heads=2, intermediate_size=6,
    max_position_embeddings=5,
)  # fmt: skip


def weights() -> dict[str, torch.Tensor]:
    encoder = Encoder(CONFIG)
    g = encoder.generator
    heads = {"pooler": Pooler, "masked": MaskedHead, "pair": PairHead, "classifier": ClassHead}
    modules = {"encoder": encoder} | {name: cls(CONFIG, g) for name, cls in heads.items()}
    return {f"{p}.{n}": t for p, module in modules.items() for n, t in module.state_dict().items()}


def test_the_table_holds_exactly_the_modules_tensors() -> None:
    assert set(table(2)) == set(weights())


@pytest.mark.parametrize("bare", [True, False])
def test_there_and_back(bare: bool) -> None:
    ours = weights()
    field = to_field(ours, bare=bare)
    assert any(name.startswith("bert.") for name in field) != bare
    back = from_field(field, 2, "here")
    assert back.keys() == ours.keys()
    assert all(torch.equal(back[name], ours[name]) for name in ours)
    assert field[("" if bare else "bert.") + "encoder.layer.1.attention.self.key.weight"].shape == (4, 4)


def test_old_norm_names_positions_and_tied_copies() -> None:
    ours = weights()
    field = to_field(ours, bare=False)
    old = {
        n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): t for n, t in field.items()
    }
    assert old.keys() != field.keys()
    old["bert.embeddings.position_ids"] = torch.arange(5)[None]
    old["cls.predictions.decoder.weight"] = field["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    back = from_field(old, 2, "here")
    assert back.keys() == ours.keys()
    assert canonical("pooler.dense.bias") == "bert.pooler.dense.bias"
    old["cls.predictions.decoder.weight"][0, 0] += 1
    with pytest.raises(InputError, match=r"decoder.weight' differs"):
        from_field(old, 2, "here")


def test_unexpected_doubled_and_half_joined_tensors_are_named() -> None:
    field = to_field(weights(), bare=False)
    with pytest.raises(InputError, match=r"here: unexpected .*layer\.1\."):
        from_field(field, 1, "here")
    with pytest.raises(InputError, match=r"unexpected tensor 'lm_head\.weight'"):
        from_field({**field, "lm_head.weight": torch.zeros(1)}, 2, "here")
    with pytest.raises(InputError, match="twice"):
        from_field({**field, "pooler.dense.bias": torch.zeros(4)}, 2, "here")
    del field["bert.encoder.layer.0.attention.self.key.weight"]
    with pytest.raises(InputError, match=r"missing tensor .*layer\.0\.attention\.self\.key\.weight"):
        from_field(field, 2, "here")
