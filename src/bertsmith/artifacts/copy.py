"""A model folder is copied: what the field's tools open, and nothing else of what is around it."""

from __future__ import annotations

import shutil
from fnmatch import fnmatch
from pathlib import Path

from bertsmith.artifacts.locate import CONFIG
from bertsmith.artifacts.sentence_transformers import POOLING_CONFIG, POOLING_FOLDER
from bertsmith.errors import MachineError
from bertsmith.io import atomic

_LAYOUT = atomic.FolderLayout(
    "a model",
    CONFIG,
    ("*.safetensors", "*.json", "vocab.txt", "merges.txt", "spiece.model", POOLING_FOLDER),
    "folder",
)


def copy_model(folder: Path, out: Path, *, overwrite: bool) -> Path:
    """Copy a model folder (config.json, safetensors, the tokenizer's files) to the new folder `out`, whole or not
    there, and return it. overwrite: replace a model folder; any other is refused by an InputError."""
    replace = _LAYOUT.is_replaced(out, overwrite=overwrite)
    try:
        with atomic.new_folder(out, replace=replace) as part:
            for file in folder.iterdir():
                if file.is_file() and any(fnmatch(file.name, name) for name in _LAYOUT.names):
                    shutil.copyfile(file, part / file.name)
            if (pooling := folder / POOLING_CONFIG).is_file():
                (part / POOLING_FOLDER).mkdir()
                shutil.copyfile(pooling, part / POOLING_CONFIG)
    except OSError as error:
        raise MachineError(f"{out}: the model could not be written: {error}") from error
    return out
