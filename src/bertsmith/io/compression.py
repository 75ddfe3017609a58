"""Read the bytes of a file in blocks of bounded size; `.gz`, `.zst`, `.bz2`, and `.xz` files are decompressed.

A compressed file may consist of several frames (pigz, pzstd, `cat a.gz b.gz`). A truncated file, a file of another
format, and bytes after the last frame raise a `FileError` after the blocks before them.
"""

from __future__ import annotations

import bz2
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from bertsmith.errors import InputError
from bertsmith.suggestions import not_found_error

BLOCK_BYTES = 1 << 18
_INPUT_BYTES = 1 << 14  # decompressed at a time: repetitive text becomes a thousand times as long
_ZSTD_INPUT_BYTES = 1 << 12  # zstandard's output has no limit
_FIRST_BYTES = 1 << 6  # of them at most 2 MiB; twice as many follow while the output stays within a block
_MAX_NAME_BYTES = 255  # of file systems
_MAX_XZ_MEMORY = 1 << 28  # bytes; `xz -9` needs a quarter of it
_ALIASES = {".ndjson": ".jsonl"}


class FileError(InputError):
    """An error of a whole file, or from some location on.

    Attributes:
        raw: The bytes at the beginning of the file.
        encoding: The encoding that the file seems to have, of the code `other_encoding`.
    """

    def __init__(
        self, code: str, message: str, *, raw: bytes = b"", encoding: str | None = None, **details: Any
    ) -> None:
        super().__init__(code, message, **details)
        self.raw, self.encoding = raw, encoding


def format_suffix(path: object) -> str:
    """Return the suffix of a file's format in lower case: `.jsonl` for `a.jsonl.gz` and `a.ndjson`."""
    name = Path(str(path))
    suffix = Path(name.stem).suffix.lower() if is_compressed(name) else name.suffix.lower()
    return _ALIASES.get(suffix, suffix)


def is_compressed(path: object) -> bool:
    """Return True if the file's name has the suffix of a compression format."""
    return Path(str(path)).suffix.lower() in _FORMATS


def check_name(path: object, max_bytes: int = _MAX_NAME_BYTES) -> None:
    """Raise `InputError` for a path that no file can have, or that is not UTF-8, as which locations are written.

    Args:
        path: The path.
        max_bytes: The maximum length of each name in it.
    """
    try:
        names = str(path).encode("utf-8").split(b"/")
    except UnicodeEncodeError:
        raise InputError(
            "name_not_utf8",
            "this name is not UTF-8",
            location=os.fsencode(str(path)).decode("utf-8", "backslashreplace"),
            hint="rename it: convmv -f latin1 -t utf-8",
        ) from None
    if max(map(len, names)) > max_bytes or "\0" in str(path):
        message = "no file can have this name, which is too long or has a NUL"
        raise InputError("unusable_name", message, location=path, hint="name another file")


def open_binary(path: str | Path) -> BinaryIO:
    """Open a file for reading bytes. Raises `InputError` for a missing or unreadable file, and for a pipe."""
    check_name(path)
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):
            hint = "files are read more than once: write its content to a file"
            raise InputError("not_a_file", "this is a pipe, not a file", location=path, hint=hint)
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError):
        raise not_found_error(path) from None
    except IsADirectoryError:
        hint = f"name the files in it: {path}/*.txt"
        raise InputError("is_a_folder", "this is a folder, not a file", location=path, hint=hint) from None
    except PermissionError:
        hint = "check its permissions"
        raise InputError("permission_denied", "this file may not be read", location=path, hint=hint) from None


def read_blocks(path: str | Path) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file in blocks of at least 256 KiB, except for the last."""
    pending = bytearray()
    with open_binary(path) as file:
        blocks = (
            _decompress(path, file) if is_compressed(path) else iter(partial(file.read, BLOCK_BYTES), b"")
        )
        try:
            for block in blocks:
                pending += block
                if len(pending) >= BLOCK_BYTES:
                    yield bytes(pending)
                    pending.clear()
        except FileError:
            if pending:
                yield bytes(pending)
            raise
    if pending:
        yield bytes(pending)


def _decompress(path: str | Path, file: BinaryIO) -> Iterator[bytes]:
    new_decoder, magic, max_input_bytes = _FORMATS[Path(path).suffix.lower()]
    # Decoders and not the libraries' file objects: zstandard's takes a truncated file for a complete one, and
    # bz2's and lzma's ignore bytes after the last frame.
    decoder = new_decoder()
    num_frames, is_inside = 0, False
    head, num_bytes = b"", min(_FIRST_BYTES, max_input_bytes)
    while data := file.read(num_bytes):
        head = head or data
        # A few bytes of repetitive text may become many megabytes, which zlib and zstandard return at once.
        most = 0
        # gzip and xz allow zeros between frames.
        while data := data.lstrip(b"\0") if num_frames and not is_inside else data:
            try:
                for block in _decode(decoder, data):
                    most = max(most, len(block))
                    yield block
            except _ERRORS as error:
                raise _format_error(path, error, 0 if is_inside else num_frames, head) from None
            is_inside, data = not decoder.eof, b""
            if decoder.eof:
                data, decoder, num_frames = decoder.unused_data, new_decoder(), num_frames + 1
        num_bytes = _FIRST_BYTES if most > BLOCK_BYTES else min(2 * num_bytes, max_input_bytes)
    if is_inside and not num_frames and not head.startswith(magic[: len(head)]):
        raise _format_error(path, None, 0, head)  # shorter than a header, so the decoder waits for more
    if is_inside:
        hint = "compress or download it again"
        message = "the compressed file ends in the middle"
        raise FileError("truncated_file", message, location=path, hint=hint, raw=head)


def _decode(decoder: Any, data: bytes) -> Iterator[bytes]:
    if not hasattr(decoder, "needs_input"):  # zlib and zstandard
        yield decoder.decompress(data)
        return
    yield decoder.decompress(data, BLOCK_BYTES)
    while not (decoder.eof or decoder.needs_input):
        yield decoder.decompress(b"", BLOCK_BYTES)


def _format_error(path: str | Path, error: Exception | None, num_frames: int, head: bytes) -> FileError:
    name = Path(path).suffix[1:].lower()
    if num_frames:
        message = f"after the compressed text comes something that is not {name}"
    elif "memory" in str(error).lower():
        message = f"this {name} file needs more than {_MAX_XZ_MEMORY >> 20} MiB of memory to decompress"
    else:
        message = f"this is not a whole {name} file"
    hint = "compress or download it again"
    return FileError("bad_compression", message, location=path, hint=hint, raw=head)


# By suffix: a function that makes a decoder, the first bytes of each file, and the bytes to decompress at a time.
_FORMATS: dict[str, tuple[Callable[[], Any], bytes, int]] = {
    ".gz": (partial(zlib.decompressobj, wbits=31), b"\x1f\x8b", _INPUT_BYTES),
    ".zst": (lambda: zstandard.ZstdDecompressor().decompressobj(), b"\x28\xb5\x2f\xfd", _ZSTD_INPUT_BYTES),
    ".bz2": (bz2.BZ2Decompressor, b"BZh", _INPUT_BYTES),
    ".xz": (
        partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=_MAX_XZ_MEMORY),
        b"\xfd7zXZ\0",
        _INPUT_BYTES,
    ),
}
# bz2 raises OSError or ValueError for corrupt data.
_ERRORS = (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError, ValueError)
