"""What files call the labels: by their names, by their numbers, or by codes that people gave names to."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names

Names = Sequence[str] | Mapping[str, str]
"""What a user says of the labels: the names in the order of their ids, or the name of each code."""

_SHOWN = 10  # labels that a remedy lists


class LabelFacts(BaseModel):
    """The labels by id; whether the data may give ids in their place; or which codes it may give."""

    labels: list[str] = Field(min_length=2)
    numbered: bool = False
    codes: dict[str, str] = {}


class Naming:
    """A model's labels, and what else a file may call them.

    ids: the id of each label. numbered: a file may give ids, unless a label is a number itself: the label 1 would
    look like the id 1. codes: the label of each code.
    """

    def __init__(
        self, labels: Sequence[str], *, numbered: bool = False, codes: Mapping[str, str] | None = None
    ) -> None:
        self.ids = {label: i for i, label in enumerate(labels)}
        self._codes = dict(codes or {})
        if numbered and not any(map(whole_number, labels)):
            self._codes = {str(i): label for i, label in enumerate(labels)}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Naming:
        """As a model folder's facts have it."""
        return cls(facts["labels"], numbered=bool(facts.get("numbered")), codes=facts.get("codes"))

    def name(self, label: str) -> str:
        """The model's name for a label of a file; the label itself where it has none. A spreadsheet may write the
        number 1 as 1.0 or 01."""
        if label in self.ids or not self._codes:
            return label
        number = label.removesuffix(".0")
        plain = str(int(number)) if number.isdecimal() else label
        return self._codes.get(label) or self._codes.get(plain, label)

    def id(self, label: str) -> int | None:
        """The id of a label of a file; None where the model does not have it."""
        return self.ids.get(self.name(label))

    def unknown(self, label: str, place: str, argument: str, *, of_dev: bool = False) -> InputError:
        """Return the error for a label that the model does not have.

        Args:
            label: The label.
            place: The location of its example.
            argument: Python's name of the argument that names the column of labels.
            of_dev: Whether the example is of dev, so that training examples of the label would help.
        """
        near = difflib.get_close_matches(label.casefold(), {known.casefold() for known in self.ids}, 1, 0.75)
        meant = next((known for known in self.ids if [known.casefold()] == near), None)
        ask = f"did you mean '{meant}'? " if meant is not None else ""
        add = "add examples of it to train, " if of_dev else ""
        known = ", ".join(list(self.ids)[:_SHOWN]) + (", …" if len(self.ids) > _SHOWN else "")
        return InputError(
            "unknown_label",
            f"the label '{label}' is unknown",
            location=place,
            argument=argument,
            hint=f"{ask}the model's labels are: {known}; fix the row, {add}or name another column with "
            f"{option(argument)}",
        )

    def check_dev(self, found: Iterable[tuple[str, str]], argument: str) -> None:
        """InputError where a label of dev is none of the model's, with the first of each. found: each label with
        its place."""
        first: dict[str, str] = {}
        for label, place in found:
            if self.id(label) is None:
                first.setdefault(label, place)
        if not first:
            return
        (label, place), *others = first.items()
        error = self.unknown(label, place, argument, of_dev=True)
        if others:
            more = join_names(f"'{other}' ({at})" for other, at in others)
            also = "and so is" if len(others) == 1 else f"and so are {len(others):,} more:"
            error.message += f", {also} {more}"
        raise error


def facts_of_names(names: Names) -> dict[str, Any]:
    """The facts `labels`, `numbered` and `codes` of names that a user gave. InputError for names that are too few
    or not clear."""
    codes = dict(names) if isinstance(names, Mapping) else {}
    listed = list(dict.fromkeys(codes.values())) if codes else list(names)
    if codes and all(map(whole_number, codes)):
        codes = dict(sorted(codes.items(), key=lambda item: int(item[0])))
        listed = list(dict.fromkeys(codes.values()))
        if [int(code) for code in codes] == list(range(len(listed))):
            codes = {}  # ids, as a list of names has them
    if repeated := [name for name, times in Counter(listed).items() if times > 1]:
        raise InputError(
            "duplicate_label_name",
            f"the name '{repeated[0]}' occurs twice",
            argument="label_names",
            hint="name each label once",
        )
    if len(listed) < 2:
        raise InputError(
            "too_few_label_names",
            f"{', '.join(listed) or 'an empty list'} does not name two labels or more",
            argument="label_names",
            hint="name each label",
        )
    for code, name in codes.items():
        if codes.get(name, name) != name:
            raise InputError(
                "ambiguous_label_name",
                f"'{name}' is the name of '{code}' and the code of '{codes[name]}'",
                argument="label_names",
                hint="give names that are not codes of other labels",
            )
    return {"labels": listed, "numbered": not codes, **({"codes": codes} if codes else {})}


def in_order(labels: Iterable[str]) -> list[str]:
    """Labels sorted; by value where all are whole numbers."""
    found = set(labels)
    if all(map(whole_number, found)):
        return sorted(found, key=lambda label: (int(label), label))
    return sorted(found)


def whole_number(text: str) -> bool:
    """Whether a label is a whole number, as int() reads it."""
    return text.removeprefix("-").isdecimal()
