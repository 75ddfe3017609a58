"""Distinguish mistyped paths from published model names without network access."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bertsmith.suggestions import not_found_error, similar_path

# owner/name, or a name of one part that has a hyphen or a digit in it: bert-base-uncased, gpt2
_PUBLISHED = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|(?=.*[-\d])[A-Za-z0-9][\w.-]*", re.ASCII)
_FILE = re.compile(
    r".*\.(?:safetensors|json|jsonl|ya?ml|txt|csv|tsv|gz|zst|bin|pt|pth|ckpt|onnx|model|arrow|html)"
)


def check_model_name(name: str) -> None:
    """Raise an InputError for a name that looks like a path, since no such path exists.

    A path has two separators, starts with ~, . or /, has a file's extension, is a single word, starts with an
    existing folder, or differs by one letter from an existing path. The error suggests the nearest existing path.
    """
    near = similar_path(name)
    parts = Path(name).parts
    is_path = (
        not _PUBLISHED.fullmatch(name)
        or ".." in name
        or _FILE.fullmatch(name.lower()) is not None
        or (len(parts) > 1 and os.path.lexists(parts[0]))
        or (near is not None and abs(len(near) - len(name)) <= 1)
    )
    if is_path:
        raise not_found_error(name, "folder", "Name a run, a model folder, or a published model.")
