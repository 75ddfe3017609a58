"""Detect and guess the encodings of text files.

Text is UTF-8 unless its byte order mark or the user says otherwise; a guess is only a hint in an error message.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress

from bertsmith.errors import InputError, option

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16's, which begins the same
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    codecs.BOM_UTF8: "utf-8",
}
# In practice these names mean the larger encoding; the Encoding Standard of web browsers says so too.
_SUPERSETS = {
    "utf-8-sig": "utf-8",
    "ascii": "utf-8",
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
_NOT_FOR_FILES = ("idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape")
# charset-normalizer knows a hundred encodings, and takes texts in these for texts in rare ones.
_COMMON = [*(f"cp{page}" for page in range(1250, 1258)), "iso8859_2", "koi8_r", "cp437", "cp850", "cp866"]
_COMMON += ["mac_roman"]
_KANA = frozenset(map(chr, range(0x3041, 0x30FF)))
# A text in another encoding than its own has few of the most frequent characters. Other encodings have kana, too.
_FREQUENT = frozenset(
    "的一是不了在人有我他这個个們们中來来上大為为和國国地到以說说時时要就出會会可也你對对生能而子那得於于著着下自之年過过發发後后"
    "作裡里用道行所然家種种事成方多經经麼么去法學学如都同現现當当沒没動动面起看定天分還还進进好小部其些主樣样理心她本前開开但因只從从"
    "想實实日軍军者意無无力它與与長长把機机十民第公此已工使情明性知全三又關关點点正業业外將将兩两高間间由問问很最重這東东月会気社見"
    "이다는을가에의고하은도지로기사를한자어나시서인리아대수해보들일정과있으부라게니것여그구주전장스제오없었면만성말원상생우무"
)
_EAST_ASIAN = {"cp932": _FREQUENT | _KANA, "euc_jp": _FREQUENT | _KANA}
_EAST_ASIAN |= dict.fromkeys(("gb18030", "big5", "cp949"), _FREQUENT)
_MIN_FREQUENT_RATIO = 0.2
_GUESS_BYTES = 1 << 14
_WIDE_BYTES = 1 << 12
_WESTERN_LETTERS = set("àáâãäåæçèéêëìíîïñòóôõöøœùúûüßÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØŒÙÚÛÜ’–—")
_WESTERN_SIGNS = set("“”„‘‚…•«»‹›€£§°©®™·¡¿ªº´\xa0")  # not between letters
_MAX_NON_ASCII_RATIO = 0.5  # of the characters of a text in cp1252
_MAX_ACCENT_RATIO = 0.3  # of its letters
_CONTROL_CHARACTERS = bytes({*range(0x20), 0x7F} - {*b"\t\n\v\f\r\x1b"})
_MIN_CONTROLS = 4  # fewer control characters do not show that a short file is binary
_MIN_NULL_RATIO, _MIN_CONTROL_RATIO = 0.1, 0.02  # of the bytes of a binary file
_MAX_LETTER_NULL_RATIO = 0.1  # of the low bytes of UTF-16: "一" (U+4E00) and "가" (U+AC00) have one
_MIN_CONTINUATION_BYTES = 8  # fewer do not tell UTF-8 from another multibyte encoding

# UTF-8 that was decoded as Windows-1252 or Latin-1: the letter of a lead byte and those of its continuation
# bytes. Of 54 such words this finds 50, ftfy 51; it reads 30 MB/s and more, ftfy 1 to 3, and ftfy does not
# return positions.
_CONTINUATIONS = "".join(
    chr(byte) if byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else bytes([byte]).decode("cp1252")
    for byte in range(0x80, 0xC0)
) + "".join(map(chr, range(0x80, 0xA0)))
_NEXT = f"[{re.escape(_CONTINUATIONS)}]"
_MOJIBAKE = re.compile(
    f"[ÂÃÄÅÐÑâãäåæçèéïð](?:(?<=[ÂÃÄÅÐÑ]){_NEXT}|(?<=[âãäåæçèéï]){_NEXT}{{2}}|(?<=ð){_NEXT}{{3}})"
)
_PUNCTUATION = "«»\xa0“”‘’—–…"  # Continuation bytes that also follow most letters in correct text.


def resolve_encoding(name: str) -> str:
    """Return the canonical name of a text encoding. Raises `InputError` if there is no such encoding."""
    try:
        codec = codecs.lookup(name).name
        "a".encode(codec)  # refuses codecs from bytes to bytes
        if codec in _NOT_FOR_FILES or "\0" in name:
            raise LookupError
    except (LookupError, ValueError, UnicodeError):
        message = f"there is no text encoding called {name!r}"
        hint = "use utf-8, cp1252, utf-16, gb18030, shift_jis, or another encoding of Python"
        raise InputError("unknown_encoding", message, argument="encoding", hint=hint) from None
    return _SUPERSETS.get(codec, codec)


def detect_encoding(head: bytes, default: str | None) -> str:
    """Return the encoding of a file that begins with `head`.

    A byte order mark and plain UTF-8 take precedence over `default`; None stands for UTF-8.
    """
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    if default is None or default == "utf-8":
        return "utf-8"
    num_continuation = _count_continuation_bytes(head)
    if default.startswith(("utf-16", "utf-32")):
        if num_continuation is not None and not _count_controls(head):
            return "utf-8"
        wide = detect_wide_encoding(head)
        return (
            wide if wide and wide.startswith(default) else default if default[-1] == "e" else f"{default}-le"
        )
    is_single_byte = len(bytes(range(256)).decode(default, "replace")) == 256
    minimum = 1 if is_single_byte else _MIN_CONTINUATION_BYTES
    return "utf-8" if num_continuation is not None and num_continuation >= minimum else default


def detect_wide_encoding(head: bytes) -> str | None:
    """Return UTF-16 or UTF-32, in its byte order, if the positions of NULs in `head` show it; else None."""
    head = head[:_WIDE_BYTES]
    for width in (4, 2):
        nulls = [head[i : len(head) // width * width : width].count(0) for i in range(width)]
        length = len(head) // width
        for letter, order in ((0, "le"), (width - 1, "be")):
            others = [count for i, count in enumerate(nulls) if i != letter]
            if length >= 3 and nulls[letter] == 0 and min(others) > (0.8 if length < 16 else 0.4) * length:
                return f"utf-{8 * width}-{order}"
    return _detect_utf16_by_text(head)


def _detect_utf16_by_text(head: bytes) -> str | None:
    """Return UTF-16 if `head` decodes to printable text; NULs are rare in scripts other than Latin."""
    if b"\0" not in head or _count_controls(head) < max(_MIN_CONTROLS, _MIN_CONTROL_RATIO * len(head)):
        return None
    for encoding, low_bytes in (("utf-16-le", head[::2]), ("utf-16-be", head[1::2])):
        with suppress(UnicodeDecodeError):
            text = head[: len(head) // 2 * 2].decode(encoding)
            printable = sum(character.isprintable() or character in "\r\n\t\ufeff" for character in text)
            has_few_nulls = low_bytes.count(0) <= _MAX_LETTER_NULL_RATIO * len(low_bytes)
            if has_few_nulls and printable > 0.98 * len(text):
                return encoding
    return None


def is_binary(head: bytes) -> bool:
    """Return True if a file that begins with `head` is not text; single control characters are allowed."""
    if head.count(0) >= max(_MIN_CONTROLS, _MIN_NULL_RATIO * len(head)):
        return True
    has_controls = _count_controls(head) >= max(_MIN_CONTROLS, _MIN_CONTROL_RATIO * len(head))
    return has_controls and _count_continuation_bytes(head) is None


def _count_controls(head: bytes) -> int:
    return len(head) - len(head.translate(None, _CONTROL_CHARACTERS))


def _count_continuation_bytes(head: bytes) -> int | None:
    """Return the number of continuation bytes at the beginning of a UTF-8 file; None for another encoding."""
    try:
        return len(head) - len(codecs.getincrementaldecoder("utf-8")().decode(head))
    except UnicodeDecodeError:
        return None


def encoding_hint(lines: bytes, *, has_option: bool = True) -> str:
    """Return a hint for lines that are not UTF-8: their likely encoding, with a word by which to judge it.

    Args:
        lines: The lines.
        has_option: The caller has the option `encoding`; else the file must be converted.
    """
    with suppress(UnicodeDecodeError):
        lines.decode("utf-8", "surrogatepass")
        return "it begins half a character (a surrogate), which UTF-8 does not have: write the whole one, or none"
    strange = [line for line in lines.split(b"\n") if not line.isascii()]
    bad = [line for line in strange if _count_continuation_bytes(line) is None]
    if 2 * len(bad) < len(strange):
        return "the lines around it are UTF-8: correct this one, or remove it"
    sample = b"\n".join(bad)[:_GUESS_BYTES]
    encoding = guess_encoding(sample)
    if encoding is None:
        name = f", or name its encoding, such as {option('encoding', 'cp1252')}"
        return f"save it as UTF-8{name if has_option else ''}"
    words = sample.decode(encoding, "replace").split()
    word = next((word[:16] for word in words if not word.isascii() and word.isprintable()), "")
    example = f" ({word!r})" if word else ""
    remedy = f"add {option('encoding', encoding)}" if has_option else f"convert it: {iconv(encoding)}"
    return f"it looks like {encoding}{example}: {remedy}"


def iconv(encoding: str) -> str:
    """Return the shell command that converts a file to UTF-8."""
    return f"iconv -f {encoding} -t utf-8"


def guess_encoding(sample: bytes) -> str | None:
    """Return the likely encoding of a text that is not UTF-8; None if there is none.

    charset-normalizer takes English with typographic quotes for cp1250, French for cp1257, and texts in Chinese,
    Japanese, and Korean for each other; these are recognized here.
    """
    from charset_normalizer import from_bytes

    if (east_asian := _guess_east_asian(sample)) is not None:
        return east_asian
    if _is_western(sample):
        return "cp1252"
    best = from_bytes(sample, cp_isolation=_COMMON).best()
    return None if best is None else best.encoding


def _guess_east_asian(sample: bytes) -> str | None:
    """Return the encoding in which a sample has the most frequent characters; None if they are few in each."""
    ratios = {}
    for name, frequent in _EAST_ASIAN.items():
        text = sample[: _decodable_length(sample, name)].decode(name)
        letters = [character for character in text if character > "\u2e7f" and character.isalpha()]
        ratios[name] = sum(letter in frequent for letter in letters) / max(1, len(letters))
    best = max(ratios, key=ratios.__getitem__)
    return best if ratios[best] > _MIN_FREQUENT_RATIO else None


def _decodable_length(sample: bytes, encoding: str) -> int:
    """Return the bytes of a sample without a character that its end cuts through; 0 for another encoding."""
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        decoder.decode(sample)
    except UnicodeDecodeError:
        return 0
    return len(sample) - len(decoder.getstate()[0])


def _is_western(sample: bytes) -> bool:
    """Return True if a sample in cp1252 has few accented letters, all western, and signs outside of words."""
    try:
        text = sample.decode("cp1252")
    except UnicodeDecodeError:
        return False
    neighbors = zip(" " + text, text, text[1:] + " ", strict=False)
    non_ascii = [(before, c, after) for before, c, after in neighbors if not c.isascii()]
    plausible = sum(
        c in _WESTERN_LETTERS or (c in _WESTERN_SIGNS and not (before.isalpha() and after.isalpha()))
        for before, c, after in non_ascii
    )
    num_accents, num_letters = sum(c.isalpha() for _, c, _ in non_ascii), sum(map(str.isalpha, text))
    if len(non_ascii) > _MAX_NON_ASCII_RATIO * len(text) or num_accents > _MAX_ACCENT_RATIO * num_letters:
        return False
    return bool(non_ascii) and plausible >= 0.95 * len(non_ascii)


def find_mojibake(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each occurrence of UTF-8 that was decoded as Windows-1252 or Latin-1, with the text that it was."""
    for match in () if text.isascii() else _MOJIBAKE.finditer(text):
        if (original := _decode_mojibake(match[0])) is not None:
            yield match, original


def _decode_mojibake(text: str) -> str | None:
    """Return the text in UTF-8 that was decoded as Windows-1252 or Latin-1; None if it is another text."""
    if text[0] not in "ÂÃ" and all(character in _PUNCTUATION for character in text[1:]):
        return None
    try:
        return b"".join(c.encode("latin-1" if c < "\u0100" else "cp1252") for c in text).decode("utf-8")
    except UnicodeDecodeError:
        return None
