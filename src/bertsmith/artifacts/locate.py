"""Find the model folder of a run, a model folder, or a published model; the runs in a folder of several.

Mistyped paths are distinguished from published names without network access.
"""

from __future__ import annotations

import logging
import os
import re
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from bertsmith.artifacts.config_schema import TYPE_PREFIX
from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.io import atomic
from bertsmith.io.compression import check_name
from bertsmith.io.jsonl import load_json
from bertsmith.models.family import preset, resolve_preset, similar_presets
from bertsmith.suggestions import not_found_error, similar_path

logger = logging.getLogger(__name__)
CONFIG_FILE = "config.json"
NGRAM_FILE, WORD_VECTORS_FILE = "ngram.json", "word_vectors.json"
"""The files by which folders of n-gram models and of word vectors are recognized."""
STATIC_MODEL_TYPE = "model2vec"
"""The model type in config.json of static vectors."""
RUNS_FILE = "runs.json"
"""The file with the names of the runs, finished or not."""
RUNS_REPORT_FILE = "report.json"
"""The file with their results, written when all runs are finished."""
_PRETRAINED = Path(str(files("bertsmith") / "pretrained"))
# owner/name, or a name of one part that has a hyphen or a digit in it: bert-base-uncased, gpt2
_PUBLISHED = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|(?=.*[-\d])[A-Za-z0-9][\w.-]*", re.ASCII)
_FILE = re.compile(
    r".*\.(?:safetensors|json|jsonl|ya?ml|txt|csv|tsv|gz|zst|bin|pt|pth|ckpt|onnx|model|arrow|html)"
)
_DOWNLOADED_FILES = [CONFIG_FILE, "*.safetensors", "*.json", "vocab.txt", "merges.txt", "*.model"]


def locate(name: str | Path) -> Path:
    """Return the model folder of a run folder (its model/), a model folder, or a published model.

    "bert-mini-uncased-en" is included in the package and needs no network. A published name
    ("bert-base-uncased", "owner/model") is looked up in the cache of huggingface_hub (extra `hub`) and
    downloaded unless HF_HUB_OFFLINE is set. If that fails, the name stands for the only pre-trained model of the
    same family in the current folder, which is logged.

    Raises:
        InputError: There is no such model.
    """
    check_name(name)
    path = Path(name)
    check_has_layers(path)
    for candidate in (path / "model", path):
        if (candidate / CONFIG_FILE).is_file():
            check_model_name(str(path))
            return candidate
    check_single_run(path)
    if path.exists():
        message = f"this is neither a run nor a model folder ({CONFIG_FILE} is missing)"
        hint = "name a folder that training wrote, or one with config.json and model.safetensors"
        raise InputError("not_a_model", message, location=name, hint=hint)
    if path.name == str(name) and (_PRETRAINED / path.name / CONFIG_FILE).is_file():
        return _PRETRAINED / path.name
    similar = check_model_name(str(name))
    try:
        return _from_hub(str(name), similar)
    except InputError as error:
        family = _family_of(str(name))
        candidates = _pretrained_here(family)
        if family is None or len(candidates) != 1:
            raise
        message = "%s: %s; %s is used instead, the only pre-trained model of its family in this folder"
        logger.warning(message, name, error.message, candidates[0])
        return candidates[0]


def check_has_layers(path: Path) -> None:
    """Raise an InputError for the folder of a model without layers, which only Python's classes open."""
    classes = {
        NGRAM_FILE: ("an n-gram model", "NgramModel"),
        WORD_VECTORS_FILE: ("word vectors", "WordVectors"),
    }
    model = next((value for file, value in classes.items() if (path / file).is_file()), None)
    if read_report(path / CONFIG_FILE).get("model_type") == STATIC_MODEL_TYPE:
        model = "static vectors", "StaticModel"
    if model is not None:
        message = f"this folder holds {model[0]}, which commands and load do not open"
        hint = f"in Python, bertsmith.{model[1]}.load({str(path)!r}) opens it"
        raise InputError("model_without_layers", message, location=path, hint=hint)


def _family_of(name: str) -> str | None:
    """Return the model type of a published name of which there is a preset; None for other names."""
    preset_name = resolve_preset(name.rpartition("/")[2])
    return None if preset_name is None else preset(preset_name).model_type


def _pretrained_here(model_type: str | None = None) -> list[Path]:
    """Return the model folders in the current folder that have a head of pre-training, of one family or of all."""
    folders = [part for path in sorted(Path().iterdir()) for part in (path, path / "model")]
    configs = {folder: read_report(folder / CONFIG_FILE) for folder in folders}
    return [
        folder
        for folder, config in configs.items()
        if str(config.get("architectures")).endswith(("ForPreTraining']", "ForMaskedLM']"))
        and model_type in (None, str(config.get("model_type")).removeprefix(TYPE_PREFIX))
    ]


def check_model_name(name: str) -> str | None:
    """Judge a name; log a folder of the current directory that is used in place of the shipped model of that name.

    A path has two separators, starts with ~, . or /, has a file's extension, is a single word, starts with an
    existing folder, or differs by one letter from an existing path or the shipped model. Other names may be
    published.

    Returns:
        For a name that may be published, the similar path or name of a model; None if there is none. A longer name
        that begins with this one is a run that was named after its base model.

    Raises:
        InputError: The name is a path that does not exist; the hint has the nearest one that does.
    """
    parts = Path(name).parts
    shipped = _shipped_names()
    if os.path.exists(name):
        if name in shipped:
            logger.info(
                "%s: this folder is used, and not the model of the same name that bertsmith has", name
            )
        return None
    near = similar_path(name) or next(iter(get_close_matches(name, shipped, n=1, cutoff=0.85)), None)
    is_path = (
        not _PUBLISHED.fullmatch(name)
        or ".." in name
        or _FILE.fullmatch(name.lower()) is not None
        or (len(parts) > 1 and os.path.lexists(parts[0]))
        or (near is not None and abs(len(near) - len(name)) <= 1)
    )
    if is_path:
        hint = f"did you mean {near}?" if near else "name a run, a model folder, or a published model"
        raise not_found_error(name, "folder", hint)
    is_model = any((Path(near or name) / part / CONFIG_FILE).is_file() for part in (".", "model"))
    return near if near in shipped or (near and is_model and not near.startswith(name)) else None


def _shipped_names() -> list[str]:
    """Return the names of the models that are included in the package."""
    return [folder.name for folder in _PRETRAINED.iterdir() if (folder / CONFIG_FILE).is_file()]


def _from_hub(name: str, similar: str | None) -> Path:
    if similar is None and resolve_preset(name) is None:
        similar = next(iter(similar_presets(name, cutoff=0.85)), None)
    suggestion = f"did you mean {similar}? Otherwise: " if similar else ""
    models = [str(folder.parent if folder.name == "model" else folder) for folder in _pretrained_here()]
    existing = f"; models without a download: {join_names([*models, *_shipped_names()])}"
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        hint = f"{suggestion}if it is a published model: pip install 'bertsmith[hub]'{existing}"
        raise InputError("hub_not_installed", "no such folder", location=name, hint=hint) from None
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    for cached_only in (True,) if offline else (True, False):
        try:
            snapshot = Path(
                snapshot_download(name, allow_patterns=_DOWNLOADED_FILES, local_files_only=cached_only)
            )
        except Exception as error:  # huggingface_hub and the network raise many types; each means "not found"
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            continue
        weights = [file for pattern in ("*.safetensors", "*.bin") for file in snapshot.glob(pattern)]
        if (snapshot / CONFIG_FILE).is_file() and weights:
            return snapshot  # opening it explains why pickles (.bin) are not read
        reason = f"its snapshot has no {CONFIG_FILE} or no weights"
    source = "the cache (HF_HUB_OFFLINE is set)" if offline else f"the Hugging Face hub ({reason})"
    message = f"no such folder, and no model of this name could be loaded from {source}"
    hint = f"{suggestion}name a run, a model folder, or a published model{existing}"
    raise InputError("model_not_found", message, location=name, hint=hint)


def locate_tokenizer(name: str) -> Path:
    """Return the folder or file of a tokenizer: a run's, the path itself, or a published model's."""
    check_name(name)
    path = Path(name)
    if any((path / "model" / file).is_file() for file in ("tokenizer.json", "vocab.txt")):
        return path / "model"
    if not path.exists():
        return locate(name)
    check_model_name(str(path))
    return path


def run_names(folder: Path) -> list[str] | None:
    """Return the names of a folder's runs in order, None if it is not a folder of runs."""
    names = read_report(folder / RUNS_FILE).get("runs")
    return [str(name) for name in names] if isinstance(names, list) else None


def check_single_run(folder: Path) -> None:
    """Raise an InputError for a folder of runs; its hint names the best run on the validation set."""
    names = run_names(folder)
    if names is None:
        return
    report = read_report(folder / RUNS_REPORT_FILE)
    best, metric = report.get("best"), report.get("decided_by")
    started = [name for name in names if (folder / name / "model").is_dir()]
    resume = option("resume", True)
    if isinstance(best, str) and best in names:
        hint = f"name one run: {folder / best} has the best {metric} on the validation set"
    elif started:
        hint = f"name one run, such as {folder / started[0]}; {resume} continues unfinished runs"
    else:
        hint = f"continue the runs: repeat the command that started them with {resume}"
    message = f"this folder holds {pluralize(len(names), 'run')}; it is not a run itself"
    raise InputError("folder_of_runs", message, location=folder, hint=hint)


def read_report(file: Path) -> dict[str, Any]:
    """Return the values of a report; {} if the file is missing or damaged."""
    try:
        content = load_json(atomic.read_file(file).decode("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
