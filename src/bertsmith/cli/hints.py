"""The commands that a verb proposes next, as they fit the tokenizer and the files at hand."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertsmith.io.files import Reading
    from bertsmith.tokenizer.tokenizer import Tokenizer

_EXAMPLES = {"Latin": "Paris is the {mask} of France.", "Han": "巴黎是{mask}国的首都。"}


def prepare_hint(files: Sequence[str], reading: Reading, tokenizer: str) -> str:
    """`data prepare` of the files that a vocabulary was trained on, read in the same way."""
    chosen = [
        word
        for field in fields(reading)
        if (value := getattr(reading, field.name)) != field.default
        for word in (
            f"--{field.name.replace('_', '-')}",
            "blank-line" if value == "blank_line" else str(value),
        )
    ]
    words = ["bertsmith", "data", "prepare", *files, "--tokenizer", tokenizer, *chosen]
    return f"next: {shlex.join(words)} --output-dir DIR"


def pretrain_hint(data: str, settings: Mapping[str, str]) -> str:
    """`pretrain` on prepared data with the settings that it needs."""
    assigned = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    words = ["bertsmith", "pretrain", "--data", data, *assigned]
    return f"next: {shlex.join(words)} --output-dir RUN --minutes 30"


def fill_mask_hint(run: str, tokenizer: Tokenizer) -> str:
    """`fill-mask` of a sentence in the script of the vocabulary."""
    from bertsmith.tokenizer.script_coverage import tokenizer_script

    example = _EXAMPLES.get(tokenizer_script(tokenizer), "TEXT WITH A {mask}")
    return f'next: bertsmith fill-mask {shlex.quote(run)} "{example.format(mask=tokenizer.mask_token)}"'
