"""The tokenizer: ids equal to those of transformers (the reference), offsets, truncation, tokenizer files."""

from __future__ import annotations

import json
import pickle
import re
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny_run
from bertsmith.errors import InputError
from bertsmith.tokenizer.tokenizer import Tokenizer

WORDS = [
    *("the", "cat", "sat", "on", "mat", "##s", "##ing", "un", "##able", "hello", "world", ",", ".", "!", "?"),
    *("[", "]", "mask", "sep", "中", "国", "caf", "##e", "cafe", "a", "b", "c", "d", "e"),
]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer.from_vocabulary(TOKENS, lowercase=True, max_length=16)


def spell(tokenizer: Tokenizer, ids: list[int]) -> str:
    return " ".join(tokenizer.tokens[i] for i in ids)


def test_text_and_pair(small: Tokenizer) -> None:
    single = small.encode("Hello, cats")
    assert spell(small, single.ids) == "[CLS] hello , cat ##s [SEP]"
    assert single.type_ids == [0] * 6
    assert single.offsets == [(0, 0), (0, 5), (5, 6), (7, 10), (10, 11), (0, 0)]
    assert single.sequence_ids == [None, 0, 0, 0, 0, None]
    assert single.word_ids == [None, 0, 1, 2, 2, None]
    pair = small.encode("cats", "the mat!")
    assert spell(small, pair.ids) == "[CLS] cat ##s [SEP] the mat ! [SEP]"
    assert pair.type_ids == [0, 0, 0, 0, 1, 1, 1, 1]
    assert pair.sequence_ids == [None, 0, 0, None, 1, 1, 1, None]
    assert pair.word_ids == [None, 0, 0, None, 0, 1, 2, None]
    assert pair.num_truncated == 0


@pytest.mark.parametrize(
    ("vocabulary", "pieces"),
    [(["run", "##ning"], "run ##ning"), (["run", "##ning", "running"], "running"), (["run"], "[UNK]")],
)
def test_the_vocabulary_decides_how_running_is_split(vocabulary: list[str], pieces: str) -> None:
    """S3: the longest piece first; a word of which a part has no piece is unknown as a whole."""
    tokenizer = Tokenizer.from_vocabulary([*TOKENS[:5], *vocabulary], lowercase=True)
    assert spell(tokenizer, tokenizer.encode("running").ids) == f"[CLS] {pieces} [SEP]"


def test_segments_of_dogs_and_cats_and_of_a_sentence_in_two_parts() -> None:
    """S6: segment 0 ends with the first [SEP]; the last [SEP] is never missing."""
    words = ["i", "like", "dogs", "cats", "and", "the", "cat", "sat", "on", "mat"]
    tokenizer = Tokenizer.from_vocabulary([*TOKENS[:5], *words], lowercase=True)
    pair = tokenizer.encode("I like dogs", "I like cats")
    assert spell(tokenizer, pair.ids) == "[CLS] i like dogs [SEP] i like cats [SEP]"
    assert pair.type_ids == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    single = tokenizer.encode("I like dogs and cats")
    assert spell(tokenizer, single.ids) == "[CLS] i like dogs and cats [SEP]"
    assert single.type_ids == [0] * 7
    parts = tokenizer.encode("the cat sat", "on the mat")
    assert spell(tokenizer, parts.ids) == "[CLS] the cat sat [SEP] on the mat [SEP]"
    assert parts.type_ids == [0] * 5 + [1] * 4


@given(
    texts=st.lists(st.tuples(st.text(), st.text()), max_size=5),
    paired=st.booleans(),
    special_strings=st.sampled_from(["text", "parse", "mask"]),
    max_length=st.integers(6, 20),
)
def test_without_offsets_the_rest_is_equal(
    texts: list[tuple[str, str]], paired: bool, special_strings: Any, max_length: int
) -> None:
    tokenizer = Tokenizer.from_vocabulary(TOKENS, lowercase=True, max_length=16)
    firsts, seconds = [a for a, _ in texts], [b for _, b in texts] if paired else None
    options = {"max_length": max_length, "special_strings": special_strings}
    with_offsets = tokenizer.encode_batch(firsts, seconds, **options)
    assert tokenizer.encode_batch(firsts, seconds, with_offsets=False, **options) == [
        replace(encoding, offsets=[], word_ids=[]) for encoding in with_offsets
    ]


def test_empty_texts(small: Tokenizer) -> None:
    assert spell(small, small.encode("").ids) == "[CLS] [SEP]"
    assert spell(small, small.encode("", "").ids) == "[CLS] [SEP] [SEP]"
    assert small.encode_batch([]) == []


def test_special_strings_stay_text_unless_parsed(small: Tokenizer) -> None:
    text = "the [MASK] sat [SEP]"
    assert spell(small, small.encode(text).ids) == "[CLS] the [ mask ] sat [ sep ] [SEP]"
    parsed = small.encode(text, special_strings="parse")
    assert spell(small, parsed.ids) == "[CLS] the [MASK] sat [SEP] [SEP]"
    assert spell(small, small.encode(text).ids) == "[CLS] the [ mask ] sat [ sep ] [SEP]"


def test_parsed_special_strings_may_be_doubled(small: Tokenizer) -> None:
    encoding = small.encode("[CLS] the cat [SEP]", special_strings="parse")
    assert spell(small, encoding.ids) == "[CLS] [CLS] the cat [SEP] [SEP]"


def test_threads_may_parse_special_strings_or_not(small: Tokenizer) -> None:
    with ThreadPoolExecutor(4) as pool:
        modes = ["text", "parse"] * 200
        ids = list(pool.map(lambda mode: small.encode("a [MASK] b", special_strings=mode).ids, modes))  # type: ignore[arg-type]
    assert {tuple(x) for x in ids[::2]} == {tuple(small.encode("a [MASK] b").ids)}
    assert {tuple(x) for x in ids[1::2]} == {tuple(small.encode("a [MASK] b", special_strings="parse").ids)}


def test_properties(small: Tokenizer) -> None:
    assert small.vocab_size == len(TOKENS)
    assert small.tokens == TOKENS
    assert (
        small.pad_token_id,
        small.unk_token_id,
        small.cls_token_id,
        small.sep_token_id,
        small.mask_token_id,
    ) == (0, 1, 2, 3, 4)
    assert small.all_special_ids == {0, 1, 2, 3, 4}
    assert small.mask_token == "[MASK]"
    assert small.lowercase
    starts = small.word_starts(np.arange(len(TOKENS)))
    assert starts.dtype == np.bool_
    assert [TOKENS[i] for i in np.flatnonzero(~starts)] == ["##s", "##ing", "##able", "##e"]
    assert small.decode(small.encode("Hello, cats!").ids) == "hello, cats!"
    assert small.decode([2, 4], keep_special_tokens=True) == "[CLS] [MASK]"


@pytest.mark.parametrize(
    ("truncation", "spelling"),
    [
        ("longest_first", "[CLS] a b c [SEP] the cat sat on [SEP]"),
        ("only_second", "[CLS] a b c d [SEP] the cat sat [SEP]"),
    ],
)
def test_truncation(small: Tokenizer, truncation: Any, spelling: str) -> None:
    encoding = small.encode("a b c d", "the cat sat on the mat", max_length=10, truncation=truncation)
    assert spell(small, encoding.ids) == spelling
    assert encoding.num_truncated == 3


def test_texts_that_cannot_be_truncated(small: Tokenizer) -> None:
    assert small.encode("a b c d", max_length=6, truncation="none").num_truncated == 0
    with pytest.raises(InputError) as caught:
        small.encode("a b c d", max_length=5, truncation="none")
    assert caught.value.code == "text_too_long"
    assert {"6", "5"} <= set(re.findall(r"\d+", caught.value.message))
    with pytest.raises(InputError) as caught:
        small.encode("a " * 16, truncation="none")
    assert caught.value.code == "text_too_long"
    assert {"18", "16"} <= set(re.findall(r"\d+", caught.value.message))
    with pytest.raises(InputError) as caught:
        small.encode("a b c d", "a", max_length=6, truncation="only_second")
    assert caught.value.code == "other_text_too_long"
    with pytest.raises(InputError) as caught:
        small.encode("a", max_length=1)
    assert (caught.value.code, caught.value.argument) == ("max_length_too_small", "max_length")


@pytest.mark.parametrize("with_offsets", [True, False])
def test_lone_surrogate(small: Tokenizer, with_offsets: bool) -> None:
    with pytest.raises(InputError) as caught:
        small.encode_batch(["a", "b \ud800"], with_offsets=with_offsets)
    assert (caught.value.code, caught.value.location) == ("lone_surrogate", "text 2")


def test_digest(small: Tokenizer, tmp_path: Path) -> None:
    small.save(tmp_path)
    assert Tokenizer.load(tmp_path).digest == small.digest
    assert Tokenizer.load(tmp_path / "vocab.txt").digest == small.digest
    assert Tokenizer.from_vocabulary(TOKENS, lowercase=False).digest != small.digest
    assert Tokenizer.from_vocabulary([*TOKENS, "x"], lowercase=True).digest != small.digest


def test_special_strings_stay_text_after_pickling(small: Tokenizer) -> None:
    loaded = pickle.loads(pickle.dumps(small))
    assert loaded.encode("a [MASK]") == small.encode("a [MASK]")
    assert loaded.digest == small.digest


def test_vocab_txt_is_uncased_by_default(small: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text("\r\n".join(TOKENS) + "\r\n")
    assert Tokenizer.load(file).lowercase
    assert not Tokenizer.load(file, lowercase=False).lowercase
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "model_max_length": 64}')
    cased = Tokenizer.load(tmp_path)
    assert not cased.lowercase
    assert cased.max_length == 64
    assert cased.tokens == TOKENS


@pytest.mark.parametrize(
    ("name", "content", "line", "code"),
    [
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", "", "special_token_missing"),
        ("vocab.txt", "Once upon a time\nthere was a text.\n", "", "special_token_missing"),
        ("tokenizer.json", '{"version": "1.0", "model": {"type": "Wor', "", "invalid_json"),
        ("tokenizer.json", "[]", "", "not_a_json_object"),
        ("tokenizer.json", '{"model": {"type": "BPE"}}', "", "tokenizers_library_error"),
        ("tokenizer.json", '{"model": {"type": "WordPiece"}}', "", "tokenizers_library_error"),
    ],
)
def test_invalid_files(tmp_path: Path, name: str, content: str, line: str, code: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    for path in (file, tmp_path):
        with pytest.raises(InputError) as caught:
            Tokenizer.load(path)
        assert (caught.value.code, caught.value.location) == (code, f"{file}{line}")


def test_blank_and_repeated_lines_keep_the_ids_of_transformers(
    small: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "the cat sat on the mat"
    small.save(tmp_path)
    lines = ["", *TOKENS[:9], "", "cat", *TOKENS[9:], "cat", "", ""]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(lines))
    tokenizer = Tokenizer.load(tmp_path)
    assert len(caplog.records) == 1
    expected = [len(lines) - 1 - lines[::-1].index(token) for token in small.encode(text).tokens]
    assert tokenizer.encode(text).ids == expected
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").encode(text).ids == expected


def test_files_with_a_byte_order_mark_are_read(small: Tokenizer, tmp_path: Path) -> None:
    small.save(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (tmp_path / name).read_bytes())
    assert Tokenizer.load(tmp_path).digest == small.digest
    assert Tokenizer.load(tmp_path / "vocab.txt", lowercase=small.lowercase).digest == small.digest


def test_an_edited_vocabulary_beside_tokenizer_json_is_reported(
    small: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small.save(tmp_path)
    assert len(Tokenizer.load(tmp_path)) == len(small)
    assert not caplog.records
    for edited in ([*TOKENS[:-1], "dog"], TOKENS[:-1], [*TOKENS, "dog"]):
        (tmp_path / "vocab.txt").write_text("\n".join(edited))
        caplog.clear()
        Tokenizer.load(tmp_path)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "remove tokenizer.json" in caplog.text
    (tmp_path / "tokenizer.json").unlink()
    assert Tokenizer.load(tmp_path).encode("dog").ids[1:-1] == [len(TOKENS)]


@pytest.mark.parametrize("pattern", ["(a+)+$", "("])
def test_a_pattern_that_fails_is_an_error(small: Tokenizer, tmp_path: Path, pattern: str) -> None:
    small.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    file.write_text(json.dumps({**content, "pre_tokenizer": split}))
    for encode in (lambda tokenizer, text: tokenizer.encode(text), lambda t, text: t.encode_ids([text])):
        with pytest.raises(InputError) as caught:
            encode(Tokenizer.load(tmp_path), "a" * 40 + "b")
        assert caught.value.code == "tokenizers_library_error"
        assert str(caught.value.location).startswith(str(tmp_path))


def test_damaged_and_missing_files(small: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(InputError) as caught:
        Tokenizer.load(tmp_path)
    assert (caught.value.code, caught.value.location) == ("tokenizer_file_missing", str(tmp_path))
    small.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(InputError) as caught:
        Tokenizer.load(tmp_path)
    assert (caught.value.code, caught.value.location) == ("invalid_json", str(file))
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(InputError) as caught:
        Tokenizer.load(tmp_path / "vocab.txt")
    assert str(caught.value).startswith(f"{tmp_path / 'vocab.txt'}:2:1: ")


# --- against the reference ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["uncased", "cased", "chinese"])
def published(request: pytest.FixtureRequest, shared_data: Path) -> tuple[Tokenizer, Any]:
    """Return a published vocabulary in our tokenizer and in the reference's."""
    reference = pytest.importorskip("transformers").BertTokenizerFast
    file = shared_data / f"vocabs/bert-base-{request.param}/vocab.txt"
    lowercase = request.param != "cased"
    return Tokenizer.load(file, lowercase=lowercase), reference(vocab=str(file), do_lower_case=lowercase)


def reference_ids(reference: Any, texts: list[str], specials: str) -> Any:
    return reference(texts, split_special_tokens=specials == "text")["input_ids"]


@pytest.mark.parametrize("specials", ["text", "parse"])
@pytest.mark.parametrize("sample", ["english", "chinese", "mixed"])
def test_ids_equal_the_reference(
    published: tuple[Tokenizer, Any], shared_data: Path, sample: str, specials: Any
) -> None:
    ours, reference = published
    text = (shared_data / f"corpora/sample/{sample}.txt").read_bytes().decode("utf-8")[:250_000]
    texts = [text, *text.split("\n")]
    expected = reference_ids(reference, texts, specials)
    assert [e.ids for e in ours.encode_batch(texts, max_length=10**9, special_strings=specials)] == expected
    if specials == "text":
        assert ours.encode_ids(texts) == [ids[1:-1] for ids in expected]


@given(st.text())
def test_ids_of_any_text_equal_the_reference(published: tuple[Tokenizer, Any], text: str) -> None:
    ours, reference = published
    for specials in ("text", "parse"):
        ids = ours.encode(text, max_length=10**9, special_strings=specials).ids  # type: ignore[arg-type]
        assert [ids] == reference_ids(reference, [text], specials)


@pytest.fixture(scope="module")
def small_reference() -> tuple[Any, Tokenizer]:
    letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdetshu"]
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertTokenizerFast(vocab={token: i for i, token in enumerate(letters)})
    return theirs, Tokenizer.from_vocabulary(letters, lowercase=True)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(5, 16))
def test_longest_first_equals_the_reference(
    small_reference: tuple[Any, Tokenizer], first: int, second: int, limit: int
) -> None:
    reference, ours = small_reference
    a, b = " ".join("abcdecats"[:first]), " ".join("edcbatheu"[:second])
    expected = reference(a, b, truncation="longest_first", max_length=limit)
    encoding = ours.encode(a, b, max_length=limit)
    assert encoding.ids == expected["input_ids"]
    assert encoding.type_ids == expected["token_type_ids"]
    assert encoding.num_truncated + len(encoding.ids) == len(ours.encode(a, b, max_length=100).ids)


def test_offsets_slice_the_text(published: tuple[Tokenizer, Any], shared_data: Path) -> None:
    ours, _ = published
    for sample in ("english", "chinese", "mixed"):
        lines = (shared_data / f"corpora/sample/{sample}.txt").read_bytes().decode("utf-8").split("\n")[:400]
        for line, encoding in zip(lines, ours.encode_batch(lines, max_length=10**9), strict=True):
            ends = [
                (0, 0),
                *[pair for pair, s in zip(encoding.offsets, encoding.sequence_ids, strict=True) if s == 0],
            ]
            assert all(a[1] <= b[1] and b[0] < b[1] <= len(line) for a, b in pairwise(ends))
            for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if i not in ours.all_special_ids:
                    piece = ours.tokens[i].removeprefix("##")
                    source = normalize(line[start:end], ours.lowercase)
                    assert normalize(piece, ours.lowercase) in source
                    # All letters of a decomposed character (Hangul, some vowels) have its offsets.
                    assert normalize(piece, ours.lowercase) == source or len(source) > end - start


def normalize(text: str, lowercase: bool) -> str:
    if not lowercase:
        return "".join(c for c in text if unicodedata.category(c)[0] != "C")
    marks = (c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    return "".join(c for c in marks if unicodedata.category(c)[0] != "C")


def test_saved_folders_load_in_the_reference_with_equal_ids(
    published: tuple[Tokenizer, Any], shared_data: Path, tmp_path: Path
) -> None:
    ours, reference = published
    transformers = pytest.importorskip("transformers")
    ours.save(tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    texts = (shared_data / "corpora/sample/mixed.txt").read_bytes().decode("utf-8").split("\n")
    expected = reference_ids(reference, texts, "parse")
    loaders: list[Callable[[str], Any]] = [
        transformers.AutoTokenizer.from_pretrained,
        transformers.BertTokenizerFast.from_pretrained,
    ]
    for load in loaders:
        theirs = load(str(tmp_path))
        assert theirs(texts)["input_ids"] == expected
        assert theirs.model_max_length == 512
        assert theirs.mask_token_id == ours.mask_token_id
    (tmp_path / "tokenizer.json").unlink()
    assert transformers.AutoTokenizer.from_pretrained(str(tmp_path))(texts)["input_ids"] == expected
    assert Tokenizer.load(tmp_path).digest == ours.digest


def test_load_a_folder_of_the_reference(published: tuple[Tokenizer, Any], tmp_path: Path) -> None:
    ours, reference = published
    reference.save_pretrained(str(tmp_path))
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(content))
    loaded = Tokenizer.load(tmp_path)
    # The reference reads U+2028 in the Chinese vocabulary, which no text produces, as an empty token.
    differences = [a for a, b in zip(ours.tokens, loaded.tokens, strict=True) if a != b]
    assert differences in ([], ["\u2028", "##\u2028"])
    assert (loaded.digest == ours.digest) == (differences == [])
    assert loaded.encode("a b c d e f").ids == ours.encode("a b c d e f").ids


def test_vocabulary_with_either_normalizer(shared_data: Path) -> None:
    folder = shared_data / "vocabs/bert-base-uncased"
    library, original = (Tokenizer.load(folder, normalizer=name) for name in ("hf", "google"))
    assert library.digest == Tokenizer.load(folder).digest != original.digest
    assert original.encode_ids(["Running wild!"]) == library.encode_ids(["Running wild!"])


def test_normalizer_is_not_applicable_to_tokenizer_json(shared_data: Path, tmp_path: Path) -> None:
    Tokenizer.load(shared_data / "vocabs/bert-base-uncased", normalizer="google").save(tmp_path)
    with pytest.raises(InputError) as caught:
        Tokenizer.load(tmp_path, normalizer="hf")
    assert (caught.value.code, caught.value.argument) == ("normalizer_not_applicable", "normalizer")
    assert caught.value.location == str(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "vocab.txt").digest == Tokenizer.load(tmp_path).digest


@pytest.mark.parametrize(
    ("second", "limit", "truncation"),
    [
        (None, 2, "longest_first"),
        ("kaba lode", 4, "longest_first"),
        ("kaba lode", 5, "only_first"),
        ("kaba lode", 6, "only_second"),
    ],
)
def test_truncation_never_removes_all_of_a_text(second: str | None, limit: int, truncation: Any) -> None:
    tokenizer = tiny_run.tokenizer()
    text = "kaba lode migi" if truncation == "only_second" else "kaba lode"
    with pytest.raises(InputError) as caught:
        tokenizer.encode(text, second, max_length=limit, truncation=truncation)
    assert (caught.value.code, caught.value.argument) == ("text_truncated_to_nothing", "max_length")
    assert tokenizer.encode("", max_length=2).ids == [tokenizer.cls_token_id, tokenizer.sep_token_id]
