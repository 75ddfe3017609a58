"""Tokenizer parity over all of Unicode: ids against the reference's, the original's words against its rules.

    python benchmarks/tokenizer_parity.py [--only NAME …]

Every one of the 1,112,064 Unicode scalars alone and between letters, and 100,000 random strings (scripts mixed,
combining marks, controls, strings that look special, emoji). `hf`: ids of the published vocabularies against the
reference's fast tokenizers, both told to leave special strings text. `google`: words against a transcription of
the original rules (tests/bert_basic_tokenizer.py, Python's own Unicode tables); and how many scalars the two
readings treat differently. A finished measure is remembered, so that the script may be stopped and started again.
"""

from __future__ import annotations

import argparse
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
NAME = "tokenizer_parity"
VOCABS = record.DATA / "vocabs"
HF = {
    "uncased": "bert-base-uncased",
    "cased": "bert-base-cased",
    "Chinese": "bert-base-chinese",
    "byte-level BPE": "roberta-base",
    "Unigram": "albert-base",
}
ALPHABETS = [
    "abcdefgXYZ 0123456789", "éüßñÅøİıſK", "άβγΣςΩ Σ", "абвгДЖЙё", "中国人漢字龍㐀𠀀豈", "かなカナｶﾞ", "한국어각",
    "अआकि्षत्र", "กำไทย", "עברית ערב", "العربية ًٌٍ", "\u0300\u0301\u0315\u0327\u05ae\u0345\u20dd\u302e",
    "\t\n\r\x00\x01\x0b\x0c\x1c\x85\x7f\xad\u200b\u200d\u202e\ufeff\ufffd",
    ".,;:!?'\"()[]{}<>-–—…«»、。！？$+=`^|~",
    " \u00a0\u2003\u2028\u2029\u3000\u1680", "😀👍🏽👩\u200d👩\u200d👧🇩🇪❤️", "ǅﬁ①Ⅷ½㎏𝐀𝟘",
    "\ue000\ufdd0\U000e0041\U0010ffff",
]  # fmt: skip
STRINGS = [
    "[MASK]",
    "[SEP]",
    "<mask>",
    "</s>",
    "<s>",
    "[CLS]",
    "<|endoftext|>",
    "``",
    "''",
    "don't",
    "##ing",
    "Ġ",
    "▁",
]


def scalars() -> list[str]:
    return [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def random_strings(count: int, seed: int) -> list[str]:
    import numpy as np

    from bertsmith import rng

    parts = rng.integers(seed, "parity parts", 8, np.arange(count)) + 1
    choice = rng.random_bits(seed, "parity choice", np.arange(count)[:, None], np.arange(8))
    found = []
    for n, row in zip(parts.tolist(), choice.tolist(), strict=True):
        text = ""
        for bits in row[:n]:
            if bits % 8 == 0:
                text += STRINGS[(bits >> 8) % len(STRINGS)]
                continue
            alphabet = ALPHABETS[(bits >> 8) % len(ALPHABETS)]
            text += "".join(
                alphabet[(bits >> (16 + 6 * k)) % len(alphabet)] for k in range(1 + (bits >> 4) % 7)
            )
            text += " " * (bits >> 13 & 1)
        found.append(text)
    return found


def reference_of(folder: Path) -> Any:
    import transformers

    if (folder / "vocab.txt").exists():
        return transformers.BertTokenizerFast(
            vocab=str(folder / "vocab.txt"),
            do_lower_case="uncased" in folder.name or "chinese" in folder.name,
        )
    if (folder / "vocab.json").exists():
        return transformers.RobertaTokenizerFast(
            vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt")
        )
    from bertsmith.tokenizer import unigram

    model = unigram.read_model(
        folder / "spiece.model"
    )  # its own reader needs another package; its class does not
    return transformers.AlbertTokenizerFast(
        vocab=model.pieces, _spm_precompiled_charsmap=model.precompiled_charsmap
    )


def hf(folder: str, texts: Callable[[], list[str]]) -> dict[str, Any]:
    from bertsmith.tokenizer.tokenizer import Tokenizer

    path = VOCABS / folder
    lowercase = {"bert-base-uncased": True, "bert-base-cased": False, "bert-base-chinese": True}.get(folder)
    ours = Tokenizer.load(path, lowercase=lowercase)
    reference = reference_of(path).backend_tokenizer
    reference.encode_special_tokens = True
    all_texts = texts()
    differ: list[str] = []
    started = time.perf_counter()
    for block in blocks(all_texts, 20_000):
        expected = [e.ids for e in reference.encode_batch(block, add_special_tokens=False)]
        found = ours.encode_ids(block)
        differ += [text for text, a, b in zip(block, found, expected, strict=True) if a != b]
    return summary(all_texts, differ, started)


def google(lowercase: bool, texts: Callable[[], list[str]]) -> dict[str, Any]:
    from bert_basic_tokenizer import words_of
    from bertsmith.tokenizer.normalizer import bert_normalizer, bert_pre_tokenizer

    kinds = ("google", "hf")
    ways = [(bert_normalizer(lowercase, variant=r), bert_pre_tokenizer(variant=r)) for r in kinds]
    all_texts = texts()
    differ: list[str] = []
    apart: Counter[str] = Counter()
    started = time.perf_counter()
    for text in all_texts:
        ours, library = ([w for w, _ in b.pre_tokenize_str(n.normalize_str(text))] for n, b in ways)
        if ours != words_of(text, lowercase=lowercase):
            differ.append(text)
        if ours != library:
            apart[unicodedata.category(text[1]) if len(text) == 3 else "any"] += 1
    return {**summary(all_texts, differ, started), "hf_differs": dict(apart.most_common())}


def summary(texts: list[str], differ: list[str], started: float) -> dict[str, Any]:
    seconds = round(time.perf_counter() - started, 1)
    return {
        "texts": len(texts),
        "differences": len(differ),
        "first": [ascii(t) for t in differ[:5]],
        "s": seconds,
    }


def blocks(texts: Sequence[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(texts), size):
        yield list(texts[start : start + size])


TEXTS: dict[str, Callable[[], list[str]]] = {
    "scalars alone": scalars,
    "scalars between letters": lambda: [f"a{c}b" for c in scalars()],
    "random strings": partial(random_strings, 100_000, 0),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", help="only these tokenizers; the section is then not written")
    only = parser.parse_args().only
    measures: dict[str, Callable[[Callable[[], list[str]]], dict[str, Any]]] = {
        **{f"hf, {name}": partial(hf, folder) for name, folder in HF.items()},
        "google, uncased": partial(google, True),
        "google, cased": partial(google, False),
    }
    rows = []
    found: dict[str, dict[str, Any]] = {}
    for name, measure in measures.items():
        if only and name not in only:
            continue
        for kind, texts in TEXTS.items():
            found[f"{name}, {kind}"] = record.run_once(NAME, f"{name}, {kind}", partial(measure, texts))
        three = [found[f"{name}, {kind}"] for kind in TEXTS]
        rows.append([name, *(f"{one['differences']:,} of {one['texts']:,}" for one in three)])
        print(rows[-1], *(one["first"] for one in three), flush=True)
    if not only:
        record.write_section("Tokenizer parity", text_of(rows, found))


def text_of(rows: list[list[str]], found: dict[str, dict[str, Any]]) -> str:
    against = {
        "uncased": "google, uncased, scalars between letters",
        "cased": "google, cased, scalars between letters",
    }
    apart = {name: found[key]["hf_differs"] for name, key in against.items()}
    differences = "; ".join(f"{name}: {', '.join(cells)}" for name, *cells in rows)
    differ = "; ".join(
        f"{name}: "
        + ", ".join(f"{category} {n:,}" for category, n in sorted(one.items(), key=lambda i: -i[1]))
        for name, one in apart.items()
    )
    return f"""`python benchmarks/tokenizer_parity.py`; {record.environment(1)}.

Texts whose tokenization differs from the reference's, of three kinds ({", ".join(TEXTS)}). hf: ids of published
vocabularies against the fast tokenizers of transformers, special strings in texts left text on both sides.
google: words against an independent transcription of BERT's original rules with Python's Unicode tables, pinned
to Unicode 14.0.0.

{differences}.

Code points between two letters for which the two normalizers give other words, by Unicode category: {differ}.
Co (private use): dropped by the library, kept by the original. Mn, P*, and Cf: added to Unicode after the
library's tables. Lo: U+2B820 to U+2B91F, which the library does not set apart. Cn: capitals added after Unicode
14.0. A capital sigma at a word's end is ς in the original and σ in the library. Unigram texts contain no
`<pad>` and `<unk>`, which only the reference reads as special tokens."""


if __name__ == "__main__":
    main()
