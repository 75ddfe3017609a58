"""A vocabulary of the size and order of multilingual BERT's: each script is read as the reference reads it, and
the preset has a row for every entry."""

from __future__ import annotations

import json
import unicodedata
from itertools import chain, count, islice
from pathlib import Path

import pytest
import torch

from bertsmith.models.family import build_encoder, preset
from bertsmith.tokenizer.tokenizer import Tokenizer

# The release's first rows: padding, 99 that nobody uses, the special ones, and two that are words like any other.
FIRST = ["[PAD]", *(f"[unused{n}]" for n in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>"]
SCRIPTS = [(0x21, 0x7F), (0xC0, 0x250), (0x370, 0x600), (0x620, 0x660), (0x904, 0xA00), (0xE01, 0xE5B)]
SCRIPTS += [(0x10A0, 0x1100), (0x3041, 0x3100), (0x4E00, 0x9FA6), (0xAC00, 0xB000)]
TEXTS = [
    "The cats sat on the mat in 2019.",
    "Über Straßen läuft Žižek; où est l'élève?",
    "Москва — столица России, а Київ — України.",
    "Η Αθήνα είναι όμορφη.",
    "القاهرة عاصمة مصر",
    "दिल्ली भारत की राजधानी है।",
    "東京は日本の首都です。北京是中国的首都。",
    "서울은 가나다 수도다",
    "กรุงเทพ <S> x <T> <s>",
    "🙂 ꙮ \u200bzero\u00adwidth",
]


def entries(size: int, *, lowercase: bool) -> list[str]:
    characters = [chr(code) for start, end in SCRIPTS for code in range(start, end)]
    if lowercase:
        plain = (unicodedata.normalize("NFD", one.lower()) for one in characters)
        characters = [one for one in chain.from_iterable(plain) if unicodedata.category(one) != "Mn"]
    pieces = chain.from_iterable((one, f"##{one}") for one in dict.fromkeys(characters))
    words = [
        "the",
        "cat",
        "##s",
        "sat",
        "моск",
        "##ва",
        "россии",
        "алфавит",
        "straße",
        "##en",
        "über",
        "uber",
    ]
    made_up = (f"##q{number}" for number in count())
    found = dict.fromkeys([*FIRST, *words, *pieces])
    return [*found, *islice(made_up, size - len(found))]


@pytest.mark.parametrize(
    ("name", "size", "lowercase"),
    [("bert-base-multilingual-cased", 119_547, False), ("bert-base-multilingual-uncased", 105_879, True)],
)
def test_a_multilingual_vocabulary_is_read_as_the_reference_reads_it(
    name: str, size: int, lowercase: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    vocabulary = entries(size, lowercase=lowercase)
    assert len(set(vocabulary)) == size
    (tmp_path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in vocabulary), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    ours, theirs = Tokenizer.load(tmp_path), transformers.BertTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
    assert ours.vocab_size == preset(name).vocab_size == size
    assert ours.encode("<S>").tokens[1:-1] != ["<S>"]  # no special one: it falls apart like other text
    with torch.device("meta"):
        table = build_encoder(preset(name), torch.Generator("cpu")).embeddings.token.weight
    assert len(table) == size
