"""Texts with two marked entities and their relation: SemEval-2010 task 8's blocks, and rows.

A text may contain the tags of SemEval, `The <e1>child</e1> was wrapped into the <e2>cradle</e2>.`; or the row
has two spans: [start, end) in characters of `text`, or in words of `tokens` (TACRED's `subj_end` and `obj_end`
are inclusive). e1 is the head, e2 the tail.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.jsonl import load_json
from bertsmith.io.sources import Source
from bertsmith.io.tables import Row, is_json_source, json_rows, read_table
from bertsmith.io.text_io import read_lines
from bertsmith.io.values import is_blank, to_label, to_text
from bertsmith.metrics.relations import has_direction
from bertsmith.tasks.base import Example, Metadata, TaskData
from bertsmith.tasks.data_checks import check_examples, label_spellings
from bertsmith.tasks.labels import (
    LabelMap,
    LabelMetadata,
    LabelNames,
    check_length,
    check_spellings,
    label_metadata,
    sorted_labels,
)
from bertsmith.tasks.results import Diagnostic
from bertsmith.tasks.rows import first_value, refuse_other_format, rename_columns
from bertsmith.tasks.settings import RelateSettings

_TAG = re.compile(r"(</?e[12]>)")
_NUMBERED_LINE = re.compile(r"(\d+)\t(.*)")
_ENTITIES = {"head": ("head", "e1", "subj"), "tail": ("tail", "e2", "obj")}
_TEXTS = ("text", "sentence")
_TOKENS = ("tokens", "token", "words")
_LABELS = ("relation", "label")
_TAG_HINT = "write The <e1>child</e1> in the <e2>cradle</e2>"
_SPAN_HINT = "give head and tail as [start, end] in characters of text or words of tokens, the end exclusive"
_ROW_HINT = f"{_TAG_HINT} as text, or {_SPAN_HINT}"

Span = tuple[int, int]
_NO_RELATION = ("other", "no_relation", "na")  # its names in published data, in lower case


@dataclass(frozen=True)
class RelationExample(Example):
    """A text with two entities.

    Attributes:
        text: The text; "" for a blank row.
        head: The slice of the first entity.
        tail: The slice of the second entity.
        relation: The relation as the file has it; None if it is unknown.
        id: The file's id of the example, if it has one.
    """

    text: str
    head: Span
    tail: Span
    relation: str | None
    location: str
    id: str | None = None
    table_row: Mapping[str, str] | None = field(default=None, compare=False, repr=False)

    @property
    def group_key(self) -> str:
        """The text."""
        return self.text

    @property
    def question_key(self) -> Hashable:
        """The text with its entities."""
        return self.text, self.head, self.tail

    @property
    def stratify_key(self) -> str | None:
        """The relation."""
        return self.relation

    @property
    def is_empty(self) -> bool:
        """True for a blank row."""
        return not self.text

    @property
    def display_inputs(self) -> dict[str, str]:
        """The text with tags around the entities."""
        return {"text": add_tags(self.text, self.head, self.tail) if self.text else ""}


def read_relations(source: Source, settings: RelateSettings, *, labeled: bool) -> Iterator[RelationExample]:
    """Yield the examples of a source, in its order.

    Args:
        source: .txt: SemEval's blocks, or without labels one tagged text on each line; other files and data in
            memory: rows. A blank row has an empty text.
        settings: The columns of a row, and how to read a file.
        labeled: Read the relation, which must be there.
    """
    encoding, delimiter, suffix = settings.encoding, settings.delimiter, format_suffix(source)
    if is_json_source(source):
        for row in json_rows(source, encoding):
            yield example_of_row(row, settings, labeled=labeled)
    elif suffix in (".csv", ".tsv", ".parquet") or delimiter is not None:
        for row in read_table(source, delimiter=delimiter, encoding=encoding, keep_blank=not labeled):
            yield replace(example_of_row(row, settings, labeled=labeled), table_row=row.texts)
    else:
        yield from _semeval_examples(source, encoding, labeled=labeled)


def example_of_row(row: Row, settings: RelateSettings, *, labeled: bool) -> RelationExample:
    """Return the example of a row. Raises `InputError` if a part is missing or wrong."""
    refuse_other_format(row)
    location, usual_names = row.location, {"text": (*_TEXTS, *_TOKENS), **_ENTITIES}
    usual_names |= {"label": _LABELS} if labeled else {}
    values = rename_columns(row.values, settings, usual_names, location)
    relation, id = first_value(values, _LABELS), to_text(values.get("id"), "id", location)
    relation = to_label(relation, "relation", location, "label_column")
    check_length(relation, location)
    if labeled and is_blank(relation):
        message = "the relation is missing"
        hint = f"give each row one, or name its column with {option('label_column')}: {', '.join(values)}"
        raise InputError("relation_missing", message, location=location, argument="label_column", hint=hint)
    text, tokens = first_value(values, _TEXTS), first_value(values, _TOKENS)
    if isinstance(text, list | tuple):
        text, tokens = None, text
    head, tail = (_read_span(values, side, location) for side in _ENTITIES)
    if tokens is not None and head is not None and tail is not None:
        entities = parse_word_spans(tokens, head, tail, location)
    elif text is not None:
        text = to_text(text, "text", location, "text_column", _ROW_HINT)
        entities = locate_entities(text, head, tail, location)
    elif labeled or tokens is not None or values.keys().isdisjoint((*_TEXTS, *_TOKENS)):
        raise InputError("text_missing", "the text is missing", location=location, hint=_ROW_HINT)
    else:
        entities = "", (0, 0), (0, 0)
    return RelationExample(*entities, relation if labeled else None, location, id or None)


def locate_entities(text: str, head: Any, tail: Any, location: str) -> tuple[str, Span, Span]:
    """Return a text without tags, and the slices of its entities: those of the tags if a span is None."""
    if is_blank(text):
        return "", (0, 0), (0, 0)
    if head is None or tail is None:
        return parse_tagged_text(text, location)
    spans = _parse_span(head, "head", location), _parse_span(tail, "tail", location)
    return text, *_check_spans(*spans, len(text), "characters", location)


def parse_tagged_text(text: str, location: str) -> tuple[str, Span, Span]:
    """Return a text without its tags, and the slices of head and tail that they mark."""
    plain, positions = "", defaultdict[str, list[int]](list)
    for part in _TAG.split(text):
        if _TAG.fullmatch(part):
            positions[part].append(len(plain))
        else:
            plain += part
    spans = []
    for entity in ("e1", "e2"):
        starts, ends = positions[f"<{entity}>"], positions[f"</{entity}>"]
        if len(starts) != 1 or len(ends) != 1:
            message = f"the text has {len(starts)} <{entity}> and {len(ends)} </{entity}>, not one of each"
            if not starts and not ends:
                raise InputError("entity_missing", message, location=location, hint=_ROW_HINT)
            raise InputError("invalid_tags", message, location=location, hint=_ROW_HINT)
        spans.append((starts[0], ends[0]))
    return plain, *_check_spans(spans[0], spans[1], len(plain), "characters", location)


def add_tags(text: str, head: Span, tail: Span) -> str:
    """Return the text with SemEval's tags in it."""
    return insert_markers(text, head, tail, [("<e1>", "</e1>"), ("<e2>", "</e2>")])[0]


def insert_markers(
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
    marked_text, last = "", 0
    positions = [[0, 0], [0, 0]]
    for position, *_, entity, is_end in sorted(events):
        marked_text += text[last:position]
        positions[entity][is_end] = len(marked_text)
        marked_text, last = marked_text + marks[entity][is_end], position
    return marked_text + text[last:], [(start, end) for start, end in positions]


def parse_word_spans(tokens: Any, head: Any, tail: Any, location: str) -> tuple[str, Span, Span]:
    """Return words joined by spaces, and two spans of words as slices of this text."""
    if not isinstance(tokens, list | tuple) or not all(isinstance(token, str) and token for token in tokens):
        message, hint = "the tokens are not a list of words", 'write ["The", "child"]'
        raise InputError("not_a_list", message, location=location, hint=hint)
    starts = [0]
    for token in tokens:
        starts.append(starts[-1] + len(token) + 1)
    spans = _parse_span(head, "head", location), _parse_span(tail, "tail", location)
    head, tail = ((starts[a], starts[b] - 1) for a, b in _check_spans(*spans, len(tokens), "words", location))
    return " ".join(tokens), head, tail


def _read_span(values: Mapping[str, Any], side: str, location: str) -> Span | None:
    """Return an entity's [start, end): a list, or two columns (TACRED's are inclusive)."""
    for name in _ENTITIES[side]:
        if (span := values.get(name)) not in (None, ""):
            return _parse_span(span, side, location)
        ends = [values.get(f"{name}_start"), values.get(f"{name}_end")]
        if all(end not in (None, "") for end in ends):
            start, end = _parse_span(ends, side, location)
            return start, end + (name in ("subj", "obj"))
    return None


def _parse_span(span: Any, side: str, location: str) -> Span:
    if isinstance(span, str):
        try:
            span = load_json(span)
        except ValueError:
            span = None
    ends = list(span) if isinstance(span, list | tuple) else []
    ends = [int(end) if isinstance(end, str) and end.strip().isdecimal() else end for end in ends]
    if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, int) for end in ends):
        raise InputError("bad_span", f"{side} is not [start, end]", location=location, hint=_SPAN_HINT)
    return ends[0], ends[1]


def _check_spans(head: Span, tail: Span, size: int, unit: str, location: str) -> tuple[Span, Span]:
    for start, end in (head, tail):
        if not 0 <= start < end <= size:
            problem = "is empty" if start == end else f"[{start}, {end}] is not within the {size} {unit}"
            hint = "its end is exclusive, and behind its start; if the ends are inclusive, add 1 to each"
            raise InputError("span_out_of_range", f"the entity {problem}", location=location, hint=hint)
    if head[0] < tail[0] < head[1] < tail[1] or tail[0] < head[0] < tail[1] < head[1]:
        hint = "one may contain the other, or both are disjoint"
        raise InputError("overlapping_spans", "the two entities overlap", location=location, hint=hint)
    return head, tail


def _semeval_examples(file: Any, encoding: str | None, *, labeled: bool) -> Iterator[RelationExample]:
    """Yield the examples of SemEval's blocks: a number and a quoted sentence, the relation, a comment.

    Without labels the sentence is enough, and its number may be missing.
    """
    has_numbers = False
    pending: RelationExample | None = None  # until its relation is read
    for line_number, line in read_lines(file, encoding):
        if not line.strip() or line.startswith("Comment:"):
            continue
        match, location = _NUMBERED_LINE.match(line), f"{file}:{line_number}"
        has_numbers = has_numbers or match is not None
        if match or not (labeled or has_numbers):
            if pending is not None:
                raise _missing_relation_error(pending)
            number, text = (match[1], _unquote(match[2])) if match else (None, line)
            example = RelationExample(*parse_tagged_text(text, location), None, location, number)
            if labeled:
                pending = example
            else:
                yield example
        elif pending is not None:
            yield replace(pending, relation=line.strip())
            pending = None
        elif labeled:
            message = "this is neither a numbered sentence nor a relation or a comment"
            hint = 'write 1<tab>"The <e1>child</e1> …", below it the relation, and a blank line'
            raise InputError("not_semeval", message, location=location, hint=hint)
    if pending is not None:
        raise _missing_relation_error(pending)


def _missing_relation_error(example: RelationExample) -> InputError:
    hint = "write it on the line below"
    return InputError("relation_missing", "the relation is missing", location=example.location, hint=hint)


def _unquote(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


class RelationMetadata(LabelMetadata):
    """Metadata: the labels, and `none`, the label that means no relation, if there is one."""

    none: str | None = None


class RelationData(TaskData):
    """SemEval's blocks, or rows of a text with tags or spans and a relation; see `read_relations`."""

    settings: RelateSettings

    def read(self, source: Source, *, labeled: bool = True) -> list[RelationExample]:
        """Return the examples of a source in order."""
        examples = list(read_relations(source, self.settings, labeled=labeled))
        check_examples(examples, source, "texts")
        if labeled and self.metadata:
            self.check_validation(examples, self.metadata)
        return examples

    def check_validation(self, examples: Sequence[RelationExample], metadata: Metadata) -> None:
        """Check that not all relations are unknown to the model."""
        label_map = LabelMap(metadata)
        first = {str(example.relation): example.location for example in reversed(examples)}
        if first and all(label_map.id(relation) is None for relation in first):
            relation = min(first)
            raise label_map.unknown_label_error(relation, first[relation], "label_column")

    def from_inputs(
        self, columns: Mapping[str, Sequence[Any]], locations: Sequence[str]
    ) -> list[RelationExample]:
        """Return examples of texts with tags, or with [start, end) in characters or words."""
        if ("head" in columns) != ("tail" in columns):
            missing = "tail" if "head" in columns else "head"
            hint = "give both, or mark both entities by tags in the texts"
            raise InputError("head_without_tail", f"the {missing} is missing", argument=missing, hint=hint)
        examples = []
        for i, (text, location) in enumerate(zip(columns["text"], locations, strict=True)):
            head, tail = (columns[side][i] if side in columns else None for side in ("head", "tail"))
            if isinstance(text, str) or head is None:
                text = to_text(text, "text", location, "text", _ROW_HINT)
                entities = locate_entities(text, head, tail, location)
            else:
                entities = parse_word_spans(text, head, tail, location)
            examples.append(RelationExample(*entities, None, location))
        return examples

    def example_inputs(self) -> dict[str, Any]:
        """Return a text with two marked entities."""
        return {"text": "<e1>Ada</e1> wrote to <e2>Charles</e2>."}

    def to_row(self, example: RelationExample) -> dict[str, Any]:
        """Return the text, both spans, and the relation."""
        row: dict[str, Any] = {} if example.id is None else {"id": example.id}
        values = (example.text, list(example.head), list(example.tail), example.relation)
        return row | dict(zip(self.tuple_columns(4), values, strict=True))

    def tuple_columns(self, num_values: int) -> list[str]:
        """Return the columns of a text with tags and its relation, or of a text, both spans, and the relation."""
        text, label = self.settings.text_column or "text", self.settings.label_column or "relation"
        spans = [self.settings.head_column or "head", self.settings.tail_column or "tail"]
        return [text, *(spans if num_values > 3 else []), label]

    def fit_metadata(self, examples: Sequence[RelationExample], label_names: LabelNames | None) -> Metadata:
        """Return the labels, sorted or as named, and which of them means no relation."""
        if label_names is None:
            labeled = ((str(example.relation), example.location) for example in examples)
            check_spellings(pair for pair in labeled if pair[0].casefold() not in _NO_RELATION)
        metadata: dict[str, Any] = (
            {"labels": sorted_labels(str(example.relation) for example in examples), "numbered": False}
            if label_names is None
            else label_metadata(label_names)
        )
        labels, label_map = metadata["labels"], LabelMap(metadata)
        for example in examples:
            if label_map.id(str(example.relation)) is None:
                raise label_map.unknown_label_error(str(example.relation), example.location, "label_column")
        if len(labels) < 2:
            location, message = examples[0].location, f"all examples have the relation '{labels[0]}'"
            hint = f"two relations or more are needed; check {option('label_column')}"
            raise InputError("single_label", message, location=location, argument="label_column", hint=hint)
        return {**metadata, "none": no_relation_label(labels, self.settings.none_label)}

    def read_warnings(self, examples: Sequence[RelationExample]) -> list[Diagnostic]:
        """Report relations that are read in another spelling, and entities whose ends may be inclusive."""
        labels = ((e.relation, e.location) for e in examples if e.relation is not None)
        warnings = label_spellings(labels, LabelMap(self.metadata))
        cut = [e for e in examples if any(_ends_within_word(e.text, end) for _, end in (e.head, e.tail))]
        if len(cut) > len(examples) / 2:
            message = (
                f"{pluralize(len(cut), 'text has an entity', 'texts have an entity')} that ends within a word"
            )
            excerpts = [
                f"'{e.text[slice(*e.head)]}' and '{e.text[slice(*e.tail)]}' ({e.location})" for e in cut
            ]
            locations, hint = [e.location for e in cut], "if the ends are inclusive, add 1 to each"
            warnings.append(Diagnostic("entities that end within words", message, locations, excerpts, hint))
        return warnings

    def metadata_from_hf(self, folder: ModelFolder) -> Metadata | None:
        """Return the labels of a model of ours without its bertsmith.json."""
        labels = folder.labels or []
        if not folder.architecture.endswith("ForEntityPairClassification") or len(labels) < 2:
            return None
        return {"labels": labels, "numbered": True, "none": no_relation_label(labels, None)}


def _ends_within_word(text: str, end: int) -> bool:
    """Return True for an end between two letters of an alphabet."""
    return (
        text[end - 1 : end + 1].isalpha() and 0 < end < len(text) and max(text[end - 1 : end + 1]) < "\u2e80"
    )


def no_relation_label(labels: Sequence[str], none_label: str | None) -> str | None:
    """Return the label that means no relation: `none_label`, or else the one with a common name of it."""
    if none_label is None:
        return next((label for label in labels if label.casefold() in _NO_RELATION), None)
    if none_label not in labels:
        message, hint = f"there is no label '{none_label}'", f"the labels are: {', '.join(labels[:20])}"
        raise InputError("unknown_label", message, argument="none_label", hint=hint)
    if has_direction(none_label):
        message = f"'{none_label}' has a direction, so it is a relation"
        hint = f"name another label, or remove {option('none_label')}"
        raise InputError("none_label_has_direction", message, argument="none_label", hint=hint)
    return none_label
