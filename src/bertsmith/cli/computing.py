"""--device and --precision: where a finished model computes, and how. Verbs get both as one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, TypedDict

import click

from bertsmith import machine

DEVICE = click.option("--device", default="auto", metavar="D", help="Where to compute: cpu, cuda, auto.")
_NAMED = (
    "Asked for by name, each uses the kernels of the extra fast: that pays with many texts [what the run was "
    "trained in, bf16 where it is faster here]."
)
_IN_INT8 = (
    "Of the encoder's products: fp32, bf16 with about three digits, or int8 with two, for a task's answers, first "
    "checked against fp32 on the run's dev file, and for vectors. "
)
_IN_FLOATS = "Of the encoder's products: fp32, or bf16 with about three digits. "


class On(TypedDict):
    """What `use.model.load` takes of them."""

    device: str
    precision: str
    mapped: bool


def computed(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb on a finished model both options, as its argument `on`."""
    return _with_both(verb, _IN_INT8)


def computed_in_floats(verb: Callable[..., None]) -> Callable[..., None]:
    """The same of a verb that refuses int8, in its own words."""
    return _with_both(verb, _IN_FLOATS)


def _with_both(verb: Callable[..., None], precisions: str) -> Callable[..., None]:
    @wraps(verb)
    def with_both(*args: Any, device: str, precision: str, **given: Any) -> None:
        with machine.importing():
            import_module("bertsmith.use.model")  # as the verbs do

        verb(*args, on=On(device=device, precision=precision, mapped=True), **given)

    option = click.option(
        "--precision",
        type=click.Choice(["auto", "fp32", "bf16", "int8"]),
        default="auto",
        metavar="P",
        help=precisions + _NAMED,
    )
    return DEVICE(option(with_both))
