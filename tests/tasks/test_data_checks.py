"""What labelled examples are like: tables of labels, and sentences on what may be a mistake."""

from __future__ import annotations

import pytest

from bertsmith.errors import InputError
from bertsmith.formatting import join_names
from bertsmith.tasks.classification.data import collect_labels
from bertsmith.tasks.data_checks import LabelCounts, excerpt, summarize_labels
from bertsmith.tasks.labels import LabelMap, label_metadata
from bertsmith.tasks.results import DataSummary
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.sentences import TagExample
from bertsmith.tasks.texts import TextExample
from task_files import task_data, task_report


def labels(file: str, **times: int) -> LabelCounts:
    found = [label for label, number in times.items() for _ in range(number)]
    return LabelCounts.from_pairs((label, f"{file}:{line}") for line, label in enumerate(found, 2))


def overview(train: LabelCounts, validation: LabelCounts | None = None) -> DataSummary:
    return summarize_labels(
        train,
        labels("validation.csv", **train.counts) if validation is None else validation,
        list(train.counts),
    )


def texts(rows: list[tuple[str, str]], file: str = "train.csv") -> list[TextExample]:
    return [TextExample(text, None, label, f"{file}:{line}") for line, (text, label) in enumerate(rows, 2)]


def test_each_label_has_a_row_with_its_share() -> None:
    found = overview(labels("a.csv", joy=3, fear=1), labels("validation.csv", fear=2))
    (table,) = found.tables
    assert table.columns == ["label", "train", "share", "validation", "share"]
    assert table.rows == [["joy", "3", "75.0%", "0", "0.0%"], ["fear", "1", "25.0%", "2", "100.0%"]]
    assert found.details == {"labels": {"train": {"joy": 3, "fear": 1}, "validation": {"fear": 2}}}


def test_of_many_labels_the_rarest_share_a_row() -> None:
    many = {f"intent_{i}": 100 - i for i in range(77)}
    (table,) = overview(labels("a.csv", **many)).tables
    assert len(table.rows) == 21
    assert table.rows[0][0] == "intent_0"
    assert table.rows[-1][:2] == ["and 57 more", f"{sum(100 - i for i in range(20, 77)):,}"]
    (whole,) = overview(labels("a.csv", **{f"l{i}": 2 for i in range(21)})).tables
    assert len(whole.rows) == 21


def test_odd_labels_are_named_with_their_places() -> None:
    rare, alike = overview(labels("a.csv", joy=20, Joy=1, sadness=30, sadnes=1)).diagnostics
    assert list(rare.excerpts) == ["'Joy' (a.csv:22)", "'sadnes' (a.csv:53)"]
    assert list(alike.excerpts) == ["'Joy' (a.csv:22) and 'joy' (40 times)"]


def test_spaces_and_unseen_characters_are_noticed() -> None:
    said = overview(labels("a.csv", **{"not sure": 5, "notsure": 5, "joy": 9, "joy\u200b": 2})).warnings
    (line,) = (line for line in said if "case or spaces" in line)
    assert "'not sure'" in line
    assert "'joy' (18 times)" in line


def test_what_validation_does_not_have_and_train_does_not_have() -> None:
    train, validation = labels("a.csv", joy=5, fear=5, awe=5), labels("b.csv", joy=2, anger=1)
    unseen, unused, missing = summarize_labels(train, validation, ["joy", "fear", "awe", "hope"]).diagnostics
    assert list(unseen.excerpts) == ["'anger' (b.csv:4)"]
    assert list(unused.excerpts) == ["'hope'"]
    assert list(missing.excerpts) == ["'fear'", "'awe'"]


def test_empty_texts_and_equal_texts_with_different_labels() -> None:
    train = texts([("kaba", "joy"), ("", "fear"), ("kaba", "fear"), ("  ", "joy"), ("lode", "joy")])
    said = (
        task_report("classify", {"labels": ["fear", "joy"]})
        .data_summary(train, texts([("lode", "fear")], "validation.csv"))
        .warnings
    )
    first = "'kaba' has 'joy' (train.csv:2), 'fear' (train.csv:4)"
    assert any(one.startswith(f"2 texts occur with different labels: {first}, ") for one in said)
    assert any(one.startswith("2 texts are empty: train.csv:3, train.csv:5") for one in said)


def test_measures_are_not_learnt_as_classes() -> None:
    with pytest.raises(InputError) as caught:
        collect_labels(texts([(f"t{i}", f"{i / 7:.3f}") for i in range(12)]))
    assert (caught.value.code, caught.value.location) == ("labels_are_numbers", "train.csv:2")
    assert collect_labels(texts([(f"t{i}", ("0.5", "1.0")[i % 2]) for i in range(12)])) == ["0.5", "1.0"]


def test_numbers_have_a_table_of_their_spread() -> None:
    train, validation = texts([("a", "1"), ("b", "2.5"), ("a", "3")]), texts([("c", "2")], "validation.csv")
    found = task_report("regress", {}).data_summary(train, validation)
    assert found.details["numbers"]["train"] == pytest.approx(
        {"count": 3, "mean": 6.5 / 3, "deviation": 0.849837, "lowest": 1, "highest": 3}, rel=1e-5
    )
    assert found.tables[0].rows[1] == ["validation", "1", "2", "0", "2", "2"]
    assert found.warnings == [
        "1 text occurs with different labels: 'a' has '1' (train.csv:2), '3' (train.csv:4)"
    ]


def test_tags_are_counted_word_by_word() -> None:
    train = [TagExample(("kaba", "lode"), ("0", "1"), "a.conll:1"), TagExample(("mi",), ("0",), "a.conll:4")]
    found = task_report("tag", {"labels": ["O", "NAME"], "numbered": True}).data_summary(train, train[:1])
    assert found.details["labels"] == {"train": {"O": 2, "NAME": 1}, "validation": {"O": 1, "NAME": 1}}
    rare, scheme = found.diagnostics
    assert list(rare.excerpts) == ["'NAME' (a.conll:1)"]
    assert scheme.kind == "tags without a scheme"


def test_codes_have_names() -> None:
    facts = label_metadata({"10": "joy", "2": "fear", "7": "joy"})
    assert facts == {
        "labels": ["fear", "joy"],
        "numbered": False,
        "codes": {"2": "fear", "7": "joy", "10": "joy"},
    }
    naming = LabelMap(facts)
    assert [naming.id(label) for label in ("2", "7", "10", "10.0", "joy", "3")] == [0, 1, 1, 1, 1, None]
    assert label_metadata({"1": "b", "0": "a"}) == {"labels": ["a", "b"], "numbered": True}
    assert LabelMap({"labels": ["a", "b"], "numbered": True}).id("1.0") == 1


def test_an_unknown_label_is_compared_with_the_known_ones() -> None:
    naming = LabelMap({"labels": ["joy", "Sadness", "fear"]})
    error = naming.unknown_label_error("sadnes", "validation.csv:7", "label_column")
    assert (error.code, error.location, error.argument) == (
        "unknown_label",
        "validation.csv:7",
        "label_column",
    )
    assert "'Sadness'?" in str(error)
    assert "did you mean" not in str(naming.unknown_label_error("hope", "validation.csv:7", "label_column"))


def test_lists_and_texts_are_cut_for_a_sentence() -> None:
    assert join_names("abc", 2) == "a, b and 1 more"
    assert join_names("ab", 2) == "a, b"
    assert excerpt("two\n lines") == "'two lines'"
    assert len(excerpt("x" * 90)) == 42


def test_of_entities_it_is_types_that_are_rare_or_missing() -> None:
    """IOB1 writes B only between two entities of one type: that it is rare says nothing."""
    rows = [("I-PER", "B-PER", "O"), ("I-PER", "O", "I-LOC"), ("I-LOC", "O", "I-ORG")]
    train = [TagExample((f"w{n}",) * 3, row, f"t:{n}") for n, row in enumerate(rows, 1)]
    validation = [TagExample(("v",) * 3, ("I-PER", "I-LOC", "I-NEW"), "d:1")]
    facts = task_data("tag", TagSettings()).fit_metadata(train, None)
    assert (facts["scheme"], facts["label_scheme"]) == ("iob1", "iobes")
    diagnostics = task_report("tag", facts).data_summary(train, validation).diagnostics
    assert [list(one.excerpts) for one in diagnostics] == [
        ["'ORG' (t:3, word 3)"],
        ["'NEW' (d:1, word 3)"],
        ["'ORG'"],
    ]
    as_written = task_data("tag", TagSettings(scheme="as_written")).fit_metadata(train, None)
    assert any(
        "'B-PER' (t:1)" in one
        for one in task_report("tag", as_written).data_summary(train, validation).warnings
    )
