"""Compare token ids with transformers over all of Unicode, and both variants of our normalizer with each other.

    python benchmarks/tokenizer_parity.py [--only NAME …]

Texts: each of the 1,112,064 Unicode scalars alone and between letters, and 100,000 random strings (mixed scripts,
combining marks, control characters, strings that look like special tokens, emoji). `hf`: ids by the published
vocabularies, compared with the fast tokenizers of transformers; both treat special tokens in texts as text.
`variants`: scalars between letters whose words differ between our `hf` and `google` variants; a test compares
`google` with BERT's original rules. Results are recorded: the script may be stopped and restarted.
"""

from __future__ import annotations

import random
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import record
from bertsmith.tokenizer import unigram
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer.wordpiece import bert_normalizer, bert_pre_tokenizer

VOCABULARIES = {  # name, folder, lowercase
    "uncased": ("bert-base-uncased", True),
    "cased": ("bert-base-cased", False),
    "Chinese": ("bert-base-chinese", True),
    "byte-level BPE": ("roberta-base", None),
    "Unigram": ("albert-base", None),
}
BATCH_SIZE = 20_000
ALPHABETS = [
    "abcdefgXYZ 0123456789", "éüßñÅøİıſK", "άβγΣςΩ Σ", "абвгДЖЙё", "中国人漢字龍㐀𠀀豈", "かなカナｶﾞ", "한국어각",
    "अआकि्षत्र", "กำไทย", "עברית ערב", "العربية ًٌٍ", "\u0300\u0301\u0315\u0327\u05ae\u0345\u20dd\u302e",
    "\t\n\r\x00\x01\x0b\x0c\x1c\x85\x7f\xad\u200b\u200d\u202e\ufeff\ufffd",
    ".,;:!?'\"()[]{}<>-–—…«»、。！？$+=`^|~",
    " \u00a0\u2003\u2028\u2029\u3000\u1680", "😀👍🏽👩\u200d👩\u200d👧🇩🇪❤️", "ǅﬁ①Ⅷ½㎏𝐀𝟘",
    "\ue000\ufdd0\U000e0041\U0010ffff",
]  # fmt: skip
STRINGS = [
    *("[MASK]", "[SEP]", "<mask>", "</s>", "<s>", "[CLS]", "<|endoftext|>"),
    *("``", "''", "don't", "##ing", "Ġ", "▁"),
]


def scalars() -> list[str]:
    return [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def random_texts(count: int, seed: int) -> list[str]:
    """Return texts of one to eight parts: strings of STRINGS, or a few characters of one alphabet."""
    rng = random.Random(seed)

    def part() -> str:
        if rng.random() < 1 / 8:
            return rng.choice(STRINGS)
        return "".join(rng.choices(rng.choice(ALPHABETS), k=rng.randint(1, 7))) + rng.choice(("", " "))

    return ["".join(part() for _ in range(rng.randint(1, 8))) for _ in range(count)]


TEXTS: dict[str, Callable[[], list[str]]] = {
    "scalars alone": scalars,
    "scalars between letters": lambda: [f"a{character}b" for character in scalars()],
    "random strings": partial(random_texts, 100_000, 0),
}


def main() -> None:
    parser = record.argument_parser(__doc__)
    parser.add_argument("--only", nargs="*", help="only these tokenizers; RESULTS.md is not written then")
    only = parser.parse_args().only
    rows = []
    for name, (folder, lowercase) in VOCABULARIES.items():
        if only and name not in only:
            continue
        results = []
        for kind, make_texts in TEXTS.items():
            measure = partial(compare_ids, folder, lowercase, make_texts)
            results.append(record.run_once("tokenizer_parity", f"hf, {name}, {kind}", measure))
        rows.append([name, *(f"{r['differences']:,} of {r['texts']:,}" for r in results)])
        print(rows[-1], *(r["first"] for r in results), flush=True)
    if not only:
        counts = {
            name: record.run_once(
                "tokenizer_parity", f"variants, {name}", partial(compare_variants, lowercase)
            )
            for name, lowercase in (("uncased", True), ("cased", False))
        }
        record.write_section("Tokenizer parity", format_section(rows, counts))


def load_reference(folder: Path, lowercase: bool | None) -> Any:
    """Return the backend of the fast tokenizer of transformers."""
    import transformers

    library: Any = transformers
    if (folder / "vocab.txt").exists():
        tokenizer = library.BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=lowercase)
    elif (folder / "vocab.json").exists():
        vocab, merges = str(folder / "vocab.json"), str(folder / "merges.txt")
        tokenizer = library.RobertaTokenizer(vocab=vocab, merges=merges)
    else:  # transformers reads this file only with another package
        model = unigram.parse_model((folder / "spiece.model").read_bytes(), folder)
        charsmap = model.precompiled_charsmap
        tokenizer = library.AlbertTokenizer(vocab=model.pieces, _spm_precompiled_charsmap=charsmap)
    tokenizer.backend_tokenizer.encode_special_tokens = True
    return tokenizer.backend_tokenizer


def compare_ids(folder: str, lowercase: bool | None, make_texts: Callable[[], list[str]]) -> dict[str, Any]:
    """Compare the ids of our tokenizer with those of transformers."""
    path, texts = record.DATA / "vocabs" / folder, make_texts()
    ours, reference = Tokenizer.load(path, lowercase=lowercase), load_reference(path, lowercase)
    differing = []
    for start in range(0, len(texts), BATCH_SIZE):
        batch = texts[start : start + BATCH_SIZE]
        expected = [e.ids for e in reference.encode_batch(batch, add_special_tokens=False)]
        differing += [t for t, a, b in zip(batch, ours.encode_ids(batch), expected, strict=True) if a != b]
    return {"texts": len(texts), "differences": len(differing), "first": [ascii(t) for t in differing[:5]]}


def compare_variants(lowercase: bool) -> dict[str, int]:
    """Count by Unicode category the scalars between letters whose words differ between the two variants."""
    google = bert_normalizer(lowercase, variant="google"), bert_pre_tokenizer(variant="google")
    hf = bert_normalizer(lowercase, variant="hf"), bert_pre_tokenizer(variant="hf")
    counts: Counter[str] = Counter()
    for character in scalars():
        a, b = (
            [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(f"a{character}b"))]
            for normalizer, splitter in (google, hf)
        )
        counts[unicodedata.category(character)] += a != b
    return dict((+counts).most_common())


def format_section(rows: list[list[str]], counts: dict[str, dict[str, int]]) -> str:
    differences = "; ".join(f"hf, {name}: {', '.join(cells)}" for name, *cells in rows)
    categories = "; ".join(
        f"{name}: " + ", ".join(f"{category} {count:,}" for category, count in by_category.items())
        for name, by_category in counts.items()
    )
    return f"""`python benchmarks/tokenizer_parity.py`; {record.environment(1)}.

Texts whose tokenization differs from the reference's, of three kinds ({", ".join(TEXTS)}). hf: ids of published
vocabularies against the fast tokenizers of transformers, special strings in texts left text on both sides.

{differences}.

Code points between two letters for which the two normalizers give other words, by Unicode category: {categories}.
Co (private use): dropped by the library, kept by the original. Mn, P*, and Cf: added to Unicode after the
library's tables. Lo: U+2B820 to U+2B91F, which the library does not set apart. Cn: capitals added after Unicode
14.0. A capital sigma at a word's end is ς in the original and σ in the library. Unigram texts contain no
`<pad>` and `<unk>`, which only the reference reads as special tokens."""


if __name__ == "__main__":
    main()
