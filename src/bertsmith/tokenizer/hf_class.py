"""The reference library's class that builds the same tokenizer, for tokenizer_config.json.

Its model-specific classes take the vocabulary from the files and build every other part anew, whatever
tokenizer.json contains. A class is therefore named only if each part it builds equals this tokenizer's; otherwise
the generic class is named, which takes tokenizer.json as it is.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import tokenizers

from bertsmith.tokenizer.byte_level_bpe import build_byte_level_bpe
from bertsmith.tokenizer.normalizer import bert_normalizer, bert_pre_tokenizer
from bertsmith.tokenizer.post_processor import PostProcessor
from bertsmith.tokenizer.unigram import ALBERT_SPECIAL_TOKENS, build_unigram
from bertsmith.tokenizer.wordpiece import build_wordpiece

_LOCATION = "tokenizer.json"
_ANY_ID = 1 << 32
Options = dict[str, Any]


def tokenizer_class_options(definition: Mapping[str, Any], special_tokens: Mapping[str, str]) -> Options:
    """Return `tokenizer_class` and its options.

    Args:
        definition: A tokenizer.json as the library writes it.
        special_tokens: Special tokens by role.
    """
    vocab = definition["model"]["vocab"]
    if {*special_tokens.values()} <= {token if isinstance(token, str) else token[0] for token in vocab}:
        build = {"WordPiece": _bert, "BPE": _roberta_or_gpt2, "Unigram": _albert}[definition["model"]["type"]]
        candidate = build(definition, special_tokens)
        if candidate is not None:
            options, library = candidate
            if _comparable_parts(json.loads(library.to_str())) == _comparable_parts(definition):
                return {**options, **_input_names(definition)}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **_input_names(definition),
        **_google_options(definition),
    }


def _input_names(definition: Mapping[str, Any]) -> Options:
    """Return the option that makes the class return segments if pairs have them.

    Only BertTokenizer returns them by default, and a model without them uses 0 for both texts.
    """
    if not PostProcessor.from_definition(definition, _ANY_ID, _LOCATION).uses_segments:
        return {}
    return {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}


Candidate = tuple[Options, tokenizers.Tokenizer] | None
"""The class with its options and the tokenizer it builds; None if it certainly builds another one."""


def _bert(definition: Mapping[str, Any], special_tokens: Mapping[str, str]) -> Candidate:
    vocabulary, normalizer = definition["model"]["vocab"], definition["normalizer"] or {}
    if normalizer.get("type") != "BertNormalizer":
        return None
    lowercase, chinese = bool(normalizer["lowercase"]), bool(normalizer["handle_chinese_chars"])
    strip_accents = normalizer["strip_accents"]
    library = build_wordpiece(
        sorted(vocabulary, key=vocabulary.__getitem__),
        lowercase=lowercase,
        special_tokens=special_tokens,
        location=_LOCATION,
        chinese=chinese,
        strip_accents=strip_accents,
    )
    options = {
        "do_lower_case": lowercase,
        "strip_accents": strip_accents,
        "tokenize_chinese_chars": chinese,
    }
    return {"tokenizer_class": "BertTokenizer", **options}, library


def _roberta_or_gpt2(definition: Mapping[str, Any], special_tokens: Mapping[str, str]) -> Candidate:
    model, pre_tokenizer = definition["model"], definition["pre_tokenizer"]
    if pre_tokenizer["type"] != "ByteLevel":
        return None
    add_prefix_space = bool(pre_tokenizer["add_prefix_space"])
    library = build_byte_level_bpe(
        model["vocab"],
        [tuple(pair) for pair in model["merges"]],
        special_tokens=special_tokens,
        add_prefix_space=add_prefix_space,
    )
    name = "RobertaTokenizer" if "cls" in special_tokens else "GPT2Tokenizer"
    return {"tokenizer_class": name, "add_prefix_space": add_prefix_space}, library


def _albert(definition: Mapping[str, Any], special_tokens: Mapping[str, str]) -> Candidate:
    if special_tokens != ALBERT_SPECIAL_TOKENS or (definition["normalizer"] or {}).get("type") != "Sequence":
        return None  # The class hard-codes two of the special tokens.
    steps = {step["type"]: step for step in definition["normalizer"]["normalizers"]}
    lowercase, keep_accents = "Lowercase" in steps, "NFKD" not in steps
    charsmap = steps.get("Precompiled", {}).get("precompiled_charsmap", "")
    library = build_unigram(
        [(piece, score) for piece, score in definition["model"]["vocab"]],
        unk_id=1,
        lowercase=lowercase,
        special_tokens=special_tokens,
        keep_accents=keep_accents,
        precompiled_charsmap=base64.b64decode(charsmap),
        location=_LOCATION,
    )
    options = {"do_lower_case": lowercase, "keep_accents": keep_accents}
    return {"tokenizer_class": "AlbertTokenizer", **options}, library


def _comparable_parts(definition: Mapping[str, Any]) -> list[Any]:
    """Return all parts of a tokenizer except its vocabulary, in a form that can be compared."""
    model = {
        name: part or None for name, part in definition["model"].items() if name not in ("vocab", "merges")
    }
    added_tokens = [dict(token) for token in definition["added_tokens"]]
    if not definition["normalizer"]:  # The flag means nothing without a normalizer.
        for token in added_tokens:
            token.pop("normalized")
    return [
        model,
        added_tokens,
        *(definition[name] for name in ("normalizer", "pre_tokenizer", "decoder")),
        PostProcessor.from_definition(definition, _ANY_ID, _LOCATION),
        bool((definition["post_processor"] or {}).get("trim_offsets")),
    ]


def _google_options(definition: Mapping[str, Any]) -> Options:
    """Return the options from which bertsmith rebuilds the `google` variant with vocab.txt alone."""
    parts = {name: definition[name] for name in ("normalizer", "pre_tokenizer")}
    for lowercase in (True, False):
        for chinese in (True, False):
            library = tokenizers.Tokenizer(tokenizers.models.WordPiece())
            library.normalizer = bert_normalizer(lowercase, chinese, variant="google")
            library.pre_tokenizer = bert_pre_tokenizer(chinese, "google")
            google = json.loads(library.to_str())
            if all(google[name] == part for name, part in parts.items()):
                options = {"do_lower_case": lowercase, "tokenize_chinese_chars": chinese}
                return {"bertsmith_normalizer": "google", **options}
    return {}
