"""Mutated tokenizer files, drawn by a fixed seed: each is refused in one sentence, or read and then usable."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bertsmith.errors import InputError
from bertsmith.tokenizer.byte_level_bpe import byte_decoder
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training.algorithms import train_sentencepiece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VALUES: list[Any] = [
    *(None, True, 0, 1, -1, 7, 10**30, -(10**30), 0.5, 1e308, "", "a", "[MASK]", "\x00", "$A", "a:b", "##"),
    *([], [1], ["a", "b"], [[]], {}, {"type": "Sequence"}, {"content": 3}, "WordPiece", "BPE", "Unigram"),
    *("ByteLevel", float("nan"), float("inf"), "ab" * 500, [None] * 3, {"type": "NFD"}, {"a": {"b": []}}),
]
TEXTS = ["The cats sat, unable: [MASK] [SEP]", "中国 é \U0010fffd x", ""]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small tokenizer of each kind, as bertsmith saves it."""
    place = tmp_path_factory.mktemp("whole")
    Tokenizer.from_vocabulary([*SPECIALS, "the", "cat", "##s", "sat", ",", "a", "b"], lowercase=True).save(
        place / "wordpiece"
    )
    letters = [*("<s>", "<pad>", "</s>", "<unk>"), *byte_decoder(), "th", "the", "<mask>"]
    (place / "bpe").mkdir()
    (place / "bpe/vocab.json").write_text(json.dumps({token: i for i, token in enumerate(letters)}))
    (place / "bpe/merges.txt").write_text("#version: 0.2\nt h\nth e\n")
    Tokenizer.load(place / "bpe").save(place / "bpe")
    (place / "unigram").mkdir()
    model = train_sentencepiece({"▁the": 9, "▁cats": 4, "▁sat": 5, "▁cat,": 3, "中国": 2}, 40)
    (place / "unigram/spiece.model").write_bytes(model)
    Tokenizer.load(place / "unigram").save(place / "unigram")
    return {folder.name: folder for folder in place.iterdir()}


FILES = [
    *(("wordpiece", name) for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")),
    *(("bpe", name) for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")),
    *(("unigram", name) for name in ("tokenizer.json", "tokenizer_config.json", "spiece.model")),
]


def places(value: Any, within: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each part of a JSON value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*within, key)
        yield from places(part, (*within, key))


def bent(data: bytes, draw: random.Random) -> bytes:
    """A JSON file with one to three parts replaced, removed or doubled."""
    whole = json.loads(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        # As many from the outline as from its long lists.
        found = sorted(places(whole), key=lambda way: (len(way), str(way)))
        short = [way for way in found if "vocab" not in way[:-1] and "merges" not in way[:-1]]
        way = draw.choice(short if draw.random() < 0.8 else found)
        holder = whole
        for key in way[:-1]:
            holder = holder[key]
        if draw.random() < 0.25:
            del holder[way[-1]]
        elif isinstance(holder, list) and draw.random() < 0.3:
            holder.append(holder[way[-1]])
        else:
            holder[way[-1]] = draw.choice(VALUES)
        if not whole:
            break
    return json.dumps(whole).encode()


def torn(data: bytes, draw: random.Random) -> bytes:
    """A file with bytes changed, removed, doubled or cut off."""
    raw = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(raw) + 1) if raw else 0
        end = min(len(raw), at + draw.choice((1, 1, 2, 10, 100)))
        how = draw.randrange(5)
        if how == 0:
            raw[at:end] = bytes(draw.randrange(256) for _ in range(end - at))
        elif how == 1:
            del raw[at:end]
        elif how == 2:
            raw[at:at] = raw[at:end]
        elif how == 3:
            raw[at:at] = draw.choice((b"\n", b"\x00", b"\xff", "中".encode(), b" ", b"\n\n"))
        elif draw.random() < 0.3:
            del raw[at:]
    return bytes(raw)


def used(folder: Path) -> bool:
    """Load a folder and do all that is done with a tokenizer; False where it was refused."""
    try:
        tokenizer = Tokenizer.load(folder)
    except InputError as error:
        sentence = error.sentence_for("python")
        if str(folder) not in sentence or "\n" in sentence:
            raise
        return False
    for specials in ("text", "parse"):
        for found in (
            tokenizer.encode_batch(TEXTS, max_length=10**6, special_strings=specials),
            tokenizer.encode_batch(TEXTS, TEXTS[::-1], max_length=10**6, special_strings=specials),
        ):
            assert all(0 <= i < tokenizer.vocab_size for e in found for i in e.ids)
            assert all(segment in (0, 1) for e in found for segment in e.type_ids)
    assert len(tokenizer.encode_ids(TEXTS)) == 3
    tokenizer.decode(range(tokenizer.vocab_size), keep_special_tokens=True)
    assert tokenizer.digest
    assert isinstance(tokenizer.lowercase, bool)
    tokenizer.save(folder / "again")
    assert Tokenizer.load(folder / "again").digest == tokenizer.digest
    return True


def run(folders: dict[str, Path], place: Path, seeds: range) -> tuple[int, int]:
    """How many mutants were read, and how many refused."""
    counts = [0, 0]
    for seed in seeds:
        draw = random.Random(seed)
        kind, name = FILES[seed % len(FILES)]
        folder = place / str(seed)
        shutil.copytree(folders[kind], folder)
        if name not in ("tokenizer.json", "tokenizer_config.json") or draw.random() < 0.3:
            (folder / "tokenizer.json").unlink(missing_ok=name != "tokenizer.json")
            shutil.copy(folders[kind] / name, folder / name)
        file = folder / name
        mutate: Callable[[bytes, random.Random], bytes] = torn
        if name.endswith(".json") and draw.random() < 0.8:
            mutate = bent
        file.write_bytes(mutate(file.read_bytes(), draw))
        try:
            counts[used(folder)] += 1
        except InputError:
            raise AssertionError(f"seed {seed}: refused when it was used") from None
        except BaseException as error:
            raise AssertionError(f"seed {seed}, {kind}/{name}: {type(error).__name__}: {error}") from error
        shutil.rmtree(folder)
    return counts[1], counts[0]


def test_mutated_files_are_refused_or_read(folders: dict[str, Path], tmp_path: Path) -> None:
    read, refused = run(folders, tmp_path, range(200))
    assert read > 20
    assert refused > 60


@pytest.mark.slow
def test_many_mutated_files_are_refused_or_read(folders: dict[str, Path], tmp_path: Path) -> None:
    read, refused = run(folders, tmp_path, range(200, 6_000))
    assert read + refused == 5_800


def test_an_unknown_token_that_no_vocabulary_has_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["wordpiece"], tmp_path / "bent")
    whole = json.loads((folder / "tokenizer.json").read_text())
    whole["model"]["unk_token"] = "[NONE]"
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(InputError) as caught:
        Tokenizer.load(folder)
    assert (caught.value.code, caught.value.location) == (
        "unknown_token_missing",
        str(folder / "tokenizer.json"),
    )


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 1_001},
        {"type": "Prepend", "prepend": "b" * 1_001},
        {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 32}] * 2,
        },
    ],
)
def test_a_normalizer_that_makes_texts_very_long_is_refused(
    folders: dict[str, Path], tmp_path: Path, normalizer: dict[str, Any]
) -> None:
    folder = shutil.copytree(folders["wordpiece"], tmp_path / "bent")
    whole = json.loads((folder / "tokenizer.json").read_text())
    for outer in (normalizer, {"type": "Sequence", "normalizers": [normalizer]}):
        (folder / "tokenizer.json").write_text(json.dumps(whole | {"normalizer": outer}))
        with pytest.raises(InputError) as caught:
            Tokenizer.load(folder)
        assert caught.value.code == "normalizer_too_long"
        assert caught.value.location == str(folder / "tokenizer.json")
