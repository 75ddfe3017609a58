"""--device and --precision: where a finished model computes, and how. Verbs get both as one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, TypedDict

import click

from bertsmith import hardware

DEVICE = click.option("--device", default="auto", metavar="D", help="Where to compute: cpu, cuda, auto.")
_PRECISIONS = (
    "Of the encoder's products: fp32, bf16 with about three digits, or int8 with two, first checked against fp32: "
    "a task's answers on the run's validation file, anything else on some of the texts. Asked for by name, each "
    "uses the kernels of the extra fast once they have been compiled: that pays with many texts [what the run was "
    "trained in, bf16 where it is faster here]."
)


class On(TypedDict):
    """What `use.model.load` takes of them."""

    device: str
    precision: str
    mapped: bool


def computed(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb on a finished model both options, as its argument `on`."""

    @wraps(verb)
    def with_both(*args: Any, device: str, precision: str, **given: Any) -> None:
        with hardware.import_without_gc():
            import_module("bertsmith.inference.model")  # as the verbs do

        verb(*args, on=On(device=device, precision=precision, mapped=True), **given)

    option = click.option(
        "--precision",
        type=click.Choice(["auto", "fp32", "bf16", "int8"]),
        default="auto",
        metavar="P",
        help=_PRECISIONS,
    )
    return DEVICE(option(with_both))
