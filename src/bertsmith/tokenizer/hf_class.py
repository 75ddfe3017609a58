"""Which class of the reference library builds the same tokenizer, for tokenizer_config.json.

Its classes of a kind take the vocabulary from the files and build every other part anew, whatever tokenizer.json
says; so a class is named only where what it builds is this tokenizer, part by part. Else the class is the one that
takes tokenizer.json as it is.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import tokenizers

from bertsmith.tokenizer import byte_level_bpe, unigram
from bertsmith.tokenizer.normalizer import bert_borders, bert_normalizer
from bertsmith.tokenizer.post_processor import SequenceLayout
from bertsmith.tokenizer.wordpiece import wordpiece

_PLACE = "tokenizer.json"
Options = dict[str, Any]


def class_of(definition: Mapping[str, Any], specials: Mapping[str, str]) -> Options:
    """`tokenizer_class` and its options, for a tokenizer.json as the library writes it and its special tokens by
    role."""
    known = definition["model"]["vocab"]
    if {*specials.values()} <= {token if isinstance(token, str) else token[0] for token in known}:
        build = {"WordPiece": _bert, "BPE": _roberta_or_gpt2, "Unigram": _albert}[definition["model"]["type"]]
        candidate = build(definition, specials)
        if candidate is not None and _parts(json.loads(candidate[1].to_str())) == _parts(definition):
            return {**candidate[0], **_inputs(definition)}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **_inputs(definition), **_google(definition)}


def _inputs(definition: Mapping[str, Any]) -> Options:
    """Segments among what the class returns, where pairs have them: only BertTokenizer does so by itself, and a
    model that is not given them takes 0 for both texts."""
    if not SequenceLayout.of(definition, 1 << 32, _PLACE).uses_segments:
        return {}
    return {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}


Candidate = tuple[Options, tokenizers.Tokenizer] | None
"""The class and its options, and what it builds; None where it can be seen beforehand that it builds another."""


def _bert(definition: Mapping[str, Any], specials: Mapping[str, str]) -> Candidate:
    vocabulary, normalizer = definition["model"]["vocab"], definition["normalizer"] or {}
    if normalizer.get("type") != "BertNormalizer":
        return None
    lower, chinese = bool(normalizer["lowercase"]), bool(normalizer["handle_chinese_chars"])
    accents = normalizer["strip_accents"]
    built = wordpiece(
        sorted(vocabulary, key=vocabulary.__getitem__),
        lowercase=lower,
        specials=specials,
        place=_PLACE,
        chinese=chinese,
        strip_accents=accents,
    )
    options = {"do_lower_case": lower, "strip_accents": accents, "tokenize_chinese_chars": chinese}
    return {"tokenizer_class": "BertTokenizer", **options}, built


def _roberta_or_gpt2(definition: Mapping[str, Any], specials: Mapping[str, str]) -> Candidate:
    model, before = definition["model"], definition["pre_tokenizer"]
    if before["type"] != "ByteLevel":
        return None
    blank = bool(before["add_prefix_space"])
    built = byte_level_bpe.byte_level(
        model["vocab"], [tuple(pair) for pair in model["merges"]], specials=specials, add_prefix_space=blank
    )
    name = "RobertaTokenizer" if "cls" in specials else "GPT2Tokenizer"
    return {"tokenizer_class": name, "add_prefix_space": blank}, built


def _albert(definition: Mapping[str, Any], specials: Mapping[str, str]) -> Candidate:
    if specials != unigram.ALBERT or (definition["normalizer"] or {}).get("type") != "Sequence":
        return None  # two of the names are in the class's program
    steps = {step["type"]: step for step in definition["normalizer"]["normalizers"]}
    lower, keep = "Lowercase" in steps, "NFKD" not in steps
    table = steps.get("Precompiled", {}).get("precompiled_charsmap", "")
    built = unigram.unigram(
        [(piece, score) for piece, score in definition["model"]["vocab"]],
        unknown=1,
        lowercase=lower,
        specials=specials,
        keep_accents=keep,
        replacements=base64.b64decode(table),
        place=_PLACE,
    )
    return {"tokenizer_class": "AlbertTokenizer", "do_lower_case": lower, "keep_accents": keep}, built


def _parts(definition: Mapping[str, Any]) -> list[Any]:
    """All of a tokenizer but its vocabulary, in a form that can be compared."""
    model = {
        name: part or None for name, part in definition["model"].items() if name not in ("vocab", "merges")
    }
    added = [dict(token) for token in definition["added_tokens"]]
    if not definition["normalizer"]:  # nothing to look for before or behind it
        for token in added:
            token.pop("normalized")
    return [
        model,
        added,
        *(definition[name] for name in ("normalizer", "pre_tokenizer", "decoder")),
        SequenceLayout.of(definition, 1 << 32, _PLACE),
        bool((definition["post_processor"] or {}).get("trim_offsets")),
    ]


def _google(definition: Mapping[str, Any]) -> Options:
    """What lets our own reader build the `google` reading from vocab.txt alone."""
    found = {name: definition[name] for name in ("normalizer", "pre_tokenizer")}
    for lower in (True, False):
        for chinese in (True, False):
            library = tokenizers.Tokenizer(tokenizers.models.WordPiece())
            library.normalizer = bert_normalizer(lower, chinese, reading="google")
            library.pre_tokenizer = bert_borders(chinese, "google")
            whole = json.loads(library.to_str())
            if all(whole[name] == part for name, part in found.items()):
                options = {"do_lower_case": lower, "tokenize_chinese_chars": chinese}
                return {"bertsmith_normalizer": "google", **options}
    return {}
