"""Texts with two marked entities and their relation: SemEval-2010 task 8's blocks, and rows with tags or spans.

A text may have the tags of SemEval inside, `The <e1>child</e1> was wrapped into the <e2>cradle</e2>.`; or two
spans beside it: [start, end) in characters of `text`, or in words of `tokens` (TACRED's `subj_end` and `obj_end`
are inclusive, as its files have them). e1 is the head, e2 the tail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.io.files import bare_suffix, json_object, read_lines
from bertsmith.io.records import Named, by_known_names
from bertsmith.io.tables import read_table
from bertsmith.io.whole_json import json_value

_TAG = re.compile(r"</?e[12]>")
_NUMBERED = re.compile(r"(\d+)\t(.*)")
_ENTITIES = {"head": ("head", "e1", "subj"), "tail": ("tail", "e2", "obj")}
_TEXTS = ("text", "sentence")
_TOKENS = ("tokens", "token", "words")
_LABELS = ("relation", "label")
_TAGGED = "write The <e1>child</e1> in the <e2>cradle</e2>"
_SPANS = (
    "give head and tail as [start, end], in characters of text or in words of tokens; the end is exclusive"
)
_TEXT_OR_SPANS = f"{_TAGGED} as text, or {_SPANS}"
_BELOW = "write it on the line below"

Span = tuple[int, int]


class Related(NamedTuple):
    """A text, its two entities as slices of it, their relation (None where it is not asked for), its place; the
    file's own number for it, and the row of the table that it is, or None."""

    text: str
    head: Span
    tail: Span
    relation: str | None
    place: str
    number: str | None = None
    row: Mapping[str, str] | None = None


class RelatedNames(NamedTuple):
    """What a file calls the parts of a row where it has names of its own; None: as they are known."""

    text: str | None = None
    head: str | None = None
    tail: str | None = None
    relation: str | None = None


_KNOWN = RelatedNames()


def read_related(
    file: str | Path,
    *,
    labelled: bool,
    names: RelatedNames = _KNOWN,
    delimiter: str | None = None,
    encoding: str | None = None,
) -> Iterator[Related]:
    """The examples of a file, in its order. .txt: SemEval's blocks, or to predict a tagged text a line; .jsonl and
    .json (a list), .csv, .tsv: rows. labelled: the relation is read, and must be there. names: of the parts of a
    row. A blank row has an empty text. InputError with file and line, or place, for what is amiss."""
    suffix = bare_suffix(file)
    if suffix == ".jsonl":
        for number, line in read_lines(file, encoding):
            if line and not line.isspace():
                row = json_object(file, number, line)
                yield of_row(row, f"{file}:{number}", labelled=labelled, names=names)
    elif suffix == ".json":
        rows = json_value(file, encoding)
        if not isinstance(rows, list):
            raise InputError(
                "not_a_list",
                "this is not a list",
                location=file,
                hint="write a list of rows, or one row per line into a .jsonl",
            )
        for i, row in enumerate(rows):
            if not isinstance(row, dict):
                raise InputError(
                    "not_an_object", "this is not an object", location=f"{file}: [{i}]", hint=_TEXT_OR_SPANS
                )
            yield of_row(row, f"{file}: [{i}]", labelled=labelled, names=names)
    elif suffix in (".csv", ".tsv") or delimiter is not None:
        for table_row in read_table(file, delimiter=delimiter, encoding=encoding, keep_blank=not labelled):
            place = f"{file}:{table_row.line}"
            found = of_row(table_row.values, place, labelled=labelled, names=names)
            yield found._replace(row=table_row.values)
    else:
        yield from _of_blocks(file, encoding, labelled)


def of_row(values: Mapping[str, Any], place: str, *, labelled: bool, names: RelatedNames = _KNOWN) -> Related:
    """Return the example of a row's values by name. InputError with the location `place` for what is amiss."""
    values = _by_known_names(values, names, place, labelled=labelled)
    relation = next((values[name] for name in _LABELS if values.get(name) not in (None, "")), None)
    if labelled and (isinstance(relation, bool) or not isinstance(relation, str | int)):
        raise InputError(
            "relation_missing",
            "the relation is missing",
            location=place,
            argument="label_column",
            hint=f"give each row one, as relation, or name its column with {option('label_column')}: "
            f"{', '.join(values)}",
        )
    label = str(relation).strip() if labelled else None
    number = values.get("id")
    name = None if number is None else str(number)
    text = next((values[name] for name in _TEXTS if values.get(name) is not None), None)
    tokens = next((values[name] for name in _TOKENS if values.get(name) is not None), None)
    spans = [_span_of(values, side, place) for side in ("head", "tail")]
    if (
        not labelled
        and tokens is None
        and not str(text or "").strip()
        and {*_TEXTS, *_TOKENS} & values.keys()
    ):
        return Related("", (0, 0), (0, 0), None, place, name)
    if tokens is not None and None not in spans:
        text, found = of_words(tokens, spans, place)
        return Related(text, *found, label, place, name)
    if not isinstance(text, str):
        raise InputError("text_missing", "the text is missing", location=place, hint=_TEXT_OR_SPANS)
    if None in spans:
        return Related(*of_tagged(text, place), label, place, name)
    return Related(text, *_checked(spans, len(text), "characters", place), label, place, name)


def _by_known_names(
    values: Mapping[str, Any], names: RelatedNames, place: str, *, labelled: bool
) -> Mapping[str, Any]:
    """The values by the names that `of_row` knows. InputError for a column that is not there."""
    parts = {
        "text": Named(names.text, "text_column", (*_TEXTS, *_TOKENS)),
        "head": Named(names.head, "head_column", _ENTITIES["head"]),
        "tail": Named(names.tail, "tail_column", _ENTITIES["tail"]),
        "relation": Named(names.relation if labelled else None, "label_column", _LABELS),
    }
    found = by_known_names(values, parts, place)
    if names.text is not None and isinstance(found["text"], list):
        found["tokens"] = found.pop("text")
    return found


def of_tagged(text: str, place: str) -> tuple[str, Span, Span]:
    """Return a text without its tags, and the slices that they marked. InputError with the location `place` where
    they are not one pair each."""
    plain, at, open_at, found = [], 0, dict[str, int](), dict[str, Span]()
    length = 0
    for tag in _TAG.finditer(text):
        plain.append(text[at : tag.start()])
        length += tag.start() - at
        at, name = tag.end(), tag[0].strip("</>")
        if tag[0].startswith("</"):
            if name not in open_at:
                message = f"{tag[0]} has no opening tag"
                raise InputError("unopened_tag", message, location=place, hint=_TAGGED)
            found[name] = (open_at.pop(name), length)
        elif name in open_at or name in found:
            hint = f"mark one entity with each tag: {_TAGGED}"
            raise InputError("duplicate_tag", f"{tag[0]} occurs twice", location=place, hint=hint)
        else:
            open_at[name] = length
    plain.append(text[at:])
    if open_at:
        message = f"<{next(iter(open_at))}> is never closed"
        raise InputError("unclosed_tag", message, location=place, hint=_TAGGED)
    if missing := [name for name in ("e1", "e2") if name not in found]:
        message = f"the entity <{missing[0]}> is not marked"
        raise InputError("entity_missing", message, location=place, hint=_TEXT_OR_SPANS)
    whole = "".join(plain)
    head, tail = _checked([found["e1"], found["e2"]], len(whole), "characters", place)
    return whole, head, tail


def tagged(text: str, head: Span, tail: Span) -> str:
    """The text with SemEval's tags in it."""
    return marked(text, head, tail, [("<e1>", "</e1>"), ("<e2>", "</e2>")])[0]


def marked(
    text: str, head: Span, tail: Span, marks: Sequence[tuple[str, str]]
) -> tuple[str, list[tuple[int, int]]]:
    """The text with an opening and a closing mark put around each of the two, and for each where these begin in
    it. What lies in another is marked within it."""
    spans = [head, tail]
    events = []
    for i, (start, end) in enumerate(spans):
        # at one place what ends comes before what begins; the longer begins first and ends last
        events.append((start, 1, -end, i, i, 0))
        events.append((end, 0, -start, -i, i, 1))
    parts, at, length, places = [], 0, 0, [[0, 0], [0, 0]]
    for where, *_, i, closes in sorted(events):
        parts += [text[at:where], marks[i][closes]]
        places[i][closes] = length + where - at
        length, at = length + where - at + len(marks[i][closes]), where
    return "".join([*parts, text[at:]]), [(opened, closed) for opened, closed in places]


def of_words(tokens: Any, spans: Sequence[Any], place: str) -> tuple[str, tuple[Span, Span]]:
    """Words joined by one blank, and two spans of words as slices of that."""
    if isinstance(tokens, str) and tokens.lstrip().startswith("["):
        try:
            tokens = json.loads(tokens)
        except ValueError:
            message = "the tokens are not a JSON list"
            raise InputError("not_json", message, location=place, hint='write ["one", "two"]') from None
    if not isinstance(tokens, list | tuple) or not all(isinstance(token, str) and token for token in tokens):
        message = "the tokens are not a list of words"
        raise InputError("not_a_list", message, location=place, hint='write ["The", "child"]')
    begins, length = [], 0
    for token in tokens:
        begins.append(length)
        length += len(token) + 1
    head, tail = _checked(spans, len(tokens), "words", place)
    at = [(begins[start], begins[end - 1] + len(tokens[end - 1])) for start, end in (head, tail)]
    return " ".join(tokens), (at[0], at[1])


def checked_spans(text: str, spans: Sequence[Any], place: str) -> tuple[Span, Span]:
    """Two slices of a text that have something in them."""
    return _checked([_as_span(span, "an entity", place) for span in spans], len(text), "characters", place)


def _span_of(values: Mapping[str, Any], side: str, place: str) -> Any:
    """An entity's [start, end) as a row has it: a list, {"start", "end"}, or two columns, TACRED's inclusive."""
    for name in _ENTITIES[side]:
        if (given := values.get(name)) is not None and not (isinstance(given, str) and not given.strip()):
            return _as_span(given, side, place)
        ends = values.get(f"{name}_start"), values.get(f"{name}_end")
        if all(end not in (None, "") for end in ends):
            start, end = _as_span(list(ends), side, place)
            return start, end + (name in ("subj", "obj"))
    return None


def _as_span(given: Any, side: str, place: str) -> Span:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = None
    if isinstance(given, Mapping):
        given = [given.get("start"), given.get("end")]
    if isinstance(given, list | tuple):
        given = [int(x) if isinstance(x, str) and x.strip().isdecimal() else x for x in given]
    if (
        not isinstance(given, list | tuple)
        or len(given) != 2
        or any(isinstance(x, bool) or not isinstance(x, int) for x in given)
    ):
        raise InputError("bad_span", f"{side} is not [start, end]", location=place, hint=_SPANS)
    return given[0], given[1]


def _checked(spans: Sequence[Any], size: int, unit: str, place: str) -> tuple[Span, Span]:
    for start, end in spans:
        if not 0 <= start < end <= size:
            problem = "is empty" if start == end else f"[{start}, {end}] is not within the {size} {unit}"
            hint = "its end is exclusive, and behind its start"
            raise InputError("span_out_of_range", f"the entity {problem}", location=place, hint=hint)
    head, tail = spans
    if head[0] < tail[0] < head[1] < tail[1] or tail[0] < head[0] < tail[1] < head[1]:
        hint = "one may contain the other, or both are disjoint"
        raise InputError("overlapping_spans", "the two entities overlap", location=place, hint=hint)
    return tuple(head), tuple(tail)


def _of_blocks(file: str | Path, encoding: str | None, labelled: bool) -> Iterator[Related]:
    """SemEval's: a number and a quoted sentence, a line with the relation, one with a comment, a blank one. To
    predict, the first is enough, and its number may be missing."""
    place, numbered = "", False
    waiting: Related | None = None  # until its relation is read
    for at, line in read_lines(file, encoding):
        if not line.strip() or line.startswith("Comment:"):
            continue
        found = _NUMBERED.match(line)
        numbered = numbered or found is not None
        if found or not (labelled or numbered):
            if waiting is not None and labelled:
                raise InputError("relation_missing", "the relation is missing", location=place, hint=_BELOW)
            place = f"{file}:{at}"
            number, text = (found[1], _unquoted(found[2])) if found else (None, line)
            example = Related(*of_tagged(text, place), None, place, number)
            if labelled:
                waiting = example
            else:
                yield example
        elif waiting is not None:
            yield waiting._replace(relation=line.strip())
            waiting = None
        elif labelled:
            raise InputError(
                "not_semeval",
                "this is neither a numbered sentence nor a relation or a comment",
                location=f"{file}:{at}",
                hint='write 1<tab>"The <e1>child</e1> …", below it the relation, and a blank line',
            )
    if waiting is not None:
        raise InputError("relation_missing", "the relation is missing", location=place, hint=_BELOW)


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
