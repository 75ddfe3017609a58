"""Take paths and data in memory alike: data frames, Arrow tables, data sets, and lists become a `Table` of rows.

Tables are recognized by their methods, so none of the libraries is required: Arrow's stream (`__arrow_c_stream__`:
pandas from 2.2, polars, pyarrow), `to_dict` (older pandas), `features` and `with_format` (datasets). A list of
strings is a list of paths; texts are given as `Texts`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.io.hub_datasets import PREFIX, load_split
from bertsmith.io.tables import IN_MEMORY, Row, Table, make_row
from bertsmith.io.values import is_unordered

Source = Any
"""A str or Path, or data in memory: a `Table`, a data frame (pandas, polars), a pyarrow Table, a data set, a dict
of columns, a list of dicts."""
Sources = Any
"""A `Source`, or an iterable of several."""
TupleColumns = Callable[[int], Sequence[str]]
"""Return the names of the columns where rows are tuples of that many values."""

_COLUMN_METHODS = ("to_pylist", "tolist", "to_list")  # of pyarrow, numpy and pandas, polars
_BATCH_ROWS = 1024  # rows of an Arrow table that are converted at a time
_PANDAS_INDEX = "__index_level_"
_EXPECTED = "a DataFrame (pandas, polars), a pyarrow Table, a Dataset, a dict of columns, or a list of dicts"


class MemoryTable(Table):
    """A table in memory, whose rows are computed in batches when they are read."""

    in_memory = True

    def __init__(
        self,
        name: str,
        columns: Sequence[str],
        length: int,
        values: Callable[[int, int], Sequence[Mapping[Any, Any]]],
    ) -> None:
        """Hold data.

        Args:
            name: The name of the data in locations.
            columns: The names of the columns.
            length: The number of rows.
            values: A function that returns the values of the rows from start to stop.
        """
        super().__init__(f"{name}{IN_MEMORY}", columns, ())
        self._length, self._values = length, values

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, self._length, _BATCH_ROWS):
            batch = self._values(start, start + _BATCH_ROWS)
            for number, values in enumerate(batch, start=start + 1):
                yield make_row(values, f"{self.name}:{number}")

    def __len__(self) -> int:
        return self._length


class Texts(MemoryTable):
    """Texts in memory as a corpus, one document each: `Texts(["One text.", "Another."])`.

    A list of strings names files wherever a corpus is expected; `Texts` says that they are the texts.
    """

    def __init__(self, texts: Iterable[str], name: str = "texts") -> None:
        """Hold texts.

        Args:
            texts: Strings, in any iterable or column; reading None raises an error with its row.
            name: The name of the texts in locations.
        """
        if isinstance(texts, str):
            message = "Texts takes a list of texts, not one text"
            hint = f"put it in brackets: [{texts[:40]!r}]"
            raise InputError("single_text", message, argument="texts", hint=hint)
        values = _values(texts, name)
        super().__init__(
            name, ["text"], len(values), lambda start, stop: [{"text": text} for text in values[start:stop]]
        )


def to_sources(data: Sources, name: str = "data") -> list[str | Path | Table]:
    """Return one source or an iterable of sources as paths and tables; equal names of tables get a number."""
    if isinstance(data, str | os.PathLike) or is_table(data) or hasattr(data, "__arrow_c_stream__"):
        data = [data]
    elif not isinstance(data, Iterable):
        message = f"{_shorten(data)} is not a path"
        raise InputError("not_a_source", message, location=name, hint=f"give a str or Path, {_EXPECTED}")
    check_order(data, name)
    sources: list[str | Path | Table] = []
    for number, item in enumerate(data, start=1):
        source = to_source(item, name)
        if isinstance(source, Table) and any(str(other) == source.name for other in sources):
            source = copy(source)
            source.name = f"{source.name.removesuffix(IN_MEMORY)} {number}{IN_MEMORY}"
        sources.append(source)
    return sources


def to_source(data: Source, name: str, tuple_columns: TupleColumns | None = None) -> str | Path | Table:
    """Return a path as it is, and data in memory and `hub:NAME:SPLIT` as a table.

    Args:
        data: The path or data.
        name: The name of data in memory in locations.
        tuple_columns: The names of the columns where rows are tuples.
    """
    if isinstance(data, str):
        if not data.startswith(PREFIX):
            return data
        table, features = load_split(data)
        return _arrow_rows(table, data, features)
    return Path(data) if isinstance(data, os.PathLike) else to_table(data, name, tuple_columns)


def to_table(data: Any, name: str, tuple_columns: TupleColumns | None = None) -> Table:
    """Return data in memory as a table.

    Args:
        data: A `Table`, a data frame, an Arrow table, a data set, a dict of columns, or a list of dicts or tuples.
        name: The name of the data in locations.
        tuple_columns: The names of the columns where rows are tuples.

    Raises:
        InputError: The data is not one of these, or its rows differ.
    """
    if isinstance(data, Table):
        return data
    if hasattr(data, "with_format") and hasattr(data, "features"):
        if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
            message = "this data set is a stream, whose length is unknown"
            raise InputError("is_a_stream", message, location=name, hint="load it without streaming")
        features = data.features.to_dict() if data.features else {}
        return _arrow_rows(data.with_format("arrow")[:], name, features)
    is_data_frame = hasattr(data, "to_dict") and hasattr(data, "columns")
    if is_data_frame:
        _check_columns_differ(list(map(str, data.columns)), name)
    if hasattr(data, "__arrow_c_stream__"):
        try:
            return _arrow_rows(_arrow_table(data, name), name, {})
        except InputError as error:
            if error.code != "bad_arrow" or not is_data_frame:
                raise
    if is_data_frame:  # of an older pandas, or with a column of several types
        data = data.to_dict("list")
    if isinstance(data, Mapping):
        return _table_of_columns(data, name)
    check_order(data, name)
    if isinstance(data, Sequence) and not isinstance(data, str):
        return _table_of_rows(data, name, tuple_columns)
    hint = "collect it first" if hasattr(data, "collect") else f"give a str or Path, {_EXPECTED}"
    message = f"{_shorten(data)} is neither a path nor a table"
    raise InputError("not_a_source", message, location=name, hint=hint)


def _check_columns_differ(columns: Sequence[str], name: str) -> None:
    repeated = next((column for column in columns if columns.count(column) > 1), None)
    if repeated is not None:
        message, hint = f"the column '{repeated}' occurs twice", "rename one of them"
        raise InputError("duplicate_column", message, location=name, hint=hint)


def check_order(values: Any, location: str) -> None:
    """Raise InputError for a set, whose order differs from run to run."""
    if is_unordered(values):
        message, hint = "this is a set, which has no order", "give a list: sorted(…)"
        raise InputError("no_order", message, location=location, hint=hint)


def is_path(data: Source) -> bool:
    """Return True for the path of a file, or the name of a data set."""
    return isinstance(data, str | os.PathLike)


def name_of(data: Source, name: str) -> str:
    """Return a path as a string, and for data in memory its name in locations."""
    return os.fspath(data) if is_path(data) else f"{name}{IN_MEMORY}"


def size_of(source: str | Path | Table) -> int:
    """Return the bytes of a file or table."""
    return source.size if isinstance(source, Table) else os.path.getsize(source)


def is_table(data: Any) -> bool:
    """Return True for data with named columns: a table, a data set, a dict of columns, a list of dicts."""
    if isinstance(data, Mapping) or hasattr(data, "with_format") or hasattr(data, "columns"):
        return True
    if isinstance(data, Sequence):
        return len(data) > 0 and isinstance(data[0], Mapping)
    return hasattr(data, "__arrow_c_stream__") and not any(hasattr(data, name) for name in _COLUMN_METHODS)


def column_values(data: Any, name: str) -> list[Any]:
    """Return the values of a list or of a column of any library. Raises `InputError` for a table."""
    if not is_table(data):
        return _values(data, name)
    columns = to_table(data, name).columns
    hint = "give one of its columns"
    if columns:
        column = f"table[{columns[0]!r}]"
        column = f"[row[{columns[0]!r}] for row in table]" if isinstance(data, Sequence) else column
        hint += f" ({', '.join(columns)}): {column}"
    raise InputError("is_a_table", "this is a table, not a list", location=name, hint=hint)


def _arrow_rows(table: Any, name: str, features: Mapping[str, Any]) -> Table:
    """Return the rows of a pyarrow table, with the names of classes in place of their numbers.

    Args:
        table: The table.
        name: The name of the table in locations.
        features: The types of the columns as plain values, as `datasets.Features.to_dict` returns them.
    """
    columns = [column for column in table.column_names if not column.startswith(_PANDAS_INDEX)]
    _check_columns_differ(columns, name)
    table = table.select(columns)
    to_name = {column: convert for column in columns if (convert := _class_names(features.get(column)))}

    def values(start: int, stop: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = table.slice(start, stop - start).to_pylist()
        for column, convert in to_name.items():
            for row in rows:
                row[column] = convert(row[column])
        return rows

    return MemoryTable(name, columns, int(table.num_rows), values)


def _class_names(feature: Any) -> Callable[[Any], Any] | None:
    """Return a function from a class's number, or a list of them, to its name; None for other features."""
    if isinstance(feature, list):
        feature = {"feature": feature[0], "_type": "List"}
    if not isinstance(feature, Mapping):
        return None
    names = feature.get("names")
    if feature.get("_type") == "ClassLabel" and names:
        return lambda value: None if value is None or value < 0 else names[value]
    is_list = isinstance(feature.get("_type"), str)  # else a struct, whose keys are its fields
    if is_list and (convert := _class_names(feature.get("feature"))) is not None:
        return lambda values: None if values is None else [convert(value) for value in values]
    return None


def _arrow_table(data: Any, name: str) -> Any:
    import pyarrow as pa

    try:
        return pa.table(data)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    try:  # a single column
        return pa.table({"text": pa.chunked_array(data)})
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        message = f"Arrow cannot read it ({str(error).splitlines()[0]})"
        raise InputError("bad_arrow", message, location=name, hint=f"give {_EXPECTED}") from None


def _table_of_columns(data: Mapping[Any, Any], name: str) -> Table:
    if any(hasattr(column, "with_format") or isinstance(column, Mapping) for column in data.values()):
        message, hint = (
            f"this holds several tables: {', '.join(map(str, data))}",
            "give one of them: data['train']",
        )
        raise InputError("several_tables", message, location=name, hint=hint)
    columns = {str(key): _values(column, f"{name}: column '{key}'") for key, column in data.items()}
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{key} {len(column):,}" for key, column in columns.items())
        message = f"the columns differ in length: {lengths}"
        hint = "give each row a value in every column"
        raise InputError("length_mismatch", message, location=name, hint=hint)
    return _table_of_rows(
        [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], name
    )


def _values(column: Any, location: str) -> list[Any]:
    for method in _COLUMN_METHODS:
        if hasattr(column, method):
            column = getattr(column, method)()  # a NumPy array of no dimension is one value
            break
    check_order(column, location)
    if isinstance(column, str | bytes) or not isinstance(column, Iterable):
        message = f"{_shorten(column)} is not a list of values"
        raise InputError("not_a_list", message, location=location, hint="give a list")
    return list(column)


def _table_of_rows(rows: Sequence[Any], name: str, tuple_columns: TupleColumns | None = None) -> Table:
    if not all(isinstance(row, Mapping) for row in rows):
        rows = _dicts_of_tuples(rows, name, tuple_columns)
    columns = dict.fromkeys(str(column) for row in rows for column in row)
    return MemoryTable(name, list(columns), len(rows), lambda start, stop: rows[start:stop])


def _dicts_of_tuples(
    rows: Sequence[Any], name: str, tuple_columns: TupleColumns | None
) -> list[dict[str, Any]]:
    if tuple_columns is None or not isinstance(rows[0], list | tuple):
        index = next(i for i, row in enumerate(rows) if not isinstance(row, Mapping))
        message = f"{_shorten(rows[index])} is not a row of a table"
        raise InputError("bad_row", message, location=f"{name} row {index + 1}", hint=f"give {_EXPECTED}")
    columns = tuple_columns(len(rows[0]))
    if len(columns) != len(rows[0]):
        message = f"a tuple of {pluralize(len(rows[0]), 'value')}, where {', '.join(columns)} are expected"
        hint = f"give {pluralize(len(columns), 'value')}, or {_EXPECTED}"
        raise InputError("field_count", message, location=f"{name} row 1", hint=hint)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, list | tuple) or len(row) != len(columns):
            expected = ", ".join(columns)
            message, hint = f"{_shorten(row)} is not ({expected})", f"give each row as a tuple ({expected})"
            raise InputError("bad_row", message, location=f"{name} row {number}", hint=hint)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _shorten(value: Any) -> str:
    text = f"{value!r}"
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"
