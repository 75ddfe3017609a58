"""The schema of tokenizer_config.json and special_tokens_map.json, and checks of a tokenizer's files."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from bertsmith.errors import InputError

corrupt_file_error = partial(InputError, hint="download or copy the file again")
"""Create the error of an incomplete or damaged file."""
SPECIAL_TOKEN_ROLES = ("pad", "unk", "cls", "sep", "mask")


def _token_content(value: Any) -> Any:
    """Return the string of a token, which is an object in the file if it has flags such as lstrip."""
    return value["content"] if isinstance(value, dict) and "content" in value else value


Token = Annotated[str | None, BeforeValidator(_token_content)]


class TokenizerConfig(BaseModel):
    """The fields of tokenizer_config.json and special_tokens_map.json together; None for a field that neither has.

    `bertsmith_normalizer` is ours, the others are those of transformers.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, protected_namespaces=())

    tokenizer_class: str | None = None
    model_max_length: int | float | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    keep_accents: bool | None = None
    add_prefix_space: bool | None = None
    bertsmith_normalizer: str | None = None
    pad_token: Token = None
    unk_token: Token = None
    cls_token: Token = None
    sep_token: Token = None
    mask_token: Token = None

    def special_tokens(self) -> dict[str, str]:
        """Return the configured special tokens by role."""
        tokens = {role: getattr(self, f"{role}_token") for role in SPECIAL_TOKEN_ROLES}
        return {role: token for role, token in tokens.items() if token is not None}


def check_special_tokens(
    special_tokens: Iterable[str], vocabulary: Collection[str], location: object
) -> None:
    """Raise an `InputError` if a special token is not in the vocabulary."""
    for token in special_tokens:
        if token not in vocabulary:
            message = f"the special token {token} is missing"
            hint = "add it to the vocabulary, or name another one in tokenizer_config.json"
            raise InputError("special_token_missing", message, location=location, hint=hint)


def check_token_ids(vocabulary: Mapping[str, int], location: object) -> None:
    """Raise an `InputError` if the ids of a vocabulary of V tokens are not 0 to V - 1, each once."""
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        message = f"the ids are not 0 to {len(vocabulary) - 1}, each once"
        raise corrupt_file_error("token_ids_not_contiguous", message, location=location)


def read_config(folder: Path) -> TokenizerConfig:
    """Read the configuration in a folder; tokenizer_config.json overrides special_tokens_map.json."""
    values: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (file := folder / name).is_file():
            content = read_json_object(file)
            try:
                TokenizerConfig.model_validate(content)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                field, reason = ".".join(map(str, first["loc"])), first["msg"][0].lower() + first["msg"][1:]
                raise corrupt_file_error("invalid_field", f"'{field}': {reason}", location=file) from None
            values |= content
    return TokenizerConfig.model_validate(values)


def read_json_object(file: Path) -> dict[str, Any]:
    """Read a file that contains one JSON object."""
    try:
        value = json.loads(file.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError):  # not UTF-8, not JSON, a number of 5,000 digits
        raise corrupt_file_error("invalid_json", "the file is not complete JSON", location=file) from None
    if not isinstance(value, dict):
        raise corrupt_file_error("not_a_json_object", "the file is not a JSON object", location=file)
    return value
