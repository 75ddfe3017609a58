"""jsonl: one JSON object a line, and what is wrong with a line.

What JSON leaves open is decided here: an object with the same key twice is refused, since readers differ in
which one counts; half a surrogate pair is refused, since no tokenizer takes it; NaN and Infinity, which Python
and others write, are numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.io.lines import Faults, Line
from bertsmith.io.records import FOR_ALL_FILES, missing_column

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def texts_of_jsonl(lines: Iterable[Line], key: str, faults: Faults) -> Iterator[tuple[int, str]]:
    """The strings under `key`, each with its line's number; empty lines are skipped, bad ones told."""
    for line in lines:
        if not line.text or line.text.isspace():
            continue
        try:
            text = _text(faults.path, line.number, line.text.removesuffix("\r"), key)
        except InputError as error:
            faults.tell(error, line.number, line.byte, line.raw)
        else:
            yield line.number, text


def json_object(path: str | Path, number: int, line: str) -> dict[str, Any]:
    """The JSON object on one line of a jsonl file; anything else is an `InputError` with file:line:column."""
    try:
        value = json.loads(line, object_pairs_hook=_object)
        if _SURROGATE.search(line):  # only an escape can make half a pair
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{number}:{error.colno}: this is not JSON ({error.msg[0].lower()}{error.msg[1:]})",
            "a .jsonl file has one JSON object per line",
        ) from None
    except RecursionError:
        raise InputError(f"{path}:{number}: this JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise InputError(
            f"{path}:{number}: an escape (\\ud800 to \\udfff) is half a character",
            "write both halves, or none",
        ) from None
    except _TwiceError as error:
        raise InputError(f"{path}:{number}: the key '{error}' occurs twice in one object") from None
    except ValueError:  # Python reads no more than some thousand digits
        raise InputError(f"{path}:{number}: a number has too many digits") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}:{number}: this is not a JSON object", 'write {"text": "…"} on each line')
    return value


def _text(path: str, number: int, line: str, key: str) -> str:
    value = json_object(path, number, line)
    if key not in value:
        raise InputError(
            f"{path}:{number}: the field '{key}' is missing",
            missing_column(key, list(value), FOR_ALL_FILES, "keys"),
        )
    text = value[key]
    if not isinstance(text, str):
        found = "null" if text is None else f"{_KINDS[type(text)]}"
        raise InputError(
            f"{path}:{number}: the field '{key}' is not a string, but {found}",
            "write each text as a string in quotes",
        )
    return text


_KINDS = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}


class _TwiceError(Exception):
    """A key that occurs twice in one object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwiceError(ascii(key)[1:-1])
            seen.add(key)
    return found
