"""Statistics of tokenizers equal counts by hand and by simple code."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertsmith.corpus.checks import tokenizer_comparison, tokens
from bertsmith.corpus.checks.tokenizer_comparison import compare_tokenizers
from bertsmith.corpus.checks.tokens import display_piece
from bertsmith.errors import InputError
from bertsmith.io.documents import Reading
from bertsmith.io.unicode_scripts import HAN_CLASS, script_of, script_of_word, word_pattern
from bertsmith.tokenizer.tokenizer import Tokenizer

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENS = [*SPECIAL_TOKENS, "run", "##ning", "the", "a", "##b", "37", ".", "猫"]


def find_words(text: str) -> list[str]:
    return re.findall(f"[{HAN_CLASS}]|{word_pattern().pattern}", text)


def small_tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary(TOKENS, lowercase=True)


def measure_text(
    tmp_path: Path, text: str, tokenizer: Tokenizer | None = None, **options: Any
) -> tuple[dict, dict]:
    """Return the statistics of the text and of the tokenizer."""
    file = tmp_path / "text.txt"
    file.write_text(text, encoding="utf-8")
    report = compare_tokenizers([file], {"it": tokenizer or small_tokenizer()}, **options)
    json.dumps(report, allow_nan=False)
    return report["text"], report["tokenizers"]["it"]


def test_statistics_equal_counts_by_hand(tmp_path: Path) -> None:
    text, row = measure_text(tmp_path, "The running 37 cats.\nthe Running ab 猫狗 the\n\nκ\n")
    # the running 37 cats the running ab 猫 狗 the κ
    assert (text["words"], text["characters"]) == (11, 42)
    assert text["scripts"] == {
        "Latin": {"letters": 29, "words": 7},
        "Han": {"letters": 2, "words": 2},
        "Greek": {"letters": 1, "words": 1},
        "digits": {"letters": 0, "words": 1},
    }
    assert row["kind"] == "WordPiece"
    assert row["vocab_size"] == len(TOKENS)
    # the run ##ning 37 [UNK] . the run ##ning a ##b 猫 [UNK] the [UNK]
    assert (row["tokens"], row["unknown_tokens"], row["unknown_words"]) == (15, 3, 3)
    assert row["words_by_pieces"][:4] == [0, 5, 3, 0]  # of the eight known words
    assert row["pieces_per_word"] == pytest.approx(11 / 8, abs=1e-6)
    assert row["words_kept_whole"] == pytest.approx(5 / 11, abs=1e-6)
    assert row["characters_per_token"] == pytest.approx(42 / 15, abs=1e-6)
    assert row["frequent_unknown_words"] == [{"word": w, "times": 1} for w in ("cats", "κ", "狗")]
    letters = {e["character"] for e in row["frequent_unknown_characters"]}
    assert letters >= {"κ", "狗", "c", "t", "s"}
    assert "a" not in letters
    assert row["scripts"]["Han"] == {
        "letters_known": 0.5, "words_known": 0.5, "words_kept_whole": 0.5, "pieces_per_word": 1.0,
    }  # fmt: skip
    assert row["scripts"]["Greek"]["words_known"] == 0
    assert row["scripts"]["Greek"]["pieces_per_word"] is None
    assert row["scripts"]["digits"]["letters_known"] is None
    assert row["falling_apart"] == [
        {"word": "Running", "times": 1, "pieces": ["run", "##ning"]},
        {"word": "ab", "times": 1, "pieces": ["a", "##b"]},
        {"word": "running", "times": 1, "pieces": ["run", "##ning"]},
    ]
    assert row["pieces_used"] == 8  # all but the special tokens
    assert row["pieces_used_share"] == 1
    assert row["longest_pieces"][0] == "##ning"
    assert row["longest_pieces_used"][0] == {"piece": "##ning", "times": 2}


def test_unknown_words_lower_the_rank(tmp_path: Path) -> None:
    """Pieces per word are those of known words, and a tokenizer without known words ranks last."""
    file = tmp_path / "text.txt"
    file.write_text("running " + "κόσμος " * 19 + "\n", encoding="utf-8")
    characters = Tokenizer.from_vocabulary([*TOKENS, *"κοσμς", *(f"##{c}" for c in "κοσμς")], lowercase=True)
    empty = Tokenizer.from_vocabulary([*SPECIAL_TOKENS, "x"], lowercase=True)
    report = compare_tokenizers(
        [file], {"nothing": empty, "most unknown": small_tokenizer(), "characters": characters}
    )
    rows = report["tokenizers"]
    assert rows["most unknown"]["unknown_word_share"] == 0.95
    assert rows["most unknown"]["pieces_per_word"] == 2  # run ##ning, the only word it knows
    assert rows["most unknown"]["words_by_pieces"][:3] == [0, 0, 1]
    assert rows["nothing"]["pieces_per_word"] is None
    assert rows["characters"]["unknown_words"] == 0
    assert rows["characters"]["pieces_per_word"] > 5
    assert report["order"] == ["characters", "most unknown", "nothing"]
    (note,) = report["notes"]
    assert "nothing 100 %" in note
    assert "most unknown 95.0 %" in note


@given(
    st.dictionaries(st.text(), st.tuples(st.floats(0, 1, allow_subnormal=False), st.floats(1, 9)), max_size=6)
)
def test_the_order_puts_known_words_before_few_pieces(tokenizers: dict[str, tuple[float, float]]) -> None:
    rows = {
        name: {"unknown_word_share": unknown, "pieces_per_word": pieces if unknown < 1 else None}
        for name, (unknown, pieces) in tokenizers.items()
    }
    order = tokenizer_comparison.ranked(rows)
    assert sorted(order) == sorted(rows)
    for better, worse in pairwise(order):
        unknown, more = tokenizers[better][0], tokenizers[worse][0]
        assert unknown <= max(tokenizer_comparison.MAX_UNKNOWN_RATIO, more)
        if more <= tokenizer_comparison.MAX_UNKNOWN_RATIO:
            assert tokenizers[better][1] <= tokenizers[worse][1]


def byte_level_library() -> Library:
    """Return a byte-level BPE tokenizer with the merged piece " the"."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("t", "he"), ("Ġ", "the")]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *letters, *("".join(m) for m in merges), "<mask>"]
    library = Library(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return library


def save_and_load(library: Library, folder: Path, **config: str) -> Tokenizer:
    folder.mkdir()
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.load(folder)


def test_byte_level_bpe_has_no_unknown_words_and_a_space_is_no_piece(tmp_path: Path) -> None:
    names = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    tokenizer = save_and_load(
        byte_level_library(), tmp_path / "gpt", **{f"{k}_token": v for k, v in names.items()}
    )
    _, row = measure_text(tmp_path, "the the cat ж", tokenizer)
    assert row["kind"] == "byte-level BPE"
    assert row["unknown_tokens"] == row["unknown_words"] == row["unknown_characters"] == 0
    assert row["words_by_pieces"][:4] == [0, 2, 1, 1]  # the the | ж: two bytes | c a t
    assert row["tokens"] == 1 + 1 + 4 + 3  # the | Ġthe | Ġ c a t | Ġ and two bytes
    assert {e["piece"] for e in row["longest_pieces_used"][:2]} == {"the", "▁the"}
    assert row["scripts"]["Cyrillic"]["words_known"] == 1


def test_unigram_words_and_unknown_characters(tmp_path: Path) -> None:
    pieces = [("<pad>", 0.0), ("<unk>", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[MASK]", 0.0)]
    pieces += [("▁", -3.0), ("▁the", -1.0), ("cat", -2.0), ("s", -3.0), (".", -3.0)]
    pieces += [(letter, -9.0) for letter in "theca"]
    library = Library(models.Unigram(pieces, 1, False))
    library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    library.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    library.add_special_tokens([name for name, _ in pieces[:5]])
    names = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    tokenizer = save_and_load(library, tmp_path / "uni", **{f"{k}_token": v for k, v in names.items()})
    _, row = measure_text(tmp_path, "The cats. The 猫狗", tokenizer)
    assert row["kind"] == "Unigram"
    assert row["words_by_pieces"][:3] == [0, 2, 1]  # the the | cat s
    assert row["unknown_words"] == 2
    assert row["unknown_characters"] == 2
    assert row["unknown_tokens"] == 1  # The model joins consecutive unknown letters.
    assert row["scripts"]["Latin"]["words_kept_whole"] == pytest.approx(2 / 3, abs=1e-6)


@given(st.text(st.sampled_from("ab the37.猫κ\n\u0301"), max_size=60))
def test_statistics_equal_simple_counting(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    text = "the " + text
    tokenizer = small_tokenizer()
    text_report, row = measure_text(tmp_path_factory.mktemp("t"), text, tokenizer)
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    ids = [i for pieces in tokenizer.encode_ids(lines) for i in pieces]
    assert row["tokens"] == len(ids)
    assert row["unknown_tokens"] == ids.count(tokenizer.unk_token_id)
    used = {tokenizer.tokens[i] for i in ids} - set(SPECIAL_TOKENS)
    assert row["pieces_used"] == len(used)
    words = Counter(w for line in lines for w in find_words(line))
    assert text_report["words"] == words.total()
    pieces = {w: tokenizer.encode_ids([w])[0] for w in words}
    assert row["unknown_words"] == sum(n for w, n in words.items() if tokenizer.unk_token_id in pieces[w])
    known_words = {w: n for w, n in words.items() if tokenizer.unk_token_id not in pieces[w]}
    assert sum(row["words_by_pieces"]) == sum(known_words.values()) == words.total() - row["unknown_words"]
    assert row["pieces_per_word"] == pytest.approx(
        sum(n * len(pieces[w]) for w, n in known_words.items()) / sum(known_words.values()), abs=1e-6
    )


def test_bounded_memory_changes_only_the_lists_of_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n\n".join(f"the running {chr(97 + i % 26)}{i} ab ab ab" for i in range(300))
    _, expected = measure_text(tmp_path, text)
    monkeypatch.setattr(tokens, "_MAX_WAITING_WORDS", 5)
    monkeypatch.setattr(tokenizer_comparison, "_BATCH_CHARACTERS", 50)
    _, small_steps = measure_text(tmp_path, text)
    assert small_steps == expected
    monkeypatch.setattr(tokens, "MAX_TRACKED_WORDS", 3)
    report = compare_tokenizers([tmp_path / "text.txt"], {"it": small_tokenizer()})
    bounded = report["tokenizers"]["it"]
    assert any("rare" in note for note in report["notes"])
    lists = {"falling_apart", "frequent_unknown_words", "rare_words_forgotten"}
    assert {k: v for k, v in bounded.items() if k not in lists} == {
        k: v for k, v in expected.items() if k not in lists
    }
    assert bounded["falling_apart"][0] == expected["falling_apart"][0]


def test_a_limit_is_divided_among_the_files_and_reported(tmp_path: Path) -> None:
    for name, words in (("a", 1000), ("b", 10), ("c", 1000)):
        (tmp_path / f"{name}.txt").write_text("é the " * words + "\n", encoding="utf-8")
    report = compare_tokenizers(
        [tmp_path / f"{n}.txt" for n in "abc"], {"it": small_tokenizer()}, max_bytes=2000
    )
    assert report["text"]["cut_short"] == [str(tmp_path / "a.txt"), str(tmp_path / "c.txt")]
    assert 1990 <= report["text"]["bytes"] <= 2003
    assert any("a sample" in note for note in report["notes"])
    unlimited = compare_tokenizers([tmp_path / "b.txt"], {"it": small_tokenizer()}, max_bytes=10**6)
    assert unlimited["text"]["cut_short"] == []
    assert not any("a sample" in note for note in unlimited["notes"])


@given(st.text(max_size=20), st.integers(0, 100))
def test_a_prefix_holds_complete_characters(text: str, size: int) -> None:
    if any("\ud800" <= c <= "\udfff" for c in text) or size >= len(text.encode()):
        return
    prefix = tokenizer_comparison._prefix(text, size)
    assert text.startswith(prefix)
    assert size - 3 <= len(prefix.encode()) <= size


@pytest.mark.parametrize(
    ("word", "script"),
    [
        ("word", "Latin"), ("ａ", "Latin"), ("𝒜", "Latin"), ("слово", "Cyrillic"), ("汉", "Han"), ("豈", "Han"),
        ("か", "Hiragana"), ("カ", "Katakana"), ("ｶ", "Katakana"), ("한", "Hangul"), ("λ", "Greek"),
        ("ש", "Hebrew"),
        ("नम", "Devanagari"), ("1984", "digits"), ("2nd", "Latin"), ("\U00020000", "Han"), ("𐌀", "Old Italic"),
    ],
)  # fmt: skip
def test_scripts(word: str, script: str) -> None:
    assert script_of_word(word) == script
    if script != "digits":
        assert script_of(next(c for c in word if c.isalpha())) == script


def test_a_word_is_letters_marks_and_digits() -> None:
    find = find_words
    assert find("don't e-mail 37°C snake_case") == ["don", "t", "e", "mail", "37", "C", "snake", "case"]
    assert find("नमस्ते दुनिया") == ["नमस्ते", "दुनिया"]  # vowel signs are marks
    assert find("猫狗cat猫") == ["猫", "狗", "cat", "猫"]
    assert find(unicodedata.normalize("NFD", "naïve")) == [unicodedata.normalize("NFD", "naïve")]
    assert find("\u0301 \ufe0f → 😀 ...") == []


def test_pieces_are_shown_as_text() -> None:
    assert display_piece("Ġthe", "byte-level BPE") == "▁the"
    assert display_piece("Ã©", "byte-level BPE") == "é"
    assert display_piece("Ã", "byte-level BPE") == "Ã"  # a part of a character: the symbol of its byte
    assert display_piece("##ing", "WordPiece") == "##ing"


def test_invalid_calls(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        compare_tokenizers([tmp_path], {})
    assert (caught.value.code, caught.value.argument) == ("tokenizers_missing", "tokenizers")
    with pytest.raises(InputError) as caught:
        compare_tokenizers([], {"it": small_tokenizer()})
    assert (caught.value.code, caught.value.argument) == ("files_missing", "files")
    with pytest.raises(InputError) as caught:
        compare_tokenizers([tmp_path / "none.txt"], {"it": small_tokenizer()})
    assert caught.value.code == "not_found"
    assert str(caught.value.location).endswith("none.txt")
    (tmp_path / "x.txt").write_bytes(b"the \xff")
    with pytest.raises(InputError) as caught:
        compare_tokenizers([tmp_path / "x.txt"], {"it": small_tokenizer()})
    assert caught.value.code == "not_utf8"
    assert str(caught.value.location).endswith("x.txt:1:5")


def test_the_text_column_is_configurable(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"body": "the the"}\n')
    report = compare_tokenizers(
        [tmp_path / "x.jsonl"], {"it": small_tokenizer()}, reading=Reading(text_column="body")
    )
    assert report["text"]["words"] == 2


def test_published_vocabularies(shared_data: Path, tmp_path: Path) -> None:
    names = ["bert-base-uncased", "bert-base-chinese", "gpt2", "albert-base"]
    tokenizers = {name: Tokenizer.load(shared_data / "vocabs" / name) for name in names}
    files = [shared_data / "corpora" / "sample" / f"{name}.txt" for name in ("mixed", "chinese")]
    report = compare_tokenizers(files, tokenizers, max_bytes=100_000)
    rows = report["tokenizers"]
    assert rows["gpt2"]["unknown_tokens"] == 0
    assert rows["albert-base"]["scripts"]["Han"]["letters_known"] == 0
    assert rows["bert-base-chinese"]["scripts"]["Han"]["letters_known"] > 0.9
    for row in rows.values():
        assert sum(row["words_by_pieces"]) + row["unknown_words"] == report["text"]["words"]
