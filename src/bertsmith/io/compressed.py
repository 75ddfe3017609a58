"""A file's bytes in blocks of bounded size, unpacked where its name ends in .gz, .zst, .bz2 or .xz.

A compressed file may hold several frames, one behind the other (pigz, pzstd, `cat a.gz b.gz`). One that ends
in the middle, is not what its name says, or goes on with something else raises a `FileFault` after the blocks
before.
"""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import zstandard

from bertsmith.errors import InputError
from bertsmith.io.memory import InMemory
from bertsmith.suggestions import not_found_error

BLOCK = 1 << 18
_PACKED = 1 << 14  # bytes unpacked at a time: where text repeats itself they become a thousand times as many
_PACKED_ZSTD = 1 << 12  # for the one decoder whose output cannot be limited
_MOST_XZ = 1 << 28  # bytes that a header of .xz may ask for; `xz -9` takes a quarter of it
_SAME = {".ndjson": ".jsonl"}


class FileFault(InputError):
    """An error of a file as a whole, or from some location on.

    Attributes:
        raw: The bytes at the beginning of the file.
        encoding: The encoding that the file seems to have, of the code `other_encoding`.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        location: object = None,
        argument: str | None = None,
        hint: str | None = None,
        raw: bytes = b"",
        encoding: str | None = None,
    ) -> None:
        super().__init__(code, message, location=location, argument=argument, hint=hint)
        self.raw, self.encoding = raw, encoding


def bare_suffix(path: str | Path) -> str:
    """Return the suffix of a file's format, in lower case: that of `a.jsonl.gz` is `.jsonl`, that of `a.ndjson`
    and of data in memory too."""
    if isinstance(path, InMemory):
        return ".jsonl"
    name = Path(path)
    suffix = Path(name.stem).suffix.lower() if is_compressed(name) else name.suffix.lower()
    return _SAME.get(suffix, suffix)


def is_compressed(path: str | Path) -> bool:
    """Whether the file's name says that it is compressed."""
    return Path(path).suffix.lower() in _DECODERS


def check_name(path: str | Path) -> None:
    """Raise `InputError` for a path that is not UTF-8."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise InputError(
            "name_not_utf8",
            "this name is not UTF-8",
            location=shown,
            hint="rename it: convmv -f latin1 -t utf-8",
        ) from None


def opened(path: str | Path) -> BinaryIO:
    """Open a file for reading bytes. Raises `InputError` for what is no file or may not be read, and for a name
    that is not UTF-8, since locations are printed and written as UTF-8."""
    check_name(path)
    try:
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError):
        raise not_found_error(path) from None
    except IsADirectoryError:
        raise InputError(
            "is_a_folder",
            "this is a folder, not a file",
            location=path,
            hint=f"name the files in it: {path}/*.txt",
        ) from None
    except PermissionError:
        raise InputError(
            "permission_denied", "this file may not be read", location=path, hint="check its permissions"
        ) from None


def read_blocks(path: str | Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked, in blocks that are not empty. Raises as `opened`, and `FileFault`."""
    if isinstance(path, InMemory):
        yield from path.blocks()
        return
    new_decoder = _DECODERS.get(Path(path).suffix.lower())
    with opened(path) as file:
        if new_decoder is not None:
            yield from _unpacked(path, file, new_decoder)
            return
        while block := file.read(BLOCK):
            yield block


def _unpacked(path: str | Path, file: BinaryIO, new_decoder: Any) -> Iterator[bytes]:
    # Decompressor objects and not file-like readers: zstandard's reader takes a torn file for a whole one.
    decoder: _Decoder = new_decoder()
    step = _PACKED_ZSTD if new_decoder is _zstd else _PACKED
    frames, torn = 0, False  # torn: inside of a frame
    head = b""
    while data := file.read(step):
        head = head or data
        while data := data.lstrip(b"\0") if frames and not torn else data:  # gzip and xz allow zeros between
            try:
                yield from decoder.decompress(data)
            except _ERRORS as error:
                raise _fault(path, error, frames if not torn else 0, head) from None
            torn, data = not decoder.eof, b""
            if decoder.eof:
                data, decoder, frames = decoder.unused_data, new_decoder(), frames + 1
    if torn and not frames and not head.startswith(_MAGIC[new_decoder][: len(head)]):
        raise _fault(path, None, 0, head)  # shorter than a header: the decoder waits for the rest of it
    if torn:
        raise FileFault(
            "truncated_file",
            "the compressed file ends in the middle",
            location=path,
            hint="compress or download it again",
            raw=head,
        )


def _fault(path: str | Path, error: Exception | None, frames: int, head: bytes) -> FileFault:
    kind = Path(path).suffix[1:].lower()
    if frames:
        message = f"after the compressed text comes something that is not {kind}"
    elif "memory" in str(error).lower():
        message = f"this {kind} file needs more than {_MOST_XZ >> 20} MiB of memory to decompress"
    else:
        message = f"this is not a whole {kind} file"
    hint = "compress or download it again"
    return FileFault("bad_compression", message, location=path, hint=hint, raw=head)


class _Decoder(Protocol):
    """Unpacks one frame, in blocks that are not empty."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes) -> Iterator[bytes]: ...


class _Direct:
    """zlib and zstandard: what some KiB unpack to comes at once."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    @property
    def eof(self) -> bool:
        return bool(self._decoder.eof)

    @property
    def unused_data(self) -> bytes:
        unused: bytes = self._decoder.unused_data
        return unused

    def decompress(self, data: bytes) -> Iterator[bytes]:
        if block := self._decoder.decompress(data):
            yield block


class _OfLibrary:
    """bz2 and lzma, whose decoders have the same methods."""

    def __init__(self, decoder: bz2.BZ2Decompressor | lzma.LZMADecompressor) -> None:
        self._decoder = decoder

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes) -> Iterator[bytes]:
        while True:
            if block := self._decoder.decompress(data, BLOCK):
                yield block
            data = b""
            if self._decoder.eof or self._decoder.needs_input:
                return


def _gzip() -> _Direct:
    return _Direct(zlib.decompressobj(wbits=31))


def _zstd() -> _Direct:
    return _Direct(zstandard.ZstdDecompressor().decompressobj())


def _bz2() -> _OfLibrary:
    return _OfLibrary(bz2.BZ2Decompressor())


def _xz() -> _OfLibrary:
    return _OfLibrary(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_XZ))


_DECODERS: dict[str, Any] = {".gz": _gzip, ".zst": _zstd, ".bz2": _bz2, ".xz": _xz}
_MAGIC: dict[Any, bytes] = {_gzip: b"\x1f\x8b", _zstd: b"\x28\xb5\x2f\xfd", _bz2: b"BZh", _xz: b"\xfd7zXZ\0"}
# bz2 raises OSError or ValueError for broken data.
_ERRORS = (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError, ValueError)
