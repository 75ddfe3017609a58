"""BERT's normaliser in the library's reading: controls dropped, blanks made one kind, ideographs set apart.

(The original's reading, from a pinned Unicode version, takes its place beside this one.)
"""

from __future__ import annotations

from tokenizers import normalizers


def bert_normalizer(
    lowercase: bool, chinese: bool = True, strip_accents: bool | None = None
) -> normalizers.Normalizer:
    """The library's `BertNormalizer`: `chinese` sets blanks round every CJK ideograph, `strip_accents=None`
    strips them exactly when lower-casing, as the released models do."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
