"""Suggestions for mistyped names and paths: similar spellings, or shared words."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from bertsmith.errors import InputError

_MAX_SUGGESTIONS = 3
_MAX_PATH_LENGTH = 1_000  # characters; a longer text is not a mistyped path
_MAX_NAME_LENGTH = 100  # characters of a name to compare, since difflib is slow for long texts


def similar_names(name: str, choices: Iterable[str]) -> list[str]:
    """Return at most three choices that are similar to a name, the most similar first.

    Choices may be dotted names of settings ("train.learning_rate"). The name may lack the group ("learning_rate")
    or have another one. Without similar spellings, choices of which the name is a whole word are returned
    ("rate").
    """
    import difflib  # imported here to keep --help fast

    choices = list(choices)
    word = _last_part(name)[:_MAX_NAME_LENGTH].lower().replace("-", "_")
    matches = [choice for choice in choices if _last_part(choice) == word]
    if not matches:
        # One choice that is almost the same suffices.
        if nearest := difflib.get_close_matches(name[:_MAX_NAME_LENGTH], choices, n=1, cutoff=0.9):
            return nearest
        matches = difflib.get_close_matches(name[:_MAX_NAME_LENGTH], choices, n=_MAX_SUGGESTIONS, cutoff=0.75)
        last_parts = {_last_part(choice) for choice in choices}
        for part in difflib.get_close_matches(word, last_parts, n=_MAX_SUGGESTIONS, cutoff=0.7):
            matches += [choice for choice in choices if _last_part(choice) == part]
    if not matches and len(word) > 2:
        matches = [choice for choice in choices if word in _last_part(choice).split("_")]
    return list(dict.fromkeys(matches))[:_MAX_SUGGESTIONS]


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def did_you_mean(names: list[str]) -> str:
    """Return a hint with the names: "did you mean 'a' or 'b'?"."""
    return f"did you mean {' or '.join(repr(name) for name in names)}?"


def not_found_error(
    path: str | Path, what: Literal["file", "folder", "file or folder"] = "file", hint: str = "check the path"
) -> InputError:
    """Return the error for a path that does not exist, or is a device or a pipe.

    Args:
        path: The path.
        what: The kind of path, for the message.
        hint: The hint if no similar path exists.
    """
    if not str(path).strip():
        return InputError("empty_path", f"the name of a {what} is empty", hint=hint)
    if os.path.exists(path):
        return InputError("not_a_file", f"is not a regular {what}", location=path, hint=hint)
    suggestion = similar_path(str(path))
    hint = f"did you mean {suggestion}?" if suggestion else hint
    return InputError("not_found", f"no such {what}", location=path, hint=hint)


def similar_path(name: str) -> str | None:
    """Return an existing path that is spelled similarly where this one stops existing; None if there is none."""
    if "\0" in name or len(name) > _MAX_PATH_LENGTH:
        return None
    path = Path(name).expanduser()
    folder = next((parent for parent in path.parents if os.path.isdir(parent)), None)
    if folder is None:
        return None
    missing, *rest = path.relative_to(folder).parts
    try:
        entries = [entry.name for entry in os.scandir(folder)]
    except OSError:
        return None
    import difflib  # imported here to keep --help fast

    for entry in difflib.get_close_matches(missing, entries, n=3, cutoff=0.75):
        if (candidate := (folder / entry).joinpath(*rest)).exists():
            return str(candidate)
    return None
