"""What bertsmith reads of the field's tokenizer files, typed: tokenizer_config.json, special_tokens_map.json and
the outline of a tokenizer.json (its parts are the library's to read).

What other programs put there besides is left alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from bertsmith.errors import InputError

AGAIN = "take the file from its source again"
_Fields = TypeVar("_Fields", bound=BaseModel)


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, protected_namespaces=())


def _content(value: Any) -> Any:
    """A token that is written with its flags is an object."""
    return value["content"] if isinstance(value, dict) and "content" in value else value


Token = Annotated[str | None, BeforeValidator(_content)]


class Config(_Read):
    """tokenizer_config.json and special_tokens_map.json together: None for what neither says."""

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

    def specials(self) -> dict[str, str]:
        """The special tokens that are named, by role."""
        named = {role: getattr(self, f"{role}_token") for role in ROLES}
        return {role: token for role, token in named.items() if token is not None}


ROLES = ("pad", "unk", "cls", "sep", "mask")


class Step(_Read):
    """A normaliser or a pre-tokenizer, which may be a list of such."""

    type: str
    normalizers: list[Step] = Field(default_factory=list)
    pretokenizers: list[Step] = Field(default_factory=list)

    def has(self, kind: str) -> bool:
        """Whether this is of a type, or a step of it is."""
        return self.type == kind or any(step.has(kind) for step in [*self.normalizers, *self.pretokenizers])


class TokenizerModel(_Read):
    """The model of a tokenizer.json."""

    type: str | None = None


class Outline(_Read):
    """A tokenizer.json, as far as it decides whether it is one of ours."""

    model: TokenizerModel
    pre_tokenizer: Step | None = None


def read_config(folder: Path) -> Config:
    """What a folder's two configurations say; of both it is tokenizer_config.json that counts."""
    values: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            found = read_object(folder / name)
            checked(found, Config, folder / name)
            values |= found
    return Config.model_validate(values)


def read_object(file: Path) -> dict[str, Any]:
    """A file that holds one JSON object."""
    try:
        value = json.loads(file.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError):  # not UTF-8, not JSON, a number of 5,000 digits
        raise InputError(f"{file}: this is not whole JSON", AGAIN) from None
    if not isinstance(value, dict):
        raise InputError(f"{file}: this is not a JSON object", AGAIN)
    return value


def checked(values: dict[str, Any], kind: type[_Fields], file: Path) -> _Fields:
    """The fields of an object; `InputError` with the file and the first part that is of the wrong kind."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        said = "it is missing" if first["type"] == "missing" else first["msg"][0].lower() + first["msg"][1:]
        raise InputError(f"{file}: '{name}': {said}", AGAIN) from None
