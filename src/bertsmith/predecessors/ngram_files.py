"""Folders of n-gram models: the settings, the vocabulary, and one file of arrays per order."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertsmith.artifacts.locate import NGRAM_FILE
from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.io.folder_layout import FolderLayout, in_folder
from bertsmith.io.jsonl import load_json
from bertsmith.predecessors.ngram_counts import word_bits
from bertsmith.predecessors.ngram_smoothing import NgramTable
from bertsmith.predecessors.ngram_text import SPECIAL_WORDS
from bertsmith.settings import Settings
from bertsmith.suggestions import not_found_error
from bertsmith.tokenizer.folder import TOKENIZER_FILES
from bertsmith.tokenizer.tokenizer import Tokenizer

SETTINGS_FILE, _VOCABULARY_FILE, _TOKENIZER_FOLDER = NGRAM_FILE, "vocabulary.txt", "tokenizer"
_FILES = (
    *(SETTINGS_FILE, _VOCABULARY_FILE, "*-grams.safetensors"),
    *in_folder(_TOKENIZER_FOLDER, TOKENIZER_FILES),
)
_FOLDER_LAYOUT = FolderLayout("an n-gram model", SETTINGS_FILE, _FILES, "folder")
_DTYPES = {"keys": np.int64, "log_probs": np.float32, "backoffs": np.float32}
_damaged_error = partial(
    InputError, "ngram_model_damaged", hint="train the model again, or copy the folder again"
)


def save(
    folder: Path,
    words: list[str],
    tables: list[NgramTable],
    settings: Settings,
    tokenizer: Tokenizer | None,
    *,
    overwrite: bool = False,
) -> None:
    """Write a model to a folder atomically; with `overwrite`, replace one of an n-gram model."""
    replace = _FOLDER_LAYOUT.check_replaceable(folder, overwrite=overwrite)
    with atomic.atomic_folder(folder, replace=replace) as part, atomic.write_errors(folder):
        values = {"settings": settings.model_dump(mode="json"), "pieces": tokenizer is not None}
        (part / SETTINGS_FILE).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        (part / _VOCABULARY_FILE).write_text("\n".join(words), encoding="utf-8", newline="\n")
        for order, table in enumerate(tables, start=1):
            save_file({name: getattr(table, name) for name in _DTYPES}, part / _table_file(order))
        if tokenizer is not None:
            tokenizer.save(part / _TOKENIZER_FOLDER)


def load(folder: Path) -> tuple[list[str], list[NgramTable], dict[str, Any], Tokenizer | None]:
    """Return the vocabulary, the tables, the values of the settings, and the tokenizer of a model.

    Raises:
        InputError: A file is missing or damaged.
    """
    if not folder.is_dir():
        raise not_found_error(folder, "folder", "name the folder of an n-gram model")
    if not (folder / SETTINGS_FILE).is_file():
        message, hint = "this folder holds no n-gram model", "name a folder that NgramModel.save wrote"
        raise InputError("not_an_ngram_model", message, location=folder, hint=hint)
    try:
        values = load_json(_read_text(folder / SETTINGS_FILE))
        settings, has_pieces = dict(values["settings"]), bool(values["pieces"])
        order = int(settings["order"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged_error(
            "it does not hold the settings of a model", location=folder / SETTINGS_FILE
        ) from None
    words = _read_text(folder / _VOCABULARY_FILE).split("\n")
    if words[: len(SPECIAL_WORDS)] != list(SPECIAL_WORDS) or len(set(words)) != len(words):
        message = "it does not begin with the special words, or repeats a word"
        raise _damaged_error(message, location=folder / _VOCABULARY_FILE)
    tables: list[NgramTable] = []
    for n in range(1, order + 1):
        num_contexts = len(tables[-1].keys) if tables else 1
        path = folder / _table_file(n)
        tables.append(_load_table(path, num_contexts, len(words), has_backoffs=n < order))
        if n == 1 and len(tables[0].keys) != len(words):
            raise _damaged_error("it does not have one unigram per word", location=path)
    tokenizer = Tokenizer.load(folder / _TOKENIZER_FOLDER) if has_pieces else None
    return words, tables, settings, tokenizer


def _load_table(path: Path, num_contexts: int, num_words: int, *, has_backoffs: bool) -> NgramTable:
    """Read the arrays of one order, and check that each key is in range."""
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError):
        raise _damaged_error("it is missing or not complete", location=path) from None
    keys = arrays.get("keys")
    size = 0 if keys is None else len(keys)
    for name, dtype in _DTYPES.items():
        array = arrays.get(name)
        shape = (size if name != "backoffs" or has_backoffs else 0,)
        if array is None or array.dtype != dtype or array.shape != shape:
            raise _damaged_error(f"its array {name!r} is missing or has another shape or type", location=path)
        if name != "keys" and np.isnan(array).any():
            raise _damaged_error(f"its array {name!r} has a NaN", location=path)
    bits = word_bits(num_words)
    if size:
        keys = arrays["keys"]
        is_in_range = keys[0] >= 0 and keys[-1] >> bits < num_contexts
        if not (is_in_range and (np.diff(keys) > 0).all() and ((keys & ((1 << bits) - 1)) < num_words).all()):
            raise _damaged_error("its keys are not ascending and in range", location=path)
    return NgramTable(**arrays)


def _table_file(order: int) -> str:
    return f"{order}-grams.safetensors"


def _read_text(path: Path) -> str:
    try:
        return atomic.read_file(path).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        raise _damaged_error("it is missing or not text", location=path) from None
