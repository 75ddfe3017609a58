"""What comes next is made while the last is used: in order, beside it, and no further ahead than by one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from bertsmith.io.prefetch import ahead, in_parts


def test_all_parts_come_in_their_order() -> None:
    assert list(ahead(range(20), lambda n: n * n)) == [(n, n * n) for n in range(20)]
    assert list(ahead([], str)) == []


def test_the_next_part_is_made_while_the_last_is_used() -> None:
    made = [threading.Event() for _ in range(3)]

    def make(number: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        made[number].set()
        return number

    with closing(ahead(range(3), make)) as parts:
        assert next(parts) == (0, 0)
        assert made[1].wait(10)  # without being asked for
        assert not made[2].is_set()  # nor is anything made that is further away
        assert next(parts) == (1, 1)
        assert made[2].wait(10)


def test_parts_are_asked_for_here_and_none_too_soon() -> None:
    asked: list[int] = []

    def parts() -> Iterator[int]:
        for number in range(9):
            assert threading.current_thread() is threading.main_thread()
            asked.append(number)
            yield number

    with closing(ahead(parts(), str)) as made:
        assert next(made) == (0, "0")
        assert asked == [0, 1]
    assert asked == [0, 1]
    assert threading.active_count() < 20


def test_an_error_is_raised_in_its_turn() -> None:
    with closing(ahead([2, 1, 0, 5], lambda n: 1 / n)) as parts:
        assert [next(parts), next(parts)] == [(2, 0.5), (1, 1.0)]
        with pytest.raises(ZeroDivisionError):
            next(parts)


def test_an_error_in_asking_for_a_part_is_raised_behind_those_before_it() -> None:
    def parts() -> Iterator[int]:
        yield from (1, 2)
        raise ValueError("line 3")

    with closing(ahead(parts(), str)) as made:
        assert [next(made), next(made)] == [(1, "1"), (2, "2")]
        with pytest.raises(ValueError, match="line 3"):
            next(made)


def test_parts_grow() -> None:
    assert [len(part) for part in in_parts(range(5000), 2048)] == [512, 1024, 2048, 1416]
    assert [len(part) for part in in_parts(range(25), 10)] == [10, 10, 5]
    assert [one for part in in_parts(range(5000), 2048) for one in part] == list(range(5000))
    assert list(in_parts([], 7)) == []
