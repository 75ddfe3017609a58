"""Recognize files that are not text by their first bytes, and give a hint how to get their text.

The content decides and not the name: a PDF called .txt is a PDF.
"""

from __future__ import annotations

import re

from bertsmith.io.encodings import is_binary

_OFFICE = "open it in Word or LibreOffice and save it as plain text (.txt, UTF-8)"
_SHEET = "open it in Excel or LibreOffice and save it as CSV UTF-8 (.csv)"
_EXPORT = "write its texts to a .txt, or with their labels to a .csv or .jsonl"
_UNPACK = "unpack it first"
_PDF = "take its text out first: pdftotext FILE.pdf FILE.txt"
_FORMATS: tuple[tuple[bytes, str, str], ...] = (
    (b"%PDF-", "a PDF", _PDF),
    (b"{\\rtf", "an RTF document", _OFFICE),
    (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an old Word, Excel or PowerPoint file",
        "open it in Word, Excel or LibreOffice and save it as .txt or .csv (UTF-8)",
    ),
    (b"\x1f\x8b", "compressed with gzip", "let its name end in .gz"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstandard", "let its name end in .zst"),
    (b"BZh", "compressed with bzip2", "let its name end in .bz2"),
    (b"\xfd7zXZ\0", "compressed with xz", "let its name end in .xz"),
    (b"PAR1", "a parquet file", "let its name end in .parquet"),
    (b"ARROW1", "an Arrow file", "write it as .parquet or .jsonl"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (
        b"version https://git-lfs.github.com/spec/",
        "a pointer of Git LFS",
        "get the file itself: git lfs pull",
    ),
    (b"<?xml", "an XML file", _EXPORT),
    (b"SQLite format 3\0", "an SQLite database", "export its table as .csv"),
)
_HTML = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype\s+html|html)[\s>]", re.IGNORECASE)
# The names of a zip's members, which are not compressed, show its format.
_ZIPPED: tuple[tuple[bytes, str, str], ...] = (
    (b"mimetypeapplication/vnd.oasis.opendocument.text", "an OpenDocument text (.odt)", _OFFICE),
    (b"mimetypeapplication/vnd.oasis.opendocument.spreadsheet", "an OpenDocument sheet (.ods)", _SHEET),
    (
        b"mimetypeapplication/epub",
        "an e-book (.epub)",
        "take its text out first: pandoc FILE.epub -o FILE.txt",
    ),
    (b"word/", "a Word document (.docx)", _OFFICE),
    (b"xl/", "an Excel workbook (.xlsx)", _SHEET),
    (b"ppt/", "a PowerPoint presentation (.pptx)", _OFFICE),
)


def describe_binary(head: bytes, *, is_wide: bool) -> tuple[str, str] | None:
    """Return a description and a hint for a file that begins with `head`; None if it is text.

    Args:
        head: The first bytes of the file.
        is_wide: True for UTF-16 and UTF-32, whose letters contain NULs.
    """
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        members = ((what, hint) for name, what, hint in _ZIPPED if name in head)
        return next(members, ("a zip archive", _UNPACK))
    if head[257:262] == b"ustar":
        return "a tar archive", _UNPACK
    for magic, what, hint in _FORMATS:
        if head.startswith(magic):
            return what, hint
    if _HTML.match(head):
        return "an HTML page", f"download the file itself, or {_EXPORT}"
    if not is_wide and is_binary(head):
        return "binary", "leave it out; to see what it is, run: file {path}"
    return None
