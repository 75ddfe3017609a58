"""Training byte-level BPE and Unigram: the layouts of their families, the same in every process; and sampling of
what does not fit into memory."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from bertsmith import draws
from bertsmith.errors import InputError
from bertsmith.files.files import Reading
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.vocabulary import training_text
from bertsmith.vocabulary.learn import train_tokenizer
from bertsmith.vocabulary.training_text import before_blanks, between_blanks, count_words
from bertsmith.vocabulary.unigram_lattice import (
    LatticeBlock,
    Stretches,
    best_counts,
    best_cuts,
    blocks_of,
    expected_counts,
    losses,
)
from bertsmith.vocabulary.unigram_training import pieces_of

_SCRIPT = """
import sys
from bertsmith.vocabulary.learn import train_tokenizer
for kind, size in (("byte_level_bpe", 2000), ("unigram", 3000)):
    train_tokenizer([sys.argv[1]], sys.argv[2] + kind, kind=kind, vocab_size=size)
"""


def test_three_processes_train_the_same_vocabularies(shared_data: Path, tmp_path: Path) -> None:
    found = set()
    for n in range(1, 4):
        place = tmp_path / f"{n}-"
        environment = {**os.environ, "PYTHONHASHSEED": str(n * 101), "RAYON_NUM_THREADS": str(n)}
        file = shared_data / "corpora/sample/mixed.txt"
        subprocess.run([sys.executable, "-c", _SCRIPT, str(file), str(place)], check=True, env=environment)
        files = [
            tmp_path / f"{n}-{name}"
            for name in ("byte_level_bpe/vocab.json", "byte_level_bpe/merges.txt", "unigram/tokenizer.json")
        ]
        found.add(tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))
    assert len(found) == 1


@pytest.fixture(scope="module")
def trained(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, Path]]:
    file = shared_data / "corpora/sample/english.txt"
    found = {}
    for kind in ("byte_level_bpe", "unigram"):
        out = tmp_path_factory.mktemp("trained") / kind
        found[kind] = (train_tokenizer([file], out, kind=kind, vocab_size=3_000), out)  # type: ignore[arg-type]
    return found


def test_byte_level_bpe_has_robertas_layout(trained: dict[str, tuple[Tokenizer, Path]]) -> None:
    tokenizer, out = trained["byte_level_bpe"]
    assert tokenizer.vocab_size == 3_000
    assert tokenizer.tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert all(len(token) == 1 for token in tokenizer.tokens[4:260])
    assert tokenizer.tokens[-1] == "<mask>"
    assert {"Ġthe", "The", "ing"} <= set(tokenizer.tokens)
    assert (tokenizer.separators, tokenizer.uses_segments, tokenizer.pad_id) == (2, False, 1)
    merges = (out / "merges.txt").read_text("utf-8").splitlines()
    assert len(merges) - 1 == 3_000 - 4 - 256 - 1
    text = "Any bytes: 中国 😀 \x00\t  <mask> done"
    assert tokenizer.decode(tokenizer.pieces([text])[0]) == text
    assert tokenizer.mask_id not in tokenizer.pieces([text])[0]


def test_unigram_has_alberts_layout(trained: dict[str, tuple[Tokenizer, Path]]) -> None:
    tokenizer, out = trained["unigram"]
    assert tokenizer.vocab_size == 3_000
    assert tokenizer.tokens[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert {"▁the", "ing", "▁"} <= set(tokenizer.tokens)
    assert tokenizer.lowercase
    assert tokenizer.decode(tokenizer.encode("Once upon a Time").ids) == "once upon a time"
    scores = [score for _, score in json.loads((out / "tokenizer.json").read_text())["model"]["vocab"]][5:]
    assert scores == sorted(scores, reverse=True)
    found = tokenizer.pieces(["the king of the country was there"])[0]
    assert len(found) < 14


@pytest.mark.parametrize("kind", ["byte_level_bpe", "unigram"])
def test_trained_folders_load_in_the_reference(
    trained: dict[str, tuple[Tokenizer, Path]], shared_data: Path, kind: str
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer, out = trained[kind]
    theirs = transformers.AutoTokenizer.from_pretrained(str(out))
    lines = (shared_data / "corpora/sample/mixed.txt").read_bytes().decode("utf-8").split("\n")
    texts = [line for line in lines if "<pad>" not in line and "<unk>" not in line][:800]
    expected = theirs(texts, split_special_tokens=True)["input_ids"]
    assert [e.ids for e in tokenizer.encode_many(texts, max_length=10**9)] == expected
    assert Tokenizer.load(out).digest == tokenizer.digest
    record = json.loads((out / "training.json").read_text())
    assert (record["asked"], record["size"], record["share_sampled"]) == (3_000, 3_000, 1.0)
    assert record["documents"] == record["documents_sampled"] == 180


def test_byte_level_words_are_those_of_the_whole_text(shared_data: Path) -> None:
    from tokenizers import pre_tokenizers

    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False)

    def words_of(text: str) -> list[str]:
        return [word for word, _ in bytewise.pre_tokenize_str(text)]

    file = shared_data / "corpora/sample/mixed.txt"
    lines = file.read_bytes().decode("utf-8").split("\n")[:-1]
    expected = Counter(word for line in lines for word in words_of(line.removesuffix("\r") + "\n"))
    found = count_words([file], cut=before_blanks, words_of=words_of, progress=lambda _: None)
    assert found.words == expected


def test_a_google_vocabulary_saves_its_normaliser(shared_data: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "google"
    file = shared_data / "corpora/sample/mixed.txt"
    tokenizer = train_tokenizer([file], out, vocab_size=2_000, normalizer="google")
    lines = file.read_bytes().decode("utf-8").split("\n")[:500]
    lines += ["ΣΊΣΥΦΟΣ ΟΔΟΣ.", "a\U0002b825b", "İstanbul \ue000 x"]
    expected = [e.ids for e in tokenizer.encode_many(lines, max_length=10**9)]
    theirs = transformers.AutoTokenizer.from_pretrained(str(out))
    assert theirs(lines, split_special_tokens=True)["input_ids"] == expected
    assert theirs("a", "b")["token_type_ids"] == tokenizer.encode("a", "b").segments
    assert Tokenizer.load(out).digest == tokenizer.digest
    assert Tokenizer.load(out / "vocab.txt").digest == tokenizer.digest
    plain = Tokenizer.of_vocabulary(tokenizer.tokens, lowercase=True)
    assert plain.digest != tokenizer.digest
    assert tokenizer.lowercase


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"kind": "byte_level_bpe", "vocab_size": 200}, "no room for all bytes and specials, 261 in all"),
        ({"kind": "byte_level_bpe", "cased": False}, "byte-level BPE keeps case"),
        ({"kind": "unigram", "normalizer": "google"}, "the google reading is of BERT's normaliser"),
        ({"max_ram": 1_000_000}, "leave no room for words"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path: Path, how: dict[str, Any], told: str) -> None:
    file = tmp_path / "a.txt"
    file.write_text("some text some text\n")
    with pytest.raises(InputError, match=told):
        train_tokenizer([file], tmp_path / "out", **how)
    assert not (tmp_path / "out").exists()


# --- sampling ----------------------------------------------------------------------------------------------


def test_frequent_words_are_pieces(trained: dict[str, tuple[Tokenizer, Path]], shared_data: Path) -> None:
    tokenizer, _ = trained["unigram"]
    assert {"▁from", "▁between", "▁during", "▁many", "▁against"} <= set(tokenizer.tokens)
    text = (shared_data / "corpora/sample/english.txt").read_text("utf-8")[:300_000]
    # What the library's trainer reached with pieces that mix letters and signs.
    assert sum(map(len, tokenizer.pieces(text.split("\n")))) <= 85_687
    words = {"▁from": 1_000, "▁front": 3, "▁of": 700, "▁mind": 4, "▁rod": 5}
    found = dict(pieces_of(words, 16))
    assert "▁from" in found
    assert max(found, key=found.__getitem__) == "▁from"


WORDS = some.dictionaries(some.text("ab▁é中1,", min_size=1, max_size=40), some.integers(1, 50), min_size=1)


@given(words=WORDS, size=some.integers(1, 60))
def test_pieces_are_as_many_as_the_words_have(words: dict[str, int], size: int) -> None:
    found = pieces_of(words, size)
    names = [name for name, _ in found]
    assert len(set(names)) == len(names) <= size
    seen: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            seen[character] += count
    ordered = sorted(seen, key=lambda character: (-seen[character], character))
    assert {name for name in names if len(name) == 1} == set(ordered[:size])
    parts: Counter[str] = Counter()
    for word, count in words.items():
        for part in re.findall("▁?(?:[abé中]+|1+|,+)|▁", word):
            for k in range(0, len(part), 32):
                parts[part[k : k + 32]] += count
    stretches: Counter[str] = Counter()
    for part, count in parts.items():
        for a, b in itertools.combinations(range(len(part) + 1), 2):
            stretches[part[a:b]] += count
    there = [s for s, count in stretches.items() if len(s) == 1 or (count > 1 and len(s) <= 16)]
    assert len(names) == min(size, len(there))
    assert found == sorted(found, key=lambda item: (-item[1], item[0]))
    assert all(math.isfinite(score) and round(score, 6) == score for _, score in found)
    for name in names:
        assert "▁" not in name[1:]
        assert len({"a" if c in "abé中" else c for c in name.removeprefix("▁")}) <= 1
    backwards = dict(reversed(words.items()))
    assert pieces_of(backwards, size) == found


@pytest.mark.parametrize("size", [40, 300, 1_500])
def test_unigram_gives_the_size_asked(size: int) -> None:
    words = {
        f"▁{bits % 9_973:x}"[: 2 + bits % 5]: 2 + n
        for n, bits in enumerate(draws.bits(1, "w", np.arange(900)).tolist())
    }
    letters = {word.translate(str.maketrans("0123456789", "ghijklmnop")): n for word, n in words.items()}
    assert len(pieces_of(letters, size)) == size


def test_characters_without_a_count_come_last_and_the_most_frequent_first() -> None:
    # z, q, y and x stand only in words that are pieces: they have no count of their own.
    found = pieces_of({"zq": 5_000, "yx": 4_000, "a": 60_000}, 7)
    assert [name for name, _ in found] == ["a", "zq", "yx", "q", "z", "x", "y"]
    scores = [score for _, score in found]
    assert [scores[n] - scores[2] for n in range(3, 7)] == pytest.approx([-1e-4, -2e-4, -3e-4, -4e-4])
    assert [name for name, _ in pieces_of({"zq": 5_000, "yx": 4_000, "a": 60_000}, 2)] == ["a", "q"]
    assert pieces_of({}, 100) == []


def test_the_rarest_cut_of_the_longest_word_is_a_number() -> None:
    rare = "".join(chr(code) for code in range(0x3B1, 0x3B1 + 24)) + "qwertyui"
    found = dict(pieces_of({"▁the": 10**12, rare: 1, rare[::-1]: 1}, 60))
    assert set(rare) <= set(found)
    assert found["▁the"] == pytest.approx(0, abs=0.02)
    assert all(math.isfinite(score) for score in found.values())


def in_blocks(words: list[str], pieces: list[str]) -> list[LatticeBlock]:
    text = "".join(words)
    ends = np.cumsum([len(word) for word in words])
    found = []
    for size in range(1, max(map(len, pieces)) + 1):
        at = [n for n in range(len(text)) if text[n : n + size] in pieces]
        numbers = [pieces.index(text[n : n + size]) for n in at]
        found.append(Stretches(np.array(at, np.int64), np.array(numbers, np.int32)))
    lengths = np.array([len(word) for word in words])
    return blocks_of(ends - lengths, lengths, found, len(text))


def ways(word: str, pieces: list[str]) -> Iterator[tuple[int, ...]]:
    """All ways to cut a word, by asking for each character whether a piece ends behind it."""
    for ends in itertools.product([False, True], repeat=len(word) - 1):
        borders = [0, *(n for n, end in enumerate(ends, start=1) if end), len(word)]
        parts = [word[a:b] for a, b in itertools.pairwise(borders)]
        if all(part in pieces for part in parts):
            yield tuple(pieces.index(part) for part in parts)


CASE = some.integers(0, 10_000)


def drawn(seed: int) -> tuple[list[str], list[str], np.ndarray, np.ndarray]:
    """Words over three letters, pieces (the empty one, the letters and some others), weights, chances."""
    bits = draws.bits(seed, "words", np.arange(200)).tolist()
    words = sorted({"".join("abc"[(n >> 2 * k) % 3] for k in range(1 + (n >> 30) % 7)) for n in bits[:9]})
    longer = {word[a:b] for word in words for a in range(8) for b in range(a + 2, 1 + len(word))}
    chosen = sorted(piece for n, piece in zip(bits[9:], sorted(longer), strict=False) if n >> 40 & 1)
    pieces = ["", "a", "b", "c", *chosen]
    chances = draws.uniform(seed, "chances", np.arange(len(pieces)))
    chances[0] = 0
    return words, pieces, 1 + 9 * draws.uniform(seed, "weights", np.arange(len(words))), chances


@given(seed=CASE)
def test_expected_counts_are_those_over_all_ways(seed: int) -> None:
    words, pieces, weights, chances = drawn(seed)
    expected = np.zeros(len(pieces))
    for word, weight in zip(words, weights, strict=True):
        found = list(ways(word, pieces))
        likely = [math.prod(chances[n] for n in way) for way in found]
        for way, chance in zip(found, likely, strict=True):
            for piece in way:
                expected[piece] += weight * chance / sum(likely)
    got = expected_counts(in_blocks(words, pieces), weights, chances)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_expected_counts_by_hand() -> None:
    # ab is cut as a|b (0.5 * 0.25) or taken whole (0.375): one in four.
    got = expected_counts(
        in_blocks(["ab"], ["", "a", "b", "ab"]), np.array([8.0]), np.array([0, 0.5, 0.25, 0.375])
    )
    np.testing.assert_allclose(got, [0, 2, 2, 6], rtol=1e-15)


def best_way(word: str, pieces: list[str], scores: np.ndarray, without: int = 0) -> tuple[int, ...]:
    return max(
        (w for w in ways(word, pieces) if without not in w), key=lambda way: sum(scores[n] for n in way)
    )


@given(seed=CASE)
def test_best_ways_and_losses_are_those_of_all_ways(seed: int) -> None:
    words, pieces, weights, chances = drawn(seed)
    scores = np.log(np.maximum(chances, 1e-300))
    scores[0] = -np.inf
    expected = np.zeros(len(pieces))
    for word, weight in zip(words, weights, strict=True):
        for piece in best_way(word, pieces, scores):
            expected[piece] += weight
    blocks = in_blocks(words, pieces)
    counts = best_counts(blocks, weights, scores)
    np.testing.assert_allclose(counts, expected, rtol=1e-12)
    for block in blocks:
        highest = [sum(scores[n] for n in best_way(words[row], pieces, scores)) for row in block.rows]
        np.testing.assert_allclose(best_cuts(block, scores)[0], highest, rtol=1e-12)
    own = in_blocks(pieces[4:], pieces) if len(pieces) > 4 else []
    for block in own:
        block.pieces[0, -1] = 0
        block.rows = block.rows + 4
    np.testing.assert_allclose(losses(own, scores, counts), lost(pieces, scores, counts), rtol=1e-9)


def lost(pieces: list[str], scores: np.ndarray, counts: np.ndarray) -> list[float]:
    """By its definition: the mean log probability of the piece's places, with it and without."""
    found = [math.inf] * 4
    total = counts.sum()
    for n, piece in enumerate(pieces[4:], start=4):
        way = best_way(piece, pieces, scores, without=n)
        if counts[n] == 0 or sum(scores[k] for k in way) >= scores[n]:
            found.append(-math.inf)
            continue
        after = total + counts[n] * (len(way) - 1)
        without = sum(math.log((counts[k] + counts[n]) / after) for k in way)
        found.append(counts[n] / total * (math.log(counts[n] / total) - without))
    return found


def test_what_cannot_be_cut_is_never_lost() -> None:
    pieces = ["", "a", "ab", "aa"]
    own = in_blocks(pieces[2:], pieces)
    for block in own:
        block.pieces[0, -1] = 0
        block.rows = block.rows + 2
    scores = np.array([-np.inf, -1.0, -1.5, -1.5])
    got = losses(own, scores, np.array([0.0, 5.0, 2.0, 2.0]))
    assert np.isposinf(got[:3]).all()
    assert got[3] == pytest.approx(2 / 9 * (math.log(2 / 9) - 2 * math.log(7 / 11)))


def numbered(folder: Path, documents: int) -> Path:
    """A file whose document n holds the word wN and some of its own."""
    file = folder / "numbered.txt"
    texts = (f"w{n} " + " ".join(f"x{n}y{k}" for k in range(20)) for n in range(documents))
    file.write_text("\n\n".join(texts) + "\n")
    return file


def sampled(file: Path, **how: Any) -> training_text.Counted:
    return count_words([file], cut=between_blanks, words_of=lambda run: [run], progress=lambda _: None, **how)


def test_a_sample_is_of_whole_documents_spread_evenly(tmp_path: Path) -> None:
    file = numbered(tmp_path, 8_000)
    whole = sampled(file)
    assert (whole.share, whole.documents, whole.documents_taken) == (1, 8_000, 8_000)
    room = training_text._FLOOR + 30_000_000
    found = sampled(file, max_ram=room, seed=3)
    assert found.share < 1
    assert found.documents == 8_000
    assert found.bytes == whole.bytes
    expected = np.flatnonzero(draws.uniform(3, "tokenizer sample", np.arange(8_000)) < found.share)
    assert found.documents_taken == len(expected)
    assert abs(found.documents_taken - 8_000 * found.share) < 4 * np.sqrt(8_000 * found.share)
    assert {int(word[1:]) for word in found.words if word.startswith("w")} == set(expected.tolist())
    assert sum(n for word, n in found.words.items() if word) == 21 * len(expected)
    assert sampled(file, max_ram=room, seed=3) == found
    assert sampled(file, max_ram=room, seed=4).words != found.words
    quarters = np.bincount(expected // 2_000, minlength=4) / len(expected)
    assert np.all(np.abs(quarters - 0.25) < 0.06)


@pytest.mark.parametrize(("documents", "expected"), [("blank_line", 2), ("file", 1), ("line", 3)])
def test_documents_are_counted_by_the_reading(tmp_path: Path, documents: Any, expected: int) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n\n\nthree\n")
    found = sampled(file, reading=Reading(documents=documents))
    assert found.documents == expected
    assert {word: n for word, n in found.words.items() if word} == {"one": 1, "two": 1, "three": 1}


def test_columns_and_folders_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("id,body\n1,alpha beta\n2,alpha\n")
    (tmp_path / "in/b.csv").write_text("id,body\n1,gamma\n")
    found = sampled(tmp_path / "in", reading=Reading(text_column="body"))
    assert found.words == {"alpha": 2, "beta": 1, "gamma": 1}
    assert found.documents == 3


def test_the_command_says_what_it_sampled(tmp_path: Path) -> None:
    file = numbered(tmp_path, 8_000)
    limit = f"{(training_text._FLOOR + 30_000_000) // 1_000_000}MB"
    command = [sys.executable, "-m", "bertsmith", "tokenizer", "train", str(file), "--json", "--seed", "3"]
    command += ["--kind", "wordpiece", "--max-ram", limit, "--vocab-size", "400"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], check=True, capture_output=True, text=True
    )
    told = json.loads(done.stdout)
    assert told["vocab_size"] == 400
    assert told["documents"] == 8_000 > told["documents_sampled"] > 0
    assert told["share_sampled"] < 1
    assert "do not fit into" in done.stderr
    assert f"{told['documents_sampled']:,} of them" in done.stderr
    assert Tokenizer.load(tmp_path / "out").kind == "wordpiece"


_MEMORY = """
import sys
from bertsmith.vocabulary.learn import train_tokenizer
train_tokenizer([sys.argv[1]], sys.argv[2], kind=sys.argv[3], vocab_size=8000, max_ram=int(sys.argv[4]))
# Not getrusage, which begins with what the parent had when it started this process.
print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is asked of Linux")
@pytest.mark.parametrize("kind", ["wordpiece", "byte_level_bpe", "unigram"])
def test_memory_stays_below(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "large.txt"
    words = draws.bits(0, "words", np.arange(100_000)[:, None], np.arange(60))
    with open(file, "w") as out:
        for row in words.tolist():
            out.write(
                " ".join(f"{bits >> 40:x}" if bits % 4 == 0 else f"w{bits % 5000}" for bits in row) + "\n\n"
            )
    limit = 400_000_000
    command = [sys.executable, "-c", _MEMORY, str(file), str(tmp_path / "out"), kind, str(limit)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(printed) < limit
    assert json.loads((tmp_path / "out/training.json").read_text())["share_sampled"] < 1


def test_text_without_blanks_is_not_left_out(shared_data: Path, tmp_path: Path) -> None:
    file = shared_data / "corpora/sample/chinese.txt"
    tokenizer = train_tokenizer([file], tmp_path / "u", kind="unigram", vocab_size=6000, chinese=True)
    assert tokenizer.vocab_size == 6000
    long = [token for token in tokenizer.tokens if len(token.strip("▁")) > 1 and token[-1] > "\u4dff"]
    assert len(long) > 1000  # words of several characters, not only characters
