"""`create_model`: a preset of every family, also with a tokenizer that is not usual for it."""

from __future__ import annotations

from pathlib import Path

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.models.family import preset, presets

# The narrowest preset of each family.
NAMES = {
    sizes["model_type"]: name
    for name, sizes in sorted(presets().items(), key=lambda entry: -preset(entry[0]).hidden_size)
}


@pytest.mark.parametrize("family", NAMES)
def test_a_model_of_each_family_has_the_sizes_of_its_tokenizer(family: str, tmp_path: Path) -> None:
    tokenizer = tiny_run.tokenizer()
    config = bs.create_model(NAMES[family], tokenizer, tmp_path / "model").folder.config
    assert (config.model_type, config.vocab_size) == (family, tokenizer.vocab_size)
    assert config.pad_token_id in (tokenizer.pad_token_id, None)
