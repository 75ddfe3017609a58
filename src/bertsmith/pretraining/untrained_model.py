"""Models with random weights, to train for a task without pre-training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertsmith.artifacts.folder import MODEL_LAYOUT, write_folder
from bertsmith.artifacts.locate import locate_tokenizer
from bertsmith.inference.model import Model, load
from bertsmith.io import atomic
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import build_encoder, preset
from bertsmith.pretraining.resolve_settings import sizes_of_tokenizer
from bertsmith.tokenizer.tokenizer import Tokenizer


def create_model(
    preset_name: str,
    tokenizer: str | Path | Tokenizer,
    output_dir: str | Path,
    *,
    seed: int = 0,
    overwrite: bool = False,
    **settings: Any,
) -> Model:
    """Write a model with random weights, which `finetune` trains from nothing.

    Args:
        preset_name: A preset, such as "transformer-mini" or "bert-mini-uncased".
        tokenizer: A tokenizer, or its path.
        output_dir: The folder to write.
        seed: The seed of the weights.
        overwrite: Replace a model folder.
        settings: Settings of `ModelConfig` to change, such as num_hidden_layers=2.

    Returns:
        The model.

    Raises:
        InputError: The preset or a setting is unknown, or the folder is not empty, or with `overwrite` holds
            anything else.
    """
    out = atomic.output_path(output_dir)
    replace(MODEL_LAYOUT, argument="output_dir").check_replaceable(out, overwrite=overwrite)
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(locate_tokenizer(str(tokenizer)))
    sizes = sizes_of_tokenizer(tokenizer, preset(preset_name).model_type)
    config: ModelConfig = preset(preset_name, **{**sizes, **settings})
    encoder = build_encoder(config, torch.Generator().manual_seed(seed))
    encoder.embeddings.set_tokens(tokenizer.tokens)
    write_folder(out, config, {"encoder": encoder}, tokenizer=tokenizer)
    return load(out)
