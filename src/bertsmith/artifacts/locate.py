"""Find the model folder of a run, a model folder, or a published model."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from bertsmith.artifacts.path_suggestions import check_model_name
from bertsmith.artifacts.run_collection import check_single_run
from bertsmith.errors import InputError
from bertsmith.suggestions import similar_path

CONFIG_FILE = "config.json"
_WEIGHTS_FILES = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = "*.bin"
_PRETRAINED = Path(str(files("bertsmith") / "pretrained"))
_DOWNLOADED_FILES = [CONFIG_FILE, "*.safetensors", "*.json", "vocab.txt", "merges.txt", "*.model"]


def locate(name: str | Path) -> Path:
    """Return the model folder of a run folder (its model/), a model folder, or a published model.

    "bert-mini-uncased-en" is included in the package and needs no network. A published name
    ("bert-base-uncased", "owner/model") is looked up in the cache of huggingface_hub (extra `hub`) and
    downloaded unless HF_HUB_OFFLINE is set.

    Raises:
        InputError: There is no such model.
    """
    path = Path(name)
    for candidate in (path / "model", path):
        if (candidate / CONFIG_FILE).is_file():
            return candidate
    check_single_run(path)
    if path.exists():
        raise InputError(
            "not_a_model",
            f"this is neither a run nor a model folder ({CONFIG_FILE} is missing)",
            location=name,
            hint="name a folder that training wrote, or one with config.json and model.safetensors",
        )
    if path.name == str(name) and (_PRETRAINED / path.name / CONFIG_FILE).is_file():
        return _PRETRAINED / path.name
    check_model_name(str(name))
    return _from_hub(str(name))


def _from_hub(name: str) -> Path:
    suggestion = f"did you mean {near}? Otherwise: " if (near := similar_path(name)) else ""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            "hub_not_installed",
            "no such folder",
            location=name,
            hint=f"{suggestion}if it is a published model: pip install 'bertsmith[hub]'",
        ) from None
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    reason, is_reachable = "", True
    for cached_only in (True,) if offline else (True, False):
        try:
            snapshot = Path(
                snapshot_download(name, allow_patterns=_DOWNLOADED_FILES, local_files_only=cached_only)
            )
        except Exception as error:  # huggingface_hub and the network raise many types; each means "not found"
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            has_response = getattr(error, "response", None) is not None
            is_reachable = has_response or not isinstance(error, OSError) or error.errno is not None
            continue
        if (snapshot / CONFIG_FILE).is_file():
            if any((snapshot / weights).is_file() for weights in _WEIGHTS_FILES):
                return snapshot
            if any(snapshot.glob(_PICKLES)):
                return snapshot  # opening it explains why pickles are not read
        reason, is_reachable = f"its snapshot has no {CONFIG_FILE} or no {_WEIGHTS_FILES[0]}", True
    if not is_reachable and not offline:
        raise InputError(
            "hub_unreachable",
            "no such run or model folder, and the Hugging Face hub cannot be reached",
            location=name,
            hint=f"{suggestion}name a run or a model folder; a published model needs the network once",
        )
    searched = (
        "in the local cache (HF_HUB_OFFLINE is set)" if offline else f"on the Hugging Face hub ({reason})"
    )
    raise InputError(
        "model_not_found",
        f"no such folder, and no model of this name {searched}",
        location=name,
        hint=f"{suggestion}name a run, a model folder, or a published model",
    )


def locate_tokenizer(name: str) -> Path:
    """Return the folder or file of a tokenizer: a run's, the path itself, or a published model's."""
    path = Path(name)
    if any((path / "model" / file).is_file() for file in ("tokenizer.json", "vocab.txt")):
        return path / "model"
    return path if path.exists() else locate(name)
