"""Read texts with two marked entities and their relation: SemEval-2010 task 8's blocks, and rows.

A text may contain the tags of SemEval, `The <e1>child</e1> was wrapped into the <e2>cradle</e2>.`; or the row
has two spans: [start, end) in characters of `text`, or in words of `tokens` (TACRED's `subj_end` and `obj_end`
are inclusive). e1 is the head, e2 the tail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.io.compression import format_suffix
from bertsmith.io.jsonl import read_json
from bertsmith.io.sources import Source
from bertsmith.io.tables import Row, is_json_source, json_rows, read_table
from bertsmith.io.text_io import read_lines
from bertsmith.tasks.columns import NamedColumn, first_value, rename_columns

_TAG = re.compile(r"</?e[12]>")
_NUMBERED_LINE = re.compile(r"(\d+)\t(.*)")
_ENTITIES = {"head": ("head", "e1", "subj"), "tail": ("tail", "e2", "obj")}
_TEXTS = ("text", "sentence")
_TOKENS = ("tokens", "token", "words")
_LABELS = ("relation", "label")
_TAG_HINT = "write The <e1>child</e1> in the <e2>cradle</e2>"
_SPAN_HINT = (
    "give head and tail as [start, end], in characters of text or in words of tokens; the end is exclusive"
)
_ROW_HINT = f"{_TAG_HINT} as text, or {_SPAN_HINT}"

Span = tuple[int, int]


class Related(NamedTuple):
    """A text with its entities.

    Attributes:
        text: The text.
        head: The slice of the head.
        tail: The slice of the tail.
        relation: Their relation; None if labels are not read.
        place: The location.
        number: The example's id in the file.
        row: The row of a table, as text.
    """

    text: str
    head: Span
    tail: Span
    relation: str | None
    place: str
    number: str | None = None
    row: Mapping[str, str] | None = None


class RelatedNames(NamedTuple):
    """The columns of rows; None stands for the usual names."""

    text: str | None = None
    head: str | None = None
    tail: str | None = None
    relation: str | None = None


_DEFAULT_NAMES = RelatedNames()


def read_related(
    source: Source,
    *,
    labeled: bool,
    names: RelatedNames = _DEFAULT_NAMES,
    delimiter: str | None = None,
    encoding: str | None = None,
) -> Iterator[Related]:
    """Yield the examples of a source, in its order.

    Args:
        source: .txt: SemEval's blocks, or without labels one tagged text on each line; .jsonl, .json (a list),
        .csv,
            .tsv, data in memory: rows. A blank row has an empty text.
        labeled: Read the relation, which must be there.
        names: The columns of a row.
        delimiter: The delimiter of a text file.
        encoding: The encoding of a file that is not UTF-8.
    """
    suffix = format_suffix(source)
    if is_json_source(source):
        for row in json_rows(source, encoding):
            yield example_of_row(row, labeled=labeled, names=names)
    elif suffix == ".json":
        values = read_json(source, encoding)
        if not isinstance(values, list):
            hint = "write a list of rows, or one row per line into a .jsonl"
            raise InputError("not_a_list", "this is not a list", location=source, hint=hint)
        for index, item in enumerate(values):
            location = f"{source}: [{index}]"
            if not isinstance(item, dict):
                raise InputError("not_an_object", "this is not an object", location=location, hint=_ROW_HINT)
            yield example_of_row(Row(item, location), labeled=labeled, names=names)
    elif suffix in (".csv", ".tsv", ".parquet") or delimiter is not None:
        for row in read_table(source, delimiter=delimiter, encoding=encoding, keep_blank=not labeled):
            yield example_of_row(row, labeled=labeled, names=names)._replace(row=row.texts)
    else:
        yield from _semeval_examples(source, encoding, labeled=labeled)


def example_of_row(row: Row, *, labeled: bool, names: RelatedNames = _DEFAULT_NAMES) -> Related:
    """Return the example of a row. Raises `InputError` if a part is missing or wrong."""
    location = row.location
    values = _known_columns(row, names, labeled=labeled)
    relation = first_value(values, _LABELS)
    if labeled and (isinstance(relation, bool) or not isinstance(relation, str | int)):
        raise InputError(
            "relation_missing",
            "the relation is missing",
            location=location,
            argument="label_column",
            hint=f"give each row one, as relation, or name its column with {option('label_column')}: "
            f"{', '.join(values)}",
        )
    label = str(relation).strip() if labeled else None
    number = values.get("id")
    name = None if number is None else str(number)
    text = next((values[name] for name in _TEXTS if values.get(name) is not None), None)
    tokens = next((values[name] for name in _TOKENS if values.get(name) is not None), None)
    head, tail = (_span_of(values, side, location) for side in ("head", "tail"))
    has_column = any(name in values for name in (*_TEXTS, *_TOKENS))
    if not labeled and tokens is None and not str(text or "").strip() and has_column:
        return Related("", (0, 0), (0, 0), None, location, name)
    if tokens is not None and head is not None and tail is not None:
        joined, spans = of_words(tokens, [head, tail], location)
        return Related(joined, spans[0], spans[1], label, location, name)
    if not isinstance(text, str):
        raise InputError("text_missing", "the text is missing", location=location, hint=_ROW_HINT)
    if head is None or tail is None:
        return Related(*of_tagged(text, location), label, location, name)
    head, tail = _check_spans(head, tail, len(text), "characters", location)
    return Related(text, head, tail, label, location, name)


def _known_columns(row: Row, names: RelatedNames, *, labeled: bool) -> dict[str, Any]:
    """Return a row's values under the names that `example_of_row` knows."""
    columns = {
        "text": NamedColumn(names.text, "text_column", (*_TEXTS, *_TOKENS)),
        "head": NamedColumn(names.head, "head_column", _ENTITIES["head"]),
        "tail": NamedColumn(names.tail, "tail_column", _ENTITIES["tail"]),
        "relation": NamedColumn(names.relation if labeled else None, "label_column", _LABELS),
    }
    values = rename_columns(row.values, columns, row.location)
    if names.text is not None and isinstance(values["text"], list | tuple):
        values["tokens"] = values.pop("text")
    return values


def of_tagged(text: str, location: str) -> tuple[str, Span, Span]:
    """Return a text without its tags, and the slices of head and tail that they mark."""
    parts, end, length = [], 0, 0
    starts: dict[str, int] = {}
    spans: dict[str, Span] = {}
    for tag in _TAG.finditer(text):
        parts.append(text[end : tag.start()])
        length += tag.start() - end
        end, name = tag.end(), tag[0].strip("</>")
        if tag[0].startswith("</"):
            if name not in starts:
                message = f"{tag[0]} has no opening tag"
                raise InputError("unopened_tag", message, location=location, hint=_TAG_HINT)
            spans[name] = (starts.pop(name), length)
        elif name in starts or name in spans:
            message, hint = f"{tag[0]} occurs twice", f"mark one entity with each tag: {_TAG_HINT}"
            raise InputError("duplicate_tag", message, location=location, hint=hint)
        else:
            starts[name] = length
    if starts:
        message = f"<{next(iter(starts))}> is never closed"
        raise InputError("unclosed_tag", message, location=location, hint=_TAG_HINT)
    if missing := [name for name in ("e1", "e2") if name not in spans]:
        message = f"the entity <{missing[0]}> is not marked"
        raise InputError("entity_missing", message, location=location, hint=_ROW_HINT)
    plain = "".join([*parts, text[end:]])
    return plain, *_check_spans(spans["e1"], spans["e2"], len(plain), "characters", location)


def tagged(text: str, head: Span, tail: Span) -> str:
    """Return the text with SemEval's tags in it."""
    return marked(text, head, tail, [("<e1>", "</e1>"), ("<e2>", "</e2>")])[0]


def marked(
    text: str, head: Span, tail: Span, marks: Sequence[tuple[str, str]]
) -> tuple[str, list[tuple[int, int]]]:
    """Return the text with an opening and a closing mark around each entity, and the positions of both marks.

    An entity inside of the other is marked within it.
    """
    events = []
    for entity, (start, end) in enumerate((head, tail)):
        # At one position, ends come before starts; the longer entity starts first and ends last.
        events.append((start, 1, -end, entity, entity, 0))
        events.append((end, 0, -start, -entity, entity, 1))
    parts: list[str] = []
    last = length = 0
    positions = [[0, 0], [0, 0]]
    for position, *_, entity, is_end in sorted(events):
        mark = marks[entity][is_end]
        parts += [text[last:position], mark]
        positions[entity][is_end] = length + position - last
        length, last = length + position - last + len(mark), position
    return "".join([*parts, text[last:]]), [(start, end) for start, end in positions]


def of_words(tokens: Any, spans: Sequence[Any], location: str) -> tuple[str, tuple[Span, Span]]:
    """Return words joined by spaces, and two spans of words as slices of this text."""
    if isinstance(tokens, str) and tokens.lstrip().startswith("["):
        try:
            tokens = json.loads(tokens)
        except ValueError:
            message, hint = "the tokens are not a JSON list", 'write ["one", "two"]'
            raise InputError("not_json", message, location=location, hint=hint) from None
    if not isinstance(tokens, list | tuple) or not all(isinstance(token, str) and token for token in tokens):
        message, hint = "the tokens are not a list of words", 'write ["The", "child"]'
        raise InputError("not_a_list", message, location=location, hint=hint)
    starts, length = [], 0
    for token in tokens:
        starts.append(length)
        length += len(token) + 1
    pairs = _check_spans(spans[0], spans[1], len(tokens), "words", location)
    head, tail = ((starts[start], starts[end - 1] + len(tokens[end - 1])) for start, end in pairs)
    return " ".join(tokens), (head, tail)


def checked_spans(text: str, spans: Sequence[Any], location: str) -> tuple[Span, Span]:
    """Return two slices of a text that are not empty."""
    head, tail = (_parse_span(span, "an entity", location) for span in spans)
    return _check_spans(head, tail, len(text), "characters", location)


def _span_of(values: Mapping[str, Any], side: str, location: str) -> Span | None:
    """Return an entity's [start, end): a list, {"start", "end"}, or two columns (TACRED's are inclusive)."""
    for name in _ENTITIES[side]:
        span = values.get(name)
        if span is not None and not (isinstance(span, str) and not span.strip()):
            return _parse_span(span, side, location)
        ends = [values.get(f"{name}_start"), values.get(f"{name}_end")]
        if all(end not in (None, "") for end in ends):
            start, end = _parse_span(ends, side, location)
            return start, end + (name in ("subj", "obj"))
    return None


def _parse_span(span: Any, side: str, location: str) -> Span:
    if isinstance(span, str):
        try:
            span = json.loads(span)
        except ValueError:
            span = None
    if isinstance(span, Mapping):
        span = [span.get("start"), span.get("end")]
    ends = list(span) if isinstance(span, list | tuple) else []
    ends = [int(end) if isinstance(end, str) and end.strip().isdecimal() else end for end in ends]
    if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, int) for end in ends):
        raise InputError("bad_span", f"{side} is not [start, end]", location=location, hint=_SPAN_HINT)
    return ends[0], ends[1]


def _check_spans(head: Span, tail: Span, size: int, unit: str, location: str) -> tuple[Span, Span]:
    for start, end in (head, tail):
        if not 0 <= start < end <= size:
            problem = "is empty" if start == end else f"[{start}, {end}] is not within the {size} {unit}"
            hint = "its end is exclusive, and behind its start"
            raise InputError("span_out_of_range", f"the entity {problem}", location=location, hint=hint)
    if head[0] < tail[0] < head[1] < tail[1] or tail[0] < head[0] < tail[1] < head[1]:
        hint = "one may contain the other, or both are disjoint"
        raise InputError("overlapping_spans", "the two entities overlap", location=location, hint=hint)
    return (head[0], head[1]), (tail[0], tail[1])


def _semeval_examples(file: str | Path, encoding: str | None, *, labeled: bool) -> Iterator[Related]:
    """Yield the examples of SemEval's blocks: a number and a quoted sentence, the relation, a comment.

    Without labels the sentence is enough, and its number may be missing.
    """
    has_numbers = False
    pending: Related | None = None  # until its relation is read
    for line_number, line in read_lines(file, encoding):
        if not line.strip() or line.startswith("Comment:"):
            continue
        match = _NUMBERED_LINE.match(line)
        has_numbers = has_numbers or match is not None
        location = f"{file}:{line_number}"
        if match or not (labeled or has_numbers):
            if pending is not None and labeled:
                raise _missing_relation_error(pending.place)
            number, text = (match[1], _unquote(match[2])) if match else (None, line)
            example = Related(*of_tagged(text, location), None, location, number)
            if labeled:
                pending = example
            else:
                yield example
        elif pending is not None:
            yield pending._replace(relation=line.strip())
            pending = None
        elif labeled:
            raise InputError(
                "not_semeval",
                "this is neither a numbered sentence nor a relation or a comment",
                location=location,
                hint='write 1<tab>"The <e1>child</e1> …", below it the relation, and a blank line',
            )
    if pending is not None:
        raise _missing_relation_error(pending.place)


def _missing_relation_error(location: str) -> InputError:
    hint = "write it on the line below"
    return InputError("relation_missing", "the relation is missing", location=location, hint=hint)


def _unquote(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
