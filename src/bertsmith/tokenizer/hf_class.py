"""Find the transformers class that rebuilds a tokenizer, for `tokenizer_class` in tokenizer_config.json.

The classes of single models (BertTokenizer, …) take the vocabulary from the files and build all other parts in
code, whatever tokenizer.json contains. Such a class is therefore named only if each part that it builds equals
this tokenizer's; otherwise PreTrainedTokenizerFast is named, which loads tokenizer.json unchanged.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import tokenizers

from bertsmith.tokenizer.byte_level_bpe import build_byte_level_bpe
from bertsmith.tokenizer.post_processor import PostProcessor
from bertsmith.tokenizer.unigram import ALBERT_SPECIAL_TOKENS, SentencePieceModel, build_unigram
from bertsmith.tokenizer.wordpiece import bert_normalizer, bert_pre_tokenizer, build_wordpiece

Options = dict[str, Any]
"""Entries of tokenizer_config.json."""
Candidate = tuple[Options, tokenizers.Tokenizer] | None
"""A class with its options, and the tokenizer that it builds; None if it certainly builds another tokenizer."""


def tokenizer_class_options(definition: Mapping[str, Any], special_tokens: Mapping[str, str]) -> Options:
    """Return `tokenizer_class` and its options for tokenizer_config.json.

    Args:
        definition: A tokenizer.json as the tokenizers library writes it.
        special_tokens: Special tokens by role.
    """
    vocab = definition["model"]["vocab"]
    if dict(vocab).keys() >= {*special_tokens.values()}:
        build_candidate = {
            "WordPiece": _bert_candidate,
            "BPE": _roberta_or_gpt2_candidate,
            "Unigram": _albert_candidate,
        }[definition["model"]["type"]]
        candidate = build_candidate(definition, special_tokens)
        if candidate is not None:
            options, backend = candidate
            if _comparable_parts(json.loads(backend.to_str())) == _comparable_parts(definition):
                return {**options, **_input_names(definition)}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **_input_names(definition),
        **_google_options(definition),
    }


def _input_names(definition: Mapping[str, Any]) -> Options:
    """Return the option that makes the class return `token_type_ids`, if the second text of a pair has id 1.

    Of the classes, only BertTokenizer returns them by default. Without them, a model uses 0 for both texts.
    """
    if not PostProcessor.from_definition(definition).uses_segments:
        return {}
    return {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}


def _bert_candidate(definition: Mapping[str, Any], special_tokens: Mapping[str, str]) -> Candidate:
    vocabulary, normalizer = definition["model"]["vocab"], definition["normalizer"] or {}
    if normalizer.get("type") != "BertNormalizer":
        return None
    lowercase, handle_chinese_chars = bool(normalizer["lowercase"]), bool(normalizer["handle_chinese_chars"])
    strip_accents = normalizer["strip_accents"]
    backend = build_wordpiece(
        sorted(vocabulary, key=vocabulary.__getitem__),
        lowercase=lowercase,
        special_tokens=special_tokens,
        handle_chinese_chars=handle_chinese_chars,
        strip_accents=strip_accents,
    )
    options = {
        "do_lower_case": lowercase,
        "strip_accents": strip_accents,
        "tokenize_chinese_chars": handle_chinese_chars,
    }
    return {"tokenizer_class": "BertTokenizer", **options}, backend


def _roberta_or_gpt2_candidate(definition: Mapping[str, Any], special_tokens: Mapping[str, str]) -> Candidate:
    model, pre_tokenizer = definition["model"], definition["pre_tokenizer"]
    if pre_tokenizer["type"] != "ByteLevel":
        return None
    add_prefix_space = bool(pre_tokenizer["add_prefix_space"])
    backend = build_byte_level_bpe(
        model["vocab"], model["merges"], special_tokens=special_tokens, add_prefix_space=add_prefix_space
    )
    name = "RobertaTokenizer" if "cls" in special_tokens else "GPT2Tokenizer"
    return {"tokenizer_class": name, "add_prefix_space": add_prefix_space}, backend


def _albert_candidate(definition: Mapping[str, Any], special_tokens: Mapping[str, str]) -> Candidate:
    if special_tokens != ALBERT_SPECIAL_TOKENS or (definition["normalizer"] or {}).get("type") != "Sequence":
        return None  # AlbertTokenizer hard-codes two of the special tokens.
    steps = {step["type"]: step for step in definition["normalizer"]["normalizers"]}
    lowercase, keep_accents = "Lowercase" in steps, "NFKD" not in steps
    charsmap = steps.get("Precompiled", {}).get("precompiled_charsmap", "")
    pieces = [(piece, score) for piece, score in definition["model"]["vocab"]]
    backend = build_unigram(
        SentencePieceModel(pieces, unk_id=1, precompiled_charsmap=base64.b64decode(charsmap)),
        lowercase=lowercase,
        keep_accents=keep_accents,
        special_tokens=special_tokens,
    )
    options = {"do_lower_case": lowercase, "keep_accents": keep_accents}
    return {"tokenizer_class": "AlbertTokenizer", **options}, backend


def _comparable_parts(definition: Mapping[str, Any]) -> list[Any]:
    """Return all parts of a tokenizer except its vocabulary, in a form that can be compared."""
    # In the model, null and "" mean the same.
    model = {
        name: part or None for name, part in definition["model"].items() if name not in ("vocab", "merges")
    }
    added_tokens = [dict(token) for token in definition["added_tokens"]]
    if not definition["normalizer"]:  # The flag has no effect without a normalizer.
        for token in added_tokens:
            token.pop("normalized")
    return [
        model,
        added_tokens,
        *(definition[name] for name in ("normalizer", "pre_tokenizer", "decoder")),
        PostProcessor.from_definition(definition),
        bool((definition["post_processor"] or {}).get("trim_offsets")),
    ]


def _google_options(definition: Mapping[str, Any]) -> Options:
    """Return the options with which bertsmith loads the `google` variant from vocab.txt, if it is that."""
    for lowercase in (True, False):
        for handle_chinese_chars in (True, False):
            backend = tokenizers.Tokenizer(tokenizers.models.WordPiece())
            backend.normalizer = bert_normalizer(lowercase, handle_chinese_chars, variant="google")
            backend.pre_tokenizer = bert_pre_tokenizer(handle_chinese_chars, "google")
            google = json.loads(backend.to_str())
            if all(google[name] == definition[name] for name in ("normalizer", "pre_tokenizer")):
                options = {"do_lower_case": lowercase, "tokenize_chinese_chars": handle_chinese_chars}
                return {"bertsmith_normalizer": "google", **options}
    return {}
