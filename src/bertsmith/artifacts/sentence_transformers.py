"""The files of sentence-transformers in a model folder: pooling, normalization, and maximum length.

modules.json lists the modules with their folders: the model, the pooling, and an optional normalization.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, get_args

from bertsmith.artifacts.config_schema import read_json, read_json_list
from bertsmith.errors import InputError, option
from bertsmith.models.config import ModelConfig, Pooling

MODULES = "modules.json"
POOLING_FOLDER = "1_Pooling"
POOLING_CONFIG = f"{POOLING_FOLDER}/config.json"
_TRANSFORMER_CONFIG = "sentence_bert_config.json"
_LIBRARY_CONFIG = "config_sentence_transformers.json"
SENTENCE_FILES = (MODULES, POOLING_CONFIG, _TRANSFORMER_CONFIG, _LIBRARY_CONFIG)
_MAX_PLAUSIBLE_LENGTH = 10**9  # tokenizers without a limit have 1e30
_MODULE_CLASSES = ("Transformer", "Pooling", "Normalize")
_MODES: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}


class SentenceEmbeddingConfig(NamedTuple):
    """The computation of a folder's sentence embeddings.

    Attributes:
        pooling: The reduction of the tokens' hidden states.
        normalize: True if embeddings are scaled to unit length.
        max_length: Tokens per text, special tokens included; None for the model's maximum.
    """

    pooling: Pooling
    normalize: bool
    max_length: int | None = None


def sentence_transformers_files(model: ModelConfig, config: SentenceEmbeddingConfig) -> dict[str, Any]:
    """Return the contents of the files by their paths, as every version of sentence-transformers reads them.

    The maximum length is always a number: text-embeddings-inference does not read null.
    """
    max_length = min(config.max_length or model.max_length, model.max_length)
    classes = _MODULE_CLASSES if config.normalize else _MODULE_CLASSES[:2]
    folders = ("", POOLING_FOLDER, "2_Normalize")
    return {
        MODULES: [
            {"idx": i, "name": str(i), "path": folder, "type": f"sentence_transformers.models.{name}"}
            for i, (name, folder) in enumerate(zip(classes, folders, strict=False))
        ],
        POOLING_CONFIG: {
            "word_embedding_dimension": model.hidden_size,
            **{key: pooling == config.pooling for key, pooling in _MODES.items()},
        },
        _TRANSFORMER_CONFIG: {"max_seq_length": max_length, "do_lower_case": False},
        _LIBRARY_CONFIG: {
            "__version__": {"bertsmith": version("bertsmith")},
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }


def read_sentence_embedding_config(folder: Path) -> SentenceEmbeddingConfig | None:
    """Read the computation of a model folder's embeddings, None if the folder has no modules.json.

    Raises:
        InputError: A module or the pooling is not supported, so the embeddings would differ.
    """
    if not (folder / MODULES).is_file():
        return None
    modules = read_json_list(folder / MODULES)
    classes = [
        str(module.get("type", "")).rpartition(".")[2] for module in modules if isinstance(module, dict)
    ]
    supported = (list(_MODULE_CLASSES[:2]), list(_MODULE_CLASSES))
    if classes not in supported or len(classes) != len(modules):
        message = (
            f"its embeddings are computed by {', '.join(classes) or 'no modules'}; "
            f"bertsmith supports {', '.join(_MODULE_CLASSES)}"
        )
        hint = f"set a pooling to ignore these modules: {option('pooling', 'mean')}"
        raise InputError("unsupported_modules", message, location=folder / MODULES, hint=hint)
    path = str(modules[1].get("path") or "")
    parts = Path(path).parts
    if len(parts) != 1 or parts[0] in ("..", "/"):
        message = f"the pooling's path {path!r:.40} is outside of this folder"
        hint = "copy the folder again from its source"
        raise InputError("pooling_outside_folder", message, location=folder / MODULES, hint=hint)
    pooling = _pooling(read_json(folder / path / "config.json"), folder)
    return SentenceEmbeddingConfig(pooling, len(classes) > 2, _max_length(folder))


def read_prompts(folder: Path) -> dict[str, str]:
    """Return the texts that a folder puts before texts for a purpose, such as "query: ", by name."""
    path = folder / _LIBRARY_CONFIG
    prompts = read_json(path).get("prompts") if path.is_file() else None
    return {name: text for name, text in (prompts or {}).items() if isinstance(text, str)}


def _max_length(folder: Path) -> int | None:
    """Return the tokens per text: the library's setting, or else the tokenizer's."""
    for name, key in ((_TRANSFORMER_CONFIG, "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        length = read_json(folder / name).get(key) if (folder / name).is_file() else None
        if length is None or (isinstance(length, int | float) and length > _MAX_PLAUSIBLE_LENGTH):
            continue
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            message = f"{key} is {length!r:.40}, not a number of tokens"
            hint = "correct the file"
            raise InputError("invalid_max_length", message, location=folder / name, hint=hint)
        return length
    return None


def _pooling(config: dict[str, Any], folder: Path) -> Pooling:
    """Return the only pooling of a configuration, given by `pooling_mode` or by a flag for each mode."""
    mode = config.get("pooling_mode")
    if mode is None:
        flags = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
        modes: list[str] = [_MODES.get(key, key) for key in flags]
    else:
        modes = [mode] if isinstance(mode, str) else list(mode) if isinstance(mode, list) else []
    for pooling in get_args(Pooling):
        if modes == [pooling]:
            return pooling  # type: ignore[no-any-return]
    message = f"its pooling ({', '.join(map(str, modes)) or 'none'}) is not supported"
    hint = f"set one: {option('pooling', 'mean')}, cls, or max"
    raise InputError("unsupported_pooling", message, location=folder, hint=hint)
