"""Read JSON: one object on each line of a .jsonl file, or a whole .json file.

What JSON leaves open is decided here: an object with the same key twice is an error, since readers differ in which
one counts; half a surrogate pair is an error, since no tokenizer takes it; NaN and Infinity, which Python and
others write, are numbers.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.io.text_io import Line, LineReader, utf8_blocks

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_ONE_LINE_HINT = "write each object on one line of a .jsonl: jq -c . FILE > NEW.jsonl"
_COMMA_HINT = (
    "remove the commas between objects; or write […] around them, and let the file's name end in .json"
)
_MAX_JSON_BYTES = 1 << 29  # SQuAD's largest file has 46 million


class _DuplicateKeyError(Exception):
    """A key occurs twice in one object."""


def load_json(text: str) -> Any:
    """Return a JSON value, without a byte order mark. Raises ValueError, also for nesting that is too deep."""
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_object(text: str) -> bool:
    """Return True for a JSON object."""
    try:
        return isinstance(load_json(text), dict)
    except ValueError:
        return False


def parse_object(line: str, location: str) -> dict[str, Any]:
    """Return the JSON object on a line. Raises `InputError` with file:line:column for anything else."""
    hint = 'a .jsonl file has one JSON object per line: {"text": "…"}'
    if line.lstrip().startswith("["):
        hint += "; if this file is an array, let its name end in .json"
    elif line.rstrip()[-1:] in ("{", "[", ","):
        hint = _ONE_LINE_HINT
    value = _parse(line, location, hint)
    if not isinstance(value, dict):
        raise InputError("not_a_json_object", "this is not a JSON object", location=location, hint=hint)
    return value


def read_objects(lines: LineReader) -> Iterator[tuple[Line, dict[str, Any]]]:
    """Yield each line that is not blank with its object; bad lines are added to `lines.errors`."""
    for line in lines:
        if line.text and not line.text.isspace():
            try:
                values = parse_object(line.text.removesuffix("\r"), f"{lines.path}:{line.number}")
            except InputError as error:
                lines.errors.add(error, line.number, line.byte, line.raw)
            else:
                yield line, values


def read_json(path: str | Path, encoding: str | None = None) -> Any:
    """Return the value of a .json file. Raises `InputError` with file:line:column if it is not JSON."""
    content = read_json_bytes(path, encoding)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = f"save it as UTF-8, or name its encoding with {option('encoding')}"
        raise InputError("not_json", f"this is not JSON ({error})", location=path, hint=hint) from None
    hint = "the file is incomplete or damaged, or it has one object per line and should be called .jsonl"
    return _parse(text, str(path), hint, is_file=True)


def _parse(text: str, location: str, hint: str, *, is_file: bool = False) -> Any:
    """Return the JSON value of a line, or of a file; `location` is that of the text."""
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys)
        if _SURROGATE_ESCAPE.search(text):  # Only an escape can be half a pair.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except json.JSONDecodeError as error:
        message = f"this is not JSON ({error.msg[0].lower()}{error.msg[1:]})"
        if error.msg == "Extra data" and (is_file or text[error.pos] == ","):
            hint = _COMMA_HINT if text[error.pos] == "," else _ONE_LINE_HINT
        position = f"{error.lineno}:{error.colno}" if is_file else f"{error.colno}"
        raise InputError("not_json", message, location=f"{location}:{position}", hint=hint) from None
    except RecursionError:
        raise InputError("json_too_deep", "this JSON is nested too deeply", location=location) from None
    except UnicodeEncodeError:
        raise surrogate_error(location) from None
    except _DuplicateKeyError as error:
        message = f"the key '{error}' occurs twice in one object"
        raise InputError("duplicate_key", message, location=location, hint="rename or remove one") from None
    except ValueError:  # Python reads no more than some thousand digits.
        raise InputError("number_too_long", "a number has too many digits", location=location) from None


def surrogate_error(location: str) -> InputError:
    """Return the error for half a surrogate pair in a string."""
    message, hint = "an escape (\\ud800 to \\udfff) is half a character", "write both halves, or none"
    return InputError("lone_surrogate", message, location=location, hint=hint)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKeyError(ascii(next(key for key in keys if keys.count(key) > 1))[1:-1])
    return values


def read_json_bytes(path: str | Path, encoding: str | None) -> bytes:
    """Return the content of a .json file, decompressed, as UTF-8 without a byte order mark."""
    parts, size = [], 0
    for block in utf8_blocks(path, encoding)[1]:
        size += len(block)
        if size > _MAX_JSON_BYTES:
            message = f"a .json file is read at once, and this one has more than {_MAX_JSON_BYTES >> 20} MiB"
            hint = "write one row per line into a .jsonl, or split the file"
            raise InputError("file_too_large", message, location=path, hint=hint)
        parts.append(block)
    return b"".join(parts).removeprefix(codecs.BOM_UTF8)
