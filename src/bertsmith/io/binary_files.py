"""Recognize files that are not text by their first bytes, and give a hint how to get their text.

The content decides and not the name: a PDF called .txt is a PDF.
"""

from __future__ import annotations

from collections.abc import Iterable

from bertsmith.io.encodings import is_binary

_OFFICE = "open it in Word or LibreOffice and save it as plain text (.txt, UTF-8)"
_SHEET = "open it in Excel or LibreOffice and save it as CSV UTF-8 (.csv)"
_UNPACK = "unpack it first"
_LEAVE = "leave it out"
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
    (b"SQLite format 3\0", "an SQLite database", "export its table as .csv"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture", _LEAVE),
    (b"\xff\xd8\xff", "a JPEG picture", _LEAVE),
    (b"GIF8", "a GIF picture", _LEAVE),
    (b"RIFF", "a recording, film or picture", _LEAVE),
    (b"ID3", "a recording", _LEAVE),
    (b"OggS", "a recording", _LEAVE),
    (b"\x7fELF", "a program", _LEAVE),
    (b"\x93NUMPY", "a NumPy array", _LEAVE),
)
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


_DOCUMENTS = ("pdf", "doc", "docx", "odt", "rtf", "epub", "mobi", "ppt", "pptx", "odp", "pages")
_SHEETS = ("xls", "xlsx", "ods")
# fmt: off
_NEVER_TEXT = {
    "png", "jpg", "jpeg", "gif", "webp", "bmp", "ico", "tif", "tiff", "heic", "psd", "ttf", "otf", "woff", "mp3",
    "mp4", "wav", "flac", "ogg", "m4a", "avi", "mov", "mkv", "webm", "zip", "7z", "rar", "tar", "tgz", "jar",
    "gz", "bz2", "xz", "zst", "exe", "dll", "so", "o", "a", "pyc", "class", "bin", "db", "sqlite", "npy", "npz",
    "pt", "pkl", "arrow", "safetensors",
}
# fmt: on


def skipped_files_hint(suffixes: Iterable[str]) -> str:
    """Return a hint how to read files with other suffixes (`.log`, `.log.gz`); "" if they contain no text."""
    formats = {suffix: suffix.split(".")[1] for suffix in suffixes if suffix.startswith(".")}
    documents = [suffix for suffix, name in formats.items() if name in _DOCUMENTS]
    sheets = [suffix for suffix, name in formats.items() if name in _SHEETS]
    others = [name for name, last in formats.items() if last not in {*_DOCUMENTS, *_SHEETS, *_NEVER_TEXT}]
    hints = [
        (documents, "save {} as plain text (.txt, UTF-8)"),
        (sheets, "save {} as CSV UTF-8 (.csv)"),
        (others, "name {} files one by one to read them as plain text"),
    ]
    return "; ".join(hint.format(", ".join(names)) for names, hint in hints if names)


def describe_binary(head: bytes, *, is_wide: bool = False) -> tuple[str, str] | None:
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
    if not is_wide and is_binary(head):
        return "binary", "leave it out; to see what it is, run: file {path}"
    return None
