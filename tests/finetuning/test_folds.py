"""K-fold: every example is held out once, strata keep their proportion, equal contents stay together."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.finetuning.data import assign_folds
from bertsmith.tasks.classification.data import SingleLabelExample
from bertsmith.tasks.texts import TextExample


def example(text: int, label: int) -> SingleLabelExample:
    return SingleLabelExample(f"text {text}", None, f"{label}", f"all.csv:{text}")


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.integers(2, 7), st.integers(0, 2**40))
def test_of_different_texts_sizes_and_labels_differ_by_one_at_most(
    labels: list[int], folds: int, seed: int
) -> None:
    examples = [example(i, label) for i, label in enumerate(labels)]
    if len(examples) < folds:
        with pytest.raises(InputError) as caught:
            assign_folds(examples, folds, seed)
        assert caught.value.code == "folds_too_many"
        return
    found = assign_folds(examples, folds, seed)
    sizes = Counter(found)
    assert set(sizes) == set(range(folds))
    assert max(sizes.values()) - min(sizes.values()) <= 1
    for label in set(labels):
        times = Counter(fold for fold, other in zip(found, labels, strict=True) if other == label)
        of_each = [times[fold] for fold in range(folds)]
        assert max(of_each) - min(of_each) <= 1
    assert assign_folds(examples, folds, seed) == found


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=12, max_size=60), st.integers(2, 4))
def test_equal_texts_are_in_one_fold(rows: list[tuple[int, int]], folds: int) -> None:
    examples = [example(text, label) for text, label in rows]
    if len({e.text for e in examples}) < folds:
        return
    found = assign_folds(examples, folds, 0)
    of_text: dict[str, set[int]] = {}
    for one, fold in zip(examples, found, strict=True):
        of_text.setdefault(one.text, set()).add(fold)
    assert all(len(some) == 1 for some in of_text.values())
    assert set(found) == set(range(folds))


def test_a_seed_draws_them_and_what_has_no_strata_is_dealt_as_well() -> None:
    numbers = [TextExample(f"text {i}", None, f"{i / 10}", f"all.csv:{i}") for i in range(50)]
    first, again, other = (assign_folds(numbers, 5, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert Counter(first) == dict.fromkeys(range(5), 10)
    assert first != sorted(first)


def test_too_few_different_texts_are_an_error() -> None:
    examples = [example(i % 3, i % 2) for i in range(12)]
    with pytest.raises(InputError) as caught:
        assign_folds(examples, 5, 0)
    assert caught.value.code == "folds_too_many"
    assert caught.value.argument == "folds"
