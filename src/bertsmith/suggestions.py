"""What a mistyped name was meant to be: names spelled alike, or words they share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from bertsmith.errors import InputError

_SHOWN = 3
_LONGEST_PATH = 1_000  # characters of one that people type


def similar_names(wrong: str, known: Iterable[str]) -> list[str]:
    """At most three of the known names, the likeliest first; [] where none is like the wrong one.

    Names may be dotted ("train.learning_rate"), and the wrong one may lack its group or have another.
    """
    import difflib  # some milliseconds, which --help has not to spare

    names = list(known)
    word = _last(wrong)[:100].lower().replace("-", "_")
    found = [name for name in names if _last(name) == word]
    if not found:
        if near := difflib.get_close_matches(wrong[:100], names, n=1, cutoff=0.9):
            return near
        found = difflib.get_close_matches(wrong[:100], names, n=_SHOWN, cutoff=0.75)
        alike = difflib.get_close_matches(word, {_last(name) for name in names}, n=_SHOWN, cutoff=0.7)
        found += [name for part in alike for name in names if _last(name) == part]
    if not found and len(word) > 2:
        found = [name for name in names if word in _last(name).split("_")]
    return list(dict.fromkeys(found))[:_SHOWN]


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def did_you_mean(names: list[str]) -> str:
    """The question that names them: did you mean 'a' or 'b'?"""
    return f"did you mean {' or '.join(repr(name) for name in names)}?"


def not_found_error(
    path: str | Path,
    what: Literal["file", "folder", "file or folder"] = "file",
    hint: str = "check the path",
) -> InputError:
    """Return the error for a path that does not exist; the hint names a similar path, or else is `remedy`."""
    if not str(path).strip():
        return InputError("empty_path", f"the name of a {what} is empty", hint=hint)
    near = similar_path(str(path))
    hint = f"did you mean {near}?" if near else hint
    return InputError("not_found", f"no such {what}", location=path, hint=hint)


def similar_path(name: str) -> str | None:
    """The path that exists and differs from this one by a little in one of its parts, None if there is none."""
    if "\0" in name or len(name) > _LONGEST_PATH:
        return None
    path = Path(name).expanduser()
    folder = next((above for above in path.parents if above.is_dir()), None)
    if folder is None:
        return None
    first, *rest = path.relative_to(folder).parts
    try:
        here = [entry.name for entry in os.scandir(folder)]
    except OSError:
        return None
    import difflib  # see `nearest`

    for found in difflib.get_close_matches(first, here, n=3, cutoff=0.75):
        if (folder / found).joinpath(*rest).exists():
            return str((folder / found).joinpath(*rest))
    return None
