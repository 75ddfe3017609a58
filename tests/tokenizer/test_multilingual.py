"""A vocabulary like multilingual BERT's: ids of all scripts equal the reference's, and the preset's size fits."""

from __future__ import annotations

import json
import unicodedata
from itertools import chain, count, islice
from pathlib import Path

import pytest
import torch

from bertsmith.models.family import build_encoder, preset
from bertsmith.tokenizer.tokenizer import Tokenizer

# The release's first rows: padding, 99 unused entries, the special tokens, and two ordinary words.
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


def vocabulary_entries(size: int, *, lowercase: bool) -> list[str]:
    characters = [chr(code) for start, end in SCRIPTS for code in range(start, end)]
    if lowercase:
        decomposed = (unicodedata.normalize("NFD", character.lower()) for character in characters)
        characters = [c for c in chain.from_iterable(decomposed) if unicodedata.category(c) != "Mn"]
    pieces = chain.from_iterable((c, f"##{c}") for c in dict.fromkeys(characters))
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
    fillers = (f"##q{i}" for i in count())
    entries = dict.fromkeys([*FIRST, *words, *pieces])
    return [*entries, *islice(fillers, size - len(entries))]


@pytest.mark.parametrize(
    ("name", "size", "lowercase"),
    [("bert-base-multilingual-cased", 119_547, False), ("bert-base-multilingual-uncased", 105_879, True)],
)
def test_ids_of_a_multilingual_vocabulary_equal_the_reference(
    name: str, size: int, lowercase: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    vocabulary = vocabulary_entries(size, lowercase=lowercase)
    assert len(set(vocabulary)) == size
    (tmp_path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in vocabulary), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    ours, theirs = Tokenizer.load(tmp_path), transformers.BertTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
    assert ours.vocab_size == preset(name).vocab_size == size
    assert ours.encode("<S>").tokens[1:-1] != ["<S>"]  # not special: it is split like other text
    with torch.device("meta"):
        embedding = build_encoder(preset(name), torch.Generator("cpu")).embeddings.token.weight
    assert len(embedding) == size
