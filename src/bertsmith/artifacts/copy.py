"""Copy the model files of a folder."""

from __future__ import annotations

import shutil
from fnmatch import fnmatch
from pathlib import Path

from bertsmith.artifacts.locate import CONFIG_FILE
from bertsmith.artifacts.sentence_transformers import POOLING_CONFIG, POOLING_FOLDER
from bertsmith.errors import MachineError
from bertsmith.io import atomic

_LAYOUT = atomic.FolderLayout(
    "a model",
    CONFIG_FILE,
    ("*.safetensors", "*.json", "vocab.txt", "merges.txt", "spiece.model", POOLING_FOLDER),
    "folder",
)


def copy_model(folder: Path, out: Path, *, overwrite: bool) -> Path:
    """Copy a model folder (config.json, safetensors, the tokenizer's files) to the new folder `out` atomically.

    Args:
        folder: The model folder.
        out: The new folder.
        overwrite: Replace an existing model folder. Any other existing folder is an InputError.
    """
    replace = _LAYOUT.check_replaceable(out, overwrite=overwrite)
    try:
        with atomic.atomic_folder(out, replace=replace) as new_folder:
            for file in folder.iterdir():
                if file.is_file() and any(fnmatch(file.name, name) for name in _LAYOUT.patterns):
                    shutil.copyfile(file, new_folder / file.name)
            if (pooling := folder / POOLING_CONFIG).is_file():
                (new_folder / POOLING_FOLDER).mkdir()
                shutil.copyfile(pooling, new_folder / POOLING_CONFIG)
    except OSError as error:
        raise MachineError("model_not_written", f"cannot write the model: {error}", location=out) from error
    return out
