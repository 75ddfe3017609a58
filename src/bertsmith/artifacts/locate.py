"""Find the model folder behind a name: a run, a model folder, an included model, or a published name."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from bertsmith.artifacts.path_suggestions import refuse_mistyped
from bertsmith.artifacts.run_collection import refuse_several
from bertsmith.errors import InputError
from bertsmith.suggestions import nearest_here

CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = "*.bin"
_PRETRAINED = Path(str(files("bertsmith") / "pretrained"))
_WANTED = [CONFIG, "*.safetensors", "*.json", "vocab.txt", "merges.txt", "*.model"]


def locate(name: str | Path) -> Path:
    """The model folder behind a name: a run folder (its model/), a model folder, or a published name.

    "bert-mini-uncased-en" is included in the package and needs no network.
    A published name ("bert-base-uncased", "owner/model") is looked up in the cache of huggingface_hub (extra
    `hub`) and fetched from there unless HF_HUB_OFFLINE is set. What cannot be found is an `InputError`.
    """
    path = Path(name)
    for candidate in (path / "model", path):
        if (candidate / CONFIG).is_file():
            return candidate
    refuse_several(path)
    if path.exists():
        raise InputError(
            f"{name}: is neither a run nor a model folder ({CONFIG} is not in it)",
            "name the folder that training wrote, or one with config.json and model.safetensors",
        )
    if (ours := _PRETRAINED / path.name / CONFIG).is_file() and path.name == str(name):
        return ours.parent
    refuse_mistyped(str(name))
    return _from_hub(str(name))


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            f"{name}: no such folder",
            f"{_meant(name)}if it is a published name: pip install 'bertsmith[hub]'",
        ) from None
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    reason, reached = "", True
    for cached_only in (True,) if offline else (True, False):
        try:
            found = Path(snapshot_download(name, allow_patterns=_WANTED, local_files_only=cached_only))
        except Exception as error:  # the hub's errors are many and its network's more: each means "not found"
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            answered = getattr(error, "response", None) is not None
            reached = answered or not isinstance(error, OSError) or error.errno is not None
            continue
        if (found / CONFIG).is_file() and any((found / weights).is_file() for weights in _WEIGHTS):
            return found
        if (found / CONFIG).is_file() and any(found.glob(_PICKLED)):
            return found  # who opens it says why that is not read
        reason, reached = f"its snapshot has no {CONFIG} or no {_WEIGHTS[0]}", True
    if not reached and not offline:
        raise InputError(
            f"{name}: there is no run or model folder of this name, and the Hugging Face hub could not be reached",
            f"{_meant(name)}name a run or a model folder; a published name needs the network once",
        )
    where = "in the local cache (HF_HUB_OFFLINE is set)" if offline else f"on the Hugging Face hub ({reason})"
    raise InputError(
        f"{name}: no such folder is here, and no model of this name was found {where}",
        f"{_meant(name)}name a run, a model folder or a published name",
    )


def _meant(name: str) -> str:
    near = nearest_here(name)
    return f"did you mean {near}? else " if near else ""


def locate_tokenizer(name: str) -> Path:
    """The folder or file behind a tokenizer's name: a run's, the path itself, or a published model's."""
    path = Path(name)
    if any((path / "model" / file).is_file() for file in ("tokenizer.json", "vocab.txt")):
        return path / "model"
    return path if path.exists() else locate(name)
