"""The encoding of a file: what its first bytes say, what a person said, and a guess for the remedy.

UTF-8 unless said otherwise, and never decoded by a guess. A file in the encoding that was named becomes a stream
of UTF-8, so that lines and places are found in one way. A byte that the encoding does not know becomes half a
character (three bytes that UTF-8 forbids), by which its line and column are found further on.
"""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Iterator
from contextlib import suppress
from encodings import aliases

from bertsmith.errors import InputError, option
from bertsmith.io.compressed import FileFault

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16's, which begins the same
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    codecs.BOM_UTF8: "utf-8",
}
# Names that stand for the larger encoding in practice: the Encoding Standard of web browsers reads them so, too.
_LARGER = {
    "utf-8-sig": "utf-8",
    "ascii": "utf-8",
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
_NO_TEXT = ("idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape")
# What is worth a guess; charset-normalizer knows a hundred, and confuses the rare ones with these.
_COMMON = [*(f"cp{number}" for number in range(1250, 1258)), "iso8859_2", "koi8_r", "cp437", "cp850", "cp866"]
_OF_SEVERAL = ["gb18030", "big5", "cp932", "euc_jp", "cp949"]  # bytes a character
_COMMON += ["mac_roman", *_OF_SEVERAL]
# What people have and mistype; of names equally near, the earlier one is likelier.
_USUAL = ["cp1252", "cp1251", "gb18030", "utf-16", "shift-jis", "latin-1", "utf-8", "cp1250", "gbk", "big5"]
_USUAL += ["euc-jp", "euc-kr", "koi8-r", "iso-8859-1", "iso-8859-2", "iso-8859-15", "cp932", "cp949"]
_NEAR = 0.75  # difflib's ratio
_SAMPLE = 1 << 14  # bytes that a guess looks at
_MOST_STRANGE = 0.5  # of a western text: what is not ASCII
_WESTERN = set("àáâãäåæçèéêëìíîïñòóôõöøœùúûüßÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØŒÙÚÛÜ’")
_BESIDE_WORDS = set("“”„‘‚–—…•«»‹›€£§°©®™·¡¿ªº´\xa0")
_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\t\n\v\f\r\x1b"})
_FEWEST = 4  # control characters: fewer say nothing in a short text
_NULLS, _STRANGE = (
    0.1,
    0.02,
)  # shares of NULs, and of control characters in what is not UTF-8, that no text has
_FEW_NULLS = 0.1  # of the bytes of UTF-16 that distinguish the letters of a script
_KANA = 0.3  # of the text's two-byte characters; Chinese and Korean have none
_PROOF = 8  # continuation bytes: fewer do not distinguish UTF-8 from another multibyte encoding


def known_encoding(name: str) -> str:
    """The one name of an encoding of text. InputError for a name that is none."""
    try:
        found = codecs.lookup(name).name
        "a".encode(found)  # others turn bytes into bytes
        if found in _NO_TEXT or "\0" in name:
            raise LookupError
    except (LookupError, ValueError, UnicodeError):
        meant = _meant(name.lower().replace("_", "-"))
        raise InputError(
            "unknown_encoding",
            f"there is no text encoding called {name!r}",
            argument="encoding",
            hint=f"did you mean {meant!r}?"
            if meant
            else "known: utf-8, cp1252, utf-16, gb18030, shift_jis, …",
        ) from None
    return _LARGER.get(found, found)


def _meant(name: str) -> str | None:
    """The usual encoding whose name is nearest, or else any that Python knows; None where none is near."""

    def alike(other: str) -> float:
        return difflib.SequenceMatcher(None, name, other).ratio()

    usual = max(_USUAL, key=alike)
    if alike(usual) >= _NEAR:
        return usual
    names = {alias.replace("_", "-") for alias in (*aliases.aliases, *aliases.aliases.values())}
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1)), None)


def encoding_of(head: bytes, named: str | None) -> str:
    """The encoding of a file that begins with `head`: that of its byte order mark, UTF-8 if it plainly is that,
    else `named`; without `named` UTF-8."""
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    if named is None or named == "utf-8":
        return "utf-8"
    continued = _continuation_bytes(head)
    if named.startswith(("utf-16", "utf-32")):
        if continued is not None and not control_characters(head):
            return "utf-8"
        seen = wide_encoding(head)
        return seen if seen and seen.startswith(named) else named if named[-1] == "e" else f"{named}-le"
    one_byte = len(bytes(range(256)).decode(named, "replace")) == 256
    least = 1 if one_byte else _PROOF
    return "utf-8" if continued is not None and continued >= least else named


def wide_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark, if the file begins so: it shows in NULs at every second byte, or at three
    of four, and none beside them; a NUL now and then, or nothing else, is text."""
    head = head[:4096]
    for width in (4, 2):
        columns = [head[i : len(head) // width * width : width] for i in range(width)]
        nulls = [column.count(0) for column in columns]
        length = len(columns[0])
        for letter, end in ((0, "le"), (width - 1, "be")):
            others = [n for i, n in enumerate(nulls) if i != letter]
            if length >= 3 and nulls[letter] == 0 and min(others) > (0.8 if length < 16 else 0.4) * length:
                return f"utf-{8 * width}-{end}"
    return _wide_of_other_scripts(head)


def _wide_of_other_scripts(head: bytes) -> str | None:
    """UTF-16 of scripts whose only NULs are in line ends and blanks: it looks like control characters, but read so
    can all be printed."""
    if b"\0" not in head or control_characters(head) < max(_FEWEST, _STRANGE * len(head)):
        return None
    for name, letters in (("utf-16-le", head[::2]), ("utf-16-be", head[1::2])):
        try:
            text = head[: len(head) // 2 * 2].decode(name)
        except UnicodeDecodeError:
            continue
        printable = sum(character.isprintable() or character in "\r\n\t\ufeff" for character in text)
        few = letters.count(0) <= _FEW_NULLS * len(letters)  # "一" (U+4E00) and "가" (U+AC00) have one
        if few and printable > 0.98 * len(text):
            return name
    return None


def is_binary(head: bytes) -> bool:
    """Whether no text begins so: a NUL or another control character now and then may stand in one."""
    if head.count(0) >= max(_FEWEST, _NULLS * len(head)):
        return True
    return (
        control_characters(head) >= max(_FEWEST, _STRANGE * len(head)) and _continuation_bytes(head) is None
    )


def control_characters(head: bytes) -> int:
    """How many bytes are control characters that texts seldom have."""
    return len(head) - len(head.translate(None, _CONTROLS))


def _continuation_bytes(head: bytes) -> int | None:
    """Of the beginning of a file in UTF-8 how many bytes go on a character; None for another one."""
    try:
        return len(head) - len(codecs.getincrementaldecoder("utf-8")().decode(head))
    except UnicodeDecodeError:
        return None


def as_utf8(path: str, blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """The same text in UTF-8. FileFault where reading cannot go on: in UTF-16 and UTF-32 a fault shifts all."""
    decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
    line = 1
    final = False
    while not final:
        block = next(blocks, b"")
        final = not block
        waiting, state = decoder.getstate()
        fault: UnicodeDecodeError | None = None
        try:
            text = decoder.decode(block, final)
        except UnicodeDecodeError as error:
            fault = error
            decoder.setstate((waiting, state))
            text = decoder.decode(block[: max(0, error.start - len(waiting))])
        line += text.count("\n")
        if text:
            yield text.encode("utf-8", "surrogatepass")
        if fault is not None:
            raise FileFault(
                "decoding_failed",
                f"from here on the file is not {encoding} ({fault.reason})",
                location=f"{path}:{line}",
                argument="encoding",
                hint="check that the file is complete and that this is its encoding",
            )


def original(raw: bytes, encoding: str) -> bytes:
    """A line as it stood in the file, of what `as_utf8` made of it."""
    return (
        raw
        if encoding == "utf-8"
        else raw.decode("utf-8", "surrogatepass").encode(encoding, "surrogateescape")
    )


def remedy_of(lines: bytes) -> str:
    """What to do about lines that are not UTF-8: a guess at their encoding, with a word by which to judge it."""
    with suppress(UnicodeDecodeError):
        lines.decode("utf-8", "surrogatepass")
        return "it begins half a character (a surrogate), which UTF-8 does not have: write the whole one, or none"
    strange = [line for line in lines.split(b"\n") if not line.isascii()]
    good = sum(_continuation_bytes(line) is not None for line in strange)
    if 2 * good > len(strange):
        return "the lines around it are UTF-8: correct this one, or remove it"
    sample = b"\n".join(line for line in strange if _continuation_bytes(line) is None)[:_SAMPLE]
    name = guessed_encoding(sample)
    if name is None:
        return f"save it as UTF-8, or name its encoding, such as {option('encoding', 'cp1252')}"
    words = sample.decode(name, "replace").split()
    shown = next((word[:16] for word in words if not word.isascii() and word.isprintable()), "")
    return f"it looks like {name}" + (f" ({shown!r})" if shown else "") + f": add {option('encoding', name)}"


def guessed_encoding(sample: bytes) -> str | None:
    """What a text that is not UTF-8 is likely to be in.

    Two are judged here: charset-normalizer takes English with typographic quotes for cp1250, French for cp1257,
    and some Japanese for Korean. All others are its guess.
    """
    if _is_western(sample):
        return "cp1252"
    whole = {name: len(found) for name in _OF_SEVERAL if (found := _without_torn_end(sample, name))}
    for name in ("cp932", "euc_jp"):
        if name in whole:
            text = sample[: whole[name]].decode(name)
            if 2 * sum("\u3041" <= character <= "\u30fe" for character in text) > _KANA * len(sample):
                return name
    from charset_normalizer import from_bytes

    for length in sorted({*whole.values()} or {len(sample)}, reverse=True):
        if (best := from_bytes(sample[:length], cp_isolation=_COMMON).best()) is not None:
            return best.encoding
    return None


def _without_torn_end(sample: bytes, name: str) -> bytes | None:
    """A sample of an encoding of several bytes a character without the character that its end cuts through; None
    where it is not of that encoding."""
    decoder = codecs.getincrementaldecoder(name)()
    try:
        decoder.decode(sample)
    except UnicodeDecodeError:
        return None
    return sample[: len(sample) - len(decoder.getstate()[0])]


def _is_western(sample: bytes) -> bool:
    """Whether this is cp1252: letters of western languages, a few among many without accents, and the signs of
    typography, which do not stand inside of words."""
    try:
        text = sample.decode("cp1252")
    except UnicodeDecodeError:
        return False
    fit = strange = letters = accents = 0
    for before, character, behind in zip(" " + text, text, text[1:] + " ", strict=False):
        letters += character.isalpha()
        if character.isascii():
            continue
        strange += 1
        accents += character.isalpha()
        inside = before.isalpha() and behind.isalpha()
        fit += character in _WESTERN or (character in _BESIDE_WORDS and not inside) or character in "–—"
    few = strange <= _MOST_STRANGE * len(text) and accents <= 0.3 * letters
    return strange > 0 and fit >= 0.95 * strange and few
