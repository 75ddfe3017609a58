"""Read and write a tokenizer's files: tokenizer.json, tokenizer_config.json, and the vocabulary files of its kind.

The vocabulary files are vocab.txt for WordPiece, vocab.json and merges.txt for byte-level BPE, and spiece.model
for Unigram.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tokenizers
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from bertsmith.errors import InputError, corrupt_file_error
from bertsmith.io import atomic
from bertsmith.io.compression import check_name
from bertsmith.io.jsonl import load_json
from bertsmith.suggestions import not_found_error
from bertsmith.tokenizer import byte_level_bpe, unigram, wordpiece
from bertsmith.tokenizer.byte_level_bpe import GPT2_SPECIAL_TOKENS, ROBERTA_SPECIAL_TOKENS, check_token_ids
from bertsmith.tokenizer.hf_class import tokenizer_class_options
from bertsmith.tokenizer.long_texts import check_expansion
from bertsmith.tokenizer.post_processor import PostProcessor
from bertsmith.tokenizer.unigram import ALBERT_SPECIAL_TOKENS
from bertsmith.tokenizer.wordpiece import BERT_SPECIAL_TOKENS, NormalizerName, check_special_tokens

logger = logging.getLogger(__name__)
TokenizerKind = Literal["wordpiece", "byte_level_bpe", "unigram"]
SPECIAL_TOKEN_ROLES = ("pad", "unk", "cls", "sep", "mask")

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "tokenizer_config.json",
)
"""All files that `write_folder` may write."""
_UNKNOWN_CHARACTER = "\U0010fffd"  # a private code point that no vocabulary has
_ENTRY_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")
_KINDS: dict[str, TokenizerKind] = {"WordPiece": "wordpiece", "BPE": "byte_level_bpe", "Unigram": "unigram"}
_DEFAULT_MAX_LENGTH = 512
_MIN_UNLIMITED_LENGTH = 10**9  # transformers writes "no limit" as 10**30
_BackendWithSpecialTokens = tuple[tokenizers.Tokenizer, dict[str, str]]
"""A backend tokenizer, and the special tokens by role."""


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


class TokenizerSource(NamedTuple):
    """The data that define a tokenizer.

    Attributes:
        definition: The text of a tokenizer.json.
        max_length: Maximum number of input tokens.
        special_tokens: Special tokens by role.
        sentencepiece_model: The bytes of the spiece.model that it was built from, if any.
    """

    definition: str
    max_length: int
    special_tokens: dict[str, str]
    sentencepiece_model: bytes | None = None


def read_folder(
    path: Path, lowercase: bool | None, normalizer: NormalizerName | None = None
) -> TokenizerSource:
    """Read a tokenizer's folder or one of its files.

    Args:
        path: See `Tokenizer.load`.
        lowercase: See `Tokenizer.load`; an error if a file states the contrary.
        normalizer: See `Tokenizer.load`; an error if the file is not a vocab.txt.
    """
    check_name(path)
    file = _entry_file(path)
    config = read_config(file.parent)
    if normalizer is not None and file.name != "vocab.txt":
        message = "a normalizer can be chosen only for a vocab.txt; this file defines its own"
        hint = "load the vocab.txt of the same folder, if there is one"
        raise InputError(
            "normalizer_not_applicable", message, location=file, argument="normalizer", hint=hint
        )
    if file.name == "merges.txt":
        file = file.with_name("vocab.json")
    if file.name.endswith(".model"):
        backend, special_tokens = _from_sentencepiece(file, lowercase, config)
    elif file.suffix == ".json":
        content = read_json_object(file)
        # "model" may also be a token of a vocab.json, but its value is then an id.
        is_tokenizer_json = file.name == "tokenizer.json" or isinstance(content.get("model"), dict)
        from_content = _from_tokenizer_json if is_tokenizer_json else _from_vocab_json
        backend, special_tokens = from_content(file, content, config)
    else:
        special_tokens = {**BERT_SPECIAL_TOKENS, **config.special_tokens()}
        backend = wordpiece.build_wordpiece(
            wordpiece.read_vocabulary(file),
            lowercase=_resolve_lowercase(lowercase, config),
            special_tokens=special_tokens,
            location=file,
            handle_chinese_chars=config.tokenize_chinese_chars is not False,
            strip_accents=config.strip_accents,
            normalizer=normalizer or ("google" if config.bertsmith_normalizer == "google" else "hf"),
        )
    text = backend.to_str()
    definition = load_json(text)
    PostProcessor.from_definition(definition, backend.get_vocab_size(), file)
    if lowercase not in (None, lowercases(definition)):
        message = f"the tokenizer {'keeps case' if lowercase else 'lower-cases text'}"
        hint = "load its vocab.txt to change that"
        raise InputError("case_conflict", message, location=file, argument="lowercase", hint=hint)
    _check_usable(file, backend, definition["model"])
    model_file = file if file.name.endswith(".model") else file.with_name("spiece.model")
    is_unigram = isinstance(backend.model, tokenizers.models.Unigram)
    sentencepiece_model = atomic.read_file(model_file) if is_unigram and model_file.is_file() else None
    length = config.model_max_length or 0
    max_length = int(length) if 0 < length < _MIN_UNLIMITED_LENGTH else _DEFAULT_MAX_LENGTH
    return TokenizerSource(text, max_length, special_tokens, sentencepiece_model)


def write_folder(folder: Path, source: TokenizerSource, tokens: Sequence[str]) -> None:
    """Write the vocabulary files of the kind, tokenizer_config.json, and tokenizer.json, each atomically."""
    definition = json.loads(source.definition)
    kind = tokenizer_kind(definition)
    if kind == "wordpiece":
        files = {"vocab.txt": "".join(f"{token}\n" for token in tokens)}
    else:
        files = byte_level_bpe.vocabulary_files(definition) if kind == "byte_level_bpe" else {}
    if source.sentencepiece_model is not None:
        atomic.write_bytes(folder / "spiece.model", source.sentencepiece_model)
    config = {
        **tokenizer_class_options(definition, source.special_tokens),
        "model_max_length": source.max_length,
        **{
            f"{role}_token": _config_token(definition, token) for role, token in source.special_tokens.items()
        },
    }
    files["tokenizer_config.json"] = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    files["tokenizer.json"] = source.definition
    for name, text in files.items():
        atomic.write_text(folder / name, text)


def build_backend(
    source: TokenizerSource, kind: TokenizerKind, parsed_tokens: Collection[str] = ()
) -> tokenizers.Tokenizer:
    """Build a backend tokenizer that parses only these special tokens in texts."""
    definition = source.definition
    if kind == "unigram" or parsed_tokens:  # Else the definition needs no change, and parsing it takes time.
        content = json.loads(definition)
        for token in content["added_tokens"]:  # Added tokens that are not special are parsed in any mode.
            token["special"] = token["special"] and token["content"] not in parsed_tokens
        if kind == "unigram":
            special_tokens = {token["content"] for token in content["added_tokens"] if token["special"]}
            hidden_tokens = special_tokens.union(source.special_tokens.values()) - {*parsed_tokens}
            content = unigram.hide_special_pieces(content, hidden_tokens)
        definition = json.dumps(content)
    backend = tokenizers.Tokenizer.from_str(definition)
    backend.encode_special_tokens = True
    return backend


def tokenizer_kind(definition: Mapping[str, Any]) -> TokenizerKind:
    """Return the kind of a tokenizer.json."""
    return _KINDS[definition["model"]["type"]]


def lowercases(definition: Mapping[str, Any]) -> bool:
    """Return True if the normalizer of a tokenizer.json, or one of its steps, lower-cases."""
    root = definition["normalizer"] or {}
    steps = [root, *root.get("normalizers", [])]
    return any(step.get("lowercase") or step["type"] == "Lowercase" for step in steps if step)


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
        value = load_json(atomic.read_file(file).decode("utf-8"))
    except OSError as error:
        message = f"cannot be read ({error.strerror})"
        raise corrupt_file_error("unreadable_file", message, location=file) from None
    except ValueError:  # not UTF-8, not JSON, a number of 5,000 digits
        raise corrupt_file_error("invalid_json", "the file is not complete JSON", location=file) from None
    if not isinstance(value, dict):
        raise corrupt_file_error("not_a_json_object", "the file is not a JSON object", location=file)
    return value


def _entry_file(path: Path) -> Path:
    """Return the path if it is a file, or the file of a folder from which the tokenizer is built."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise not_found_error(path, "file or folder")
    for name in _ENTRY_FILES:
        if (file := path / name).is_file():
            return file
    message = "the folder has no tokenizer.json, vocab.txt, vocab.json, or spiece.model"
    raise InputError("tokenizer_file_missing", message, location=path, hint="name a tokenizer's folder")


def _from_tokenizer_json(
    file: Path, content: dict[str, Any], config: TokenizerConfig
) -> _BackendWithSpecialTokens:
    with library_errors(file):
        backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    check_expansion(content.get("normalizer") or {}, file)
    kind = _KINDS.get(type(backend.model).__name__)
    if kind is None or (kind == "byte_level_bpe" and "ByteLevel(" not in str(backend.pre_tokenizer)):
        message = f"the model is {type(backend.model).__name__}, not WordPiece, byte-level BPE, or Unigram"
        raise InputError("unsupported_tokenizer_model", message, location=file, hint="use another tokenizer")
    _warn_of_unused_vocabulary(file, backend)
    backend.no_truncation()
    backend.no_padding()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    if kind == "byte_level_bpe":
        byte_level_bpe.check_byte_pieces(vocabulary, file)
    special_tokens = _special_tokens_by_role(kind, vocabulary, config, file)
    check_token_ids(vocabulary, file)
    # Special tokens that the file declares keep their flags (lstrip, normalized, …).
    declared = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    undeclared = {role: token for role, token in special_tokens.items() if token not in declared}
    backend.add_special_tokens(
        list(undeclared.values()) if kind == "wordpiece" else byte_level_bpe.make_added_tokens(undeclared)
    )
    if backend.post_processor is None and config.tokenizer_class in ("BertTokenizer", "BertTokenizerFast"):
        # This class defines its template in code, not in the file.
        backend.post_processor = wordpiece.bert_template(
            special_tokens["cls"], special_tokens["sep"], vocabulary, file
        )
    return backend, special_tokens


@contextmanager
def library_errors(location: object) -> Iterator[None]:
    """Raise an `InputError` that names the tokenizer for an error or a panic of the tokenizers library."""
    try:
        yield
    except BaseException as error:  # The library raises bare Exception, and its panics are BaseExceptions.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        message = f"the tokenizers library cannot use this tokenizer ({error})"
        hint = "check the patterns (regular expressions) in its tokenizer.json, or download the file again"
        raise InputError("tokenizers_library_error", message, location=location, hint=hint) from None


def _warn_of_unused_vocabulary(file: Path, backend: tokenizers.Tokenizer) -> None:
    """Log a warning for a vocab.txt or vocab.json beside tokenizer.json that has other tokens."""
    tokens = backend.get_vocab(with_added_tokens=True)
    for other in map(file.with_name, ("vocab.txt", "vocab.json")):
        with suppress(OSError, ValueError):
            text = atomic.read_file(other).decode("utf-8-sig")
            lines = {token: i for i, token in enumerate(text.splitlines()) if token}
            entries = lines if other.suffix == ".txt" else load_json(text)
            if entries.items() - tokens.items() or backend.get_vocab(False).keys() - entries.keys():
                message = "%s is read, and %s, which has other tokens, is not; to read that, remove %s"
                message += "; to add words to a model, use bertsmith tokenizer extend"
                logger.warning(message, file, other.name, file.name)


def _check_usable(file: Path, backend: tokenizers.Tokenizer, model: Mapping[str, Any]) -> None:
    """Raise an `InputError` if the tokenizer cannot encode unknown characters.

    The tokenizers library also loads models whose unknown token is missing, and fails when they encode.
    """
    unk_token = model.get("unk_token")
    # Checked here too because a normalizer may drop the character that is encoded below.
    if unk_token is not None and unk_token not in model["vocab"]:
        message = f"the unknown token {unk_token!r} is not in the vocabulary"
        raise corrupt_file_error("unknown_token_missing", message, location=file)
    with library_errors(file):
        backend.encode(f"a {_UNKNOWN_CHARACTER}")


def _from_vocab_json(
    file: Path, content: dict[str, Any], config: TokenizerConfig
) -> _BackendWithSpecialTokens:
    vocabulary = byte_level_bpe.check_vocabulary(file, content)
    merges = byte_level_bpe.read_merges(file.with_name("merges.txt"), vocabulary)
    special_tokens = _special_tokens_by_role("byte_level_bpe", vocabulary, config, file)
    backend = byte_level_bpe.build_byte_level_bpe(
        vocabulary, merges, special_tokens=special_tokens, add_prefix_space=bool(config.add_prefix_space)
    )
    return backend, special_tokens


def _from_sentencepiece(
    file: Path, lowercase: bool | None, config: TokenizerConfig
) -> _BackendWithSpecialTokens:
    model = unigram.parse_model(atomic.read_file(file), file)
    token_ids = {piece: i for i, (piece, _) in enumerate(model.pieces)}
    special_tokens = _special_tokens_by_role("unigram", token_ids, config, file)
    backend = unigram.build_unigram(
        model,
        lowercase=_resolve_lowercase(lowercase, config),
        keep_accents=bool(config.keep_accents),
        special_tokens=special_tokens,
        location=file,
    )
    return backend, special_tokens


def _resolve_lowercase(lowercase: bool | None, config: TokenizerConfig) -> bool:
    return config.do_lower_case is not False if lowercase is None else lowercase


def _special_tokens_by_role(
    kind: TokenizerKind, vocabulary: Mapping[str, int], config: TokenizerConfig, file: Path
) -> dict[str, str]:
    """Return special tokens by role: those of the configuration, and for other roles the kind's usual ones.

    Raises:
        InputError: A special token is not in the vocabulary.
    """
    candidates = {
        "wordpiece": (BERT_SPECIAL_TOKENS,),
        "byte_level_bpe": (ROBERTA_SPECIAL_TOKENS, BERT_SPECIAL_TOKENS),
        "unigram": (ALBERT_SPECIAL_TOKENS, ROBERTA_SPECIAL_TOKENS, BERT_SPECIAL_TOKENS),
    }[kind]
    if kind == "byte_level_bpe":
        # GPT-2 has no template; only the special tokens that its files name are used.
        default = GPT2_SPECIAL_TOKENS if GPT2_SPECIAL_TOKENS["unk"] in vocabulary else {}
    else:
        default = candidates[0]
    usual_tokens = next((tokens for tokens in candidates if {*tokens.values()} <= vocabulary.keys()), default)
    special_tokens = {**usual_tokens, **config.special_tokens()}
    check_special_tokens(special_tokens.values(), vocabulary, file)
    return {role: special_tokens[role] for role in SPECIAL_TOKEN_ROLES if role in special_tokens}


def _config_token(definition: Mapping[str, Any], token: str) -> Any:
    """Return the value of a special token for tokenizer_config.json: an object if it strips spaces."""
    added = next((entry for entry in definition["added_tokens"] if entry["content"] == token), None)
    if added is None or not (added["lstrip"] or added["rstrip"]):
        return token
    return {"__type": "AddedToken", **{key: value for key, value in added.items() if key != "id"}}
