"""Telling a path that was mistyped from the published name of a model, before anything asks the network."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bertsmith.suggestions import absent, nearest_here

# owner/name; or a name of one part, which has a hyphen or a number in it: bert-base-uncased, gpt2
_PUBLISHED = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|(?=.*[-\d])[A-Za-z0-9][\w.-]*", re.ASCII)
_FILE = re.compile(
    r".*\.(?:safetensors|json|jsonl|ya?ml|txt|csv|tsv|gz|zst|bin|pt|pth|ckpt|onnx|model|arrow|html)"
)


def refuse_mistyped(name: str) -> None:
    """InputError for a name that is not here and reads as a path; what may be published passes.

    A path has two separators, or begins with ~, . or /, or ends as a file does, or is a word alone, or its first
    folder is here, or it is one letter off something here. The error names the nearest that is here.
    """
    near = nearest_here(name)
    parts = Path(name).parts
    is_path = (
        not _PUBLISHED.fullmatch(name)
        or ".." in name
        or _FILE.fullmatch(name.lower()) is not None
        or (len(parts) > 1 and os.path.lexists(parts[0]))
        or (near is not None and abs(len(near) - len(name)) <= 1)
    )
    if is_path:
        raise absent(name, "folder", "name a run, a model folder or a published name")
