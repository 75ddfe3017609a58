"""Lookup in registries (tasks, objectives, model families) whose entries are imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from bertsmith.errors import InputError

Entry = TypeVar("Entry")


def lookup(table: Mapping[str, str | Entry], name: str, message: str, argument: str | None = None) -> Entry:
    """Return the registry's entry for a name, which is imported if it is given as "module:attribute".

    Args:
        table: Entries, or the import paths of entries, by name.
        name: The name to look up.
        message: The error message for an unknown name.
        argument: The argument that the name comes from, for the error.

    Raises:
        InputError: The table has no such name; the hint lists its names.
    """
    if name not in table:
        raise InputError("unknown_name", message, argument=argument, hint=f"known: {', '.join(table)}")
    value = table[name]
    if not isinstance(value, str):
        return value
    imported: Entry = load_attribute(value)
    return imported


def load_attribute(path: str) -> Any:
    """Return the object that "module:NAME" names."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
