"""Training of byte-level BPE and Unigram, and sampling of corpora that do not fit into memory."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith import rng
from bertsmith.errors import InputError
from bertsmith.io.documents import Reading
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer.unigram import parse_model, unigram_normalizer
from bertsmith.tokenizer_training import training_text
from bertsmith.tokenizer_training.algorithms import (
    _MAX_UNIGRAM_CHARACTERS,
    _MAX_UNIGRAM_WORD_LENGTH,
    _unigram_words,
    train_sentencepiece,
)
from bertsmith.tokenizer_training.train import train_tokenizer
from bertsmith.tokenizer_training.training_text import (
    count_training_words,
    split_at_spaces,
    split_before_spaces,
)

_SCRIPT = """
import sys
from bertsmith.tokenizer_training.train import train_tokenizer
for kind, size in (("byte_level_bpe", 2000), ("unigram", 3000)):
    train_tokenizer([sys.argv[1]], sys.argv[2] + kind, kind=kind, vocab_size=size)
"""


def test_three_processes_train_the_same_vocabularies(shared_data: Path, tmp_path: Path) -> None:
    digests = set()
    for n in range(1, 4):
        prefix = tmp_path / f"{n}-"
        environment = {**os.environ, "PYTHONHASHSEED": str(n * 101), "RAYON_NUM_THREADS": str(n)}
        file = shared_data / "corpora/sample/mixed.txt"
        subprocess.run([sys.executable, "-c", _SCRIPT, str(file), str(prefix)], check=True, env=environment)
        files = [
            tmp_path / f"{n}-{name}"
            for name in ("byte_level_bpe/vocab.json", "byte_level_bpe/merges.txt", "unigram/tokenizer.json")
        ] + [tmp_path / f"{n}-unigram/spiece.model"]
        digests.add(tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))
    assert len(digests) == 1


@pytest.fixture(scope="module")
def trained(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, Path]]:
    file = shared_data / "corpora/sample/english.txt"
    trained_by_kind = {}
    for kind in ("byte_level_bpe", "unigram"):
        out = tmp_path_factory.mktemp("trained") / kind
        trained_by_kind[kind] = (train_tokenizer([file], out, kind=kind, vocab_size=3_000), out)  # type: ignore[arg-type]
    return trained_by_kind


def test_byte_level_bpe_has_robertas_special_tokens(trained: dict[str, tuple[Tokenizer, Path]]) -> None:
    tokenizer, out = trained["byte_level_bpe"]
    assert tokenizer.vocab_size == 3_000
    assert tokenizer.tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert all(len(token) == 1 for token in tokenizer.tokens[4:260])
    assert tokenizer.tokens[-1] == "<mask>"
    assert {"Ġthe", "The", "ing"} <= set(tokenizer.tokens)
    assert (tokenizer.num_separators, tokenizer.uses_segments, tokenizer.pad_token_id) == (2, False, 1)
    merges = (out / "merges.txt").read_text("utf-8").splitlines()
    assert len(merges) - 1 == 3_000 - 4 - 256 - 1
    text = "Any bytes: 中国 😀 \x00\t  <mask> done"
    assert tokenizer.decode(tokenizer.encode_ids([text])[0]) == text
    assert tokenizer.mask_token_id not in tokenizer.encode_ids([text])[0]


def test_unigram_has_alberts_special_tokens(trained: dict[str, tuple[Tokenizer, Path]]) -> None:
    tokenizer, out = trained["unigram"]
    assert tokenizer.vocab_size == 3_000
    assert tokenizer.tokens[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert {"▁the", "ing", "▁"} <= set(tokenizer.tokens)
    assert tokenizer.lowercase
    assert tokenizer.decode(tokenizer.encode("Once upon a Time").ids) == "once upon a time"
    scores = [score for _, score in json.loads((out / "tokenizer.json").read_text())["model"]["vocab"]][5:]
    assert scores == sorted(scores, reverse=True)
    assert len(tokenizer.encode_ids(["the king of the country was there"])[0]) < 14


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
    assert [e.ids for e in tokenizer.encode_batch(texts, max_length=10**9)] == expected
    assert Tokenizer.load(out).digest == tokenizer.digest
    record = json.loads((out / "training.json").read_text())
    assert (record["requested_size"], record["size"], record["share_sampled"]) == (3_000, 3_000, 1.0)
    assert record["documents"] == record["documents_sampled"] == 180


def test_byte_level_words_equal_those_of_the_complete_text(shared_data: Path) -> None:
    from tokenizers import pre_tokenizers

    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

    def split_words(text: str) -> list[str]:
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(text)]

    file = shared_data / "corpora/sample/mixed.txt"
    lines = file.read_bytes().decode("utf-8").split("\n")[:-1]
    expected = Counter(word for line in lines for word in split_words(line.removesuffix("\r") + "\n"))
    counted = count_training_words(
        [file], split_runs=split_before_spaces, split_words=split_words, progress=lambda _: None
    )
    assert counted.words == expected


def test_google_vocabulary_saves_its_normalizer(shared_data: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "google"
    file = shared_data / "corpora/sample/mixed.txt"
    tokenizer = train_tokenizer([file], out, vocab_size=2_000, normalizer="google")
    lines = file.read_bytes().decode("utf-8").split("\n")[:500]
    lines += ["ΣΊΣΥΦΟΣ ΟΔΟΣ.", "a\U0002b825b", "İstanbul \ue000 x"]
    expected = [e.ids for e in tokenizer.encode_batch(lines, max_length=10**9)]
    theirs = transformers.AutoTokenizer.from_pretrained(str(out))
    assert theirs(lines, split_special_tokens=True)["input_ids"] == expected
    assert theirs("a", "b")["token_type_ids"] == tokenizer.encode("a", "b").type_ids
    assert Tokenizer.load(out).digest == tokenizer.digest
    assert Tokenizer.load(out / "vocab.txt").digest == tokenizer.digest
    hf = Tokenizer.from_vocabulary(tokenizer.tokens, lowercase=True)
    assert hf.digest != tokenizer.digest
    assert tokenizer.lowercase


@pytest.mark.parametrize(
    ("options", "code", "argument"),
    [
        ({"kind": "byte_level_bpe", "vocab_size": 200}, "vocab_size_too_small", "vocab_size"),
        ({"kind": "byte_level_bpe", "cased": False}, "byte_level_bpe_keeps_case", "cased"),
        ({"kind": "byte_level_bpe", "chinese": True}, "byte_level_bpe_keeps_case", "chinese"),
        ({"kind": "unigram", "min_frequency": 5}, "min_frequency_not_applicable", "min_frequency"),
        ({"kind": "unigram", "normalizer": "google"}, "normalizer_needs_wordpiece", "normalizer"),
        ({"max_ram": 1_000_000}, "max_ram_too_small", "max_ram"),
        ({"kind": "byte-level-bpe"}, "invalid_setting", "kind"),
        ({"kind": "gpt"}, "invalid_setting", "kind"),
    ],
)
def test_invalid_options(tmp_path: Path, options: dict[str, Any], code: str, argument: str) -> None:
    file = tmp_path / "a.txt"
    file.write_text("some text some text\n")
    with pytest.raises(InputError) as caught:
        train_tokenizer([file], tmp_path / "out", **options)
    assert (caught.value.code, caught.value.argument) == (code, argument)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "value"), [("vocab_size", 10**18), ("vocab_size", 0), ("min_frequency", 10**30)]
)
def test_values_out_of_range(tmp_path: Path, name: str, value: int) -> None:
    file = tmp_path / "a.txt"
    file.write_text("some text some text\n")
    options: dict[str, Any] = {name: value}
    with pytest.raises(InputError) as caught:
        train_tokenizer([file], tmp_path / "out", **options)
    assert name in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_unigram_pieces_are_long(trained: dict[str, tuple[Tokenizer, Path]], shared_data: Path) -> None:
    tokenizer, _ = trained["unigram"]
    text = (shared_data / "corpora/sample/english.txt").read_text("utf-8")[:300_000]
    assert sum(map(len, tokenizer.encode_ids(text.split("\n")))) <= 87_404


def test_sentencepiece_gives_the_same_ids_for_saved_models(
    trained: dict[str, tuple[Tokenizer, Path]], shared_data: Path
) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    tokenizer, out = trained["unigram"]
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(out / "spiece.model"))
    assert [theirs.id_to_piece(i) for i in range(theirs.get_piece_size())] == tokenizer.tokens
    normalizer = unigram_normalizer(True, False, b"")
    lines = (shared_data / "corpora/sample/english.txt").read_text("utf-8").split("\n")[:400]
    assert [theirs.encode(normalizer.normalize_str(line)) for line in lines] == tokenizer.encode_ids(lines)
    (copy := out.with_name("copy")).mkdir()
    for name in ("spiece.model", "tokenizer_config.json"):
        shutil.copy(out / name, copy)
    assert Tokenizer.load(copy).digest == tokenizer.digest


WORDS = st.dictionaries(st.text("ab▁é中1,", min_size=1, max_size=40), st.integers(1, 50), min_size=1)


@settings(max_examples=30)
@given(words=WORDS, size=st.integers(13, 60))
def test_pieces_come_from_the_words(words: dict[str, int], size: int) -> None:
    data = train_sentencepiece(words, size)
    assert train_sentencepiece(dict(reversed(words.items())), size) == data
    model = parse_model(data, "model")
    names = [name for name, _ in model.pieces]
    assert names[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert model.unk_id == 1
    assert len(set(names)) == len(names) <= size
    assert {name for name in names[5:] if len(name) == 1} == set("".join(words)) | {"▁"} & set(names)
    text = " ".join(words)
    for name, score in model.pieces[5:]:
        assert math.isfinite(score)
        assert name in text
        assert "▁" not in name[1:]
        scripts = {"latin" if c in "abé" else c if c == "中" else "common" for c in name.removeprefix("▁")}
        assert len(scripts) <= 1


def test_training_words_are_the_most_frequent_and_long_ones_are_split() -> None:
    page = "中国人民" * 500_000
    assert [(len(word), n) for word, n in _unigram_words({page: 3})] == [(_MAX_UNIGRAM_WORD_LENGTH, 6_000)]
    many = {f"{n:07}" * 30: 1 + n // 20_000 for n in range(40_000)}
    selected = dict(_unigram_words(many))
    assert sum(map(len, selected)) <= _MAX_UNIGRAM_CHARACTERS < sum(map(len, selected)) + 210
    assert list(selected.values()) == [2] * (_MAX_UNIGRAM_CHARACTERS // 210)
    assert _unigram_words(dict(reversed(many.items()))) == _unigram_words(many)


def test_small_vocabulary_of_many_characters(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(" ".join(chr(0x4E00 + n) * 2 for n in range(200)) * 3)
    tokenizer = train_tokenizer([file], tmp_path / "out", kind="unigram", vocab_size=40, chinese=True)
    assert tokenizer.vocab_size == 40


# --- sampling ----------------------------------------------------------------------------------------------


def write_numbered_documents(folder: Path, documents: int) -> Path:
    """Write a file whose document n has the word wN and 20 other words that no other document has."""
    file = folder / "numbered.txt"
    texts = (f"w{n} " + " ".join(f"x{n}y{k}" for k in range(20)) for n in range(documents))
    file.write_text("\n\n".join(texts) + "\n")
    return file


def count_words(file: Path, **options: Any) -> training_text.CorpusWords:
    return count_training_words(
        [file], split_runs=split_at_spaces, split_words=lambda run: [run], progress=lambda _: None, **options
    )


def test_sample_has_complete_documents_spread_evenly(tmp_path: Path) -> None:
    file = write_numbered_documents(tmp_path, 8_000)
    full = count_words(file)
    assert (full.ratio, full.documents, full.documents_sampled) == (1, 8_000, 8_000)
    max_ram = training_text._BASE_BYTES + 30_000_000
    sample = count_words(file, max_ram=max_ram, seed=3)
    assert sample.ratio < 1
    assert sample.documents == 8_000
    assert sample.bytes == full.bytes
    expected = np.flatnonzero(rng.uniform(3, "tokenizer sample", np.arange(8_000)) < sample.ratio)
    assert sample.documents_sampled == len(expected)
    assert abs(sample.documents_sampled - 8_000 * sample.ratio) < 4 * np.sqrt(8_000 * sample.ratio)
    assert {int(word[1:]) for word in sample.words if word.startswith("w")} == set(expected.tolist())
    assert sum(n for word, n in sample.words.items() if word) == 21 * len(expected)
    assert count_words(file, max_ram=max_ram, seed=3) == sample
    assert count_words(file, max_ram=max_ram, seed=4).words != sample.words
    quarters = np.bincount(expected // 2_000, minlength=4) / len(expected)
    assert np.all(np.abs(quarters - 0.25) < 0.06)


@pytest.mark.parametrize(("documents", "expected"), [("blank_line", 2), ("file", 1), ("line", 3)])
def test_documents_are_counted_by_the_reading(tmp_path: Path, documents: Any, expected: int) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n\n\nthree\n")
    counted = count_words(file, reading=Reading(documents=documents))
    assert counted.documents == expected
    assert {word: n for word, n in counted.words.items() if word} == {"one": 1, "two": 1, "three": 1}


def test_columns_and_folders_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("id,body\n1,alpha beta\n2,alpha\n")
    (tmp_path / "in/b.csv").write_text("id,body\n1,gamma\n")
    counted = count_words(tmp_path / "in", reading=Reading(text_column="body"))
    assert counted.words == {"alpha": 2, "beta": 1, "gamma": 1}
    assert counted.documents == 3


def test_command_reports_the_sample(tmp_path: Path) -> None:
    file = write_numbered_documents(tmp_path, 8_000)
    limit = f"{(training_text._BASE_BYTES + 30_000_000) // 1_000_000}MB"
    command = [sys.executable, "-m", "bertsmith", "tokenizer", "train", str(file), "--json", "--seed", "3"]
    command += ["--kind", "wordpiece", "--max-ram", limit, "--vocab-size", "400"]
    process = subprocess.run(
        [*command, "--output-dir", str(tmp_path / "out")], check=True, capture_output=True, text=True
    )
    output = json.loads(process.stdout)
    assert output["vocab_size"] == 400
    assert output["documents"] == 8_000 > output["documents_sampled"] > 0
    assert output["share_sampled"] < 1
    assert f"a sample of {output['documents_sampled']:,} documents" in process.stderr
    assert Tokenizer.load(tmp_path / "out").kind == "wordpiece"


_MEMORY = """
import sys
from bertsmith.tokenizer_training.train import train_tokenizer
train_tokenizer([sys.argv[1]], sys.argv[2], kind=sys.argv[3], vocab_size=8000, max_ram=int(sys.argv[4]))
# Not getrusage, which starts with the memory of the parent process.
print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("kind", ["wordpiece", "byte_level_bpe", "unigram"])
def test_memory_stays_below_the_limit(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "large.txt"
    words = rng.random_bits(0, "words", np.arange(100_000)[:, None], np.arange(60))
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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_with_a_file_of_one_word(tmp_path: Path) -> None:
    file = tmp_path / "word.txt"
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    file.write_text("".join(letters[rng.random_bits(0, "letters", np.arange(50_000_000)) % 26]) + "\n")
    command = [sys.executable, "-c", _MEMORY, str(file), str(tmp_path / "out"), "unigram", str(10**12)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(printed) < 450_000_000
    assert Tokenizer.load(tmp_path / "out").vocab_size == 8_000


def test_text_without_spaces_is_trained_on(shared_data: Path, tmp_path: Path) -> None:
    file = shared_data / "corpora/sample/chinese.txt"
    tokenizer = train_tokenizer([file], tmp_path / "u", kind="unigram", vocab_size=6000, chinese=True)
    assert tokenizer.vocab_size == 6000
    long = [token for token in tokenizer.tokens if len(token.strip("▁")) > 1 and token[-1] > "\u4dff"]
    assert len(long) > 1000  # words of several characters, not only characters
