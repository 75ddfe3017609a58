"""BERT's normalizer in both variants against the original's rules for all of Unicode, and the pinned classes."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from bert_basic_tokenizer import words_of
from bertsmith.tokenizer import unicode_classes
from bertsmith.tokenizer.wordpiece import bert_normalizer, bert_pre_tokenizer

pytestmark = pytest.mark.skipif(
    unicodedata.unidata_version != unicode_classes.UNICODE_VERSION,
    reason="the rules are transcribed with Python's own tables",
)
SCALARS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
# Assigned characters except most letters without case, and one of 97 of the others.
SAMPLE = [c for c in SCALARS if unicodedata.category(c) not in ("Cn", "Co", "Lo") or ord(c) % 97 == 0]


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def google(request: pytest.FixtureRequest) -> tuple[bool, Callable[[str], list[str]]]:
    normalizer = bert_normalizer(request.param, variant="google")
    pre_tokenizer = bert_pre_tokenizer(variant="google")
    return request.param, lambda text: [
        word for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))
    ]


def find_differences(
    google: tuple[bool, Callable[[str], list[str]]], characters: list[str], before: str, after: str
) -> list[str]:
    """Return the characters that differ from the rules; line ends separate many in one text."""
    lowercase, words = google
    characters_that_differ = []
    for start in range(0, len(characters), 1000):
        block = characters[start : start + 1000]
        text = "\n".join(before + c + after for c in block)
        if words(text) != words_of(text, lowercase=lowercase):
            texts = [(c, before + c + after) for c in block]
            characters_that_differ += [
                c for c, text in texts if words(text) != words_of(text, lowercase=lowercase)
            ]
    return characters_that_differ


CONTEXTS = [("", ""), ("a", "b"), ("A", "Σ"), ("AΣ", "b"), ("Σ", "")]


@pytest.mark.parametrize(("before", "after"), CONTEXTS)
def test_a_sample_of_unicode_follows_the_rules(
    google: tuple[bool, Callable[[str], list[str]]], before: str, after: str
) -> None:
    assert find_differences(google, SAMPLE[::7], before, after) == []


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), CONTEXTS)
def test_all_of_unicode_follows_the_rules(
    google: tuple[bool, Callable[[str], list[str]]], before: str, after: str
) -> None:
    assert find_differences(google, SCALARS, before, after) == []


@given(st.text())
def test_any_text_follows_the_rules(google: tuple[bool, Callable[[str], list[str]]], text: str) -> None:
    lowercase, words = google
    assert words(text) == words_of(text, lowercase=lowercase)


@given(st.text(alphabet="AaΣσς.'\u0301İ中 -\u00ad\u2028\u11938\U00011938\U0002b825"))
def test_sigma_and_its_neighbours_follow_the_rules(
    google: tuple[bool, Callable[[str], list[str]]], text: str
) -> None:
    lowercase, words = google
    assert words(text) == words_of(text, lowercase=lowercase)


@pytest.mark.parametrize(
    ("text", "hf", "google"),
    [
        ("ΟΔΟΣ", ["οδοσ"], ["οδος"]),
        ("a\U0002b825b", ["a\U0002b825b"], ["a", "\U0002b825", "b"]),
        ("a\ue000b", ["ab"], ["a\ue000b"]),
        ("Déjà-vu 中国", ["deja", "-", "vu", "中", "国"], ["deja", "-", "vu", "中", "国"]),
    ],
)
def test_variants_differ(text: str, hf: list[str], google: list[str]) -> None:
    for variant, expected in (("hf", hf), ("google", google)):
        normalizer = bert_normalizer(True, variant=variant)  # type: ignore[arg-type]
        pre_tokenizer = bert_pre_tokenizer(variant=variant)  # type: ignore[arg-type]
        assert [w for w, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))] == expected
    assert words_of(text, lowercase=True) == google


def test_ideographs_are_not_isolated_without_handle_chinese_chars() -> None:
    assert [
        w
        for w, _ in bert_pre_tokenizer(handle_chinese_chars=False, variant="google").pre_tokenize_str("中国!")
    ] == ["中国", "!"]


def test_steps_are_the_librarys() -> None:
    assert isinstance(bert_normalizer(True, variant="google"), normalizers.Sequence)
    assert isinstance(bert_pre_tokenizer(variant="google"), pre_tokenizers.Sequence)
    assert isinstance(bert_normalizer(True), normalizers.BertNormalizer)


def test_classes_equal_their_unicode_version() -> None:
    category = {c: unicodedata.category(c) for c in SCALARS}

    def is_cased(c: str) -> bool:
        return (c + "Σ").lower().endswith("ς")

    assert unicode_classes.expand(unicode_classes.MARKS) == {c for c in SCALARS if category[c] == "Mn"}
    controls = {c for c in SCALARS if category[c] in ("Cc", "Cf") and c not in "\t\n\r"}
    assert unicode_classes.expand(unicode_classes.CONTROLS) == controls
    whitespace = {c for c in SCALARS if category[c] == "Zs" or c in "\t\n\r\u2028\u2029"}
    assert unicode_classes.expand(unicode_classes.WHITESPACE) == whitespace
    punctuation = {c for c in SCALARS if category[c][0] == "P" and c > "\x7f"}
    assert unicode_classes.expand(unicode_classes.PUNCTUATION) == punctuation
    assert unicode_classes.expand(unicode_classes.CASED) == {c for c in SCALARS if is_cased(c)}
    ignorable = {c for c in SCALARS if not is_cased(c) and ("A" + c + "Σ").lower().endswith("ς")}
    assert unicode_classes.expand(unicode_classes.IGNORABLE) == ignorable
