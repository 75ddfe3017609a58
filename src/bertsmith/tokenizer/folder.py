"""The field's tokenizer files, read and written: tokenizer.json, tokenizer_config.json, and each kind's own
(vocab.txt; vocab.json with merges.txt; spiece.model)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import decoders, models, processors

from bertsmith import disk
from bertsmith.errors import InputError
from bertsmith.files.files import read_lines
from bertsmith.tokenizer import byte_level, unigram
from bertsmith.tokenizer.normaliser import Normalizer, bert_borders, bert_normalizer

Kind = Literal["wordpiece", "byte_level_bpe", "unigram"]

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_NAMES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")
_KINDS: dict[str, Kind] = {"WordPiece": "wordpiece", "BPE": "byte_level_bpe", "Unigram": "unigram"}
_MAX_LENGTH = 512
_AGAIN = "take the file from its source again"


@dataclass(frozen=True)
class Source:
    """What a tokenizer is made of: the text of a tokenizer.json, the longest input in tokens, special tokens by
    role, and the bytes of the spiece.model it came from, if any."""

    definition: str
    max_length: int
    specials: dict[str, str]
    piece_model: bytes | None = None


def read_folder(path: Path, lowercase: bool | None, normalizer: Normalizer | None = None) -> Source:
    """Read a tokenizer's folder, or one of its files; `normalizer` only with a vocab.txt."""
    folder = path if path.is_dir() else path.parent
    config = {**_object(folder / "special_tokens_map.json"), **_object(folder / "tokenizer_config.json")}
    # Files of the field write "no limit" as 10**30.
    length = config.get("model_max_length")
    max_length = int(length) if isinstance(length, int | float) and 0 < length < 10**9 else _MAX_LENGTH
    file = _file_of(path)
    if normalizer is not None and file.name != "vocab.txt":
        raise InputError(
            f"{file}: the normaliser is chosen for a vocab.txt alone; this file has its own",
            "load the vocab.txt beside it, if there is one",
        )
    if file.name.endswith(".model"):
        library, specials = _of_piece_model(file, lowercase, config)
        return Source(library.to_str(), max_length, specials, file.read_bytes())
    if file.name == "merges.txt":
        file = file.with_name("vocab.json")
    if file.suffix == ".json":
        whole = _json(file)
        if file.name == "tokenizer.json" or isinstance(whole.get("model"), dict):  # "model" is a word, too
            definition, specials = _of_json(file, whole, lowercase, config)
        else:
            definition, specials = _of_merges(file, whole, lowercase, config)
        model = file.with_name("spiece.model")
        kept = model.read_bytes() if model.is_file() and _is_unigram(definition) else None
        return Source(definition, max_length, specials, kept)
    specials = _named(config, SPECIALS)
    lower = config.get("do_lower_case", True) if lowercase is None else lowercase
    reading = normalizer or ("google" if config.get("bertsmith_normalizer") == "google" else "hf")
    library = wordpiece(
        _vocabulary(file),
        lowercase=bool(lower),
        specials=specials,
        place=str(file),
        chinese=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=config.get("strip_accents"),
        normalizer=reading,
    )
    return Source(library.to_str(), max_length, specials)


def write_folder(folder: Path, source: Source, tokens: Sequence[str]) -> None:
    """Write the kind's own files, tokenizer_config.json and tokenizer.json, each beside its place and renamed."""
    whole = json.loads(source.definition)
    kind = kind_of(whole)
    if kind == "wordpiece":
        files = {"vocab.txt": "".join(f"{token}\n" for token in tokens)}
    else:
        files = byte_level.files_of(whole) if kind == "byte_level_bpe" else {}
    if source.piece_model is not None:
        disk.write_bytes(folder / "spiece.model", source.piece_model)
    config = {
        **_config_of(kind, whole, source.specials),
        "model_max_length": source.max_length,
        **{f"{role}_token": _as_written(whole, token) for role, token in source.specials.items()},
    }
    files["tokenizer_config.json"] = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    files["tokenizer.json"] = source.definition
    for name, text in files.items():
        disk.write_text(folder / name, text)


def wordpiece(
    tokens: Sequence[str],
    *,
    lowercase: bool,
    specials: Mapping[str, str],
    place: str,
    chinese: bool = True,
    strip_accents: bool | None = None,
    normalizer: Normalizer = "hf",
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
    _require(vocabulary, specials, place, "wordpiece")
    model = models.WordPiece(vocabulary, unk_token=specials["unk"], max_input_chars_per_word=100)
    library = tokenizers.Tokenizer(model)
    library.normalizer = bert_normalizer(lowercase, chinese, strip_accents, normalizer)
    library.pre_tokenizer = bert_borders(chinese, normalizer)
    library.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    cls, sep = specials["cls"], specials["sep"]
    library.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    library.add_special_tokens(list(specials.values()))
    return library


def kind_of(definition: Mapping[str, Any]) -> Kind:
    """The kind of a tokenizer.json."""
    return _KINDS[definition["model"]["type"]]


def separators_of(definition: Mapping[str, Any]) -> int:
    """How many special tokens stand between two texts: BERT 1, RoBERTa 2, GPT-2 (no frame at all) 0."""
    last = _frame(definition)
    if last["type"] == "RobertaProcessing":
        return 2
    if last["type"] == "BertProcessing":
        return 1
    pair = last.get("pair") or []
    texts = [i for i, part in enumerate(pair) if "Sequence" in part]
    return texts[1] - texts[0] - 1 if len(texts) == 2 else 0


def uses_segments(definition: Mapping[str, Any]) -> bool:
    """Whether a second text has segment 1; never without a frame."""
    last = _frame(definition)
    if not separators_of(definition):
        return False
    parts = [value for part in last.get("pair") or [] for value in part.values()]
    return last["type"] == "BertProcessing" or any(part["type_id"] == 1 for part in parts)


def lowercases(definition: str) -> bool:
    """Whether a tokenizer.json's normaliser, or a step of it, lower-cases."""
    return any(
        step.get("lowercase") or step.get("type") == "Lowercase" for step in _steps(json.loads(definition))
    )


def _frame(definition: Mapping[str, Any]) -> dict[str, Any]:
    """What lays out texts: the post-processor, or BERT's frame where a WordPiece file names none."""
    whole = definition.get("post_processor")
    if not whole:
        kind = "BertProcessing" if kind_of(definition) == "wordpiece" else "none"
        return {"type": kind}
    known = ("TemplateProcessing", "RobertaProcessing", "BertProcessing")
    return next((p for p in [whole, *whole.get("processors", [])] if p["type"] in known), {"type": "none"})


def _steps(definition: Mapping[str, Any], part: str = "normalizer") -> list[dict[str, Any]]:
    whole = definition.get(part) or {}
    return [whole, *whole.get("normalizers", []), *whole.get("pretokenizers", [])]


def _is_unigram(definition: str) -> bool:
    return kind_of(json.loads(definition)) == "unigram"


def _file_of(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(f"{path}: there is no such file or folder", "check the path")
    found = next((file for name in _NAMES if (file := path / name).is_file()), None)
    if found is None:
        raise InputError(
            f"{path}: there is neither tokenizer.json nor vocab.txt, vocab.json or spiece.model",
            "give a tokenizer's folder",
        )
    return found


def _of_json(
    file: Path, whole: dict[str, Any], lowercase: bool | None, config: Mapping[str, Any]
) -> tuple[str, dict[str, str]]:
    model = whole.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if kind not in _KINDS:
        raise InputError(
            f"{file}: its model is {kind}, not WordPiece, byte-level BPE or Unigram", "give another tokenizer"
        )
    if kind == "BPE" and not any(step.get("type") == "ByteLevel" for step in _steps(whole, "pre_tokenizer")):
        raise InputError(
            f"{file}: its model is BPE, but not byte-level", "give a tokenizer of RoBERTa's kind"
        )
    try:
        library = tokenizers.Tokenizer.from_str(json.dumps(whole))
    except Exception as error:  # the library raises bare Exception here
        raise InputError(f"{file}: the tokenizers library cannot read it ({error})", _AGAIN) from None
    library.no_truncation()
    library.no_padding()
    known = library.get_vocab(with_added_tokens=True)
    if kind == "BPE":
        byte_level.require_bytes(known, str(file))
    specials = _specials_of(_KINDS[kind], known, config)
    _require(known, specials, str(file), _KINDS[kind])
    if sorted(known.values()) != list(range(len(known))):
        raise InputError(f"{file}: its ids are not 0 to {len(known) - 1}, each once", _AGAIN)
    # Those that the file names keep the flags that it gives them.
    named = {token["content"] for token in whole.get("added_tokens", []) if token["special"]}
    library.add_special_tokens(
        byte_level.added({role: token for role, token in specials.items() if token not in named})
        if kind != "WordPiece"
        else [token for token in specials.values() if token not in named]
    )
    definition = str(library.to_str())
    _require_case(file, lowercase, lowercases(definition))
    return definition, specials


def _of_merges(
    file: Path, whole: dict[str, Any], lowercase: bool | None, config: Mapping[str, Any]
) -> tuple[str, dict[str, str]]:
    vocabulary = byte_level.read_vocabulary(file, whole)
    merges = byte_level.read_merges(file.with_name("merges.txt"), vocabulary)
    specials = _specials_of("byte_level_bpe", vocabulary, config)
    _require(vocabulary, specials, str(file), "byte_level_bpe")
    _require_case(file, lowercase, False)
    blank = bool(config.get("add_prefix_space", False))
    library = byte_level.byte_level(vocabulary, merges, specials=specials, add_prefix_space=blank)
    return str(library.to_str()), specials


def _of_piece_model(
    file: Path, lowercase: bool | None, config: Mapping[str, Any]
) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    model = unigram.read_model(file)
    specials = _specials_of("unigram", {piece: i for i, (piece, _) in enumerate(model.pieces)}, config)
    lower = config.get("do_lower_case", True) if lowercase is None else lowercase
    library = unigram.unigram(
        model.pieces,
        unknown=model.unknown,
        lowercase=bool(lower),
        specials=specials,
        keep_accents=bool(config.get("keep_accents", False)),
        replacements=model.replacements,
        place=str(file),
    )
    return library, specials


def _specials_of(kind: Kind, known: Mapping[str, int], config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by role: by the configuration, else by the names that the kind's models have."""
    if kind == "wordpiece":
        return _named(config, SPECIALS)
    usual = (
        (unigram.ALBERT, byte_level.ROBERTA, SPECIALS)
        if kind == "unigram"
        else (byte_level.ROBERTA, SPECIALS)
    )
    defaults = next((names for names in usual if {*names.values()} <= known.keys()), None)
    if defaults is not None:
        return _named(config, defaults)
    if kind == "byte_level_bpe":  # GPT-2 frames nothing; what else the files name is taken
        return _named(config, byte_level.GPT2 if byte_level.GPT2["unk"] in known else {})
    return _named(config, unigram.ALBERT)


def _named(config: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, str]:
    found = {role: _name(config.get(f"{role}_token"), defaults.get(role)) for role in SPECIALS}
    return {role: token for role, token in found.items() if token is not None}


def _config_of(kind: Kind, whole: Mapping[str, Any], specials: Mapping[str, str]) -> dict[str, Any]:
    """What makes the reference build the same tokenizer: its class of the kind, which builds the parts anew, or
    the class that takes tokenizer.json as it stands."""
    steps = _steps(whole)
    lower = lowercases(json.dumps({"normalizer": whole.get("normalizer")}))
    as_it_stands: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if uses_segments(whole):
        as_it_stands["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    if kind == "wordpiece":
        found = steps[0]
        own = {
            "do_lower_case": lower,
            "strip_accents": found.get("strip_accents"),
            "tokenize_chinese_chars": bool(found.get("handle_chinese_chars", True)),
        }
        if found.get("type") == "BertNormalizer":
            return {"tokenizer_class": "BertTokenizer", **own}
        google = {"bertsmith_normalizer": "google"} if found.get("type") == "Sequence" else {}
        return {**as_it_stands, **own, **google}
    if kind == "byte_level_bpe":
        before = whole["pre_tokenizer"]
        names = {"RobertaProcessing": "RobertaTokenizer", "none": "GPT2Tokenizer"}
        name = names.get(_frame(whole)["type"]) if before["type"] == "ByteLevel" else None
        if name is None or whole.get("normalizer"):
            return as_it_stands
        return {"tokenizer_class": name, "add_prefix_space": bool(before["add_prefix_space"])}
    types = [step.get("type") for step in steps[1:] if step.get("type") != "Precompiled"]
    marks = ["NFKD", "StripAccents"] if "NFKD" in types else []
    if (
        types == ["Replace", "Replace", *marks, *(["Lowercase"] if lower else [])]
        and specials == unigram.ALBERT
    ):
        return {"tokenizer_class": "AlbertTokenizer", "do_lower_case": lower, "keep_accents": not marks}
    return as_it_stands


def _as_written(whole: Mapping[str, Any], token: str) -> Any:
    """A special token for tokenizer_config.json: with its flags where it takes blanks with it."""
    found = next((t for t in whole.get("added_tokens", []) if t["content"] == token), None)
    if found is None or not (found["lstrip"] or found["rstrip"]):
        return token
    return {"__type": "AddedToken", **{key: value for key, value in found.items() if key != "id"}}


def _vocabulary(file: Path) -> list[str]:
    tokens = [line for _, line in read_lines(file)]
    while tokens and not tokens[-1]:
        tokens.pop()
    return tokens


def _require(known: Mapping[str, int], specials: Mapping[str, str], place: str, kind: Kind) -> None:
    remedy = "a BERT vocabulary has one token a line"
    if kind != "wordpiece":
        remedy = "name the vocabulary's own in tokenizer_config.json"
    for token in specials.values():
        if token not in known:
            raise InputError(f"{place}: the special token {token} is missing", remedy)


def _require_case(file: Path, asked: bool | None, lowers: bool) -> None:
    if asked is not None and asked != lowers:
        does = "lower-cases" if lowers else "keeps case"
        raise InputError(f"{file}: this tokenizer {does}", "load its vocab.txt instead to change that")


def _second(tokens: Sequence[str], token: str) -> int:
    return tokens.index(token, tokens.index(token) + 1) + 1


def _object(file: Path) -> dict[str, Any]:
    return _json(file) if file.is_file() else {}


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes().decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise InputError(f"{file}: this is not whole JSON", _AGAIN) from None
    if not isinstance(value, dict):
        raise InputError(f"{file}: this is not a JSON object", _AGAIN)
    return value


def _name(value: Any, default: str | None) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else default
