"""Which characters a corpus is made of: those that should not be there, its scripts, and a guess at languages."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus import hashing
from bertsmith.corpus.checks.file_errors import FaultsByFile
from bertsmith.corpus.checks.histogram import Found
from bertsmith.corpus.hashing import Ints, WordHashes
from bertsmith.io.unicode_scripts import HAN, script_of

_CODES = 0x110000
# What is counted with its places, by the number in the table below.
KINDS = (
    "",
    "NUL characters",
    "control characters",
    "lone carriage returns",
    "replacement characters (U+FFFD)",
    "byte order marks inside the text (U+FEFF)",
    "line and paragraph separators (U+2028, U+2029)",
    "half characters (lone surrogates)",
    "noncharacters",
    "private-use characters",
    "invisible marks (zero-width, direction, soft hyphen)",
)
_INVISIBLE = [
    0xAD,
    0x200B,
    0x200E,
    0x200F,
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2065),
    *range(0x2066, 0x206A),
]

# UTF-8 that was read as Windows-1252 or Latin-1: a lead byte's letter and the letters of its followers. Of 54 such
# words this finds 50, ftfy 51; it reads 30 MB/s and more, ftfy 1 to 3, which also does not say where.
_FOLLOWERS = "".join(
    chr(byte) if byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else bytes([byte]).decode("cp1252")
    for byte in range(0x80, 0xC0)
) + "".join(map(chr, range(0x80, 0xA0)))
_WRONGLY_READ = "UTF-8 that was read as another encoding"
_LEADS = (("ÂÃÄÅÐÑ", 1), ("âãäåæçèéï", 2), ("ð", 3))
_MOJIBAKE = re.compile("|".join(f"[{leads}][{re.escape(_FOLLOWERS)}]{{{n}}}" for leads, n in _LEADS))
_LEAD_CODES = np.array([ord(lead) for leads, _ in _LEADS for lead in leads])
_QUOTING = "«»\xa0“”‘’—–…"  # behind most letters they are just what they are

# The most frequent short words; a text's language is guessed from them alone.
STOP_WORDS = {
    "en": "the of and to in is was that for it with as on by at from his he are which this be had not have were",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden",
    "fr": "de la le et les des en un du une que est dans qui par pour au il sur plus ne se ce pas avec son sont",
    "es": "de la que el en y los del se las por un para con una no su al es lo como más pero sus fue este son",
    "it": "di e il la che in a per un del è non sono una con i le si da della al dei come alla anche nel più gli",
    "nl": "de van een het en in is dat op te zijn met voor niet aan er om ook als bij door maar naar uit werd hij",
    "pt": "de a o que e do da em um para com não uma os no se na por mais as dos como mas ao ele das seu são foi",
    "sv": "och i att det som en på är av för med den till inte om har ett men var jag de så vid från kan",
    "da": "og i at det en er til af den på for med som der de ikke har et var fra han også blev efter",
    "fi": "ja on ei se että oli hän mutta joka ovat kun myös sen ole niin kuin tai hänen sekä ollut",
    "pl": "w i na z się do nie jest że to jak od przez po dla o oraz był ale co tym które jego są",
    "cs": "a v se na je že o s z do i to jako za by ale pro po jsou byl který od jeho však ve není",
    "tr": "ve bir bu da de için ile olarak çok olan daha ne gibi kadar sonra en ya ama var o olduğu",
    "ru": "и в не на я что с он а как это по к но из у за от так для же был его все она или бы",
    "uk": "і в на не що з у до та як за це його від був для він про але а ще також або який є",
    "la": "et in est non ad ut cum sed quod qui ex si per esse quam ab aut enim sunt atque hoc quae",
    "id": "yang dan di dengan untuk dari pada ini itu dalam tidak adalah akan oleh ke juga telah sebagai",
}
# Controls, separators, direction marks and half characters, by what stands for them.
_SIGNS = {code: 0x2400 + code for code in range(0x20)} | dict.fromkeys(
    [
        *range(0x7F, 0xA0),
        *(0x2028, 0x2029, 0xFEFF, 0x200E, 0x200F),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    ],
    0xB7,
)
_LATIN, _HAN, _KANA, _HANGUL = 1, 2, 3, 4
_LEAST_SHARE = 0.08  # of a document's words: fewer stop words say nothing


class Characters:
    """Counts every character, and keeps the first places of those that should not be there."""

    def __init__(self, limit: int, by_file: FaultsByFile) -> None:
        self._counts = np.zeros(_CODES, dtype=np.int64)
        self._by_file = by_file
        self.kinds = {name: Found(limit) for name in KINDS[1:]}
        self.mojibake = Found(limit)

    def add(self, codes: NDArray[np.uint32], text: str, place: Callable[[int], str], file: str) -> None:
        """Count the characters of a window; `text` is the same as a string, `place` says where in the file a
        position is."""
        counts = np.bincount(codes)
        self._counts[: len(counts)] += counts
        kinds = _kinds()
        strange = np.bincount(kinds[: len(counts)], weights=counts, minlength=len(KINDS)).astype(np.int64)
        if strange[1:].any():
            table = kinds[codes]
            for kind in np.flatnonzero(strange[1:]) + 1:
                name = KINDS[kind]
                found = self.kinds[name]
                room = max(found.room, self._by_file.room(file, name))
                first, *others = np.flatnonzero(table == kind)[: max(1, room)].tolist()
                self._found(found, file, name, place(first), int(strange[kind]))
                for position in others:
                    self._found(found, file, name, place(position), 0)
        if counts[_LEAD_CODES[len(counts) > _LEAD_CODES]].any():
            self._mojibake_of(codes, text, place, file)

    def _found(self, found: Found, file: str, name: str, place: str, times: int) -> None:
        found.add(place, times)
        self._by_file.add(file, name, place, times)

    def _mojibake_of(
        self, codes: NDArray[np.uint32], text: str, place: Callable[[int], str], file: str
    ) -> None:
        parts = _mojibake_parts()[codes]
        end = 0
        for position in np.flatnonzero((parts[:-1] == 1) & (parts[1:] == 2)).tolist():
            match = _MOJIBAKE.match(text, position) if position >= end else None
            if match is None:
                continue
            end = match.end()
            found = match.group()
            if found[0] not in "ÂÃ" and all(character in _QUOTING for character in found[1:]):
                continue
            try:
                meant = bytes(map(_byte, found)).decode("utf-8")
            except UnicodeDecodeError:
                continue
            room = self.mojibake.room or self._by_file.room(file, _WRONGLY_READ)
            where = place(match.start()) if room else ""
            self.mojibake.add({"place": where, "found": shown(found), "meant": shown(meant)})
            told = f"{shown(found)} for {shown(meant)}"
            self._by_file.add(file, _WRONGLY_READ, where, told=told)

    def scripts(self) -> dict[str, int]:
        """Letters by script, the most frequent first."""
        found: Counter[str] = Counter()
        for code in np.flatnonzero(self._counts).tolist():
            if unicodedata.category(chr(code))[0] == "L":
                found[script_of(chr(code))] += int(self._counts[code])
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def classes(self) -> dict[str, int]:
        """Characters by what they are: letters, digits, punctuation, blanks and others."""
        names = {
            "L": "letters",
            "M": "letters",
            "N": "digits",
            "P": "punctuation",
            "S": "symbols",
            "Z": "blanks",
        }
        found: Counter[str] = Counter()
        for code in np.flatnonzero(self._counts).tolist():
            kind = (
                "blanks" if chr(code).isspace() else names.get(unicodedata.category(chr(code))[0], "others")
            )
            found[kind] += int(self._counts[code])
        return dict(found.most_common())

    def counts(self) -> dict[str, int]:
        """How often each character was seen."""
        return {chr(code): int(self._counts[code]) for code in np.flatnonzero(self._counts).tolist()}


class Languages:
    """Each document's language by its script and a vote of its most frequent words: a guess, and called so.

    Measured: of 53 single sentences in 20 languages it names 28 and leaves 25 open, py3langid names 53, lingua 48
    to 52; of paragraphs (2,000 English, 2,000 Chinese) 98.9 % and 99.9 %, py3langid 99.6 % and 90.9 %. It reads
    5.9 MB/s, they 0.19 and 0.03 to 0.07 (lingua with 1 GB of memory, 96 MB to install): a corpus of 174 MB would
    take them 15 minutes and more, so they were not taken.
    """

    def __init__(self) -> None:
        self.characters: Counter[str] = Counter()

    def add(self, codes: NDArray[np.uint32], bounds: Ints, words: WordHashes) -> None:
        """Vote over the texts of a window."""
        texts = len(bounds) - 1
        owner = np.repeat(np.arange(texts), np.diff(bounds))
        scripts = np.bincount(owner * 8 + _broad_scripts()[codes], minlength=texts * 8).reshape(texts, 8)
        votes = self._votes(words, texts)
        number = np.diff(words.bounds)
        for i in range(texts):
            language = self._guess(scripts[i], votes[i], int(number[i]))
            self.characters[language] += int(bounds[i + 1] - bounds[i] - 1)

    @staticmethod
    def _votes(words: WordHashes, texts: int) -> Ints:
        hashes, members, prefilter = _stop_hashes()
        likely = np.flatnonzero(prefilter[(words.hashes & np.uint64(0xFFFF)).astype(np.int64)])
        at = np.minimum(np.searchsorted(hashes, words.hashes[likely]), len(hashes) - 1)
        hit = hashes[at] == words.hashes[likely]
        owner = np.searchsorted(words.bounds, likely[hit], side="right") - 1
        votes = np.zeros((texts, members.shape[1]), dtype=np.int64)
        for language in range(members.shape[1]):
            votes[:, language] = np.bincount(owner[members[at[hit], language]], minlength=texts)
        return votes

    @staticmethod
    def _guess(scripts: Ints, votes: Ints, words: int) -> str:
        letters = int(scripts[1:].sum())
        if not letters:
            return "no letters"
        if 20 * scripts[_KANA] > letters:
            return "ja"
        if 2 * scripts[_HAN] > letters:
            return "zh"
        if 2 * scripts[_HANGUL] > letters:
            return "ko"
        best, second = np.argsort(-votes, kind="stable")[:2]
        if votes[best] < max(2, _LEAST_SHARE * words) or votes[best] == votes[second]:
            return "unknown"
        return list(STOP_WORDS)[int(best)]


def shown(text: str) -> str:
    """A piece of text as a report may show it: what would act on a terminal or a page stands there as a sign."""
    return text.translate(_SIGNS)


@cache
def _mojibake_parts() -> NDArray[np.uint8]:
    """By character: 1 where a wrong reading may begin, 2 where it may go on."""
    table = np.zeros(_CODES, dtype=np.uint8)
    table[[ord(character) for character in _FOLLOWERS]] = 2
    table[_LEAD_CODES] = 1
    return table


def _byte(character: str) -> int:
    """The byte that Windows-1252 (Latin-1 where it has none) shows as this character."""
    code = ord(character)
    return code if code < 0x100 else character.encode("cp1252")[0]


@cache
def _kinds() -> NDArray[np.uint8]:
    table = np.zeros(_CODES, dtype=np.uint8)
    table[1:0x20] = table[0x7F:0xA0] = 2
    table[[0x09, 0x0A]] = 0
    table[0], table[0x0D], table[0xFFFD], table[0xFEFF] = 1, 3, 4, 5
    table[[0x2028, 0x2029]] = 6
    table[0xD800:0xE000] = 7
    table[0xFDD0:0xFDF0] = table[0xFFFE::0x10000] = table[0xFFFF::0x10000] = 8
    table[0xE000:0xF900] = table[0xF0000:0xFFFFE] = table[0x100000:0x10FFFE] = 9
    table[_INVISIBLE] = 10
    return table


@cache
def _broad_scripts() -> NDArray[np.uint8]:
    """By character: 0 no letter, 1 Latin, 2 Han, 3 kana, 4 Hangul, 5 other letters."""
    table = np.zeros(_CODES, dtype=np.uint8)
    table[0x370:0x2000] = table[0xA490:0xAC00] = table[0xFB13:0xFE00] = 5
    for begin, end in ((0x41, 0x5B), (0x61, 0x7B), (0xC0, 0x250), (0x1E00, 0x1F00)):
        table[begin:end] = _LATIN
    table[[0xD7, 0xF7]] = 0
    for part in HAN:
        table[part.start : part.stop] = _HAN
    table[0x3041:0x30FB] = _KANA
    table[0xAC00:0xD7A4] = table[0x1100:0x1200] = _HANGUL
    return table


@cache
def _stop_hashes() -> tuple[NDArray[np.uint64], NDArray[np.bool_], NDArray[np.bool_]]:
    """The stop words' hashes sorted [S], which languages have each [S, L], and a filter on the low 16 bits."""
    owners: dict[str, list[int]] = {}
    for number, text in enumerate(STOP_WORDS.values()):
        for word in text.split():
            owners.setdefault(word, []).append(number)
    hashes = _hashes_of(list(owners))
    members = np.zeros((len(owners), len(STOP_WORDS)), dtype=bool)
    for row, numbers in enumerate(owners.values()):
        members[row, numbers] = True
    order = np.argsort(hashes)
    prefilter = np.zeros(1 << 16, dtype=bool)
    prefilter[(hashes & np.uint64(0xFFFF)).astype(np.int64)] = True
    return hashes[order], members[order], prefilter


def _hashes_of(words: Sequence[str]) -> NDArray[np.uint64]:
    return hashing.words(*hashing.code_points(words)).hashes


def as_shares(counts: dict[str, int]) -> dict[str, Any]:
    """Each count with its share of all."""
    total = max(1, sum(counts.values()))
    return {name: {"number": n, "share": round(n / total, 6)} for name, n in counts.items()}
