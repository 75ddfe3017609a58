"""The tokenizer: ids equal to the reference's, offsets that slice, truncation that counts, files of the
field."""

from __future__ import annotations

import json
import pickle
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

UNHEARD = list[str]().append  # what is told of texts that bring special tokens of their own
WORDS = [
    *("the", "cat", "sat", "on", "mat", "##s", "##ing", "un", "##able", "hello", "world", ",", ".", "!", "?"),
    *("[", "]", "mask", "sep", "中", "国", "caf", "##e", "cafe", "a", "b", "c", "d", "e"),
]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer.of_vocabulary(TOKENS, lowercase=True, max_length=16)


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    return " ".join(tokenizer.tokens[i] for i in ids)


def test_a_text_and_a_pair_are_laid_out(small: Tokenizer) -> None:
    one = small.encode("Hello, cats")
    assert spelled(small, one.ids) == "[CLS] hello , cat ##s [SEP]"
    assert one.segments == [0] * 6
    assert one.offsets == [(0, 0), (0, 5), (5, 6), (7, 10), (10, 11), (0, 0)]
    assert one.sources == [None, 0, 0, 0, 0, None]
    assert one.words == [None, 0, 1, 2, 2, None]
    two = small.encode("cats", "the mat!")
    assert spelled(small, two.ids) == "[CLS] cat ##s [SEP] the mat ! [SEP]"
    assert two.segments == [0, 0, 0, 0, 1, 1, 1, 1]
    assert two.sources == [None, 0, 0, None, 1, 1, 1, None]
    assert two.words == [None, 0, 0, None, 0, 1, 2, None]
    assert two.cut == 0


@given(
    texts=st.lists(st.tuples(st.text(), st.text()), max_size=5),
    paired=st.booleans(),
    specials=st.sampled_from(["text", "parse", "mask"]),
    longest=st.integers(6, 20),
)
def test_what_is_not_located_is_the_same_but_for_that(
    texts: list[tuple[str, str]], paired: bool, specials: Any, longest: int
) -> None:
    tokenizer = Tokenizer.of_vocabulary(TOKENS, lowercase=True, max_length=16)
    firsts, seconds = [a for a, _ in texts], [b for _, b in texts] if paired else None
    how = {"max_length": longest, "specials": specials, "tell": UNHEARD}
    located = tokenizer.encode_many(firsts, seconds, **how)
    assert tokenizer.encode_many(firsts, seconds, located=False, **how) == [
        replace(one, offsets=[], words=[]) for one in located
    ]


def test_empty_texts_have_only_specials(small: Tokenizer) -> None:
    assert spelled(small, small.encode("").ids) == "[CLS] [SEP]"
    assert spelled(small, small.encode("", "").ids) == "[CLS] [SEP] [SEP]"
    assert small.encode_many([]) == []


def test_special_strings_stay_text_unless_parsed(small: Tokenizer) -> None:
    text = "the [MASK] sat [SEP]"
    assert spelled(small, small.encode(text).ids) == "[CLS] the [ mask ] sat [ sep ] [SEP]"
    with pytest.warns(
        UserWarning, match=r"1 of 1 text begin with \[CLS\] or end with \[SEP\], which are put"
    ):
        parsed = small.encode(text, specials="parse")
    assert spelled(small, parsed.ids) == "[CLS] the [MASK] sat [SEP] [SEP]"
    assert spelled(small, small.encode(text).ids) == "[CLS] the [ mask ] sat [ sep ] [SEP]"


def test_doubled_specials_are_told_and_only_where_they_are_parsed(small: Tokenizer) -> None:
    told: list[str] = []
    pasted = ["[CLS] the cat [SEP]", "the [SEP] mat", "the mat", " [CLS] sat"]
    kept = small.encode_many(pasted, specials="parse", tell=told.append)
    assert spelled(small, kept[0].ids) == "[CLS] [CLS] the cat [SEP] [SEP]"
    assert told == [
        "2 of 4 texts begin with [CLS] or end with [SEP], which are put around each text anyway, and so are there "
        "twice: take them out of the texts"
    ]
    small.encode_many(pasted, tell=told.append)
    small.encode_many(["the [SEP] mat"], specials="parse", tell=told.append)
    small.encode_many(["the mat"], ["the cat [SEP]"], specials="parse", tell=told.append)
    assert [line[:12] for line in told] == ["2 of 4 texts", "1 of 2 texts"]


def test_both_readings_at_once_from_many_threads(small: Tokenizer) -> None:
    with ThreadPoolExecutor(4) as pool:
        kinds = ["text", "parse"] * 200
        found = list(pool.map(lambda kind: small.encode("a [MASK] b", specials=kind).ids, kinds))  # type: ignore[arg-type]
    assert {tuple(x) for x in found[::2]} == {tuple(small.encode("a [MASK] b").ids)}
    assert {tuple(x) for x in found[1::2]} == {tuple(small.encode("a [MASK] b", specials="parse").ids)}


def test_properties(small: Tokenizer) -> None:
    assert small.vocab_size == len(TOKENS)
    assert small.tokens == TOKENS
    assert (small.pad_id, small.unk_id, small.cls_id, small.sep_id, small.mask_id) == (0, 1, 2, 3, 4)
    assert small.special_ids == {0, 1, 2, 3, 4}
    assert small.mask_token == "[MASK]"
    assert small.lowercase
    assert small.continuation.dtype == np.bool_
    assert [TOKENS[i] for i in np.flatnonzero(small.continuation)] == ["##s", "##ing", "##able", "##e"]
    assert small.decode(small.encode("Hello, cats!").ids) == "hello, cats!"
    assert small.decode([2, 4], specials=True) == "[CLS] [MASK]"


@pytest.mark.parametrize(
    ("truncation", "spelling"),
    [
        ("longest_first", "[CLS] a b c [SEP] the cat sat on [SEP]"),
        ("only_second", "[CLS] a b c d [SEP] the cat sat [SEP]"),
    ],
)
def test_truncation_cuts_and_counts(small: Tokenizer, truncation: Any, spelling: str) -> None:
    found = small.encode("a b c d", "the cat sat on the mat", max_length=10, truncation=truncation)
    assert spelled(small, found.ids) == spelling
    assert found.cut == 3


def test_too_long_without_truncation_tells_both_lengths(small: Tokenizer) -> None:
    assert small.encode("a b c d", max_length=6, truncation="none").cut == 0
    with pytest.raises(InputError, match="this text has 6 tokens with the special ones, the limit is 5"):
        small.encode("a b c d", max_length=5, truncation="none")
    with pytest.raises(InputError, match="this text has 18 tokens with the special ones, the limit is 16"):
        small.encode("a " * 16, truncation="none")
    with pytest.raises(InputError, match="the first text alone has 4 tokens"):
        small.encode("a b c d", "a", max_length=6, truncation="only_second")
    with pytest.raises(InputError, match="leaves no room"):
        small.encode("a", max_length=1)


def test_half_a_character_is_told(small: Tokenizer) -> None:
    with pytest.raises(InputError, match="text 2 holds half a character"):
        small.encode_many(["a", "b \ud800"])
    with pytest.raises(InputError, match="text 2 holds half a character"):
        small.encode_many(["a", "b \ud800"], located=False)


def test_the_digest_follows_what_determines_the_ids(small: Tokenizer, tmp_path: Path) -> None:
    small.save(tmp_path)
    assert Tokenizer.load(tmp_path).digest == small.digest
    assert Tokenizer.load(tmp_path / "vocab.txt").digest == small.digest
    assert Tokenizer.of_vocabulary(TOKENS, lowercase=False).digest != small.digest
    assert Tokenizer.of_vocabulary([*TOKENS, "x"], lowercase=True).digest != small.digest


def test_pickled_it_still_takes_special_strings_for_text(small: Tokenizer) -> None:
    again = pickle.loads(pickle.dumps(small))
    assert again.encode("a [MASK]") == small.encode("a [MASK]")
    assert again.digest == small.digest


def test_a_bare_vocabulary_is_uncased_unless_said_otherwise(small: Tokenizer, tmp_path: Path) -> None:
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
    ("name", "content", "told"),
    [
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", ": the special token [MASK] is missing"),
        ("vocab.txt", "Once upon a time\nthere was a text.\n", ": the special token [PAD] is missing"),
        ("vocab.txt", "\n".join([*TOKENS, "cat"]), f":{len(TOKENS) + 1}: the token 'cat' occurs twice"),
        ("vocab.txt", "[PAD]\n\n[UNK]\n", ":2: an empty token"),
        ("tokenizer.json", '{"version": "1.0", "model": {"type": "Wor', ": this is not whole JSON"),
        ("tokenizer.json", "[]", ": this is not a JSON object"),
        ("tokenizer.json", '{"model": {"type": "BPE"}}', ": its model is BPE, but not byte-level"),
        ("tokenizer.json", '{"model": {"type": "WordPiece"}}', ": the tokenizers library cannot read it"),
    ],
)
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, name: str, content: str, told: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    for path in (file, tmp_path):
        with pytest.raises(InputError) as error:
            Tokenizer.load(path)
        assert error.value.sentence.startswith(f"{file}{told}")


def test_torn_and_missing_files_are_refused(small: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        Tokenizer.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"neither tokenizer\.json nor vocab\.txt"):
        Tokenizer.load(tmp_path)
    small.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"tokenizer\.json: this is not whole JSON"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(InputError, match=r"vocab\.txt:2:1: byte 0xFF"):
        Tokenizer.load(tmp_path / "vocab.txt")


# --- against the reference ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["uncased", "cased", "chinese"])
def published(request: pytest.FixtureRequest, shared_data: Path) -> tuple[Tokenizer, Any]:
    """A published vocabulary in our tokenizer and in the reference's."""
    reference = pytest.importorskip("transformers").BertTokenizerFast
    file = shared_data / f"vocabs/bert-base-{request.param}/vocab.txt"
    lower = request.param != "cased"
    return Tokenizer.load(file, lowercase=lower), reference(vocab=str(file), do_lower_case=lower)


def reference_ids(reference: Any, texts: list[str], specials: str) -> Any:
    return reference(texts, split_special_tokens=specials == "text")["input_ids"]


@pytest.mark.parametrize("specials", ["text", "parse"])
@pytest.mark.parametrize("sample", ["english", "chinese", "mixed"])
def test_ids_equal_the_reference(
    published: tuple[Tokenizer, Any], shared_data: Path, sample: str, specials: Any
) -> None:
    ours, reference = published
    whole = (shared_data / f"corpora/sample/{sample}.txt").read_bytes().decode("utf-8")
    texts = [whole, *whole.split("\n")]
    expected = reference_ids(reference, texts, specials)
    found = [e.ids for e in ours.encode_many(texts, max_length=10**9, specials=specials, tell=UNHEARD)]
    assert found == expected
    if specials == "text":
        assert ours.pieces(texts) == [ids[1:-1] for ids in expected]


@given(st.text())
def test_ids_of_any_text_equal_the_reference(published: tuple[Tokenizer, Any], text: str) -> None:
    ours, reference = published
    for specials in ("text", "parse"):
        found = ours.encode(text, max_length=10**9, specials=specials, tell=UNHEARD).ids  # type: ignore[arg-type]
        assert [found] == reference_ids(reference, [text], specials)


@pytest.fixture(scope="module")
def small_reference() -> tuple[Any, Tokenizer]:
    letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdetshu"]
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertTokenizerFast(vocab={token: i for i, token in enumerate(letters)})
    return theirs, Tokenizer.of_vocabulary(letters, lowercase=True)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(5, 16))
def test_longest_first_cuts_as_the_reference(
    small_reference: tuple[Any, Tokenizer], first: int, second: int, limit: int
) -> None:
    reference, ours = small_reference
    a, b = " ".join("abcdecats"[:first]), " ".join("edcbatheu"[:second])
    expected = reference(a, b, truncation="longest_first", max_length=limit)
    found = ours.encode(a, b, max_length=limit)
    assert found.ids == expected["input_ids"]
    assert found.segments == expected["token_type_ids"]
    assert found.cut + len(found.ids) == len(ours.encode(a, b, max_length=100).ids)


def test_offsets_slice_the_text_back(published: tuple[Tokenizer, Any], shared_data: Path) -> None:
    ours, _ = published
    for sample in ("english", "chinese", "mixed"):
        lines = (shared_data / f"corpora/sample/{sample}.txt").read_bytes().decode("utf-8").split("\n")[:400]
        for line, found in zip(lines, ours.encode_many(lines, max_length=10**9), strict=True):
            ends = [(0, 0), *[pair for pair, s in zip(found.offsets, found.sources, strict=True) if s == 0]]
            assert all(a[1] <= b[1] and b[0] < b[1] <= len(line) for a, b in pairwise(ends))
            for i, (start, end) in zip(found.ids, found.offsets, strict=True):
                if i not in ours.special_ids:
                    piece = ours.tokens[i].removeprefix("##")
                    source = plain(line[start:end], ours.lowercase)
                    assert plain(piece, ours.lowercase) in source
                    # A character that comes apart into letters (Hangul, some vowels) is pointed at by each.
                    assert plain(piece, ours.lowercase) == source or len(source) > end - start


def plain(text: str, lower: bool) -> str:
    if not lower:
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
        assert theirs.mask_token_id == ours.mask_id
    (tmp_path / "tokenizer.json").unlink()
    assert transformers.AutoTokenizer.from_pretrained(str(tmp_path))(texts)["input_ids"] == expected
    assert Tokenizer.load(tmp_path).digest == ours.digest


def test_the_references_folder_loads_here(published: tuple[Tokenizer, Any], tmp_path: Path) -> None:
    ours, reference = published
    reference.save_pretrained(str(tmp_path))
    file = tmp_path / "tokenizer.json"
    whole = json.loads(file.read_text())
    whole["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(whole))
    again = Tokenizer.load(tmp_path)
    # The reference reads the Chinese vocabulary's U+2028, which no text can reach, as an empty token.
    differ = [a for a, b in zip(ours.tokens, again.tokens, strict=True) if a != b]
    assert differ in ([], ["\u2028", "##\u2028"])
    assert (again.digest == ours.digest) == (differ == [])
    assert again.encode("a b c d e f").ids == ours.encode("a b c d e f").ids


def test_a_vocabulary_is_loaded_with_either_normaliser(shared_data: Path) -> None:
    place = shared_data / "vocabs/bert-base-uncased"
    library, original = (Tokenizer.load(place, normalizer=reading) for reading in ("hf", "google"))
    assert library.digest == Tokenizer.load(place).digest != original.digest
    assert original.pieces(["Running wild!"]) == library.pieces(["Running wild!"])


def test_a_normaliser_is_not_chosen_for_a_whole_tokenizer(shared_data: Path, tmp_path: Path) -> None:
    Tokenizer.load(shared_data / "vocabs/bert-base-uncased", normalizer="google").save(tmp_path)
    with pytest.raises(InputError, match=r"tokenizer\.json: the normaliser is chosen for a vocab\.txt alone"):
        Tokenizer.load(tmp_path, normalizer="hf")
    assert Tokenizer.load(tmp_path / "vocab.txt").digest == Tokenizer.load(tmp_path).digest


@pytest.mark.parametrize(
    ("second", "limit", "truncation", "said"),
    [
        (None, 2, "longest_first", "leaves nothing of the text"),
        ("kaba lode", 4, "longest_first", "leaves nothing of the first text"),
        ("kaba lode", 5, "only_first", "leaves nothing of the first text"),
        ("kaba lode", 6, "only_second", "leaves nothing of the second text"),
    ],
)
def test_a_text_is_never_cut_to_nothing(second: str | None, limit: int, truncation: Any, said: str) -> None:
    tokenizer = tiny_run.tokenizer()
    text = "kaba lode migi" if truncation == "only_second" else "kaba lode"
    with pytest.raises(InputError, match=said):
        tokenizer.encode(text, second, max_length=limit, truncation=truncation)
    assert tokenizer.encode("", max_length=2).ids == [tokenizer.cls_id, tokenizer.sep_id]
