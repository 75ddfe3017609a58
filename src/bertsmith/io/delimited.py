"""Read the records of delimited text: .csv, .tsv, and the .txt files in which users label texts.

Tabs separate plain fields: a `"` is a character there, as in GLUE's and most task files. Fields of tables with
commas and other delimiters may have RFC 4180 quotes, and so do those of a .csv with tabs, and of a file whose
first row has all its fields in quotes. An unclosed quote takes the rest of a file into its record: then only the
record's first line is an error, and reading continues behind it. A first line `sep=;`, which spreadsheets obey,
names the delimiter and is no row.
"""

from __future__ import annotations

import csv
import difflib
import logging
import re
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize, shorten
from bertsmith.io import text_io
from bertsmith.io.compression import FileError, format_suffix
from bertsmith.io.jsonl import is_object
from bertsmith.io.text_io import ErrorCollector, Line, LineReader, too_long_error, utf8_blocks

logger = logging.getLogger(__name__)
csv.field_size_limit(sys.maxsize)  # The default of 131,072 characters refuses long documents.

FOR_ALL_FILES = ", which applies to all files"
"""Follows the option that names the text column of a corpus."""
TEXT_DELIMITERS = ";,|"
"""Delimiters of a .txt in place of tabs."""
QUOTED_FIELD = re.compile(r'\s*"(?:[^"]|"")*"\s*')
"""A field in RFC 4180 quotes."""
_SUFFIX_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_OTHER_SUFFIXES = (".xls", ".ods", ".xml", ".yaml", ".yml", ".arff", ".pkl", ".html", ".docx", ".pdf")
_CSV_ALTERNATIVES = "\t;|"  # delimiters of a .csv in place of commas
_MAX_HINT_COLUMNS = 40
_MAX_NAME_CHARACTERS = 40
_SNIFFED_LINES = 1000  # of a .txt, by which its delimiter is recognized
_MIN_SAME_WIDTH = 0.95  # of these lines; the others are bad rows, which are errors when they are read
_MAX_LABEL_CHARACTERS = 40
_MIN_SWALLOWED_LINES = 3  # that look like rows, within a field
_SEPARATOR_LINE = re.compile(r'"?sep=(\\t|\t|[^\w\s"])\1*"?', re.IGNORECASE)
_HEADER_NAME = re.compile(r"[\w.-]+")
_USUAL_NAMES = {"text", "sentence", "label"}  # of the columns in a header, one of which it has
_QUOTING_HINT = 'a quote within a quoted field is doubled: ""; a line end within a field needs quotes'


def detect_delimiter(
    path: str | Path, delimiter: str | None = None, encoding: str | None = None
) -> str | None:
    """Return the delimiter of a .csv, .tsv, or .txt file; None for a .txt with one text per line.

    Without `delimiter` it is that of a first line `sep=;`; else a tab for .tsv and a comma for .csv, unless its
    first two lines have no comma but a tab, ";", or "|" (spreadsheets in half of the world). For .txt it is a tab
    if the first line has one; else ";", ",", or "|" if the first line looks like a header, or nearly all lines
    have the same number and a column looks like labels.

    Raises:
        InputError: The file is missing, its suffix does not determine a delimiter, or the delimiter is not valid.
    """
    suffix = format_suffix(path)
    delimiter = "\t" if delimiter == "\\t" else delimiter
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\n\r'):
        message = f"a delimiter is one character, not {delimiter!r}"
        hint = f"for a tab, {_delimiter_hint(chr(9))}"
        raise InputError("bad_delimiter", message, argument="delimiter", hint=hint)
    lines = _first_lines(path, encoding, _SNIFFED_LINES if suffix == ".txt" else 2)
    if lines and is_object(lines[0]):
        hint = "let its name end in .jsonl"
        raise InputError("is_json", "this file has JSON on its lines, not columns", location=path, hint=hint)
    if delimiter is not None:
        return delimiter if suffix != ".txt" or any(delimiter in line for line in lines) else None
    if lines and (match := _SEPARATOR_LINE.fullmatch(lines[0].strip(" \r"))):
        return "\t" if match[1] == "\\t" else match[1]
    if suffix == ".txt":
        return _label_delimiter(lines)
    if suffix == ".csv":
        return _csv_delimiter(lines)
    if suffix not in _SUFFIX_DELIMITERS:
        # A missing file or a workbook: no delimiter would help it.
        utf8_blocks(path, encoding)
        mark = repr(_csv_delimiter(lines))
        message = f"the suffix '{suffix}' does not determine what separates columns"
        is_table = suffix not in _OTHER_SUFFIXES
        hint = f"add {option('delimiter', mark)}" if is_table else "convert the file to .csv or .jsonl"
        raise InputError("delimiter_unknown", message, location=path, argument="delimiter", hint=hint)
    return _SUFFIX_DELIMITERS[suffix]


def is_separator_line(line: str) -> bool:
    """Return True for a line such as `sep=;`, which names the delimiter."""
    return _SEPARATOR_LINE.fullmatch(line.strip(" \r")) is not None


def _first_lines(path: str | Path, encoding: str | None, number: int) -> list[str]:
    """Return the first readable lines that are not blank."""
    ignored = ErrorCollector(path, lambda row: None)  # The reader of the rows reports errors.
    lines = (line.text for line in LineReader(ignored, encoding))
    return list(islice(filter(str.strip, lines), number))


def _csv_delimiter(lines: Sequence[str]) -> str:
    if not lines or "," in lines[0]:
        return ","
    marks = [mark for mark in _CSV_ALTERNATIVES if all(mark in line for line in lines)]
    return marks[0] if len(marks) == 1 else ","


def _label_delimiter(lines: Sequence[str]) -> str | None:
    """Return the delimiter between texts and labels; None for prose, where a space follows a comma."""
    lines = [line.replace("\r", " ").rstrip(" ") for line in lines]  # csv refuses carriage returns
    if lines and "\t" in lines[0]:
        return "\t"
    for mark in TEXT_DELIMITERS if lines else "":
        names = [name.strip() for name in lines[0].split(mark)]
        if len(names) > 1 and all(map(_HEADER_NAME.fullmatch, names)) and _USUAL_NAMES & {*names}:
            return mark
    return next((mark for mark in TEXT_DELIMITERS if lines and _separates_labels(lines, mark)), None)


def _separates_labels(lines: Sequence[str], delimiter: str) -> bool:
    rows = [fields for line in lines for fields in csv.reader([line], delimiter=delimiter)]
    width, count = Counter(map(len, rows)).most_common(1)[0]
    if width < 2 or count < _MIN_SAME_WIDTH * len(lines):
        return False
    return any(map(_are_labels, zip(*(fields for fields in rows if len(fields) == width), strict=True)))


def _are_labels(values: Sequence[str]) -> bool:
    """Return True for values that repeat, are short, and have no spaces around them."""
    num_distinct = len(set(values))
    if num_distinct == len(values):
        return False
    if any(not v or v != v.strip() or len(v) > _MAX_LABEL_CHARACTERS for v in values):
        return False
    return num_distinct <= len(values) / 4 or not any(c.isspace() for value in values for c in value)


def column_names(fields: Sequence[str], location: str, raw: bytes = b"") -> list[str]:
    """Return the names in a header, whose bytes are `raw`. Raises `FileError` for a name that occurs twice."""
    columns: dict[str, None] = {}
    for i, field in enumerate(fields):
        name = field.strip() or str(i + 1)  # pandas leaves the name of its index blank
        if name in columns:
            message = f"the column '{name}' occurs twice in the header"
            hint = "rename one, or read the file without a header"
            raise FileError("duplicate_column", message, location=location, hint=hint, raw=raw)
        columns[name] = None
    return list(columns)


def missing_column_hint(
    name: str, columns: Sequence[str], argument: str | None = None, *, unit: str = "columns", note: str = ""
) -> str:
    """Return the hint for a missing column: the columns that exist (at most 40) and a similar name.

    Args:
        name: The column that is missing.
        columns: The columns of the file.
        argument: Python's name of the argument that names the column, such as `text_column`.
        unit: The noun for columns in this format.
        note: Text to append to the argument.
    """
    if not columns:
        return f"no {unit.removesuffix('s')} has a value: check how the file was made"
    if len(columns) == 1 and (mark := _other_delimiter(columns[0])):
        return f"the header has one column, {shorten(columns[0], _MAX_NAME_CHARACTERS)!r}: {_delimiter_hint(mark)}"
    # In a file without a header the name of a column is a text.
    names = [shorten(column, _MAX_NAME_CHARACTERS) for column in columns]
    others = [column for column in columns if column.lower() not in ("text", "label")]
    by_lower_case = dict(zip(map(str.lower, reversed(columns)), reversed(names), strict=True))
    similar = difflib.get_close_matches(name.lower(), list(by_lower_case), n=1)
    question = f"did you mean '{by_lower_case[similar[0]]}'? " if similar else ""
    more = f", … ({len(columns):,} in all)" if len(columns) > _MAX_HINT_COLUMNS else ""
    candidates = [by_lower_case[name] for name in similar] or others
    value = repr(candidates[0]) if len(candidates) == 1 else ...
    advice = f"; name it with {option(argument, value)}{note}" if argument else ""
    return f"{question}the {unit} are {', '.join(names[:_MAX_HINT_COLUMNS])}{more}{advice}"


def missing_column_error(location: str, column: str, columns: Sequence[str], raw: bytes = b"") -> FileError:
    """Return the error for a file of a corpus without the column of the text."""
    message = f"column '{column}' is missing"
    hint = missing_column_hint(column, columns, "text_column", note=FOR_ALL_FILES)
    return FileError("column_missing", message, location=location, argument="text_column", hint=hint, raw=raw)


def field_count_error(
    num_fields: int, columns: Sequence[str], delimiter: str, location: str, *, header: bool = True
) -> InputError:
    """Return the error for a row with another number of fields than the first."""
    fields = "1 field" if num_fields == 1 else f"{num_fields} fields"
    message = f"{fields} where the {'header' if header else 'first row'} has {len(columns)}"
    if len(columns) == 1 and (hint := _wrong_delimiter_hint(delimiter, columns[0])):
        pass
    elif delimiter == "\t":
        hint = "a field cannot hold a tab or a line end; use .csv or .jsonl for such texts"
    else:
        hint = f"a field that contains '{delimiter}' or a line end needs quotes: \"…\""
    return InputError("field_count", message, location=location, hint=hint)


def _other_delimiter(header: str) -> str:
    return next((mark for mark in (*_CSV_ALTERNATIVES, ",") if mark in header), "")


def _delimiter_hint(mark: str) -> str:
    """Return the advice to set a delimiter."""
    return f"add {option('delimiter', repr(mark))}"


def _wrong_delimiter_hint(delimiter: str, header: str) -> str:
    """Return the hint for a header that has another delimiter than the one in use; "" if it has not."""
    mark = "" if delimiter in header else _other_delimiter(header)
    if not mark:
        return ""
    present, absent = ("a tab" if sign == "\t" else repr(sign) for sign in (mark, delimiter))
    return f"the header has {present} and not {absent}: {_delimiter_hint(mark)}"


def read_rows(
    lines: LineReader,
    delimiter: str,
    *,
    header: bool = True,
    keep_blank: bool = False,
    text_column: str | None = None,
) -> Iterator[tuple[Line, dict[str, str]]]:
    """Yield the first line and the values of each row; bad rows are added to `lines.errors`.

    Args:
        lines: The lines of the file.
        delimiter: The delimiter.
        header: The first row has the names of the columns; without it they are "1", "2", …, and so is a column
            whose name is blank.
        keep_blank: An empty line between rows is a row of empty values, so that predictions align with the file.
        text_column: A column that the header must have.

    Raises:
        FileError: The header cannot be read, has a name twice, or lacks the column of the text.
    """
    columns: list[str] = []
    header_fields: list[str] | None = None
    next_line, num_longer = 1, 0  # the line behind the row before, and rows with empty fields at the end
    for record, fields in read_records(lines, delimiter):
        first, location = record[0], f"{lines.path}:{record[0].number}"
        blank_lines, next_line = range(next_line, first.number), record[-1].number + 1
        if not columns:
            if lines.errors.count:
                raise FileError("header_unreadable", "the header cannot be read", location=f"{lines.path}:1")
            if header:
                header_fields, columns = fields, column_names(fields, location, first.raw)
                if text_column is not None and text_column not in columns:
                    raise missing_column_error(location, text_column, columns, first.raw)
                continue
            columns, blank_lines = [str(i + 1) for i in range(len(fields))], range(0)
        num_missing = len(columns) - len(fields)
        if num_missing > 0 and header_fields and not any(map(str.strip, header_fields[-num_missing:])):
            fields = fields + [""] * num_missing
        elif num_missing < 0 and not any(map(str.strip, fields[num_missing:])):
            fields, num_longer = fields[:num_missing], num_longer + 1
        if len(fields) == len(columns) and fields != header_fields:
            if keep_blank:
                yield from ((Line(n, 0, ""), dict.fromkeys(columns, "")) for n in blank_lines)
            yield first, dict(zip(columns, fields, strict=True))
            continue
        if fields == header_fields:
            message, hint = "the header is repeated here", "remove this line"
            if text_column is None:
                hint += f"; or, if the file has no header, add {option('header', False)}"
            error = InputError("header_repeated", message, location=location, hint=hint)
        else:
            error = field_count_error(len(fields), columns, delimiter, location, header=header)
        raw = "\n".join(line.text for line in record).removesuffix("\r").encode("utf-8")
        lines.errors.add(error, first.number, first.byte, raw)
    if num_longer:
        rows = pluralize(num_longer, "row ends", "rows end")
        logger.info("%s: %s with empty fields behind the last column, which are ignored", lines.path, rows)


def read_records(lines: LineReader, delimiter: str) -> Iterator[tuple[list[Line], list[str]]]:
    """Yield the lines and the fields of each record; skip blank lines, and add bad records to `lines.errors`."""
    source = iter(lines)
    first = [line for line in islice(source, 1) if not is_separator_line(line.text)]
    first += islice(source, 1 - len(first))
    source = chain(first, source)
    if delimiter == "\t" and not any(_has_quoting(lines.path, line.text) for line in first):
        for line in source:
            if text := line.text.removesuffix("\r"):
                yield [line], text.split("\t")
        return
    feed = _RecordLines(source)
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        feed.start_record()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if lines.is_truncated and not feed.pending:
                return  # The end of the file, an error of its own, cut this record off.
            opening, *others = feed.lines
            reported = _record_error(error, feed, lines.path, delimiter)
            lines.errors.add(reported, opening.number, opening.byte, opening.raw)
            feed.pending.extendleft(reversed(others))
            reader = csv.reader(feed, delimiter=delimiter, strict=True)
        else:
            if fields:
                _warn_of_swallowed_lines(feed.lines, len(fields), lines.path, delimiter)
                yield feed.lines, fields


def _has_quoting(path: str, first_line: str) -> bool:
    """Return True if the fields of a file with tabs may have RFC 4180 quotes."""
    fields = first_line.split("\t")
    return format_suffix(path) == ".csv" or (len(fields) > 1 and all(map(QUOTED_FIELD.fullmatch, fields)))


class _RowTooLongError(csv.Error):
    """A record of several lines has more bytes than a row may have."""


class _RecordLines:
    """Feed lines to the csv module, and hold those of the current record."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self.pending: deque[Line] = deque()  # lines of a bad record behind its first, which are read again
        self.header = ""  # the first line that is not blank
        self.start_record()

    def start_record(self) -> None:
        self.lines: list[Line] = []
        self._num_characters = 0

    def __iter__(self) -> _RecordLines:
        return self

    def __next__(self) -> str:
        line = self.pending.popleft() if self.pending else next(self._lines)
        self.header = self.header or line.text
        self.lines.append(line)
        self._num_characters += len(line.text)
        if len(self.lines) > 1 and self._num_characters > text_io.MAX_LINE_BYTES:
            raise _RowTooLongError
        return line.text.removesuffix("\r") + "\n"


def _opening_line(record: Sequence[Line], end: int) -> int:
    """Return the number of the line in which the quote opens that is open behind the first `end` lines."""
    opening, is_open = record[-1].number, False
    for line in record[:end]:
        for _ in range(line.text.replace('""', "").count('"')):
            is_open = not is_open
            opening = line.number if is_open else record[-1].number
    return opening


def _warn_of_swallowed_lines(record: Sequence[Line], num_fields: int, path: str, delimiter: str) -> None:
    """Log a warning if the lines within a field look like rows, since a quote may open there by mistake."""
    inner = [line.text.count(delimiter) for line in record[1:-1]]
    if num_fields > 1 and inner.count(num_fields - 1) >= max(
        _MIN_SWALLOWED_LINES, _MIN_SAME_WIDTH * len(inner)
    ):
        message = "%s:%d: a quote opens here, and the next %s are one field; if they are rows, remove it"
        logger.warning(message, path, _opening_line(record, 1), pluralize(len(record) - 1, "line"))


def _record_error(error: csv.Error, feed: _RecordLines, path: str, delimiter: str) -> InputError:
    follows_quote = "expected after" in str(error)
    location = f"{path}:{_opening_line(feed.lines, len(feed.lines) - follows_quote)}"
    if isinstance(error, _RowTooLongError):
        return too_long_error(location, "row (does a quote in it never close?)", _QUOTING_HINT)
    message = str(error)
    if "unexpected end" in message:
        message = "a quote opens in this line and never closes"
    elif follows_quote:
        message = f"text follows a closing quote in line {feed.lines[-1].number}"
    elif "new-line" in message:
        message = "a carriage return is in a field without quotes"
    hint = _wrong_delimiter_hint(delimiter, feed.header) or _QUOTING_HINT
    return InputError("bad_quoting", message, location=location, hint=hint)
