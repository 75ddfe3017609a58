"""Exact and near duplicates are found, for any grouping into calls, in bounded memory."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus import deduplication, hashing
from bertsmith.corpus.deduplication import DuplicateIndex, LocationTable, minhash_signatures

WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "nrstlm"]
TEXTS = st.lists(st.text(alphabet="ab ñ你。\n", max_size=12), max_size=8)


def random_words(count: int, seed: int) -> list[str]:
    """Return words drawn at random."""
    return random.Random(seed).choices(WORDS, k=count)


def jaccard(a: list[str], b: list[str], n: int = deduplication.SHINGLE_WORDS) -> float:
    """Return the Jaccard similarity of the word n-grams, counted one by one."""
    first, second = ({tuple(words[i : i + n]) for i in range(len(words) - n + 1)} for words in (a, b))
    return len(first & second) / len(first | second)


def replace_words(words: list[str], count: int, seed: int) -> list[str]:
    """Return the words with `count` of them replaced."""
    rng = random.Random(seed)
    new = list(words)
    for i in rng.sample(range(len(words)), count):
        new[i] = "zzz" + rng.choice(WORDS)
    return new


def find_duplicate(index: DuplicateIndex, text: str, location: str) -> str | None:
    """Return the location of the earlier document that this one repeats."""
    return index.find_duplicates([text], [location])[0]


def test_exact_duplicates_have_the_location_of_the_first() -> None:
    index = DuplicateIndex("exact")
    texts = ["one two", "three", "one two", " one two\n", "One two", "three"]
    locations = [find_duplicate(index, text, f"a.txt:{i + 1}") for i, text in enumerate(texts)]
    assert locations == [None, None, "a.txt:1", "a.txt:1", None, "a.txt:2"]
    assert len(index._locations) == 3


def test_near_duplicates_are_found_and_others_are_not() -> None:
    """Similarities differ from the threshold by more than four standard deviations of the estimate."""
    index = DuplicateIndex("near", 0.8)
    for i in range(60):
        words = random_words(400, i)
        like, unlike = replace_words(words, 3, 1000 + i), replace_words(words, 32, 2000 + i)
        assert jaccard(words, like) > 0.91
        assert jaccard(words, unlike) < 0.6
        assert find_duplicate(index, " ".join(words), f"first:{i + 1}") is None
        assert find_duplicate(index, " ".join(like), f"like:{i + 1}") == f"first:{i + 1}"
        assert find_duplicate(index, " ".join(unlike), f"unlike:{i + 1}") is None


def test_case_and_punctuation_are_ignored() -> None:
    index = DuplicateIndex("near")
    assert find_duplicate(index, "The cat sat on the mat; it purred.", "a:1") is None
    assert find_duplicate(index, "the CAT sat, on the mat - it purred!", "a:2") == "a:1"
    assert find_duplicate(index, "The dog lay on a rug and it barked.", "a:3") is None


def test_chinese_is_compared_by_characters() -> None:
    index = DuplicateIndex("near")
    rng = random.Random(1)
    text = "".join(chr(rng.randrange(0x4E00, 0x9F00)) for _ in range(300))
    assert find_duplicate(index, text, "a:1") is None
    assert find_duplicate(index, text[:150] + "人" + text[151:], "a:2") == "a:1"
    assert find_duplicate(index, text[:100] + text[200:] + text[100:200][::-1], "a:3") is None


def test_texts_without_a_word_equal_only_themselves() -> None:
    index = DuplicateIndex("near")
    assert [find_duplicate(index, text, f"a:{i}") for i, text in enumerate(["", "…", "--", "…"], start=1)] == [
        None, None, None, "a:2",
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["exact", "near"])
@given(texts=TEXTS, cuts=st.lists(st.integers(0, 8), max_size=3))
def test_grouping_into_calls_does_not_change_results(method: str, texts: list[str], cuts: list[int]) -> None:
    locations = [f"a:{i + 1}" for i in range(len(texts))]
    single, grouped_index = DuplicateIndex(method), DuplicateIndex(method)  # type: ignore[arg-type]
    expected = [
        find_duplicate(single, text, location) for text, location in zip(texts, locations, strict=True)
    ]
    borders = sorted({0, len(texts), *(min(cut, len(texts)) for cut in cuts)})
    grouped = [
        location
        for start, end in pairwise(borders)
        for location in grouped_index.find_duplicates(texts[start:end], locations[start:end])
    ]
    assert grouped == expected


@given(texts=TEXTS)
def test_exact_duplicates_equal_those_of_a_dictionary(texts: list[str]) -> None:
    index, locations, expected = DuplicateIndex("exact"), {}, []
    for i, text in enumerate(texts, start=1):
        expected.append(locations.get(text.strip()))
        locations.setdefault(text.strip(), f"a:{i}")
    assert index.find_duplicates(texts, [f"a:{i + 1}" for i in range(len(texts))]) == expected


@pytest.mark.parametrize("method", ["exact", "near"])
def test_recent_keys_survive_the_move_to_the_sorted_map(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join(random_words(30, i % 250)) for i in range(400)]
    locations = [f"a:{i + 1}" for i in range(400)]
    expected = DuplicateIndex(method).find_duplicates(texts, locations)  # type: ignore[arg-type]
    monkeypatch.setattr(deduplication, "_MAX_RECENT_KEYS", 100)
    small = DuplicateIndex(method)  # type: ignore[arg-type]
    assert [
        find_duplicate(small, text, location) for text, location in zip(texts, locations, strict=True)
    ] == expected
    assert expected[250:] == locations[:150]
    assert expected[:250] == [None] * 250


def test_documents_beyond_the_capacity_are_compared_and_counted() -> None:
    index = DuplicateIndex("near", capacity=2)
    texts = [" ".join(random_words(50, i)) for i in range(4)]
    assert [find_duplicate(index, text, f"a:{i}") for i, text in enumerate(texts, start=1)] == [None] * 4
    assert (len(index._locations), index.num_not_indexed) == (2, 2)
    assert find_duplicate(index, texts[1], "b:1") == "a:2"
    assert find_duplicate(index, texts[3], "b:2") is None


def test_minhash_estimates_the_jaccard_similarity() -> None:
    words = random_words(1000, 5)
    others = [replace_words(words, n, n) for n in (1, 20, 60, 200)]
    signatures = minhash_signatures([" ".join(text) for text in (words, *others)])
    for signature, other in zip(signatures[1:], others, strict=True):
        estimate = float((signature == signatures[0]).mean())
        assert estimate == pytest.approx(jaccard(words, other), abs=0.11)


def test_the_signature_of_a_long_text_is_the_minimum_over_its_parts() -> None:
    """Windows cut it at a space; only the n-grams across a cut are lost."""
    text = " ".join(random_words(5000, 7))
    parts = list(hashing.windows([text], limit=4000))
    assert len(parts) > 3
    assert "".join(part for _, [part], _ in parts) == text
    assert all(text[offset : offset + len(part)] == part for _, [part], offset in parts)
    signature = minhash_signatures([text])[0]
    joined = np.min([minhash_signatures([part])[0] for _, [part], _ in parts], axis=0)
    assert float((signature == joined).mean()) > 0.98


def test_packed_locations_are_restored() -> None:
    names = ["a.txt:1", "a.txt:99999999999", "b:c:7", "no number", "a:0", "a:007", "a:x", ":5", "é\n.txt:3"]
    table = LocationTable()
    assert [table[table.add(name)] for name in names] == names


@given(st.lists(st.text(alphabet="abAB 你Éé.\n-", max_size=20), max_size=5))
def test_word_hashes_identify_lower_cased_words(texts: list[str]) -> None:
    """Two words have the same hash if and only if they are the same word."""
    import re

    expected = [re.findall(r"你|[abé]+", text.lower()) for text in texts]
    hashed = hashing.hash_words(*hashing.code_points(texts))
    assert np.diff(hashed.offsets).tolist() == [len(words) for words in expected]
    flat = [word for words in expected for word in words]
    assert len(dict(zip(flat, hashed.hashes.tolist(), strict=True))) == len(set(hashed.hashes.tolist()))
    assert len(set(zip(flat, hashed.hashes.tolist(), strict=True))) == len(set(flat))


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=9), max_size=4), st.integers(1, 4))
def test_ngram_hashes_identify_ngrams(texts: list[list[str]], n: int) -> None:
    hashed = hashing.hash_words(*hashing.code_points([" ".join(words) for words in texts]))
    hashes, _, offsets = hashing.ngram_hashes(hashed, n)
    expected = [
        [tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))] if words else []
        for words in texts
    ]
    assert np.diff(offsets).tolist() == [len(ngrams) for ngrams in expected]
    flat = [ngram for ngrams in expected for ngram in ngrams]
    assert len(set(zip(flat, hashes.tolist(), strict=True))) == len(set(flat)) == len(set(hashes.tolist()))
