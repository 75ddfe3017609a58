"""One column of a table as texts, row by row and never the whole table: csv, tsv, parquet.

A bad row is told and left out; what is wrong with the header or the file as a whole ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.errors import InputError
from bertsmith.io import lines as limits
from bertsmith.io.compressed import FileFault, opened
from bertsmith.io.lines import Faults, Line, Lines, too_long
from bertsmith.io.records import FOR_ALL_FILES, columns_of, missing_column, ragged, ragged_remedy, records_of

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 1 << 22  # bytes of a parquet's column read at a time, on average
_ROWS = 256  # at most: some texts of a column may be far longer than the average
_REPEATED = 16  # bytes a row: less is no text, but numbers of texts that are held once
_NAME_IT = "name the one that holds the text: --text-column"


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
                    raise FileFault(f"{faults.path}:1: the header cannot be read")
                header, columns = fields, _header(faults.path, first, fields, column)
                place = columns.index(column)
            elif len(fields) != len(columns):
                said = ragged(len(fields), columns)
                raise InputError(f"{faults.path}:{first.number}: {said}", ragged_remedy(delimiter, columns))
            elif fields == header:
                raise InputError(
                    f"{faults.path}:{first.number}: the header is repeated here", "remove this line"
                )
            else:
                yield first.number, fields[place]
        except FileFault:
            raise
        except InputError as error:
            faults.tell(error, first.number, first.byte, _raw(record))


def _header(path: str, line: Line, fields: list[str], column: str) -> list[str]:
    try:
        columns = columns_of(path, line.number, fields)
    except InputError as error:
        raise FileFault(error.sentence, error.remedy, line.raw) from None
    if column not in columns:
        raise FileFault(
            f"{path}:{line.number}: column '{column}' is missing",
            missing_column(column, columns, FOR_ALL_FILES),
            line.raw,
        )
    return columns


def _raw(record: list[Line]) -> bytes:
    return "\n".join(line.text for line in record).removesuffix("\r").encode("utf-8")


def texts_of_parquet(path: str | Path, column: str, faults: Faults) -> Iterator[tuple[int, str]]:
    """The texts of a parquet's column, each with its row from 1, some MiB at a time. A text that a file holds once
    for many rows is held once: its kilobytes may stand for gigabytes.

    Raises `FileFault` for what is no whole parquet, a column that is missing or holds no text; nulls and bytes
    that are not UTF-8 are told.
    """
    import pyarrow as pa
    import pyarrow.parquet

    opened(path).close()  # what is no file is told in the words of all forms
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
                        _tell_value(path, row, column, text, faults)
    except (pa.ArrowException, OSError, MemoryError) as error:
        with opened(path) as begun:
            head = begun.read(limits.KEPT)
        said = str(error).split("\n")[0][:200].rstrip(".")
        raise FileFault(
            f"{path}: this is not a whole parquet file ({said})", "write or download it again", head
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

    if schema.names.count(column) != 1:
        said = "occurs twice" if column in schema.names else "is missing"
        raise FileFault(
            f"{path}: column '{column}' {said}", missing_column(column, schema.names, FOR_ALL_FILES)
        )
    kind = schema.field(column).type
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if str(inner) not in ("string", "large_string", "string_view"):
        raise FileFault(f"{path}: column '{column}' holds {kind}, not text", _NAME_IT)


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


def _tell_value(path: str | Path, row: int, column: str, value: Any, faults: Faults) -> None:
    if value is None:
        error = InputError(f"{path}:{row}: the column '{column}' is null", "fill it, or leave the row out")
    elif len(value) > limits.LONGEST:
        error, value = too_long(str(path), row, "row", "part its text"), value[: limits.KEPT]
    else:
        error = InputError(f"{path}:{row}: the column '{column}' holds bytes that are not UTF-8")
    faults.tell(error, row, None, value or b"")
