"""Tables of what the house knows by name (tasks, objectives, families): each imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TypeVar

from bertsmith.errors import InputError

Entry = TypeVar("Entry")


def entry(table: Mapping[str, str | Entry], name: str, sentence: str) -> Entry:
    """What `table` holds under a name: itself, or what its home ("module:NAME") does. InputError with `sentence`,
    and the names that are known, where there is none."""
    if name not in table:
        raise InputError(sentence, f"known: {', '.join(table)}")
    home = table[name]
    if not isinstance(home, str):
        return home
    module, _, attribute = home.partition(":")
    found: Entry = getattr(importlib.import_module(module), attribute)
    return found
