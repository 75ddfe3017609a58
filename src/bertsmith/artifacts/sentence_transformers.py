"""What sentence-transformers writes beside a model: how a text's hidden states become its vector.

modules.json names the steps, each with its folder: the model itself, the pooling, and the division by the
length where there is one.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, get_args

from bertsmith.artifacts.config_schema import read_json, read_json_list
from bertsmith.errors import InputError
from bertsmith.models.pooling import Pooling

MODULES = "modules.json"
POOLING_FOLDER = "1_Pooling"
POOLING_CONFIG = f"{POOLING_FOLDER}/config.json"
_LENGTH = "sentence_bert_config.json"
_ABOUT = "config_sentence_transformers.json"
_UNBOUNDED = 10**9
_STEPS = ("Transformer", "Pooling", "Normalize")
_MODES: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
_OTHERS = ("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken")


class SentenceVectors(NamedTuple):
    """How a folder's vectors are made. max_length: tokens read, special ones included; None: what the model can
    take."""

    pooling: Pooling
    normalize: bool
    max_length: int | None = None


def sentence_files(hidden_size: int, made: SentenceVectors) -> dict[str, Any]:
    """The contents of these files by their paths, as every version of sentence-transformers reads them."""
    names = [*_STEPS[: 3 if made.normalize else 2]]
    folders = ("", POOLING_FOLDER, "2_Normalize")
    return {
        MODULES: [
            {"idx": i, "name": str(i), "path": folder, "type": f"sentence_transformers.models.{name}"}
            for i, (name, folder) in enumerate(zip(names, folders, strict=False))
        ],
        POOLING_CONFIG: {
            "word_embedding_dimension": hidden_size,
            **{key: pooling == made.pooling for key, pooling in _MODES.items()},
        },
        _LENGTH: {"max_seq_length": made.max_length, "do_lower_case": False},
        _ABOUT: {
            "__version__": {"bertsmith": version("bertsmith")},
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }


def sentence_vectors(folder: Path) -> SentenceVectors | None:
    """How the vectors of a model folder are made; None where it does not say.

    InputError for a step or a pooling that is not known here, since the vectors would be others.
    """
    if not (folder / MODULES).is_file():
        return None
    steps = read_json_list(folder / MODULES)
    names = [str(step.get("type", "")).rpartition(".")[2] for step in steps if isinstance(step, dict)]
    if names not in (list(_STEPS[:2]), list(_STEPS)) or len(names) != len(steps):
        raise InputError(
            f"{folder / MODULES}: its vectors are made by {', '.join(names) or 'no steps'}, and bertsmith knows "
            f"{', '.join(_STEPS)}",
            "name a pooling to leave these steps out: --pooling mean",
        )
    place = str(steps[1].get("path") or "")
    known = read_json(folder / POOLING_CONFIG if place == POOLING_FOLDER else _within(folder, place))
    return SentenceVectors(_pooling(known, folder), len(names) > 2, _length(folder))


def _length(folder: Path) -> int | None:
    """The tokens read: the library's own setting, or else its tokenizer's."""
    for name, key in ((_LENGTH, "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        length = read_json(folder / name).get(key) if (folder / name).is_file() else None
        if isinstance(length, int | float) and length > _UNBOUNDED:  # 1e30: the tokenizer knows none
            length = None
        if length is None:
            continue
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise InputError(
                f"{folder / name}: {key} is {length!r:.40}, not a number of tokens",
                "correct the file",
            )
        return length
    return None


def _within(folder: Path, place: str) -> Path:
    """The configuration of a pooling in a folder of another name, which must not lead out of the model's."""
    parts = Path(place).parts
    if len(parts) != 1 or parts[0] in ("..", "/"):
        raise InputError(
            f"{folder / MODULES}: the pooling's path {place!r:.40} does not lie in this folder",
            "copy the folder again from its source",
        )
    return folder / parts[0] / "config.json"


def _pooling(known: dict[str, Any], folder: Path) -> Pooling:
    """The one pooling that a configuration names, by a word or by a truth value for each."""
    word = known.get("pooling_mode")
    found = [word] if isinstance(word, str) else list(word) if isinstance(word, list) else []
    if word is None:
        found = [name for key, name in _MODES.items() if known.get(key)]
        found += [key for key in _OTHERS if known.get(key)]
    for pooling in get_args(Pooling):
        if found == [pooling]:
            return pooling  # type: ignore[no-any-return]
    raise InputError(
        f"{folder}: its pooling ({', '.join(map(str, found)) or 'none'}) is none that bertsmith knows",
        "name one: --pooling mean, cls or max",
    )
