"""Data in memory stands where a file may: lists, tables and data sets of Python's libraries read as a .jsonl does.

A table is recognized by its methods, so none of the libraries is needed: Arrow's stream
(`__arrow_c_stream__`: pandas from 2.2 on, polars, pyarrow), `to_dict` (older pandas), the data sets of the
field (`features` and `with_format`). Paths stay paths: a list of strings is a list of files, and texts come as
`Texts`.
"""

from __future__ import annotations

import hashlib
import json
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.io.hub_datasets import PREFIX, published

Source = Any
"""A str or Path, or data in memory: an `InMemory`, a table (pandas, polars, pyarrow), a data set, a dict of
columns."""
Sources = Any
"""A `Source`, or several of them, one after the other."""

_SUFFIX = " (in memory)"
_OF_COLUMNS = ("to_pylist", "tolist", "to_list")  # what columns of pyarrow, numpy and pandas, polars become
_BLOCK = 1024  # rows that become text at a time
_MISSING = ("NAType", "NaTType")  # of pandas, which need not be there
_ID_OF_PANDAS = "__index_level_"
_KNOWN = "a DataFrame (pandas, polars), a pyarrow Table, a Dataset, a dict of columns, or a list of dicts"


class InMemory(str):
    """Rows in memory under a name, which is what it is as a string: `train (in memory)`.

    It is given to readers in place of a path, and reads as a .jsonl of these rows; the location of row 17 is
    `train (in memory):17`. rows: a dict for each row; what stands for a missing value (None, NaN, pandas' NA)
    is null.
    """

    rows: Sequence[Mapping[str, Any]]

    def __new__(cls, name: str, rows: Sequence[Mapping[str, Any]]) -> InMemory:
        """`name` as messages have it."""
        made = super().__new__(cls, f"{name}{_SUFFIX}")
        made.rows = rows
        return made

    @property
    def bare_name(self) -> str:
        """Its name alone: `train`."""
        return self.removesuffix(_SUFFIX)

    def __str__(self) -> str:
        return self  # `str(path)` keeps the rows

    def blocks(self) -> Iterator[bytes]:
        """The rows as the lines of a .jsonl, some at a time."""
        for start in range(0, len(self.rows), _BLOCK):
            lines = [_line(row) for row in self.rows[start : start + _BLOCK]]
            yield ("\n".join(lines) + "\n").encode("ascii")

    @cached_property
    def size(self) -> int:
        """Bytes, as a file would have them."""
        return sum(map(len, self.blocks()))

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of the contents."""
        found = hashlib.sha256()
        for block in self.blocks():
            found.update(block)
        return found.hexdigest()


class Texts(InMemory):
    """Texts in memory as a corpus, a document each: `Texts(["One text.", "Another."])`.

    A list of strings names files wherever a corpus is taken; this says that they are the texts themselves.
    """

    def __new__(cls, texts: Iterable[str], name: str = "texts") -> Texts:
        """texts: strings, in any iterable or column; None is refused when it is read, with its row."""
        if isinstance(texts, str):
            raise InputError(
                "single_text",
                "Texts takes a list of texts, not one text",
                argument="texts",
                hint=f"put it in brackets: [{texts[:40]!r}]",
            )
        values = texts.to_pylist() if hasattr(texts, "to_pylist") else list(texts)
        made = super().__new__(cls, name, _Column(values))
        assert isinstance(made, Texts)
        return made


class _Column(Sequence[Mapping[str, Any]]):
    """Texts as rows with the one column `text`, without a dict for each until it is asked for."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [{"text": value} for value in self._values[at]]
        return {"text": self._values[at]}


class _Table(Sequence[Mapping[str, Any]]):
    """The rows of a pyarrow table, made when asked for. named: of a column, what its values stand for."""

    def __init__(self, table: Any, named: Mapping[str, Callable[[Any], Any]]) -> None:
        kept = [name for name in table.column_names if not name.startswith(_ID_OF_PANDAS)]
        self._table, self._named = table.select(kept), named

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, at: Any) -> Any:
        start, stop, _ = (at if isinstance(at, slice) else slice(at, at + 1)).indices(len(self))
        rows = self._table.slice(start, stop - start).to_pylist()
        for name, of_value in self._named.items():
            for row in rows:
                row[name] = of_value(row[name])
        return rows if isinstance(at, slice) else rows[0]


def is_missing(value: Any) -> bool:
    """Whether a value stands for one that is not there: None, a NaN of any library, pandas' NA and NaT."""
    if value is None or type(value).__name__ in _MISSING:
        return True
    return isinstance(value, numbers.Real) and bool(value != value)


def _line(row: Mapping[str, Any]) -> str:
    values = {key: None if is_missing(value) else value for key, value in row.items()}
    return json.dumps(values, default=str)


def as_files(data: Sources, name: str = "data") -> list[str | Path]:
    """What a verb was given as its files: one path, or several in any iterable; tables and `Texts` among them.
    A list of dicts is one table. Two that have the same name in memory are told apart by a number."""
    if isinstance(data, str | os.PathLike) or is_table(data) or hasattr(data, "__arrow_c_stream__"):
        data = [data]
    elif not isinstance(data, Iterable):
        message = f"{_shown(data)} is not a path"
        raise InputError("not_a_source", message, location=name, hint=f"give a str or Path, {_KNOWN}")
    found: list[str | Path] = []
    for number, one in enumerate(data, start=1):
        file = as_file(one, name)
        if isinstance(file, InMemory) and file in found:
            file = InMemory(f"{file.removesuffix(_SUFFIX)} {number}", file.rows)
        found.append(file)
    return found


def as_file(data: Source, name: str, tuples: Callable[[int], Sequence[str]] | None = None) -> str | Path:
    """A path as it is; data in memory under a name; `hub:NAME:SPLIT` as a table of the hub. tuples: names of the
    columns where rows are tuples of so many values. InputError for what is neither."""
    if isinstance(data, InMemory):
        return data
    if isinstance(data, str):
        return InMemory(data, _of_hub(data)) if data.startswith(PREFIX) else data
    if isinstance(data, os.PathLike):
        return Path(data)
    if hasattr(data, "with_format") and hasattr(data, "features"):
        return InMemory(name, _of_dataset(data, name))
    if hasattr(data, "__arrow_c_stream__"):
        return InMemory(name, _Table(_arrow_table(data, name), {}))
    if hasattr(data, "to_dict") and hasattr(data, "columns"):
        data = data.to_dict("list")
    if isinstance(data, Mapping):
        return InMemory(name, _of_columns(data, name))
    if isinstance(data, Sequence):
        return InMemory(name, _of_rows(data, name, tuples))
    hint = "collect it first" if hasattr(data, "collect") else f"give a str or Path, {_KNOWN}"
    message = f"{_shown(data)} is neither a path nor a table"
    raise InputError("not_a_source", message, location=name, hint=hint)


def name_of(data: Source, name: str) -> str:
    """A path as a string; what data in memory is called under a name."""
    return os.fspath(data) if is_path(data) else f"{name}{_SUFFIX}"


def is_path(data: Source) -> bool:
    """Whether it names a file."""
    return isinstance(data, str | os.PathLike) and not isinstance(data, InMemory)


def is_table(data: Any) -> bool:
    """Whether it has columns by name: a table, a data set, a dict of columns, a list of dicts."""
    if isinstance(data, Mapping) or hasattr(data, "with_format") or hasattr(data, "columns"):
        return True
    if isinstance(data, Sequence):
        return len(data) > 0 and isinstance(data[0], Mapping)
    return hasattr(data, "__arrow_c_stream__") and not any(hasattr(data, offer) for offer in _OF_COLUMNS)


def column_of(data: Any, name: str) -> list[Any]:
    """The values of a list or of a column of any library. InputError for a whole table, whose columns it names."""
    if is_table(data):
        columns = _names_of_columns(data)
        raise InputError(
            "is_a_table",
            "this is a table, not a list",
            location=name,
            hint=f"give one of its columns ({', '.join(columns)}): table[{columns[0]!r}]"
            if columns
            else "give one of its columns",
        )
    return _values(data, name)


def _names_of_columns(table: Any) -> list[str]:
    if isinstance(table, Mapping):
        return [str(name) for name in table]
    if isinstance(table, Sequence):
        return [str(name) for name in table[0]]
    # pyarrow's own columns have no names
    found: Any = getattr(table, "column_names", None) or getattr(table, "columns", ())
    return [str(name) for name in found]


def size_of(file: str | Path) -> int:
    """The bytes of a file, or of what is in memory."""
    return file.size if isinstance(file, InMemory) else os.path.getsize(file)


def _of_hub(name: str) -> Sequence[Mapping[str, Any]]:
    table, kinds = published(name)
    return _Table(table, {column: made for column, kind in kinds.items() if (made := _named(kind))})


def _of_dataset(data: Any, name: str) -> Sequence[Mapping[str, Any]]:
    """The rows of a data set of the field, with the names of classes in place of their numbers."""
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        message = "this data set is a stream, whose length is unknown"
        raise InputError("is_a_stream", message, location=name, hint="load it without streaming")
    named = {column: made for column, kind in (data.features or {}).items() if (made := _named(kind))}
    return _Table(data.with_format("arrow")[:], named)


def _named(kind: Any) -> Callable[[Any], Any] | None:
    """What turns a class's number into its name, where a column's type has names; of lists, each."""
    names = getattr(kind, "names", None)
    if isinstance(names, list):
        return lambda value: None if value is None or value < 0 else names[value]
    inner = getattr(kind, "feature", None)
    if inner is not None and (one := _named(inner)) is not None:
        return lambda values: None if values is None else [one(value) for value in values]
    return None


def _arrow_table(data: Any, name: str) -> Any:
    import pyarrow as pa

    try:
        return pa.table(data)
    except (pa.ArrowException, TypeError, ValueError):
        pass
    try:  # a column of its own, of whatever name
        column = pa.chunked_array(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        message = f"Arrow cannot read it ({str(error).splitlines()[0]})"
        raise InputError("bad_arrow", message, location=name, hint=f"give {_KNOWN}") from None
    return pa.table({"text": column})


def _of_columns(columns: Mapping[Any, Any], name: str) -> Sequence[Mapping[str, Any]]:
    if any(hasattr(values, "with_format") or isinstance(values, Mapping) for values in columns.values()):
        raise InputError(
            "several_tables",
            f"this holds several tables: {', '.join(map(str, columns))}",
            location=name,
            hint="give one of them: data['train']",
        )
    values = {str(key): _values(column, f"{name}: column '{key}'") for key, column in columns.items()}
    sizes = {key: len(column) for key, column in values.items()}
    if len(set(sizes.values())) > 1:
        lengths = ", ".join(f"{key} {size:,}" for key, size in sizes.items())
        raise InputError(
            "length_mismatch",
            f"the columns differ in length: {lengths}",
            location=name,
            hint="give each row a value in every column",
        )
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _values(column: Any, place: str) -> list[Any]:
    for offer in _OF_COLUMNS:
        if hasattr(column, offer):
            return list(getattr(column, offer)())
    if isinstance(column, str) or not isinstance(column, Iterable):
        message = f"{_shown(column)} is not a list of values"
        raise InputError("not_a_list", message, location=place, hint="give a list")
    return list(column)


def _of_rows(
    rows: Sequence[Any], name: str, tuples: Callable[[int], Sequence[str]] | None
) -> Sequence[Mapping[str, Any]]:
    if all(isinstance(row, Mapping) for row in rows):
        return rows
    if tuples is None or not isinstance(rows[0], list | tuple):
        row = next(i for i, row in enumerate(rows) if not isinstance(row, Mapping))
        raise InputError(
            "bad_row",
            f"{_shown(rows[row])} is not a row of a table",
            location=f"{name} row {row + 1}",
            hint=f"give {_KNOWN}",
        )
    names = tuples(len(rows[0]))
    if len(names) != len(rows[0]):
        raise InputError(
            "field_count",
            f"a tuple of {pluralize(len(rows[0]), 'value')}, where {', '.join(names)} are expected",
            location=f"{name} row 1",
            hint=f"give {pluralize(len(names), 'value')}, or {_KNOWN}",
        )
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, list | tuple) or len(row) != len(names):
            raise InputError(
                "bad_row",
                f"{_shown(row)} is not ({', '.join(names)})",
                location=f"{name} row {number}",
                hint=f"give each row as a tuple ({', '.join(names)})",
            )
    return [dict(zip(names, row, strict=True)) for row in rows]


def _shown(value: Any) -> str:
    text = f"{value!r}"
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"
