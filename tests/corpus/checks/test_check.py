"""The corpus check finds each planted fault with its location, and reports none in a clean corpus."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny_run
from bertsmith.corpus.checks import lines as lines_module
from bertsmith.corpus.checks.characters import CHARACTER_CLASSES
from bertsmith.corpus.checks.check import CheckOptions, check_files
from bertsmith.corpus.checks.histogram import Histogram
from bertsmith.corpus.checks.lines import BOILERPLATE, RepeatedLines, boilerplate_kinds
from bertsmith.corpus.prepare import prepare
from bertsmith.errors import InputError
from bertsmith.io.documents import Reading
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


def sentence(rng: random.Random) -> str:
    words = (
        f"{rng.choice(NAMES)} {rng.choice(VERBS)} the {rng.choice(THINGS)} and the {rng.choice(THINGS)} "
        f"{rng.choice(TIMES)} that was {rng.randrange(10**6)} days old."
    )
    return words[0].upper() + words[1:]


def documents(count: int = 30, seed: int = 0) -> list[list[str]]:
    """Return documents of three to six different lines of two to four English sentences."""
    rng = random.Random(seed)
    return [
        [" ".join(sentence(rng) for _ in range(rng.randint(2, 4))) for _ in range(rng.randint(3, 6))]
        for _ in range(count)
    ]


def write(path: Path, texts: list[list[str]]) -> Path:
    path.write_text("\n\n".join("\n".join(lines) for lines in texts) + "\n", encoding="utf-8", newline="\n")
    return path


def messages(report: dict[str, Any]) -> list[str]:
    return [finding["what"] for finding in report["findings"]]


def finding(report: dict[str, Any], part: str) -> dict[str, Any]:
    matches = [f for f in report["findings"] if part in f["what"]]
    assert len(matches) == 1, messages(report)
    return matches[0]


def test_a_clean_corpus_has_no_findings(tmp_path: Path) -> None:
    report = check_files([write(tmp_path / "a.txt", documents())])
    assert report["findings"] == []
    assert [report["structure"][k]["verdict"] for k in ("nsp", "sop", "full_sentences")] == ["fit"] * 3
    assert report["documents"]["number"] == 30
    assert list(report["scripts"]) == ["Latin"]


def test_counts_equal_those_of_the_text(tmp_path: Path) -> None:
    texts = documents(12, 3)
    report = check_files([write(tmp_path / "a.txt", texts)])
    text = "".join("\n".join(lines) for lines in texts)
    assert report["bytes"] == len(text.encode())
    assert report["characters"]["number"] == len(text)
    assert report["lines"]["lengths"]["number"] == sum(map(len, texts))
    assert report["documents"]["sentences"] == text.count(".")
    assert report["words"] == len(" ".join(" ".join(lines) for lines in texts).split())
    lengths = sorted(len("\n".join(lines)) for lines in texts)
    summary = report["documents"]["characters"]
    assert (summary["least"], summary["most"]) == (lengths[0], lengths[-1])
    assert summary["median"] == pytest.approx(lengths[5], rel=0.012)
    assert sum(summary["histogram"]["counts"]) == 12


def test_invalid_utf_8_is_reported_by_file_line_and_column(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", documents(4))
    good = path.read_bytes()
    path.write_bytes("é ".encode() + b"caf\xe9 and \xff\xfe.\n" + good + b"\nlast \x80")
    report = check_files([path])
    last = (good.count(b"\n")) + 3
    assert report["encoding"]["bytes"] == 4
    assert report["encoding"]["lines"] == 2
    assert [place["place"] for place in report["encoding"]["places"]] == [f"{path}:1:6", f"{path}:{last}:6"]
    assert "0xE9" in report["encoding"]["places"][0]["reason"]
    invalid = finding(report, "not UTF-8")
    assert (invalid["severity"], invalid["first"], invalid["number"]) == ("problem", f"{path}:1:6", 4)
    assert report["documents"]["number"] == 4  # The other lines are checked.


def test_locations_below_an_unreadable_line_are_right(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"One line.\nbad \xff\nbad \xfe\nThe NUL\0 stands here.\nSame.\nSame.\nOne line.\n")
    report = check_files([path])
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


@pytest.mark.parametrize("name", PLANTED)
def test_unwanted_characters_are_counted_with_locations(tmp_path: Path, name: str) -> None:
    texts = documents(5)
    texts[2][1] = texts[2][1][:10] + PLANTED[name] * 2 + texts[2][1][10:]
    texts[4][0] = texts[4][0][:3] + PLANTED[name] + texts[4][0][3:]
    report = check_files([write(tmp_path / "a.txt", texts)])
    above = sum(map(len, texts[:2])) + 2
    last = sum(map(len, texts[:4])) + 4
    kinds = report["characters"]["kinds"]
    assert kinds[name]["number"] == 3
    assert kinds[name]["places"] == [
        f"{tmp_path}/a.txt:{above + 2}:11", f"{tmp_path}/a.txt:{above + 2}:12", f"{tmp_path}/a.txt:{last + 1}:4",
    ]  # fmt: skip
    assert [key for key in kinds if kinds[key]["number"]] == [name]
    assert finding(report, name)["first"] == f"{tmp_path}/a.txt:{above + 2}:11"


def test_every_class_of_characters_is_tested() -> None:
    assert set(PLANTED) == set(CHARACTER_CLASSES) - {"half characters (lone surrogates)"}


@pytest.mark.parametrize("character", ["é", "ü", "’", "“", "–", "…", "中", "č", "Я", "😀", "ß", "©"])
def test_mojibake_is_found(tmp_path: Path, character: str) -> None:
    wrong = "".join(
        bytes([byte]).decode("latin1" if byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else "cp1252")
        for byte in character.encode()
    )
    texts = documents(3)
    texts[1][0] = f"Wort{wrong}Wort " + texts[1][0]
    report = check_files([write(tmp_path / "a.txt", texts)])
    (place,) = report["characters"]["mojibake"]["places"]
    assert place["place"] == f"{tmp_path}/a.txt:{len(texts[0]) + 2}:5"
    assert place["meant"] == character
    assert finding(report, "read as another encoding")["number"] == 1


@pytest.mark.parametrize(
    "text",
    ["»Spaß« und »Menü«", "« déjà vu »", "NÃO PÂTE Ângela", "ESPAÑA", "å–ø", "çà—là", "Ä“x”", "naïve—so", "Ø–Å",
     "é——", "Zoë’s", "10 €"],
)  # fmt: skip
def test_valid_text_is_no_mojibake(tmp_path: Path, text: str) -> None:
    texts = documents(2)
    texts[0][0] += f" {text}."
    assert check_files([write(tmp_path / "a.txt", texts)])["characters"]["mojibake"]["number"] == 0


def test_exact_and_near_duplicates(tmp_path: Path) -> None:
    texts = documents(20)
    exact = [*texts[3]]
    near = [*texts[7]]
    near[0] = near[0].replace("the", "a", 1)
    path = write(tmp_path / "a.txt", [*texts, exact, near, exact])
    report = check_files([path])
    starts = np.cumsum([1, *(len(lines) + 1 for lines in [*texts, exact, near])]).tolist()
    locations = [f"{path}:{line}" for line in starts]
    assert report["duplicates"]["exact"]["clusters"] == [
        {"first": locations[3], "repeated": 2, "places": [locations[20], locations[22]]}
    ]
    assert report["duplicates"]["near"]["number"] == 1
    assert report["duplicates"]["near"]["clusters"][0]["first"] == locations[7]
    assert report["duplicates"]["near"]["clusters"][0]["places"] == [locations[21]]
    assert finding(report, "word for word")["number"] == 2


def test_repeated_lines_are_counted_and_shown(tmp_path: Path) -> None:
    texts = documents(10)
    footer = "Accept all cookies"
    for lines in texts[:6]:
        lines.append(footer)
    texts[8] += [texts[8][0], texts[8][0]]
    path = write(tmp_path / "a.txt", texts)
    report = check_files([path])
    repeated = report["lines"]["repeated"]
    total = sum(map(len, texts))
    assert repeated["distinct"] == total - 7
    assert repeated["repeated"] == 2
    assert repeated["occurrences_too_many"] == 7
    assert repeated["share_of_lines"] == pytest.approx(7 / total, abs=1e-6)
    assert repeated["in_many_documents"]["lines"] == 1
    examples = {e["text"]: (e["times"], e["documents"], e["first"]) for e in repeated["examples"]}
    assert examples[footer] == (6, 6, f"{path}:{len(texts[0])}")
    assert examples[texts[8][0][:80]][:2] == (3, 1)
    navigation = report["lines"]["boilerplate"]["navigation"]
    assert navigation["lines"] == 6
    assert navigation["examples"] == [[footer, 6]]


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b b", " a ", "c", "dé", "  "]), min_size=1, max_size=6), max_size=12
    )
)
def test_repeated_lines_equal_the_counts_of_a_dictionary(texts: list[list[str]]) -> None:
    repeated = RepeatedLines()
    times: dict[str, int] = {}
    within: dict[str, set[int]] = {}
    for index, text in enumerate(texts):
        for line, n in Counter(filter(None, map(str.strip, text))).items():
            repeated.add(line, f"{index}", n, is_start=True)
            times[line] = times.get(line, 0) + n
            within.setdefault(line, set()).add(index)
    summary = repeated.summary(sum(times.values()), 100, 20)
    assert summary["distinct"] == len(times)
    assert summary["occurrences_too_many"] == sum(times.values()) - len(times)
    assert {(e["text"], e["times"], e["documents"]) for e in summary["examples"]} == {
        (line, n, len(within[line])) for line, n in times.items() if n > 1
    }


def test_lines_beyond_the_capacity_are_estimated_from_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 distinct lines, a fifth of them twice, with a capacity of 3,000: estimates are within 10 %."""
    monkeypatch.setattr(lines_module, "_MAX_PENDING_LINES", 1000)
    repeated = RepeatedLines(capacity=3_000)
    texts = [f"line number {i}" for i in range(20_000)] + [f"line number {i}" for i in range(0, 20_000, 5)]
    for text in texts:
        repeated.add(text, "a:1", 1, is_start=True)
    summary = repeated.summary(len(texts), 10**6, 5)
    assert 1 / 16 <= repeated.sampled_fraction <= 1 / 8
    assert summary["distinct"] == pytest.approx(20_000, rel=0.1)
    assert summary["occurrences_too_many"] == pytest.approx(4_000, rel=0.1)


def test_empty_huge_and_one_line_documents(tmp_path: Path) -> None:
    texts = documents(4)
    texts[1] = texts[1][:1]
    huge = [f"{sentence(random.Random(i))} {i}." for i in range(12_000)]
    path = write(tmp_path / "a.txt", [*texts, ["… — …", "---"], huge])
    report = check_files([path])["documents"]
    first = sum(map(len, texts)) + len(texts) + 1
    assert report["empty"] == {"number": 1, "places": [f"{path}:{first}"]}
    assert report["huge"]["places"] == [f"{path}:{first + 3}"]
    assert report["one_line"] == {"number": 1, "places": [f"{path}:{len(texts[0]) + 2}"]}


def test_a_document_in_parts_counts_once(tmp_path: Path) -> None:
    """Five million characters come in two parts; lines and locations continue in the second."""
    line = " ".join(sentence(random.Random(i)) for i in range(14))
    num_lines = 5_000_000 // (len(line) + 1)
    path = tmp_path / "a.txt"
    path.write_text("\n".join([line] * num_lines) + "\nA NUL\0 here.\n", encoding="utf-8")
    report = check_files([path])
    assert report["documents"]["number"] == 1
    assert report["documents"]["characters"]["most"] == (len(line) + 1) * num_lines + len("A NUL\0 here.")
    assert report["documents"]["huge"]["number"] == 1
    assert report["characters"]["kinds"]["NUL characters"]["places"] == [f"{path}:{num_lines + 1}:6"]
    assert report["lines"]["repeated"]["examples"][0]["times"] == num_lines
    assert report["lines"]["repeated"]["examples"][0]["documents"] == 1
    assert any("too long" in limit for limit in report["limits"])
    assert "one document" in finding(report, "without a blank line")["what"]


def test_boilerplate_is_counted_by_kind(tmp_path: Path) -> None:
    texts = documents(10)
    for i, lines in enumerate(texts):
        lines += [
            f"Home | Products | Contact {i}",
            f"{i} 123 456 789 012",
            f"See https://x.example/{i} for more.",
        ]
    report = check_files([write(tmp_path / "a.txt", texts)])["lines"]["boilerplate"]
    assert {name: report[name]["lines"] for name in BOILERPLATE} == {
        "navigation": 0, "urls": 10, "symbols": 10, "unended": 20,
    }  # fmt: skip
    assert report["any"]["lines"] == 30


@pytest.mark.parametrize(
    ("line", "is_navigation"),
    [("Please sign in", True), ("The design in red.", False), ("READ MORE »", True)],
)
def test_navigation_phrases_start_with_a_word(line: str, is_navigation: bool) -> None:
    assert ("navigation" in boilerplate_kinds(line)) == is_navigation


LANGUAGES = {
    "de": "Der Hund und die Katze sind in dem Haus, das mit einem Garten für die Kinder ist nicht groß.",
    "fr": "Le chat est dans la maison et il ne veut pas sortir avec les enfants du village pour jouer.",
    "es": "El perro de la casa es más grande que el gato, pero no se va por las calles con los niños.",
    "ru": "Он не был в городе, но она сказала, что это так и что он был на реке.",
    "zh": "我们今天去图书馆看书，明天再去。",
    "ja": "わたしは今日図書館に行きます。",
    "ko": "나는 오늘 도서관에 갑니다.",
}


def test_scripts(tmp_path: Path) -> None:
    texts = [[text, text.upper()] for text in LANGUAGES.values()]
    report = check_files([write(tmp_path / "a.txt", [*documents(3), *texts])])
    assert set(report["scripts"]) == {"Latin", "Cyrillic", "Han", "Hiragana", "Hangul"}
    letters = sum(character.isalpha() for lines in texts for line in lines for character in line)
    english = sum(character.isalpha() for lines in documents(3) for line in lines for character in line)
    assert sum(entry["number"] for entry in report["scripts"].values()) == letters + english


def test_hard_wrapped_lines_are_found(tmp_path: Path) -> None:
    import textwrap

    texts = [textwrap.wrap(" ".join(lines), 70) for lines in documents(20)]
    report = check_files([write(tmp_path / "a.txt", texts)])
    assert finding(report, "wrapped inside sentences")["severity"] == "problem"
    assert report["structure"]["nsp"]["verdict"] == "limited"
    assert report["structure"]["wrapped_share"] > 0.5


def test_missing_blank_lines_are_found(tmp_path: Path) -> None:
    lines = [line for text in documents(40) for line in text]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = check_files([path])
    assert finding(report, "without a blank line")["first"] == f"{path}:1"
    assert report["structure"]["nsp"]["verdict"] == "unfit"
    assert report["structure"]["sop"]["verdict"] == "fit"
    as_lines = check_files([path], CheckOptions(Reading("line")))
    assert as_lines["findings"] == []
    assert as_lines["structure"]["nsp"]["verdict"] == "fit"


def test_long_lines_are_suggested_as_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(" ".join(lines) for lines in documents(60)) + "\n", encoding="utf-8")
    assert "documents=line" in finding(check_files([path]), "look like documents")["remedy"]


def test_documents_of_one_sentence_are_found(tmp_path: Path) -> None:
    rng = random.Random(0)
    report = check_files([write(tmp_path / "a.txt", [[sentence(rng)] for _ in range(60)])])
    assert finding(report, "one line of one sentence")["severity"] == "problem"
    assert [report["structure"][k]["verdict"] for k in ("nsp", "sop", "full_sentences")] == [
        "unfit", "unfit", "fit",
    ]  # fmt: skip


def test_tokens_equal_those_of_prepare(tmp_path: Path) -> None:
    tokenizer = tiny_run.tokenizer()
    path = tmp_path / "a.txt"
    path.write_text(tiny_run.corpus(40) + "\nKabalode mi, Xyzzy 你 xyzzy!\n", encoding="utf-8")
    report = check_files([path], tokenizer=tokenizer)["tokenizer"]
    counts = prepare([path], tokenizer, tmp_path / "shards", workers=1).counts
    assert report["tokens"] == counts["tokens"]
    assert report["unknown_tokens"] == counts["unknown"] >= 5
    assert report["frequent_unknown_words"][:1] == [{"word": "Kabalode", "times": 1}]
    assert {"character": "你", "code": "U+4F60", "times": 1} in report["frequent_unknown_characters"]


def test_split_words_are_sorted_by_their_pieces_in_the_text(tmp_path: Path) -> None:
    tokens = [*tiny_run.TOKENS[:5], "the", "walk", "##ing", "un", "##walk", "##able", "."]
    tokenizer = Tokenizer.from_vocabulary(tokens, lowercase=True)
    path = tmp_path / "a.txt"
    path.write_text("The walking the walking. Walking.\n\nunwalkable the.\n", encoding="utf-8")
    report = check_files([path], tokenizer=tokenizer)["tokenizer"]
    assert report["falling_apart"] == [
        {"word": "unwalkable", "times": 1, "pieces": ["un", "##walk", "##able"]},
        {"word": "walking", "times": 2, "pieces": ["walk", "##ing"]},
        {"word": "Walking", "times": 1, "pieces": ["walk", "##ing"]},
    ]
    assert report["words"] == 7
    assert report["pieces_per_word"] == pytest.approx((3 + 3 * 2 + 3) / 7, abs=1e-4)
    assert report["words_by_pieces"][:5] == [0, 3, 3, 1, 0]


def test_records_have_locations(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [json.dumps({"text": "\n".join(lines)}) for lines in documents(3)]
    rows[1:1] = [
        "{broken",
        json.dumps({"text": "a\nNUL\0"}),
        json.dumps({"other": 1}),
        json.dumps({"text": "  "}),
    ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    report = check_files([path])
    assert report["characters"]["kinds"]["NUL characters"]["places"] == [f"{path}:3"]
    assert report["records"]["number"] >= 2
    assert [place["place"] for place in report["records"]["places"]][:2] == [f"{path}:2", f"{path}:4"]


def test_unreadable_files_are_findings_and_missing_files_are_errors(tmp_path: Path) -> None:
    good = write(tmp_path / "a.txt", documents(6))
    compressed = gzip.compress(good.read_bytes() * 30)
    (tmp_path / "b.txt.gz").write_bytes(compressed[: len(compressed) // 2])
    (tmp_path / "c.txt").write_bytes(b"")
    (tmp_path / "d.txt").write_bytes("some words\n".encode("utf-16"))
    (tmp_path / "e.parquet").write_bytes(b"this is not a parquet file")
    report = check_files([good, *(tmp_path / name for name in ("b.txt.gz", "c.txt", "d.txt", "e.parquet"))])
    errors = report["unreadable"]["places"] + report["records"]["places"]
    assert {place["place"].split(":")[0].rsplit("/")[-1] for place in errors} == {
        "b.txt.gz", "d.txt", "e.parquet",
    }  # fmt: skip
    assert report["left_out"]["empty"] == [str(tmp_path / "c.txt")]
    assert report["encoding"]["bytes"] == 0
    remedies = [finding["remedy"] for finding in report["findings"]]
    assert any("encoding=utf-16" in remedy for remedy in remedies)
    assert report["documents"]["number"] >= 6
    with pytest.raises(InputError) as caught:
        check_files([good, tmp_path / "none.txt"])
    assert caught.value.code == "not_found"
    assert str(caught.value.location).endswith("none.txt")


def test_an_empty_corpus(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n \n")
    report = check_files([path])
    assert "there is no text" in messages(report)
    assert report["structure"]["nsp"]["verdict"] == "unfit"


def test_a_sample_is_divided_among_the_files_and_reported(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{i}.txt", documents(400, i)) for i in range(3)]
    size = files[0].stat().st_size
    report = check_files(files, CheckOptions(sample=size // 2))
    assert report["bytes"] < 3 * size / 2
    assert any(limit.startswith("a sample: ") for limit in report["limits"])
    complete = check_files(files, CheckOptions(sample=10 * size))
    assert not any(limit.startswith("a sample: ") for limit in complete["limits"])
    assert complete == check_files(files)


def test_the_same_files_give_the_same_report(tmp_path: Path) -> None:
    texts = documents(20)
    texts[3][0] = texts[1][0]
    files = [write(tmp_path / "a.txt", texts)]
    assert json.dumps(check_files(files)) == json.dumps(check_files(files))


def test_a_report_is_plain_json(tmp_path: Path) -> None:
    report = check_files([write(tmp_path / "a.txt", documents())], tokenizer=tiny_run.tokenizer())
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_the_sample_corpora_have_no_findings(shared_data: Path) -> None:
    for name, verdict in (("english.txt", "fit"), ("chinese.txt", "fit")):
        report = check_files([shared_data / "corpora" / "sample" / name])
        assert [f for f in report["findings"] if f["severity"] != "note"] == []
        assert report["structure"]["nsp"]["verdict"] == verdict
    mixed = check_files([shared_data / "corpora" / "sample" / "mixed.txt"])
    data = (shared_data / "corpora" / "sample" / "mixed.txt").read_bytes().decode("utf-8")
    kinds = mixed["characters"]["kinds"]
    assert kinds["NUL characters"]["number"] == data.count("\0")
    assert kinds["replacement characters (U+FFFD)"]["number"] == data.count("\ufffd")
    assert kinds["lone carriage returns"]["number"] == data.count("\r")


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=60), st.floats(0.01, 1))
def test_quantiles_are_exact(values: list[int], q: float) -> None:
    distribution = Histogram()
    distribution.add(values[:7])
    distribution.add(values[7:])
    exact = sorted(values)[max(1, int(np.ceil(q * len(values)))) - 1]
    assert distribution.quantile(q) == exact
    assert sum(distribution.bars()[1]) == len(values)
    assert (distribution.total, distribution.count) == (sum(values), len(values))


def test_the_windows_of_a_long_line_are_no_repeated_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a" * 2_500_000 + "\nOne.\nOne.\n", encoding="utf-8")
    repeated = check_files([path])["lines"]["repeated"]
    assert [(e["text"], e["times"], e["first"]) for e in repeated["examples"]] == [("One.", 2, f"{path}:2")]
