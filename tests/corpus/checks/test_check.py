"""The look through a corpus: each planted fault is found where it stands, and a clean corpus gives no alarm."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny_run
from bertsmith.corpus.checks import file_errors
from bertsmith.corpus.checks import lines as lines_room
from bertsmith.corpus.checks.characters import KINDS
from bertsmith.corpus.checks.check import CheckOptions, check
from bertsmith.corpus.checks.histogram import Distribution
from bertsmith.corpus.checks.lines import RepeatedLines, find_lines, line_hashes
from bertsmith.corpus.hashing import code_points
from bertsmith.corpus.prepare import prepare
from bertsmith.errors import InputError
from bertsmith.io.files import Reading
from bertsmith.tokenizer.tokenizer import Tokenizer

NAMES = ["Anna", "Bruno", "Clara", "David", "Erika", "Felix", "Greta", "Hanno", "Irene", "Jonas"]
VERBS = [
    "finds",
    "paints",
    "carries",
    "forgets",
    "repairs",
    "describes",
    "borrows",
    "counts",
    "hides",
    "sells",
]
THINGS = ["lamp", "river", "basket", "letter", "window", "carpet", "violin", "garden", "mirror", "ladder"]
TIMES = ["in the morning", "at noon", "before the storm", "on the bridge", "without a word", "for her friend"]


def sentence(draw: random.Random) -> str:
    words = (
        f"{draw.choice(NAMES)} {draw.choice(VERBS)} the {draw.choice(THINGS)} and the {draw.choice(THINGS)} "
        f"{draw.choice(TIMES)} that was {draw.randrange(10**6)} days old."
    )
    return words[0].upper() + words[1:]


def documents(number: int = 30, seed: int = 0) -> list[list[str]]:
    """Documents of three to six lines of two to four English sentences; no line stands twice."""
    draw = random.Random(seed)
    return [
        [" ".join(sentence(draw) for _ in range(draw.randint(2, 4))) for _ in range(draw.randint(3, 6))]
        for _ in range(number)
    ]


def write(path: Path, found: list[list[str]]) -> Path:
    path.write_text("\n\n".join("\n".join(lines) for lines in found) + "\n", encoding="utf-8", newline="\n")
    return path


def whats(report: dict[str, Any]) -> list[str]:
    return [finding["what"] for finding in report["findings"]]


def finding(report: dict[str, Any], part: str) -> dict[str, Any]:
    found = [f for f in report["findings"] if part in f["what"]]
    assert len(found) == 1, whats(report)
    return found[0]


def test_a_clean_corpus_gives_no_alarm(tmp_path: Path) -> None:
    report = check([write(tmp_path / "a.txt", documents())])
    assert report["findings"] == []
    assert [report["structure"][k]["verdict"] for k in ("nsp", "sop", "full_sentences")] == ["fit"] * 3
    assert report["documents"]["number"] == 30
    assert report["languages"]["en"]["share"] == 1.0
    assert list(report["scripts"]) == ["Latin"]


def test_the_counts_are_those_of_the_text(tmp_path: Path) -> None:
    found = documents(12, 3)
    report = check([write(tmp_path / "a.txt", found)])
    text = "".join("\n".join(lines) for lines in found)
    assert report["bytes"] == len(text.encode())
    assert report["characters"]["number"] == len(text)
    assert report["lines"]["lengths"]["number"] == sum(map(len, found))
    assert report["documents"]["sentences"] == text.count(".")
    assert report["words"] == len(" ".join(" ".join(lines) for lines in found).split())
    lengths = sorted(len("\n".join(lines)) for lines in found)
    summary = report["documents"]["characters"]
    assert (summary["least"], summary["most"]) == (lengths[0], lengths[-1])
    assert summary["median"] == pytest.approx(lengths[5], rel=0.012)
    assert sum(summary["histogram"]["counts"]) == 12


def test_bytes_that_are_not_utf_8_are_told_by_file_line_and_column(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", documents(4))
    good = path.read_bytes()
    path.write_bytes("é ".encode() + b"caf\xe9 and \xff\xfe.\n" + good + b"\nlast \x80")
    report = check([path])
    last = (good.count(b"\n")) + 3
    assert report["encoding"]["bytes"] == 4
    assert report["encoding"]["lines"] == 2
    assert [place["place"] for place in report["encoding"]["places"]] == [f"{path}:1:6", f"{path}:{last}:6"]
    assert "0xE9" in report["encoding"]["places"][0]["reason"]
    found = finding(report, "not UTF-8")
    assert (found["severity"], found["first"], found["number"]) == ("problem", f"{path}:1:6", 4)
    assert report["documents"]["number"] == 4  # all that can be read is looked at


def test_places_below_a_line_that_cannot_be_read_are_right(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"One line.\nbad \xff\nbad \xfe\nThe NUL\0 stands here.\nSame.\nSame.\nOne line.\n")
    report = check([path])
    assert report["characters"]["kinds"]["NUL characters"] == {"number": 1, "places": [f"{path}:4:8"]}
    assert {e["first"] for e in report["lines"]["repeated"]["examples"]} == {f"{path}:1", f"{path}:5"}


PLANTED = {
    "NUL characters": "\0",
    "control characters": "\x07",
    "lone carriage returns": "\r",
    "replacement characters (U+FFFD)": "\ufffd",
    "byte order marks inside the text (U+FEFF)": "\ufeff",
    "line and paragraph separators (U+2028, U+2029)": "\u2028",
    "noncharacters": "\ufdd0",
    "private-use characters": "\ue000",
    "invisible marks (zero-width, direction, soft hyphen)": "\u200b",
}


@pytest.mark.parametrize("kind", PLANTED)
def test_characters_that_should_not_be_there_are_counted_with_places(tmp_path: Path, kind: str) -> None:
    found = documents(5)
    found[2][1] = found[2][1][:10] + PLANTED[kind] * 2 + found[2][1][10:]
    found[4][0] = found[4][0][:3] + PLANTED[kind] + found[4][0][3:]
    report = check([write(tmp_path / "a.txt", found)])
    above = sum(map(len, found[:2])) + 2
    last = sum(map(len, found[:4])) + 4
    kinds = report["characters"]["kinds"]
    assert kinds[kind]["number"] == 3
    assert kinds[kind]["places"] == [
        f"{tmp_path}/a.txt:{above + 2}:11", f"{tmp_path}/a.txt:{above + 2}:12", f"{tmp_path}/a.txt:{last + 1}:4",
    ]  # fmt: skip
    assert [name for name in kinds if kinds[name]["number"]] == [kind]
    assert finding(report, kind)["first"] == f"{tmp_path}/a.txt:{above + 2}:11"


def test_every_kind_of_character_is_tried() -> None:
    assert set(PLANTED) == set(KINDS[1:]) - {"half characters (lone surrogates)"}


@pytest.mark.parametrize("meant", ["é", "ü", "’", "“", "–", "…", "中", "č", "Я", "😀", "ß", "©"])
def test_utf_8_read_as_another_encoding_is_found(tmp_path: Path, meant: str) -> None:
    wrong = "".join(
        bytes([byte]).decode("latin1" if byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else "cp1252")
        for byte in meant.encode()
    )
    found = documents(3)
    found[1][0] = f"Wort{wrong}Wort " + found[1][0]
    report = check([write(tmp_path / "a.txt", found)])
    (place,) = report["characters"]["mojibake"]["places"]
    assert place["place"] == f"{tmp_path}/a.txt:{len(found[0]) + 2}:5"
    assert place["meant"] == meant
    assert finding(report, "read as another encoding")["number"] == 1


@pytest.mark.parametrize(
    "text",
    ["»Spaß« und »Menü«", "« déjà vu »", "NÃO PÂTE Ângela", "ESPAÑA", "å–ø", "çà—là", "Ä“x”", "naïve—so", "Ø–Å",
     "é——", "Zoë’s", "10 €"],
)  # fmt: skip
def test_right_text_is_not_taken_for_another_encoding(tmp_path: Path, text: str) -> None:
    found = documents(2)
    found[0][0] += f" {text}."
    assert check([write(tmp_path / "a.txt", found)])["characters"]["mojibake"]["number"] == 0


def test_every_file_s_faults_are_listed(tmp_path: Path) -> None:
    """Forty faults of one file do not hide those of the files behind it."""
    many = write(tmp_path / "a.txt", [["Wort\0 \x07Ã©."] * 40])
    few = write(tmp_path / "b.txt", [["Good.", "A NUL\0 here, and Ã¼."], ["Fine."]])
    (bad := tmp_path / "c.txt").write_bytes(b"Good.\ncaf\xe9 \xff.\n")
    (rows := tmp_path / "d.jsonl").write_text('{broken\n{"text": "A NUL\\u0000."}\n', encoding="utf-8")
    (packed := tmp_path / "e.txt.gz").write_bytes(b"not gzip")
    clean = write(tmp_path / "f.txt", documents(3))
    files = [many, few, bad, rows, packed, clean]
    report = check(files, CheckOptions(listed=20))
    assert len(report["characters"]["kinds"]["NUL characters"]["places"]) == 20
    found = report["faults_by_file"]
    assert found["files_not_listed"] == 0
    assert [entry["file"] for entry in found["files"]] == [str(file) for file in files[:-1]]
    of_file = [{f["what"]: f for f in entry["faults"]} for entry in found["files"]]
    wrong = "UTF-8 that was read as another encoding"
    assert {what: f["number"] for what, f in of_file[0].items()} == {
        "NUL characters": 40, "control characters": 40, wrong: 40,
    }  # fmt: skip
    assert [p["at"] for p in of_file[0]["NUL characters"]["places"]] == [f"{n}:5" for n in range(1, 6)]
    assert of_file[1]["NUL characters"] == {
        "number": 1,
        "what": "NUL characters",
        "places": [{"at": "2:6", "told": ""}],
    }
    assert of_file[1][wrong]["places"] == [{"at": "2:18", "told": "Ã¼ for ü"}]
    assert of_file[2]["bytes that are not UTF-8"]["places"] == [{"at": "2:4", "told": "0xE9"}]
    assert of_file[2]["bytes that are not UTF-8"]["number"] == 2
    assert of_file[3]["lines or rows that cannot be read"]["places"][0]["at"] == "1"
    assert of_file[3]["NUL characters"]["places"][0]["at"] == "2"
    assert of_file[4]["cannot be read to its end"]["places"][0]["at"] == ""
    # what is found in all files together is what is found in each
    for name, kind in report["characters"]["kinds"].items():
        assert kind["number"] == sum(f[name]["number"] for f in of_file if name in f)


def test_the_faults_of_very_many_files_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_errors, "_MOST_FILES", 2)
    found = file_errors.FaultsByFile(1)
    for file in ("a", "b", "c", "d", "c", "a"):
        found.add(file, "it", f"{file}:1:2")
    assert found.summary() == {
        "files": [
            {"file": file, "faults": [{"what": "it", "number": n, "places": [{"at": "1:2", "told": ""}]}]}
            for file, n in (("a", 2), ("b", 1))
        ],
        "files_not_listed": 2,
    }


def test_repeated_documents_exact_and_near(tmp_path: Path) -> None:
    found = documents(20)
    exact = [*found[3]]
    near = [*found[7]]
    near[0] = near[0].replace("the", "a", 1)
    path = write(tmp_path / "a.txt", [*found, exact, near, exact])
    report = check([path])
    starts = np.cumsum([1, *(len(lines) + 1 for lines in [*found, exact, near])]).tolist()
    places = [f"{path}:{line}" for line in starts]
    assert report["duplicates"]["exact"]["clusters"] == [
        {"first": places[3], "repeated": 2, "places": [places[20], places[22]]}
    ]
    assert report["duplicates"]["near"]["number"] == 1
    assert report["duplicates"]["near"]["clusters"][0]["first"] == places[7]
    assert report["duplicates"]["near"]["clusters"][0]["places"] == [places[21]]
    assert finding(report, "word for word")["number"] == 2


def test_repeated_lines_are_counted_and_shown(tmp_path: Path) -> None:
    found = documents(10)
    footer = "Accept all cookies"
    for lines in found[:6]:
        lines.append(footer)
    found[8] += [found[8][0], found[8][0]]
    path = write(tmp_path / "a.txt", found)
    report = check([path])
    repeated = report["lines"]["repeated"]
    total = sum(map(len, found))
    assert repeated["distinct"] == total - 7
    assert repeated["repeated"] == 2
    assert repeated["occurrences_too_many"] == 7
    assert repeated["share_of_lines"] == pytest.approx(7 / total, abs=1e-6)
    assert repeated["in_many_documents"]["lines"] == 1
    examples = {e["text"]: (e["times"], e["documents"], e["first"]) for e in repeated["examples"]}
    assert examples[footer] == (6, 6, f"{path}:{len(found[0])}")
    assert examples[found[8][0][:80]][:2] == (3, 1)
    navigation = report["lines"]["boilerplate"]["navigation"]
    assert navigation["lines"] == 6
    assert navigation["examples"] == [[footer, 6]]


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b b", " a ", "c", "dé", "  "]), min_size=1, max_size=6), max_size=12
    )
)
def test_repeated_lines_are_what_a_dictionary_counts(texts: list[list[str]]) -> None:
    counted = RepeatedLines()
    times: dict[str, int] = {}
    within: dict[str, set[int]] = {}
    for number, text in enumerate(texts):
        add(counted, ["\n".join(text)])
        for line in filter(None, map(str.strip, text)):
            times[line] = times.get(line, 0) + 1
            within.setdefault(line, set()).add(number)
    summary = counted.summary(sum(times.values()), 100, str, 20)
    assert summary["distinct"] == len(times)
    assert summary["occurrences_too_many"] == sum(times.values()) - len(times)
    assert {(e["text"], e["times"], e["documents"]) for e in summary["examples"]} == {
        (line, n, len(within[line])) for line, n in times.items() if n > 1
    }


def add(counted: RepeatedLines, texts: list[str]) -> None:
    codes, bounds = code_points(texts)
    text = "\n".join(texts) + "\n"
    lines = find_lines(codes, bounds, text)
    places = np.arange(len(lines.starts), dtype=np.uint64)
    counted.add(line_hashes(codes, lines), places, lines, text, np.ones(len(texts), dtype=bool))


def test_more_lines_than_memory_are_estimated_from_a_sample() -> None:
    """20,000 distinct lines, a fifth of them twice, with room for 3,000: within a tenth, and said."""
    counted = RepeatedLines(capacity=3_000)
    texts = [f"line number {i}" for i in range(20_000)] + [f"line number {i}" for i in range(0, 20_000, 5)]
    for begin in range(0, len(texts), 1000):
        add(counted, ["\n".join(texts[begin : begin + 1000])])
    summary = counted.summary(len(texts), 10**6, str, 5)
    assert summary["estimated_from_share"] == counted.share
    assert 1 / 16 <= counted.share <= 1 / 8
    assert summary["distinct"] == pytest.approx(20_000, rel=0.1)
    assert summary["occurrences_too_many"] == pytest.approx(4_000, rel=0.1)


def test_empty_huge_and_one_line_documents(tmp_path: Path) -> None:
    found = documents(4)
    found[1] = found[1][:1]
    huge = [f"{sentence(random.Random(i))} {i}." for i in range(12_000)]
    path = write(tmp_path / "a.txt", [*found, ["… — …", "---"], huge])
    report = check([path])["documents"]
    first = sum(map(len, found)) + len(found) + 1
    assert report["empty"] == {"number": 1, "places": [f"{path}:{first}"]}
    assert report["huge"]["places"] == [f"{path}:{first + 3}"]
    assert report["one_line"] == {"number": 1, "places": [f"{path}:{len(found[0]) + 2}"]}


def test_a_document_in_parts_counts_once(tmp_path: Path) -> None:
    """Five million characters come in two parts; lines and places go on in the second."""
    line = " ".join(sentence(random.Random(i)) for i in range(14))
    number = 5_000_000 // (len(line) + 1)
    path = tmp_path / "a.txt"
    path.write_text("\n".join([line] * number) + "\nA NUL\0 here.\n", encoding="utf-8")
    report = check([path])
    assert report["documents"]["number"] == 1
    assert report["documents"]["characters"]["most"] == (len(line) + 1) * number + len("A NUL\0 here.")
    assert report["documents"]["huge"]["number"] == 1
    assert report["characters"]["kinds"]["NUL characters"]["places"] == [f"{path}:{number + 1}:6"]
    assert report["lines"]["repeated"]["examples"][0]["times"] == number
    assert report["lines"]["repeated"]["examples"][0]["documents"] == 1
    assert any("too long" in limit for limit in report["limits"])
    assert "one document" in finding(report, "without a blank line")["what"]


def test_boilerplate_is_told_by_kind(tmp_path: Path) -> None:
    found = documents(10)
    for i, lines in enumerate(found):
        lines += [
            f"Home | Products | Contact {i}",
            f"{i} 123 456 789 012",
            f"See https://x.example/{i} for more.",
        ]
    report = check([write(tmp_path / "a.txt", found)])["lines"]["boilerplate"]
    assert {kind: report[kind]["lines"] for kind in lines_room.KINDS} == {
        "navigation": 0, "urls": 10, "symbols": 10, "unended": 20,
    }  # fmt: skip
    assert report["any"]["lines"] == 30


@pytest.mark.parametrize(
    ("line", "hit"), [("Please sign in", True), ("The design in red.", False), ("READ MORE »", True)]
)
def test_navigation_is_found_by_whole_words(line: str, hit: bool) -> None:
    codes, bounds = code_points([line, "Istanbul: İİİ read more"])
    flags = find_lines(codes, bounds, f"{line}\nIstanbul: İİİ read more\n").flags["navigation"]
    assert flags.tolist() == [hit, True]


LANGUAGES = {
    "de": "Der Hund und die Katze sind in dem Haus, das mit einem Garten für die Kinder ist nicht groß.",
    "fr": "Le chat est dans la maison et il ne veut pas sortir avec les enfants du village pour jouer.",
    "es": "El perro de la casa es más grande que el gato, pero no se va por las calles con los niños.",
    "ru": "Он не был в городе, но она сказала, что это так и что он был на реке.",
    "zh": "我们今天去图书馆看书，明天再去。",
    "ja": "わたしは今日図書館に行きます。",
    "ko": "나는 오늘 도서관에 갑니다.",
}


def test_languages_and_scripts(tmp_path: Path) -> None:
    found = [[text, text.upper()] for text in LANGUAGES.values()]
    report = check([write(tmp_path / "a.txt", [*documents(3), *found])])
    assert set(report["languages"]) == {*LANGUAGES, "en"}
    assert set(report["scripts"]) == {"Latin", "Cyrillic", "Han", "Hiragana", "Hangul"}
    letters = sum(character.isalpha() for lines in found for line in lines for character in line)
    mine = sum(character.isalpha() for lines in documents(3) for line in lines for character in line)
    assert sum(entry["number"] for entry in report["scripts"].values()) == letters + mine


def test_hard_wrapped_lines_are_told(tmp_path: Path) -> None:
    import textwrap

    found = [textwrap.wrap(" ".join(lines), 70) for lines in documents(20)]
    report = check([write(tmp_path / "a.txt", found)])
    assert finding(report, "wrapped inside sentences")["severity"] == "problem"
    assert report["structure"]["nsp"]["verdict"] == "limited"
    assert report["structure"]["wrapped_share"] > 0.5


def test_missing_blank_lines_are_told(tmp_path: Path) -> None:
    lines = [line for text in documents(40) for line in text]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = check([path])
    assert finding(report, "without a blank line")["first"] == f"{path}:1"
    assert report["structure"]["nsp"]["verdict"] == "unfit"
    assert report["structure"]["sop"]["verdict"] == "fit"
    as_lines = check([path], CheckOptions(Reading("line")))
    assert as_lines["findings"] == []
    assert as_lines["structure"]["nsp"]["verdict"] == "fit"


def test_a_line_a_document_is_advised_for_long_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(" ".join(lines) for lines in documents(60)) + "\n", encoding="utf-8")
    assert "--documents line" in finding(check([path]), "look like documents")["remedy"]


def test_sentences_as_documents_are_told(tmp_path: Path) -> None:
    draw = random.Random(0)
    report = check([write(tmp_path / "a.txt", [[sentence(draw)] for _ in range(60)])])
    assert finding(report, "one line of one sentence")["severity"] == "problem"
    assert [report["structure"][k]["verdict"] for k in ("nsp", "sop", "full_sentences")] == [
        "unfit", "unfit", "fit",
    ]  # fmt: skip


def test_tokens_are_those_of_prepare(tmp_path: Path) -> None:
    tokenizer = tiny_run.tokenizer()
    path = tmp_path / "a.txt"
    path.write_text(tiny_run.corpus(40) + "\nKabalode mi, Xyzzy 你 xyzzy!\n", encoding="utf-8")
    report = check([path], tokenizer=tokenizer)["tokenizer"]
    counts = prepare([path], tokenizer, tmp_path / "shards", workers=1).counts
    assert report["tokens"] == counts["tokens"]
    assert report["unknown_tokens"] == counts["unknown"] >= 5
    assert report["frequent_unknown_words"][:1] == [{"word": "Kabalode", "times": 1}]
    assert {"character": "你", "code": "U+4F60", "times": 1} in report["frequent_unknown_characters"]


def test_words_that_fall_apart_are_weighed_by_frequency(tmp_path: Path) -> None:
    tokens = [*tiny_run.TOKENS[:5], "the", "walk", "##ing", "un", "##walk", "##able", "."]
    tokenizer = Tokenizer.of_vocabulary(tokens, lowercase=True)
    path = tmp_path / "a.txt"
    path.write_text("The walking the walking. Walking.\n\nunwalkable the.\n", encoding="utf-8")
    report = check([path], tokenizer=tokenizer)["tokenizer"]
    assert report["falling_apart"] == [
        {"word": "unwalkable", "times": 1, "pieces": ["un", "##walk", "##able"]},
        {"word": "walking", "times": 2, "pieces": ["walk", "##ing"]},
        {"word": "Walking", "times": 1, "pieces": ["walk", "##ing"]},
    ]
    assert report["words"] == 7
    assert report["pieces_per_word"] == pytest.approx((3 + 3 * 2 + 3) / 7, abs=1e-4)
    assert report["words_by_pieces"][:5] == [0, 3, 3, 1, 0]


def test_records_say_their_own_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [json.dumps({"text": "\n".join(lines)}) for lines in documents(3)]
    rows[1:1] = [
        "{broken",
        json.dumps({"text": "a\nNUL\0"}),
        json.dumps({"other": 1}),
        json.dumps({"text": "  "}),
    ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    report = check([path])
    assert report["characters"]["kinds"]["NUL characters"]["places"] == [f"{path}:3"]
    assert report["records"]["number"] >= 2
    assert [place["place"] for place in report["records"]["places"]][:2] == [f"{path}:2", f"{path}:4"]


def test_files_that_cannot_be_read_are_findings_and_missing_ones_errors(tmp_path: Path) -> None:
    good = write(tmp_path / "a.txt", documents(6))
    whole = gzip.compress(good.read_bytes() * 30)
    (tmp_path / "b.txt.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "c.txt").write_bytes(b"")
    (tmp_path / "d.txt").write_bytes("some words\n".encode("utf-16"))
    (tmp_path / "e.parquet").write_bytes(b"this is not a parquet file")
    report = check([good, *(tmp_path / name for name in ("b.txt.gz", "c.txt", "d.txt", "e.parquet"))])
    told = report["unreadable"]["places"] + report["records"]["places"]
    assert {place["place"].split(":")[0].rsplit("/")[-1] for place in told} == {
        "b.txt.gz", "d.txt", "e.parquet",
    }  # fmt: skip
    assert report["left_out"]["empty"] == [str(tmp_path / "c.txt")]
    assert report["encoding"]["bytes"] == 0
    remedies = [finding["remedy"] for finding in report["findings"]]
    assert "add --encoding utf-16 for what is UTF-16; fix the others or leave them out" in remedies
    assert report["documents"]["number"] >= 6
    with pytest.raises(InputError, match="no such file"):
        check([good, tmp_path / "none.txt"])


def test_nothing_but_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n \n")
    report = check([path])
    assert "there is no text" in whats(report)
    assert report["structure"]["nsp"]["verdict"] == "unfit"


def test_a_sample_is_shared_out_and_said(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{i}.txt", documents(400, i)) for i in range(3)]
    size = files[0].stat().st_size
    report = check(files, CheckOptions(sample=size // 2))
    assert report["bytes"] < 3 * size / 2
    assert any(limit.startswith("a sample: ") for limit in report["limits"])
    whole = check(files, CheckOptions(sample=10 * size))
    assert not any(limit.startswith("a sample: ") for limit in whole["limits"])
    assert whole == check(files)


def test_the_same_files_give_the_same_report(tmp_path: Path) -> None:
    found = documents(20)
    found[3][0] = found[1][0]
    files = [write(tmp_path / "a.txt", found)]
    assert json.dumps(check(files)) == json.dumps(check(files))


def test_a_report_is_plain_json(tmp_path: Path) -> None:
    report = check([write(tmp_path / "a.txt", documents())], tokenizer=tiny_run.tokenizer())
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_the_samples_beside_the_checkout_give_no_alarm(shared_data: Path) -> None:
    for name, verdict in (("english.txt", "fit"), ("chinese.txt", "fit")):
        report = check([shared_data / "corpora" / "sample" / name])
        assert [f for f in report["findings"] if f["severity"] != "note"] == []
        assert report["structure"]["nsp"]["verdict"] == verdict
    mixed = check([shared_data / "corpora" / "sample" / "mixed.txt"])
    data = (shared_data / "corpora" / "sample" / "mixed.txt").read_bytes().decode("utf-8")
    kinds = mixed["characters"]["kinds"]
    assert kinds["NUL characters"]["number"] == data.count("\0")
    assert kinds["replacement characters (U+FFFD)"]["number"] == data.count("\ufffd")
    assert kinds["lone carriage returns"]["number"] == data.count("\r")


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=60), st.floats(0.01, 1))
def test_quantiles_are_within_the_width_of_a_bin(values: list[int], share: float) -> None:
    spread = Distribution()
    spread.add(values[:7])
    spread.add(values[7:])
    exact = sorted(values)[max(1, int(np.ceil(share * len(values)))) - 1]
    assert spread.quantile(share) == pytest.approx(exact, rel=0.012)
    assert sum(spread.histogram()[1]) == len(values)
    assert (spread.total, spread.least, spread.most) == (sum(values), min(values), max(values))


def test_the_pieces_of_one_endless_line_do_not_repeat_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a" * 2_500_000 + "\nOne.\nOne.\n", encoding="utf-8")
    repeated = check([path])["lines"]["repeated"]
    assert [(e["text"], e["times"], e["first"]) for e in repeated["examples"]] == [("One.", 2, f"{path}:2")]
