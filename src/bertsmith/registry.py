"""Registries: entries by name, some of them imported when they are first needed."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import TypeVar

from bertsmith.errors import InputError

Entry = TypeVar("Entry")


def lookup(
    registry: Mapping[str, str | Entry], name: str, message: str, argument: str | None = None
) -> Entry:
    """Return the entry of a registry for a name, and import it if the registry has only its import path.

    Args:
        registry: By name, entries or import paths of entries ("module:attribute").
        name: The name to look up.
        message: The error message for an unknown name.
        argument: The argument that the name comes from, for the error.

    Raises:
        InputError: The registry has no such name; the hint lists its names.
    """
    if name not in registry:
        raise InputError("unknown_name", message, argument=argument, hint=f"known: {', '.join(registry)}")
    value = registry[name]
    entry: Entry = pkgutil.resolve_name(value) if isinstance(value, str) else value
    return entry
