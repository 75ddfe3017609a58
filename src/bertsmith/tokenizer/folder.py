"""The field's tokenizer files, read and written: tokenizer.json, tokenizer_config.json, and each kind's own
(vocab.txt; vocab.json with merges.txt; spiece.model)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tokenizers

from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.suggestions import absent
from bertsmith.tokenizer import byte_level_bpe, unigram, wordpiece
from bertsmith.tokenizer.config_schema import (
    AGAIN,
    ROLES,
    Config,
    Outline,
    Step,
    checked,
    read_config,
    read_object,
)
from bertsmith.tokenizer.hf_class import class_of
from bertsmith.tokenizer.normalizer import Normalizer
from bertsmith.tokenizer.post_processor import SequenceLayout
from bertsmith.tokenizer.wordpiece import SPECIALS

Kind = Literal["wordpiece", "byte_level_bpe", "unigram"]

FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer_config.json")
"""What `write_folder` may write."""
_NAMES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")
_KINDS: dict[str, Kind] = {"WordPiece": "wordpiece", "BPE": "byte_level_bpe", "Unigram": "unigram"}
_MAX_LENGTH = 512


@dataclass(frozen=True)
class TokenizerSource:
    """What a tokenizer is made of: the text of a tokenizer.json, the longest input in tokens, special tokens by
    role, and the bytes of the spiece.model it came from, if any."""

    definition: str
    max_length: int
    specials: dict[str, str]
    piece_model: bytes | None = None


def read_folder(path: Path, lowercase: bool | None, normalizer: Normalizer | None = None) -> TokenizerSource:
    """Read a tokenizer's folder, or one of its files; `normalizer` only with a vocab.txt."""
    file = _file_of(path)
    config = read_config(file.parent)
    if normalizer is not None and file.name != "vocab.txt":
        raise InputError(
            f"{file}: the normaliser is chosen for a vocab.txt alone; this file has its own",
            "load the vocab.txt beside it, if there is one",
        )
    if file.name == "merges.txt":
        file = file.with_name("vocab.json")
    kept, says_all = None, False
    if file.name.endswith(".model"):
        library, specials = _of_piece_model(file, lowercase, config)
        kept = file.read_bytes()
    elif file.suffix == ".json":
        whole = read_object(file)
        # "model" is a word of vocabularies, too
        says_all = file.name == "tokenizer.json" or isinstance(whole.get("model"), dict)
        if says_all:
            library, specials = _of_json(file, whole, config)
        else:
            library, specials = _of_merges(file, whole, lowercase, config)
        model = file.with_name("spiece.model")
        if model.is_file() and isinstance(library.model, tokenizers.models.Unigram):
            kept = model.read_bytes()
    else:
        specials = {**SPECIALS, **config.specials()}
        lower = config.do_lower_case is not False if lowercase is None else lowercase
        library = wordpiece.wordpiece(
            wordpiece.read_vocabulary(file),
            lowercase=lower,
            specials=specials,
            place=str(file),
            chinese=config.tokenize_chinese_chars is not False,
            strip_accents=config.strip_accents,
            normalizer=normalizer or ("google" if config.bertsmith_normalizer == "google" else "hf"),
        )
    definition = library.to_str()
    said = json.loads(definition)  # once: a vocabulary takes time to write and to read
    if says_all:
        SequenceLayout.of(said, library.get_vocab_size(), str(file))
        _require_case(file, lowercase, lowercases(said))
    _try(file, library, said["model"])
    # Files of the field write "no limit" as 10**30.
    length = config.model_max_length or 0
    return TokenizerSource(definition, int(length) if 0 < length < 10**9 else _MAX_LENGTH, specials, kept)


def write_folder(folder: Path, source: TokenizerSource, tokens: Sequence[str]) -> None:
    """Write the kind's own files, tokenizer_config.json and tokenizer.json, each beside its place and renamed."""
    whole = json.loads(source.definition)
    kind = kind_of(whole)
    if kind == "wordpiece":
        files = {"vocab.txt": "".join(f"{token}\n" for token in tokens)}
    else:
        files = byte_level_bpe.files_of(whole) if kind == "byte_level_bpe" else {}
    if source.piece_model is not None:
        atomic.write_bytes(folder / "spiece.model", source.piece_model)
    config = {
        **class_of(whole, source.specials),
        "model_max_length": source.max_length,
        **{f"{role}_token": _as_written(whole, token) for role, token in source.specials.items()},
    }
    files["tokenizer_config.json"] = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    files["tokenizer.json"] = source.definition
    for name, text in files.items():
        atomic.write_text(folder / name, text)


def kind_of(definition: Mapping[str, Any]) -> Kind:
    """The kind of a tokenizer.json."""
    return _KINDS[definition["model"]["type"]]


def lowercases(definition: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json's normaliser, or a step of it, lower-cases."""
    whole = definition["normalizer"] or {}
    steps = [whole, *whole.get("normalizers", [])]
    return any(step.get("lowercase") or step["type"] == "Lowercase" for step in steps if step)


def _file_of(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise absent(path, "file or folder")
    found = next((file for name in _NAMES if (file := path / name).is_file()), None)
    if found is None:
        raise InputError(
            f"{path}: there is neither tokenizer.json nor vocab.txt, vocab.json or spiece.model",
            "give a tokenizer's folder",
        )
    return found


Made = tuple[tokenizers.Tokenizer, dict[str, str]]
"""The library's tokenizer, and the special tokens by role."""


def _of_json(file: Path, whole: dict[str, Any], config: Config) -> Made:
    outline = checked(whole, Outline, file)
    if outline.model.type not in _KINDS:
        raise InputError(
            f"{file}: its model is {outline.model.type}, not WordPiece, byte-level BPE or Unigram",
            "give another tokenizer",
        )
    kind = _KINDS[outline.model.type]
    if kind == "byte_level_bpe" and not (outline.pre_tokenizer or Step(type="none")).has("ByteLevel"):
        raise InputError(
            f"{file}: its model is BPE, but not byte-level", "give a tokenizer of RoBERTa's kind"
        )
    library = _parsed(file, whole)
    library.no_truncation()
    library.no_padding()
    known = library.get_vocab(with_added_tokens=True)
    if kind == "byte_level_bpe":
        byte_level_bpe.require_bytes(known, str(file))
    specials = _specials_of(kind, known, config)
    _require(known, specials, str(file), kind)
    if sorted(known.values()) != list(range(len(known))):
        raise InputError(f"{file}: its ids are not 0 to {len(known) - 1}, each once", AGAIN)
    # Those that the file names keep the flags that it gives them.
    named = {token.content for token in library.get_added_tokens_decoder().values() if token.special}
    missing = {role: token for role, token in specials.items() if token not in named}
    library.add_special_tokens(
        list(missing.values()) if kind == "wordpiece" else byte_level_bpe.added(missing)
    )
    if library.post_processor is None and config.tokenizer_class in ("BertTokenizer", "BertTokenizerFast"):
        # This class has its frame in the program, not in the file.
        library.post_processor = wordpiece.framed(specials["cls"], specials["sep"], known, str(file))
    return library, specials


def _parsed(file: Path, whole: Mapping[str, Any]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(whole))
    except Exception as error:  # the library raises bare Exception here
        raise InputError(f"{file}: the tokenizers library cannot read it ({error})", AGAIN) from None


def _try(file: Path, library: tokenizers.Tokenizer, model: Mapping[str, Any]) -> None:
    """Have the library read a character that no vocabulary has: not every model that it loads has an unknown."""
    unknown = model.get("unk_token")
    if unknown is not None and unknown not in model["vocab"]:  # where no normaliser drops what is unknown
        raise InputError(f"{file}: its unknown token {unknown!r} is not in its vocabulary", AGAIN)
    try:
        library.encode("a \U0010fffd")
    except Exception as error:
        raise InputError(f"{file}: the tokenizers library cannot use it ({error})", AGAIN) from None


def _of_merges(file: Path, whole: dict[str, Any], lowercase: bool | None, config: Config) -> Made:
    vocabulary = byte_level_bpe.read_vocabulary(file, whole)
    merges = byte_level_bpe.read_merges(file.with_name("merges.txt"), vocabulary)
    specials = _specials_of("byte_level_bpe", vocabulary, config)
    _require(vocabulary, specials, str(file), "byte_level_bpe")
    _require_case(file, lowercase, False)
    blank = bool(config.add_prefix_space)
    return byte_level_bpe.byte_level(vocabulary, merges, specials=specials, add_prefix_space=blank), specials


def _of_piece_model(file: Path, lowercase: bool | None, config: Config) -> Made:
    model = unigram.read_model(file)
    specials = _specials_of("unigram", {piece: i for i, (piece, _) in enumerate(model.pieces)}, config)
    lower = config.do_lower_case is not False if lowercase is None else lowercase
    library = unigram.unigram(
        model.pieces,
        unknown=model.unknown,
        lowercase=lower,
        specials=specials,
        keep_accents=bool(config.keep_accents),
        replacements=model.replacements,
        place=str(file),
    )
    return library, specials


def _specials_of(kind: Kind, known: Mapping[str, int], config: Config) -> dict[str, str]:
    """Special tokens by role: by the configuration, else by the names that the kind's models have."""
    usual = {
        "wordpiece": (SPECIALS,),
        "byte_level_bpe": (byte_level_bpe.ROBERTA, SPECIALS),
        "unigram": (unigram.ALBERT, byte_level_bpe.ROBERTA, SPECIALS),
    }[kind]
    # GPT-2 frames nothing; what else the files name is taken.
    none = byte_level_bpe.GPT2 if byte_level_bpe.GPT2["unk"] in known else {}
    last = none if kind == "byte_level_bpe" else usual[0]
    defaults = next((names for names in usual if {*names.values()} <= known.keys()), last)
    found = {**defaults, **config.specials()}
    return {role: found[role] for role in ROLES if role in found}


def _as_written(whole: Mapping[str, Any], token: str) -> Any:
    """A special token for tokenizer_config.json: with its flags where it takes blanks with it."""
    found = next((t for t in whole["added_tokens"] if t["content"] == token), None)
    if found is None or not (found["lstrip"] or found["rstrip"]):
        return token
    return {"__type": "AddedToken", **{key: value for key, value in found.items() if key != "id"}}


def _require(known: Mapping[str, int], specials: Mapping[str, str], place: str, kind: Kind) -> None:
    remedy = "a BERT vocabulary has one token per line"
    if kind != "wordpiece":
        remedy = "name the vocabulary's own in tokenizer_config.json"
    for token in specials.values():
        if token not in known:
            raise InputError(f"{place}: the special token {token} is missing", remedy)


def _require_case(file: Path, asked: bool | None, lowers: bool) -> None:
    if asked is not None and asked != lowers:
        does = "lower-cases" if lowers else "keeps case"
        raise InputError(f"{file}: this tokenizer {does}", "load its vocab.txt instead to change that")
