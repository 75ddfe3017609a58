"""Read parquet files in batches: all columns as rows, or one column as the texts of a corpus.

Rows are also read of Arrow files: .arrow (a file or a stream) and .feather.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.errors import InputError, option
from bertsmith.io import text_io
from bertsmith.io.binary_files import describe_binary
from bertsmith.io.compression import FileError, format_suffix, is_compressed, open_binary
from bertsmith.io.delimited import missing_column_error
from bertsmith.io.text_io import ErrorCollector, too_long_error
from bertsmith.io.values import to_text

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNAR_SUFFIXES = (".parquet", ".arrow", ".feather")
"""The suffixes of files whose rows are read here."""
_PARQUET_MAGIC, _ARROW_MAGIC = b"PAR1", b"ARROW1"
_BATCH_BYTES = 1 << 22  # of a column, on average
_MAX_BATCH_ROWS = 256  # since some texts of a column may be far longer than the average
_TABLE_BATCH_ROWS = 1024
_DICTIONARY_ROW_BYTES = 16  # columns with fewer are indices of texts that are stored once


def read_rows(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the values of each row with its number, from 1."""
    import pyarrow as pa
    import pyarrow.parquet

    with _parquet_errors(path), open_binary(path) as file:
        if format_suffix(path) == ".parquet":
            batches = pyarrow.parquet.ParquetFile(file).iter_batches(_TABLE_BATCH_ROWS)
        else:
            is_file = file.peek(len(_ARROW_MAGIC)).startswith(_ARROW_MAGIC)  # type: ignore[attr-defined]
            table = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(file).read_all()
            batches = iter(table.to_batches(_TABLE_BATCH_ROWS))
        yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), start=1)


@contextmanager
def _parquet_errors(path: str | Path) -> Iterator[None]:
    """Raise FileError for an error of pyarrow in the block."""
    import pyarrow as pa

    with open_binary(path) as file:  # All formats have the same errors for files that cannot be opened.
        head = file.read(text_io.EXCERPT_BYTES)
    try:
        yield
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        reason = str(error).split("\n")[0][:200].rstrip(".")
        message = f"this is not a whole {format_suffix(path)[1:]} file ({reason})"
        hint = "write or download it again"
        described = describe_binary(head, is_wide=True)
        if described is not None and not head.startswith((_PARQUET_MAGIC, _ARROW_MAGIC)):
            message, hint = (
                f"this is {described[0]}, not {format_suffix(path)[1:]}",
                described[1].format(path=path),
            )
        raise FileError("bad_parquet", message, location=path, hint=hint, raw=head) from None


def read_text_column(path: str | Path, column: str, errors: ErrorCollector) -> Iterator[tuple[int, str]]:
    """Yield the texts of a column with their rows, some MiB at a time ("" for null); `errors` has invalid UTF-8.

    A text that the file stores once for many rows is held once: some kilobytes may stand for gigabytes.

    Raises:
        FileError: The file is not a complete parquet file, or the column is missing or not text.
    """
    import pyarrow.parquet

    if is_compressed(path):
        message = "a parquet file is compressed inside, not as a whole"
        raise FileError("compressed_parquet", message, location=path, hint="decompress it")
    with _parquet_errors(path):
        metadata = pyarrow.parquet.read_metadata(str(path))
        _check_text_column(path, metadata.schema.to_arrow_schema(), column)
        row_bytes = _bytes_per_row(metadata, column)
        dictionaries = [column] if row_bytes < _DICTIONARY_ROW_BYTES else []
        batch_rows = int(min(max(_BATCH_BYTES // max(row_bytes, 1), 1), _MAX_BATCH_ROWS))
        file = pyarrow.parquet.ParquetFile(str(path), buffer_size=1 << 20, read_dictionary=dictionaries)
        with file:
            batches = file.iter_batches(batch_rows, columns=[column], use_threads=False)
            texts = chain.from_iterable(_strings(batch.column(0)) for batch in batches)
            for number, text in enumerate(texts, start=1):
                if isinstance(text, bytes):
                    _add_value_error(errors, number, column, text)
                else:
                    yield number, to_text(text, column, f"{path}:{number}")


def _bytes_per_row(metadata: Any, column: str) -> float:
    """Return the largest mean size of a value in a row group, before compression."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    sizes = [
        part.total_uncompressed_size / max(group.num_rows, 1)
        for group in groups
        for part in map(group.column, range(group.num_columns))
        if part.path_in_schema == column
    ]
    return max(sizes, default=0.0)


def _check_text_column(path: str | Path, schema: pa.Schema, column: str) -> None:
    import pyarrow as pa

    if column not in schema.names:
        raise missing_column_error(str(path), column, schema.names)
    if schema.names.count(column) > 1:
        message = f"column '{column}' occurs twice"
        raise FileError("duplicate_column", message, location=path, hint="rename one of them")
    dtype = schema.field(column).type
    text_type = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    is_scalar = (
        pa.types.is_primitive(text_type) or pa.types.is_null(text_type) or pa.types.is_decimal(text_type)
    )
    if not is_scalar and str(text_type) not in ("string", "large_string", "string_view"):
        message = f"column '{column}' holds {dtype}, not text"
        hint = f"name the column of the text with {option('text_column')}"
        raise FileError("column_not_text", message, location=path, argument="text_column", hint=hint)


def _strings(column: pa.Array) -> Iterator[Any]:
    """Yield the values of a column; bytes for a value that is not UTF-8 or too long."""
    import pyarrow as pa

    if isinstance(column, pa.DictionaryArray):
        used = column.indices.unique()  # A dictionary may be that of more rows than these.
        texts = dict(zip(used.to_pylist(), _decode(column.dictionary.take(used)), strict=True))
        return map(texts.__getitem__, column.indices.to_pylist())
    return iter(_decode(column))


def _decode(column: pa.Array) -> list[str | bytes | None]:
    import pyarrow as pa

    values: list[Any]
    with suppress(UnicodeDecodeError):
        values = column.to_pylist()
        if column.nbytes <= text_io.MAX_LINE_BYTES:
            return values
    values = column.cast(pa.large_binary()).to_pylist()
    return [_decode_value(value) if isinstance(value, bytes) else value for value in values]


def _decode_value(value: bytes) -> str | bytes:
    try:
        return value if len(value) > text_io.MAX_LINE_BYTES else value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _add_value_error(errors: ErrorCollector, number: int, column: str, value: bytes) -> None:
    location = f"{errors.path}:{number}"
    if len(value) > text_io.MAX_LINE_BYTES:
        error, value = too_long_error(location, "row", "divide its text"), value[: text_io.EXCERPT_BYTES]
    else:
        message = f"the column '{column}' holds bytes that are not UTF-8"
        error = InputError("value_not_utf8", message, location=location, hint="write the text as UTF-8")
    errors.add(error, number, None, value)
