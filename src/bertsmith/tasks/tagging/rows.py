"""Sentences in rows of tables and JSON: one in each, as lists or as spans of a text, or a word in each."""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.delimited import detect_delimiter, is_separator_line
from bertsmith.io.sources import Source
from bertsmith.io.tables import Row, Table, is_json_source, read_table
from bertsmith.io.text_io import read_lines
from bertsmith.io.values import parse_array, parse_collection, to_text
from bertsmith.metrics.tagging import OUTSIDE
from bertsmith.tasks.labels import check_length, is_integer
from bertsmith.tasks.rows import column_value, refuse_other_format, without_rejected
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.sentences import TagExample, split_text

logger = logging.getLogger(__name__)
_WORD_NAMES = ("words", "tokens", "word", "token", "form", "text", "data", "sentence")
_TAG_NAMES = (
    "tags",
    "tag",
    "ner_tags",
    "ner_tag",
    "entities",
    "spans",
    "ents",
    "labels",
    "label",
    "annotations",
)
_ID_NAMES = ("sentence_id", "sentence_#", "sent_id", "sentence_idx", "sentence_number", "sentence")
_SEPARATOR = re.compile(r"[\t\n\r]")
_EMPTY = (None, "")
_OTHER_FORMATS = {  # by their first lines
    "a TSV file of WebAnno or INCEpTION": r"#FORMAT=WebAnno TSV",
    "an annotation file of brat": r"T\d+\t\S+ \d+ \d+|[REAMN]\d+\t\S+ \S|E\d+\t\S+:T\d|#\d+\tAnnotatorNotes",
    "text with inline tags": r"<START:|[^\t]*<(\w[\w.-]*)(\s[^<>]*)?>[^\t]*</\1>|<\w[^<>]*>\s*$"
    r"|[^\t]*\[[^]]+\]\(\w+\)",
    "text of words with tags (word/TAG)": r"(\S+/[A-Z][\w$-]*(\s+|$)){2,}$|(\S+/[a-z]\w*(\s+|$)){3,}$"
    r"|(\S+_[A-Z][\w$-]*(\s+|$)){3,}$",
}
_HEAD_CHARACTERS = 2000  # of a line, by which a format is recognized
_OTHER_FORMAT_HINT = (
    "export it as CoNLL 2002 (a word and its tag on each line), or as .jsonl with spans in characters: "
    '{"text": "Ada walks", "spans": [[0, 3, "PER"]]}'
)
_LISTS = ("['", '["')  # as pandas and json write lists into cells
_SPAN_LISTS = ("[[", "[{", "[(", "[]")
_LISTS_HINT = (
    'write {"words": ["Ada", "walks"], "tags": ["B-PER", "O"]}, '
    'or spans in characters: {"text": "Ada walks", "spans": [[0, 3, "PER"]]}'
)
_BRACKETS = re.compile(r"(\([^()*]+)?(\*\)?|\))")  # the tags of CoNLL-2012
_TAG = re.compile(r"O|[BIESLUWM]-.+")
_NESTED_TAGS = re.compile(r"(O|[BIESLUMW]-\S+?)[|/+,;&](O|[BIESLUMW]-\S+)")
_COMMA_BEHIND_TAG = re.compile(r"\w[,;]")
_CONFIDENCE = re.compile(r"[01]?\.\d+(e-\d+)?|[01]")


def read_named_rows(source: Source, settings: TagSettings, *, labeled: bool) -> list[TagExample] | None:
    """Return the sentences of a table, JSON file, or text file with a header; None for columns without names."""
    encoding, suffix = settings.encoding, "" if isinstance(source, Table) else format_suffix(source)
    if is_json_source(source) or suffix == ".json":
        table = read_table(source, encoding=encoding)
        table = without_rejected(table) if labeled else table
        return list(_sentences(table, settings, labeled=labeled))
    is_csv = suffix == ".csv"
    lines = (
        (n, x) for n, x in read_lines(source, encoding) if x.strip() and not (is_csv and is_separator_line(x))
    )
    number, first_line = next(lines, (1, ""))
    other_formats = (
        name for name, form in _OTHER_FORMATS.items() if re.match(form, first_line.strip()[:_HEAD_CHARACTERS])
    )
    if labeled and (name := next(other_formats, None)):
        message, location = f"this is {name}, not a word and its tag on each line", f"{source}:{number}"
        raise InputError("other_tag_format", message, location=location, hint=_OTHER_FORMAT_HINT)
    delimiter = (detect_delimiter(source, encoding=encoding) if is_csv else None) or "\t"
    names = [name.strip('"') for name in first_line.split(delimiter)]
    column_names = {c for c in (settings.word_column, settings.tag_column) if c and not is_integer(c)}
    usual = {*map(_normalize, names)} & {*_WORD_NAMES, *_TAG_NAMES, *_ID_NAMES}
    header = not column_names.isdisjoint(names) or len(usual) > (labeled or not is_csv)
    if not header and not (is_csv and len(names) > 1):
        return None
    table = read_table(source, delimiter=delimiter, header=header, encoding=encoding, keep_blank=True)
    update: dict[str, str] = {}
    columns = list(table.columns)
    while labeled and columns and not any(row.values[columns[-1]] for row in table):
        columns.pop()  # a delimiter ends each line
    for argument, default in (("word_column", "1"), ("tag_column", "-1")):
        column = getattr(settings, argument) or ("" if header else default)
        if is_integer(column):
            by_number = {i: name for start in (-len(columns), 1) for i, name in enumerate(columns, start)}
            name = by_number.get(int(column), column)
            column_value(dict.fromkeys(columns), name, argument, table.start)
            update[argument] = name
    return list(_sentences(table, settings.model_copy(update=update), labeled=labeled))


class _Cells(NamedTuple):
    """A row, the names of its words and tags, these values, and the id of its sentence."""

    row: Row
    keys: tuple[str, str]
    words: Any
    tags: Any
    id: str | None
    is_blank: bool

    @classmethod
    def of(cls, row: Row, settings: TagSettings) -> _Cells:
        values = row.values
        usual = {_normalize(name): name for name, value in values.items() if value is not None}
        names = {_normalize(name): name for name in values} | usual
        word = next(
            (d[n] for d in (usual, names) for n in _WORD_NAMES if n in d and not _are_spans(values[d[n]])),
            "words",
        )
        tag = next((d[n] for d in (usual, names) for n in _TAG_NAMES if n in d), "tags")
        keys = field_name(settings.word_column, word, values), field_name(settings.tag_column, tag, values)
        ids = (
            to_text(values[usual[n]], usual[n], row.location)
            for n in _ID_NAMES
            if n in usual and usual[n] not in keys
        )
        is_blank = all(value in _EMPTY for value in values.values())
        tags = values.get(keys[1])
        spans = parse_collection(tags) if isinstance(tags, str) and tags.startswith(_SPAN_LISTS) else None
        tags = tags if spans is None else spans
        return cls(row, keys, values.get(keys[0]), tags, next(ids, None) or None, is_blank)

    @property
    def may_be_word(self) -> bool:
        """False if the row has a sentence."""
        num_words = len(self.words.split()) if isinstance(self.words, str) else 0
        is_list = isinstance(self.tags, list | tuple | Mapping) or str(self.tags).startswith(_LISTS)
        is_word = num_words == 1 and (self.tags is not None or _normalize(self.keys[0]) in ("word", "token"))
        is_sentence = num_words == len(str(self.tags).split()) > 1 or bool(
            _parse_arrays(self.words, self.tags)
        )
        return (is_word or self.id is not None) and num_words > 0 and not is_list and not is_sentence


def field_name(column: str | None, default: str, values: Container[str] = ()) -> str:
    """Return the name of a field from a setting that may also be a number of a column."""
    return column if column and (not is_integer(column) or column in values) else default


def _normalize(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _sentences(rows: Iterable[Row], settings: TagSettings, *, labeled: bool) -> Iterator[TagExample]:
    """Yield the sentences of rows.

    Rows of a word and its tag are one sentence up to a row of empty cells or, if there are ids of sentences, while
    the id is the same or missing.
    """
    table = [_Cells.of(row, settings) for row in rows]
    ids = [cells.id for cells in table if not cells.is_blank]
    has_ids = None not in ids and len(ids) == len({*ids}) > 1  # of rows
    if has_ids or not all(cells.may_be_word or cells.is_blank for cells in table):
        sentences = (cells for cells in table if not (labeled and cells.is_blank))
        yield from (_example(cells, settings, labeled=labeled) for cells in sentences)
        return
    groups: list[list[_Cells]] = [[]]
    last_id, previous_ids = None, set()
    for cells in table:
        is_new = cells.id not in (None, last_id)
        if is_new and cells.id in previous_ids:
            message = f"the sentence {cells.id!r:.60} continues here, behind another one"
            hint = "put the rows of a sentence together, and give each sentence an id of its own"
            raise InputError("sentence_interrupted", message, location=cells.row.location, hint=hint)
        if is_new:
            last_id = cells.id
            previous_ids.add(last_id)
        groups += [[]] if is_new or cells.is_blank else []
        groups[-1] += [] if cells.is_blank else [cells]
    yield from (_example_of_words(group, labeled=labeled) for group in groups if group)


def _example_of_words(table: Sequence[_Cells], *, labeled: bool) -> TagExample:
    words: list[str] = []
    tags: list[str] = []
    for row, (word_key, tag_key), word, tag, *_ in table:
        words += parse_words([word], row.location, word_key)
        tags += _parse_tags([tag], words[-1:], tag_key, row.location) if labeled else []
    rows = [cells.row for cells in table]
    if labeled:
        return TagExample(tuple(words), tuple(tags), rows[0].location, lines=[row.line for row in rows])
    outputs = tuple(tab_separated(row.texts.values()) for row in rows)
    return TagExample(tuple(words), None, rows[0].location, outputs)


def _example(cells: _Cells, settings: TagSettings, *, labeled: bool) -> TagExample:
    """Return the sentence of a row."""
    row, keys, text, tags, *_ = cells
    location = row.location
    if keys[0] not in row.values or labeled:
        refuse_other_format(row)
    for argument, key in zip(("word_column", "tag_column"), keys[: 1 + labeled], strict=False):
        column_value(row.values, key, argument, location)
    text = text.get("text") if isinstance(text, dict) else text  # of Label Studio
    has_spans = tags == [] or _are_spans(tags)
    annotations = [a for a in tags if isinstance(a, dict) and "result" in a] if has_spans else []
    if labeled and sum(not annotation.get("was_cancelled") for annotation in annotations) > 1:
        message, hint = "this text has several annotations", "export one annotation of each text"
        raise InputError("several_annotations", message, location=location, hint=hint)
    if labeled and has_spans and isinstance(text, str):
        return _example_of_spans(text, tags, location)
    text, tags = _parse_arrays(text, tags) or (text, tags)
    words = parse_words(text, location, keys[0])
    predicate = row.values.get(field_name(settings.predicate_column, "predicate"))
    predicate = parse_predicate(predicate, words, location)
    if isinstance(text, str) and isinstance(tags, str):
        tags = _parse_tag_cell(tags, len(words), location, keys[1])
    if labeled:
        return TagExample(words, _parse_tags(tags, words, keys[1], location), location, predicate=predicate)
    has_tags = isinstance(tags, list | tuple) and len(tags) == len(words) and not has_spans
    pairs = zip(words, tags, strict=True) if has_tags else ((word,) for word in words)
    text = text if isinstance(text, str) and not text.startswith(_LISTS) else None
    return TagExample(words, None, location, tuple(map(tab_separated, pairs)), text=text, predicate=predicate)


def _parse_arrays(words: Any, tags: Any) -> list[Any] | None:
    """Return the lists of cells such as {Ada,walks} and {B-PER,O}; None for other values."""
    are_cells = isinstance(words, str) and isinstance(tags, str) and not words.startswith("(")
    arrays = [parse_array(cell) if are_cells else None for cell in (words, tags)]
    return None if None in arrays else arrays


def _parse_tag_cell(text: str, num_words: int, location: str, key: str) -> Sequence[Any]:
    """Return the tags of a cell: a list, also without quotes, or tags between spaces or commas."""
    tags = parse_array(text)
    if tags is None and _COMMA_BEHIND_TAG.search(text) and not text.startswith(_LISTS):
        tags = re.split(r"[,;\s]+", text.strip())
    return tags if tags is not None and len(tags) == num_words else parse_words(text, location, key)


def _are_spans(value: Any) -> bool:
    value = value.get("entities") if isinstance(value, Mapping) else value
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], list | tuple | Mapping)


def _spans(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield (start, end, label, text or None) of the spans of spaCy, doccano, Prodigy, and Label Studio."""
    for item in value["entities"] if isinstance(value, Mapping) else value:
        if isinstance(item, Mapping) and isinstance(item.get("result"), list):
            yield from () if item.get("was_cancelled") else _spans(item["result"])
        elif isinstance(item, Mapping):
            item = item["value"] if isinstance(item.get("value"), Mapping) else item
            label = item.get("label", item.get("labels"))
            label = label[0] if isinstance(label, list) and len(label) == 1 else label
            start, end = (item.get(key, item.get(f"{key}_offset")) for key in ("start", "end"))
            yield start, end, label, item.get("text")
        else:
            yield *(item if isinstance(item, list | tuple) and len(item) == 3 else (item, None, None)), None


def _example_of_spans(text: str, spans: Any, location: str) -> TagExample:
    """Return the words of a text, and the tags of its spans, which are extended to whole words."""
    bounds = split_text(text)
    starts, ends = [start for start, _ in bounds], [end for _, end in bounds]
    tags = [OUTSIDE] * len(bounds)
    num_extended = 0
    for start, end, label, part in _spans(spans):
        problem = "is not [start, end, label]"
        if type(start) is int and type(end) is int and isinstance(label, str) and label.strip():
            first, last = bisect_right(ends, start), bisect_left(starts, end)
            problem = "overlaps another one" if any(tag != OUTSIDE for tag in tags[first:last]) else ""
            if part not in (None, text[max(start, 0) : end]):
                problem = f"does not have the text {part!r:.60}"
            if not 0 <= start < end <= len(text) or first == last:
                problem = f"has no word of the {pluralize(len(text), 'character')}"
        if problem:
            message = f"the span [{start!r:.60}, {end!r:.20}, {label!r:.60}] {problem}"
            hint = "spans are [start, end, label] in characters from 0, with the end exclusive, and do not overlap"
            hint += "; of nested ones, keep the outer one" if problem.startswith("overlaps") else ""
            raise InputError("bad_span", message, location=location, hint=hint)
        tags[first:last] = [f"B-{label}", *[f"I-{label}"] * (last - first - 1)]
        num_extended += text[starts[first] : ends[last - 1]] != text[start:end].strip()
    words = tuple(text[start:end] for start, end in bounds)
    _parse_tags(tags, words, "tags", location)
    return TagExample(words, tuple(tags), location, extended_spans=num_extended)


def _parse_tags(tags: Any, words: Sequence[str], key: str, location: str) -> tuple[str, ...]:
    """Return the tags of a labeled row, a tag for each word."""
    if not isinstance(tags, list | tuple):
        message, hint = f"'{key}' is not a list of tags", 'write ["B-PER", "O"], or [] for no spans'
        raise InputError("not_a_list", message, location=location, hint=hint)
    _check_items(tags, str | int, key, location)
    if not words:
        message, hint = "there are no words here", "give the word, or remove the row"
        raise InputError("empty_sentence", message, location=location, hint=hint)
    if len(tags) != len(words):
        message = f"there are {pluralize(len(words), 'word')} and {pluralize(len(tags), 'tag')}"
        raise InputError("tag_count", message, location=location, hint="give each word one tag")
    return tuple(map(str, tags))


def parse_words(value: Any, location: str, key: str = "words") -> tuple[str, ...]:
    """Return the words of a list, or of a string, in which a table may have a list."""
    if isinstance(value, str) and value.startswith(_LISTS) and (value := parse_collection(value)) is None:
        message, hint = f"the list in '{key}' cannot be read", 'write a JSON list: ["John", "smiles"]'
        raise InputError("not_a_list", message, location=location, hint=hint)
    if isinstance(value, str):
        return tuple(value.split())
    if not isinstance(value, list | tuple):
        message, hint = "a sentence is a list of words or a string", 'write ["John", "smiles"]'
        raise InputError("not_a_sentence", message, location=location, hint=hint)
    _check_items(value, str, key, location)
    return tuple(value)


def _check_items(items: Sequence[Any], types: Any, key: str, location: str) -> None:
    """Raise InputError for an item that is empty or has another type."""
    for index, item in enumerate(items):
        if item == "" or not isinstance(item, types):
            message = f"{key}[{index}] is {json.dumps(item, ensure_ascii=False, default=str):.60}"
            hint = "give each word as a string, and its tag, or remove both"
            hint = _LISTS_HINT if isinstance(item, list | tuple | Mapping) else hint
            raise InputError("invalid_item", message, location=location, hint=hint)


def check_columns(examples: Sequence[TagExample], settings: TagSettings) -> None:
    """Raise InputError if another column than that of words, or of tags, was read."""
    first, are_columns = examples[0], examples[0].lines is not None
    words = {word for example in examples for word in example.words}
    tags = {tag: example.location for example in reversed(examples) for tag in example.tags or ()}
    for tag, where in tags.items():
        check_length(tag, where)
    numbered = all(e.words in [tuple(map(str, range(i, i + len(e.words)))) for i in (0, 1)] for e in examples)
    are_tags = all(map(_TAG.fullmatch, words)) and words != {OUTSIDE}
    confidences = all(map(_CONFIDENCE.fullmatch, tags)) and any(float(tag) % 1 for tag in tags)
    word_option, tag_option = option("word_column"), option("tag_column")
    if are_columns:
        word_option, tag_option = option("word_column", 2), option("tag_column", 1)
    message, argument, location = "", "word_column", first.location
    if numbered and len(words) > 1 and not settings.word_column:
        message, hint = "the words are the numbers 1, 2, …", f"choose the column of words with {word_option}"
        hint += f"; for GermEval, also add {option('tag_column', 3)}" if are_columns else ""
    elif are_tags and not settings.word_column:
        message, hint = "the words are tags", f"choose the columns with {word_option} {tag_option}"
    elif not are_columns and all(map(_is_pairs, examples)):
        message, hint = "this is a list of pairs of a word and its tag", _LISTS_HINT
    elif confidences and not settings.tag_column:
        message, argument = "the tags are fractions, such as confidences", "tag_column"
        hint = f"choose the column of tags with {option('tag_column', -2) if are_columns else tag_option}"
    elif "-100" in tags:
        message, argument, location = "the tag -100 marks tokens to ignore", "tag_column", tags["-100"]
        hint = "give whole words, each with a tag, as they were before a tokenizer split them"
    elif nested := sorted(filter(_NESTED_TAGS.fullmatch, tags)):
        message, argument, location = (
            f"the tag '{nested[0]:.60}' joins several",
            "tag_column",
            tags[nested[0]],
        )
        hint = "give each word one tag; of nested entities, keep the outer one"
    if message:
        raise InputError("other_columns", message, location=location, argument=argument, hint=hint)


def _is_pairs(example: TagExample) -> bool:
    values = (*example.words, *(example.tags or ()))
    return len(values) == 4 and [bool(_TAG.fullmatch(value)) for value in values] == [False, True] * 2


def read_brackets(examples: list[TagExample]) -> list[TagExample]:
    """Return the sentences with the brackets of CoNLL-2012 as tags of IOB2, if all tags are such brackets."""
    if not all(_BRACKETS.fullmatch(tag) for example in examples for tag in example.tags or ()):
        return examples

    def read(tags: Iterable[str]) -> Iterator[str]:
        entity = ""
        for tag in tags:
            name = tag.strip("(*)")
            entity = name or entity
            yield f"B-{name}" if name else f"I-{entity}" if entity else OUTSIDE
            entity = "" if tag.endswith(")") else entity

    logger.info("%s: tags in brackets are read as B-…, I-…, and O", examples[0].location)
    return [replace(example, tags=tuple(read(example.tags or ()))) for example in examples]


def parse_predicate(value: Any, words: Sequence[str], location: str) -> int | None:
    """Return the index of a predicate that is given as an index, or as a word that the sentence has once."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        if words.count(value) == 1:
            return words.index(value)
        value = int(value) if is_integer(value) and value not in words else value
    if type(value) is not int or not 0 <= value < len(words):
        message = f"the predicate {value!r:.60} is neither a word that the sentence has once nor an index"
        hint = f"give the index of its word, from 0 to {len(words) - 1}"
        raise InputError("unknown_predicate", message, location=location, hint=hint)
    return value


def tab_separated(cells: Iterable[object]) -> str:
    """Return cells each followed by a tab; tabs and line breaks in words become spaces."""
    return "".join(_SEPARATOR.sub(" ", str(cell)) + "\t" for cell in cells)
