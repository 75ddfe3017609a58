"""Where the masks of a text are read: in the whole of it or, where it is too long, each in a window around it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.tokenizer.tokenizer import Encoding

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MaskWindow:
    """A sequence for the model, and its masks: the row of each in it, and in the whole text's encoding."""

    ids: list[int]
    segments: list[int]
    masks: list[tuple[int, int]]


def window_starts(rows: NDArray[np.int64], begin: int, end: int, room: int) -> NDArray[np.int64]:
    """For each row of a text, which has the rows [begin, end), where a window of `room` rows around it begins:
    with the row in its middle, as far as the text reaches."""
    return np.clip(rows - room // 2, begin, end - room)


def mask_windows(encoding: Encoding, mask_id: int, limit: int) -> list[MaskWindow]:
    """The sequences of at most `limit` tokens, special ones included, that an uncut text's masks are guessed in.

    A text that fits is one, with all its masks; of a longer one, which is logged, each mask has its own, with as
    much of the text on either side as there is. InputError where a window has no token but the mask.
    """
    masks = [row for row, token in enumerate(encoding.ids) if token == mask_id]
    if len(encoding.ids) <= limit:
        return [MaskWindow(encoding.ids, encoding.type_ids, [(row, row) for row in masks])]
    own = [row for row, source in enumerate(encoding.sequence_ids) if source is not None]
    begin, end = own[0], own[-1] + 1
    room = limit - (len(encoding.ids) - (end - begin))
    if room < 2:
        raise InputError(
            "max_length_too_small",
            f"{limit} tokens are too few for the special tokens, a mask, and a word",
            argument="max_length",
            hint="increase it",
        )
    logger.info(
        "the text has %s, of which %s are read at a time: each mask is predicted from the text around it",
        pluralize(len(encoding.ids), "token"),
        f"{limit:,}",
    )
    found = []
    for row in masks:
        first = int(window_starts(np.array([row]), begin, end, room)[0])
        rows = [*range(begin), *range(first, first + room), *range(end, len(encoding.ids))]
        found.append(
            MaskWindow(
                [encoding.ids[r] for r in rows],
                [encoding.type_ids[r] for r in rows],
                [(row - first + begin, row)],
            )
        )
    return found
