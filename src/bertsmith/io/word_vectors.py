"""Read and write files of word vectors: word2vec's text and binary formats, and GloVe's and fastText's text.

Text has a word and its numbers on each line; the first line may have the number of vectors and their size
(word2vec, fastText), or be a vector (GloVe). Files with the suffix .bin are binary: that line, and then for each
word its UTF-8 bytes, a space, and its numbers as float32, with an optional line end before the next word. Each may
be compressed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.io.compression import format_suffix, read_blocks
from bertsmith.io.jsonl import load_json
from bertsmith.io.text_io import read_lines

logger = logging.getLogger(__name__)

_FORMAT_HINT = "a line is a word and its numbers, with blanks between, as word2vec writes them (-binary 0)"
_COPY_HINT = "copy it again from its source"
_BINARY = ".bin"
WORDS_FILE, VECTORS_FILE = "words.json", "vectors.safetensors"
"""The files of a folder of word vectors."""
_FASTTEXT_MAGIC = (793712314).to_bytes(4, "little")
_MAX_HEADER_BYTES, _MAX_WORD_BYTES, _MAX_DIMENSIONS = 64, 1 << 16, 1 << 16


def read_word_vectors(
    path: str | Path, words: Collection[str] | None = None
) -> tuple[dict[str, NDArray[np.float32]], int]:
    """Return the float32 vectors of words that a file has, and their size; of a word that occurs again, the first.

    Args:
        path: The file, which is read in one pass, or a folder that `WordVectors.save` wrote.
        words: The words; None: all.

    Raises:
        InputError: A line is not a vector of the same size, or the file has none, or not as many as its first line
            says; or a folder holds no vectors.
    """
    if Path(path).is_dir():
        return _read_folder(Path(path), words)
    read = _read_binary if format_suffix(path) == _BINARY else _read_text
    vectors, width, repeated = read(path, words)
    if repeated:
        message = "%s: %s a word again; the first vector of each word is kept"
        logger.warning(message, path, pluralize(repeated, "vector repeats", "vectors repeat"))
    return vectors, width


def _read_folder(folder: Path, words: Collection[str] | None) -> tuple[dict[str, NDArray[np.float32]], int]:
    try:
        names = load_json(atomic.read_file(folder / WORDS_FILE).decode("utf-8"))["words"]
        rows = load_file(folder / VECTORS_FILE)["vectors"]
        pairs, (_, width) = list(zip(names, rows, strict=True)), rows.shape
    except (OSError, InputError, SafetensorError, KeyError, TypeError, ValueError):
        message, hint = (
            "this folder holds no word vectors, or is damaged",
            "name one that WordVectors.save wrote",
        )
        raise InputError("not_word_vectors", message, location=folder, hint=hint) from None
    return {name: row for name, row in pairs if words is None or name in words}, width


def write_word_vectors(path: str | Path, words: Sequence[str], vectors: NDArray[np.float32]) -> None:
    """Write vectors in word2vec's format, binary if the suffix is .bin; text restores the numbers exactly.

    Args:
        path: The file.
        words: V words.
        vectors: Their vectors, fp32 [V, H].

    Raises:
        InputError: A word is empty or contains white space, which the format cannot hold.
    """
    invalid = next((word for word in words if word.split() != [word]), None)
    if invalid is not None:
        message = (
            f"the word {invalid!r} is empty or contains white space, which word2vec's format cannot hold"
        )
        raise InputError("word_with_space", message, location=path, hint="save the vectors as a folder")
    path = atomic.output_path(path)
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    is_binary = format_suffix(path) == _BINARY
    with atomic.atomic_file(path) as part, part.open("wb") as file:
        file.write(f"{len(words)} {rows.shape[1]}\n".encode())
        for word, row in zip(words, rows, strict=True):
            numbers = row.tobytes() if is_binary else " ".join(map(str, row)).encode()
            file.write(word.encode("utf-8") + b" " + numbers + b"\n")


def _read_text(
    path: str | Path, words: Collection[str] | None
) -> tuple[dict[str, NDArray[np.float32]], int, int]:
    """Return what `read_word_vectors` does, and the number of repeated words, of a text file."""
    lines = _stripped_lines(path)
    first = next(lines, None)
    if first is None:
        raise _empty(path)
    total, width = _parse_header(first[1])
    if total is None:
        lines, width = chain([first], lines), _count_numbers(first[1].split(" ")[1:])
    if not width:
        message = "this line has neither the numbers of a vector nor a size of vectors above 0"
        raise InputError("not_numbers", message, location=f"{path}:{first[0]}", hint=_FORMAT_HINT)
    vectors: dict[str, NDArray[np.float32]] = {}
    number = repeated = 0
    for number, (line, text) in enumerate(lines, start=1):
        location = f"{path}:{line}"
        if total is not None and number > total:
            message = f"the first line says {pluralize(total, 'vector')}, and this line is one more"
            hint = "correct or remove the first line"
            raise InputError("too_many_vectors", message, location=location, hint=hint)
        word, numbers = _split_line(text, location, width)
        repeated += word in vectors
        if (words is None or word in words) and word not in vectors:
            vectors[word] = _parse_vector(numbers, location, width)
    if total is not None and number < total:
        raise _truncated(path, number, total)
    if not number:
        raise _empty(path)
    return vectors, width, repeated


def _read_binary(
    path: str | Path, words: Collection[str] | None
) -> tuple[dict[str, NDArray[np.float32]], int, int]:
    """Return what `read_word_vectors` does, and the number of repeated words, of a binary file."""
    source = _ByteReader(path)
    header = source.take_until(b"\n", _MAX_HEADER_BYTES)
    total, width = _parse_header(header.decode("latin-1")) if header is not None else (None, 0)
    if total is None or not 0 < width <= _MAX_DIMENSIONS:
        is_fasttext = source.starts_with(_FASTTEXT_MAGIC)
        message = "this is fastText's own format" if is_fasttext else "it does not begin with two numbers"
        hint = "use its .vec file" if is_fasttext else "read text with another suffix than .bin, such as .txt"
        raise InputError("not_word2vec_binary", message, location=path, hint=hint)
    vectors: dict[str, NDArray[np.float32]] = {}
    repeated = 0
    for number in range(total):
        at = source.position
        name, numbers = source.take_until(b" ", _MAX_WORD_BYTES), source.take(4 * width)
        if name is None or numbers is None:
            if name is None and source.buffered >= _MAX_WORD_BYTES:
                raise _binary_error(f"no word ends within {_MAX_WORD_BYTES:,} bytes", path, at)
            raise _truncated(path, number, total)
        try:
            word = name.lstrip(b"\n").decode("utf-8")
        except UnicodeDecodeError:
            raise _binary_error("the word is not UTF-8", path, at) from None
        repeated += word in vectors
        if (words is None or word in words) and word not in vectors:
            vectors[word] = np.frombuffer(numbers, dtype="<f4").astype(np.float32)
            if not np.isfinite(vectors[word]).all():
                raise _binary_error(f"a number of the vector of {word!r:.40} is not finite", path, at)
    at = source.position
    if source.take(1) not in (None, b"\n") or source.take(1) is not None:
        raise _binary_error(f"the file continues after its {pluralize(total, 'vector')}", path, at)
    if not total:
        raise _empty(path)
    return vectors, width, repeated


class _ByteReader:
    """Take bytes from the beginning of a file, also compressed."""

    def __init__(self, path: str | Path) -> None:
        self._blocks = read_blocks(path)
        self._buffer = b""
        self._start = 0  # of the rest in the buffer
        self._buffer_position = 0

    @property
    def position(self) -> int:
        """The number of bytes before the rest."""
        return self._buffer_position + self._start

    @property
    def buffered(self) -> int:
        """The number of bytes of the rest that are in memory."""
        return len(self._buffer) - self._start

    def starts_with(self, prefix: bytes) -> bool:
        """Return True if the rest begins with some bytes."""
        return self._buffer.startswith(prefix, self._start)

    def take_until(self, delimiter: bytes, max_bytes: int) -> bytes | None:
        """Return the bytes before a delimiter, and skip it; None if it is not within `max_bytes`."""
        while (end := self._buffer.find(delimiter, self._start, self._start + max_bytes)) < 0:
            if self.buffered >= max_bytes or not self._fill():
                return None
        taken, self._start = self._buffer[self._start : end], end + 1
        return taken

    def take(self, size: int) -> bytes | None:
        """Return the next bytes; None if there are fewer."""
        while self.buffered < size:
            if not self._fill():
                return None
        taken = self._buffer[self._start : self._start + size]
        self._start += size
        return taken

    def _fill(self) -> bool:
        block = next(self._blocks, b"")
        self._buffer_position += self._start
        self._buffer, self._start = self._buffer[self._start :] + block, 0
        return bool(block)


def _empty(path: str | Path) -> InputError:
    return InputError("no_vectors", "there is no vector in this file", location=path, hint=_COPY_HINT)


def _truncated(path: str | Path, number: int, total: int) -> InputError:
    message = f"the file ends after {number:,} of {total:,} vectors"
    return InputError("truncated_file", message, location=path, hint=_COPY_HINT)


def _binary_error(fault: str, path: str | Path, position: int) -> InputError:
    message = f"at byte {position:,}: {fault}"
    return InputError("damaged_vectors", message, location=path, hint=_COPY_HINT)


def _stripped_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, without the space that word2vec leaves at the end."""
    for number, text in read_lines(path):
        if stripped := text.rstrip(" ").replace("\t", " "):
            yield number, stripped


def _parse_header(text: str) -> tuple[int | None, int]:
    """Return the number of vectors and their size in a first line; None and 0 for a vector."""
    fields = text.split(" ")
    if len(fields) != 2 or not all(field.isascii() and field.isdigit() for field in fields):
        return None, 0
    return int(fields[0]), int(fields[1])


def _split_line(text: str, location: str, width: int) -> tuple[str, list[str]]:
    """Return the word of a line, which may contain spaces, and its numbers."""
    fields = text.split(" ")
    if len(fields) != width + 1 and (count := _count_numbers(fields[1:])) != width:
        message = f"after the word, this line has {pluralize(count, 'number')} instead of {width}"
        raise InputError("vector_length", message, location=location, hint=_FORMAT_HINT)
    return " ".join(fields[:-width]), fields[-width:]


def _count_numbers(fields: Sequence[str]) -> int:
    """Return how many fields at the end of a line are numbers."""
    return sum(1 for _ in takewhile(_is_number, reversed(fields)))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parse_vector(fields: list[str], location: str, width: int) -> NDArray[np.float32]:
    """Return the numbers after a word."""
    try:
        with np.errstate(over="ignore"):  # Too large numbers are infinite, an error below.
            vector = np.array(fields, dtype=np.float32)
    except ValueError:
        message = f"after the word, this line does not have {pluralize(width, 'number')}"
        raise InputError("not_numbers", message, location=location, hint=_FORMAT_HINT) from None
    if not np.isfinite(vector).all():
        message = "a number of this vector is not finite"
        raise InputError("not_finite", message, location=location, hint="remove the line")
    return vector
