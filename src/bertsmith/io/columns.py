"""One column of a table as texts, row by row and never the whole table: csv, tsv, parquet.

A bad row is skipped and reported; an error in the header or in the file as a whole ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.errors import InputError, option
from bertsmith.io import lines as limits
from bertsmith.io.compressed import FileFault, opened
from bertsmith.io.lines import Faults, Line, Lines, too_long
from bertsmith.io.records import FOR_ALL_FILES, columns_of, missing_column, ragged, ragged_remedy, records_of

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 1 << 22  # bytes of a parquet's column read at a time, on average
_ROWS = 256  # at most: some texts of a column may be far longer than the average
_REPEATED = 16  # bytes a row: less is no text, but numbers of texts that are held once
_NAME_IT = f"name the column of the text with {option('text_column')}"


def texts_of_table(lines: Lines, column: str, delimiter: str, faults: Faults) -> Iterator[tuple[int, str]]:
    """The texts of a column, each with the line that its row began on. The first row names the columns; a row
    that repeats it (tables put one behind the other) is bad."""
    header: list[str] = []
    columns: list[str] = []
    for record, fields in records_of(lines, delimiter, faults):
        first = record[0]
        try:
            if not columns:
                if faults.count:
                    raise FileFault(
                        "header_unreadable", "the header cannot be read", location=f"{faults.path}:1"
                    )
                header, columns = fields, _header(faults.path, first, fields, column)
                place = columns.index(column)
            elif len(fields) != len(columns):
                raise InputError(
                    "field_count",
                    ragged(len(fields), columns),
                    location=f"{faults.path}:{first.number}",
                    hint=ragged_remedy(delimiter, columns),
                )
            elif fields == header:
                raise InputError(
                    "header_repeated",
                    "the header is repeated here",
                    location=f"{faults.path}:{first.number}",
                    hint="remove this line",
                )
            else:
                yield first.number, fields[place]
        except FileFault:
            raise
        except InputError as error:
            faults.add(error, first.number, first.byte, _raw(record))


def _header(path: str, line: Line, fields: list[str], column: str) -> list[str]:
    try:
        columns = columns_of(path, line.number, fields)
    except InputError as error:
        raise FileFault(
            error.code, error.message, location=error.location, hint=error.hint, raw=line.raw
        ) from None
    if column not in columns:
        raise _column_missing(f"{path}:{line.number}", column, columns, line.raw)
    return columns


def _column_missing(location: str, column: str, columns: list[str], raw: bytes = b"") -> FileFault:
    return FileFault(
        "column_missing",
        f"column '{column}' is missing",
        location=location,
        argument="text_column",
        hint=missing_column(column, columns, "text_column", note=FOR_ALL_FILES),
        raw=raw,
    )


def _raw(record: list[Line]) -> bytes:
    return "\n".join(line.text for line in record).removesuffix("\r").encode("utf-8")


def texts_of_parquet(path: str | Path, column: str, faults: Faults) -> Iterator[tuple[int, str]]:
    """The texts of a parquet's column, each with its row from 1, some MiB at a time. A text that a file holds once
    for many rows is held once: its kilobytes may stand for gigabytes.

    Raises `FileFault` for what is no whole parquet, a column that is missing or holds no text; nulls and bytes
    that are not UTF-8 are added to `faults`.
    """
    import pyarrow as pa
    import pyarrow.parquet

    opened(path).close()  # all formats have the same errors for files that cannot be opened
    row = 0
    try:
        metadata = pyarrow.parquet.read_metadata(str(path))
        _check_column(path, metadata.schema.to_arrow_schema(), column)
        size = _bytes_a_row(metadata, column)
        repeated = [column] if size < _REPEATED else []
        with pyarrow.parquet.ParquetFile(str(path), buffer_size=1 << 20, read_dictionary=repeated) as file:
            rows = int(min(max(_BATCH // max(size, 1), 1), _ROWS))
            for batch in file.iter_batches(rows, columns=[column], use_threads=False):
                for text in _strings(batch.column(0)):
                    row += 1
                    if isinstance(text, str):
                        yield row, text
                    else:
                        _add_value(path, row, column, text, faults)
    except (pa.ArrowException, OSError, MemoryError) as error:
        with opened(path) as begun:
            head = begun.read(limits.KEPT)
        reason = str(error).split("\n")[0][:200].rstrip(".")
        raise FileFault(
            "bad_parquet",
            f"this is not a whole parquet file ({reason})",
            location=path,
            hint="write or download it again",
            raw=head,
        ) from None


def _bytes_a_row(metadata: Any, column: str) -> float:
    """What a row of the column takes in the file before compression, at most on average over a group of rows."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    sizes = [
        part.total_uncompressed_size / max(group.num_rows, 1)
        for group in groups
        for part in map(group.column, range(group.num_columns))
        if part.path_in_schema == column
    ]
    return max(sizes, default=0.0)


def _check_column(path: str | Path, schema: pa.Schema, column: str) -> None:
    import pyarrow.types as types

    if column not in schema.names:
        raise _column_missing(str(path), column, schema.names)
    if schema.names.count(column) > 1:
        raise FileFault(
            "duplicate_column", f"column '{column}' occurs twice", location=path, hint="rename one of them"
        )
    kind = schema.field(column).type
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if str(inner) not in ("string", "large_string", "string_view"):
        raise FileFault(
            "column_not_text",
            f"column '{column}' holds {kind}, not text",
            location=path,
            argument="text_column",
            hint=_NAME_IT,
        )


def _strings(column: pa.Array) -> Iterator[str | bytes | None]:
    """The values of a column; bytes where they are no text, or too many."""
    import pyarrow as pa

    if isinstance(column, pa.DictionaryArray):
        used = column.indices.unique()  # a dictionary may be that of more rows than these
        texts = dict(zip(used.to_pylist(), _decoded(column.dictionary.take(used)), strict=True))
        return map(texts.__getitem__, column.indices.to_pylist())
    return iter(_decoded(column))


def _decoded(column: pa.Array) -> list[str | bytes | None]:
    import pyarrow as pa

    values: list[str | bytes | None]
    try:
        values = column.to_pylist()
        if column.nbytes <= limits.LONGEST:
            return values
    except UnicodeDecodeError:
        pass
    values = column.cast(pa.large_binary()).to_pylist()
    return [_text(value) if isinstance(value, bytes) else value for value in values]


def _text(value: bytes) -> str | bytes:
    try:
        return value if len(value) > limits.LONGEST else value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _add_value(path: str | Path, row: int, column: str, value: Any, faults: Faults) -> None:
    location = f"{path}:{row}"
    if value is None:
        message = f"the column '{column}' is null"
        error = InputError("value_null", message, location=location, hint="fill it, or remove the row")
    elif len(value) > limits.LONGEST:
        error, value = too_long(str(path), row, "row", "divide its text"), value[: limits.KEPT]
    else:
        message = f"the column '{column}' holds bytes that are not UTF-8"
        error = InputError("value_not_utf8", message, location=location, hint="write the text as UTF-8")
    faults.add(error, row, None, value or b"")
