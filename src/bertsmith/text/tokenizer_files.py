"""The field's tokenizer files, read and written: tokenizer.json, vocab.txt, tokenizer_config.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bertsmith import disk
from bertsmith.errors import InputError
from bertsmith.text.files import read_lines
from bertsmith.text.normal import bert_normalizer

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_MAX_LENGTH = 512
_AGAIN = "take the file from its source again"


def read_folder(path: Path, lowercase: bool | None) -> tuple[str, int, dict[str, str]]:
    """The definition (text of a tokenizer.json), the longest input in tokens, and the five special tokens."""
    folder = path if path.is_dir() else path.parent
    config = _config(folder / "tokenizer_config.json")
    specials = {role: _name(config.get(f"{role}_token"), token) for role, token in SPECIALS.items()}
    # Files of the field write "no limit" as 10**30.
    length = config.get("model_max_length")
    max_length = int(length) if isinstance(length, int | float) and 0 < length < 10**9 else _MAX_LENGTH
    if path.is_file():
        file = path
    elif path.is_dir():
        file = next((f for n in ("tokenizer.json", "vocab.txt") if (f := path / n).is_file()), path)
        if file is path:
            raise InputError(
                f"{path}: there is neither tokenizer.json nor vocab.txt", "give a tokenizer's folder"
            )
    else:
        raise InputError(f"{path}: there is no such file or folder", "check the path")
    if file.suffix == ".json":
        return _of_json(file, lowercase, specials), max_length, specials
    lower = config.get("do_lower_case", True) if lowercase is None else lowercase
    library = wordpiece(
        _vocabulary(file),
        lowercase=bool(lower),
        specials=specials,
        place=str(file),
        chinese=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=config.get("strip_accents"),
    )
    return library.to_str(), max_length, specials


def write_folder(
    folder: Path, *, definition: str, tokens: Sequence[str], specials: Mapping[str, str], max_length: int
) -> None:
    """Write the three files, each beside its place and then renamed."""
    normalizer = json.loads(definition).get("normalizer") or {}
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lowercases(definition),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": bool(normalizer.get("handle_chinese_chars", True)),
        "model_max_length": max_length,
        **{f"{role}_token": token for role, token in specials.items()},
    }
    for name, text in (
        ("vocab.txt", "".join(f"{token}\n" for token in tokens)),
        ("tokenizer_config.json", json.dumps(config, indent=2, ensure_ascii=False) + "\n"),
        ("tokenizer.json", definition),
    ):
        disk.write_text(folder / name, text)


def wordpiece(
    tokens: Sequence[str],
    *,
    lowercase: bool,
    specials: Mapping[str, str],
    place: str,
    chinese: bool = True,
    strip_accents: bool | None = None,
) -> tokenizers.Tokenizer:
    """The library's tokenizer of a list id → token, as the reference builds it; `place` begins what is
    wrong."""
    for number, token in enumerate(tokens, start=1):
        if not token:
            raise InputError(f"{place}:{number}: an empty token", _AGAIN)
    if len(set(tokens)) < len(tokens):
        twice, _ = Counter(tokens).most_common(1)[0]
        raise InputError(f"{place}:{_second(tokens, twice)}: the token '{twice}' stands twice", _AGAIN)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    _require(vocabulary, specials, place)
    model = models.WordPiece(vocabulary, unk_token=specials["unk"], max_input_chars_per_word=100)
    library = tokenizers.Tokenizer(model)
    library.normalizer = bert_normalizer(lowercase, chinese, strip_accents)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    cls, sep = specials["cls"], specials["sep"]
    library.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    library.add_special_tokens(list(specials.values()))
    return library


def lowercases(definition: str) -> bool:
    """Whether a tokenizer.json's normaliser, or a step of it, lower-cases."""
    normalizer = json.loads(definition).get("normalizer") or {}
    steps = [normalizer, *normalizer.get("normalizers", [])]
    return any(step.get("lowercase") or step.get("type") == "Lowercase" for step in steps)


def _of_json(file: Path, lowercase: bool | None, specials: Mapping[str, str]) -> str:
    whole = _json(file)
    kind = (whole.get("model") or {}).get("type")
    if kind != "WordPiece":
        raise InputError(f"{file}: its model is {kind}, not WordPiece", "give a tokenizer of the BERT kind")
    try:
        library = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception here
        raise InputError(f"{file}: the tokenizers library cannot read it ({error})", _AGAIN) from None
    library.no_truncation()
    library.no_padding()
    known = library.get_vocab(with_added_tokens=True)
    _require(known, specials, str(file))
    if sorted(known.values()) != list(range(len(known))):
        raise InputError(f"{file}: its ids are not 0 to {len(known) - 1}, each once", _AGAIN)
    library.add_special_tokens(list(specials.values()))
    definition = str(library.to_str())
    lowers = lowercases(definition)
    if lowercase is not None and lowercase != lowers:
        does = "lower-cases" if lowers else "keeps case"
        raise InputError(f"{file}: this tokenizer {does}", "load its vocab.txt instead to change that")
    return definition


def _vocabulary(file: Path) -> list[str]:
    tokens = [line for _, line in read_lines(file)]
    while tokens and not tokens[-1]:
        tokens.pop()
    return tokens


def _require(known: Mapping[str, int], specials: Mapping[str, str], place: str) -> None:
    for token in specials.values():
        if token not in known:
            raise InputError(
                f"{place}: the special token {token} is missing", "a BERT vocabulary has one token a line"
            )


def _second(tokens: Sequence[str], token: str) -> int:
    return tokens.index(token, tokens.index(token) + 1) + 1


def _config(file: Path) -> dict[str, Any]:
    return _json(file) if file.is_file() else {}


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes().decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise InputError(f"{file}: this is not whole JSON", _AGAIN) from None
    if not isinstance(value, dict):
        raise InputError(f"{file}: this is not a JSON object", _AGAIN)
    return value


def _name(value: Any, default: str) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else default
