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
    """Yield the strings under `key`, each with its line's number; skip empty lines, report bad ones."""
    for line in lines:
        if not line.text or line.text.isspace():
            continue
        try:
            text = _text(faults.path, line.number, line.text.removesuffix("\r"), key)
        except InputError as error:
            faults.add(error, line.number, line.byte, line.raw)
        else:
            yield line.number, text


def json_object(path: str | Path, number: int, line: str) -> dict[str, Any]:
    """The JSON object on one line of a jsonl file; anything else is an `InputError` with file:line:column."""
    location = f"{path}:{number}"
    try:
        value = json.loads(line, object_pairs_hook=_object)
        if _SURROGATE.search(line):  # only an escape can make half a pair
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise InputError(
            "not_json",
            f"this is not JSON ({error.msg[0].lower()}{error.msg[1:]})",
            location=f"{location}:{error.colno}",
            hint="a .jsonl file has one JSON object per line",
        ) from None
    except RecursionError:
        raise InputError("json_too_deep", "this JSON is nested too deeply", location=location) from None
    except UnicodeEncodeError:
        raise InputError(
            "lone_surrogate",
            "an escape (\\ud800 to \\udfff) is half a character",
            location=location,
            hint="write both halves, or none",
        ) from None
    except _TwiceError as error:
        message = f"the key '{error}' occurs twice in one object"
        raise InputError("duplicate_key", message, location=location, hint="rename or remove one") from None
    except ValueError:  # Python reads no more than some thousand digits
        raise InputError("number_too_long", "a number has too many digits", location=location) from None
    if not isinstance(value, dict):
        raise InputError(
            "not_a_json_object",
            "this is not a JSON object",
            location=location,
            hint='write {"text": "…"} on each line',
        )
    return value


def _text(path: str, number: int, line: str, key: str) -> str:
    value = json_object(path, number, line)
    if key not in value:
        raise InputError(
            "field_missing",
            f"the field '{key}' is missing",
            location=f"{path}:{number}",
            argument="text_column",
            hint=missing_column(key, list(value), "text_column", word="keys", note=FOR_ALL_FILES),
        )
    text = value[key]
    if not isinstance(text, str):
        json_type = "null" if text is None else _KINDS[type(text)]
        raise InputError(
            "not_a_string",
            f"the field '{key}' is not a string, but {json_type}",
            location=f"{path}:{number}",
            hint="write each text as a string in quotes",
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
