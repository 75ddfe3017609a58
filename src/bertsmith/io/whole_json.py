"""A .json file, which is read whole: its bytes in UTF-8, and its value."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.io.lines import utf8_blocks

_LARGEST = 1 << 29  # bytes; SQuAD's largest has 46 million


def whole_json(file: str | Path, encoding: str | None = None) -> bytes:
    """The bytes of a file, unpacked, in UTF-8 and without a mark. encoding: of a file that is not UTF-8.
    InputError for one that is too large."""
    parts, size = [], 0
    for block in utf8_blocks(file, encoding)[1]:
        size += len(block)
        if size > _LARGEST:
            raise InputError(
                "file_too_large",
                f"a .json file is read into memory at once, and this one has more than {_LARGEST >> 20} MiB",
                location=file,
                hint="write one row per line into a .jsonl, or split the file",
            )
        parts.append(block)
    return b"".join(parts).removeprefix(codecs.BOM_UTF8)


def json_value(file: str | Path, encoding: str | None = None) -> Any:
    """What a .json file holds. InputError with its place for what is not JSON."""
    try:
        return json.loads(whole_json(file, encoding).decode("utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(
            "not_json",
            f"this is not JSON ({error.msg[0].lower()}{error.msg[1:]})",
            location=f"{file}:{error.lineno}:{error.colno}",
            hint="the file is incomplete or damaged, or it has one object per line and should be called .jsonl",
        ) from None
    except RecursionError:
        raise InputError("json_too_deep", "this JSON is nested too deeply", location=file) from None
    except ValueError as error:  # bytes that are not UTF-8, numbers of too many digits
        raise InputError(
            "not_json",
            f"this is not JSON ({error})",
            location=file,
            hint=f"save it as UTF-8, or name its encoding with {option('encoding')}",
        ) from None
