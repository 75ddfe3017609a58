"""How large a new model is to be, where nothing but minutes is asked for: by how fast this machine is."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from bertsmith.console import format_duration
from bertsmith.instances.settings import MEAN_FILL_RATIO
from bertsmith.models.family import preset
from bertsmith.pretraining.recipe import SIZES, Learning
from bertsmith.pretraining.resolve_settings import asked_for, resolved
from bertsmith.pretraining.speed_probe import timed_on_random_text
from bertsmith.runs.run_folder import place_of
from bertsmith.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_SHARE, _LONGEST = 0.005, 2.0  # of the time, and seconds: for a look at how fast a size is here
_DECIDED = (
    "model.num_hidden_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.intermediate_size",
)


def size_in_minutes(changes: Mapping[str, Any], tokenizer: Tokenizer) -> str | None:
    """The preset of the size that suits the minutes asked for; it is logged.

    None where no minutes are asked for, or the sizes are named already.
    """
    if "train.max_minutes" not in changes or not changes.keys().isdisjoint({*_DECIDED, "objective.name"}):
        return None
    if (minutes := resolved({}, {}, None, changes, tokenizer).train.max_minutes) is None:
        return None
    seconds = 60 * minutes
    found, expected = largest(lambda size: _tokens_in(size, seconds, changes, tokenizer))
    sizes = preset(found.name)
    logger.info(
        "for %s on this machine: %d layers of %d, as in %s, which will see about %s tokens; to change that, set a "
        "preset, settings, or a recipe",
        format_duration(seconds),
        sizes.num_hidden_layers,
        sizes.hidden_size,
        found.name,
        _rounded(expected),
    )
    return found.name


def largest(seen: Callable[[Learning], float]) -> tuple[Learning, float]:
    """The largest size that sees as many tokens as it needs, and how many it sees.

    seen: the tokens that a size is trained on in the time there is. Asked of the sizes from the smallest on, up to
    the first that would see too few.
    """
    found, expected = SIZES[0], seen(SIZES[0])
    for size in SIZES[1:]:
        if (tokens := seen(size)) < size.tokens:
            break
        found, expected = size, tokens
    return found, expected


def _tokens_in(
    size: Learning,
    seconds: float,
    changes: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> float:
    """How many tokens a run of this size sees in so many seconds here, from a look at some updates."""
    draft = resolved(asked_for(size.name, None)[0], {}, None, changes, tokenizer)
    place = place_of(draft.train, draft.model)
    update, _ = timed_on_random_text(draft, place, min(_LONGEST, _SHARE * seconds))
    updates = min(seconds / update, draft.train.max_steps or math.inf)
    return (
        updates
        * draft.train.batch_size
        * draft.train.gradient_accumulation_steps
        * draft.data.sequence_length
        * MEAN_FILL_RATIO
    )


def _rounded(tokens: float) -> str:
    """To two digits: 1.6 million, 34,000."""
    digits = 1 - math.floor(math.log10(max(tokens, 10)))
    rounded = round(tokens, digits)
    return f"{rounded / 1e6:g} million" if rounded >= 1e6 else f"{rounded:,.0f}"
