"""How large a new model is to be, where nothing but minutes is asked for: by how fast this machine is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bertsmith.console import duration
from bertsmith.instances.settings import FILL
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import preset
from bertsmith.models.parameters import operations_per_token
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.workflows.budget import name_of
from bertsmith.workflows.pretrain_recipe import MASKED, SIZES, Learning
from bertsmith.workflows.pretrain_settings import resolved
from bertsmith.workflows.run import place_of
from bertsmith.workflows.speed import timed_on_random_text

_SHARE, _LONGEST = 0.01, 2.0  # of the time, and seconds: for a look at how fast this machine is
_DECIDED = (
    "model.num_hidden_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.intermediate_size",
)


def size_in_minutes(
    assignments: Sequence[str], tokenizer: Tokenizer, tell: Callable[[str], None]
) -> str | None:
    """The preset of the size that suits the minutes asked for; it is told.

    None where no minutes are asked for, or the sizes are named already.
    """
    named = {name_of(assignment) for assignment in assignments}
    if "train.max_minutes" not in named or not named.isdisjoint({*_DECIDED, "objective.name"}):
        return None
    draft = resolved({}, {}, None, assignments, tokenizer)
    minutes = draft.train.max_minutes
    if minutes is None:
        return None
    seconds = 60 * minutes
    update, _ = timed_on_random_text(draft, place_of(draft.train), min(_LONGEST, _SHARE * seconds))
    tokens = draft.train.batch_size * draft.data.sequence_length * FILL
    found, expected = size_for(seconds, draft.model, tokens / update)
    sizes = preset(found.name)
    tell(
        f"for {duration(seconds)} here: {sizes.num_hidden_layers} layers of {sizes.hidden_size}, as in "
        f"{found.name}, which will see about {_millions(expected)} million tokens; a preset, settings or a recipe "
        "choose otherwise"
    )
    return found.name


def size_for(seconds: float, config: ModelConfig, tokens_a_second: float) -> tuple[Learning, float]:
    """The size that gets furthest in so many seconds, and the tokens that it is trained on by then.

    config: of any size, with the vocabulary; tokens_a_second: that such a model is trained on here.
    """
    operations = tokens_a_second * operations_per_token(config, MASKED)
    by_size = {
        size: seconds * operations / operations_per_token(_config(size, config), MASKED) for size in SIZES
    }
    found = [size for size in SIZES if by_size[size] >= size.tokens][-1]
    return found, by_size[found]


def _config(size: Learning, like: ModelConfig) -> ModelConfig:
    return preset(size.name, vocab_size=like.vocab_size)


def _millions(tokens: float) -> str:
    millions = tokens / 1e6
    return f"{millions:,.0f}" if millions >= 10 else f"{millions:.1f}"
