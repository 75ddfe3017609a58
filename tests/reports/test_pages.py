"""Test the pages of corpus checks and tokenizer comparisons for small, faulty, and unusual corpora."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tiny_run
from bertsmith.corpus.checks.tokenizer_comparison import compare_tokenizers
from bertsmith.inspection.check import check_corpus
from bertsmith.reports.corpus import corpus_page, tokenizers_page, word_shares
from bertsmith.tokenizer.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def long_name(file: str) -> str:
    return "-".join(["very", "long"] * 20) + file


def write_faulty_files(folder: Path) -> list[Path]:
    """Write files with many faults, long names, and long words, and one without faults."""
    folder.mkdir()
    texts = {
        long_name("a.txt"): "\n".join(f"Line {i} with a NUL\0 and Ã¼ and \x07." for i in range(40)).encode(),
        "b.txt": b"Good.\ncaf\xe9 \xff.\n\n"
        + b"x" * 900
        + b"\n\nhttps://example.org/"
        + b"long/" * 60
        + b"\n",
        "c.jsonl": b"{broken\n" * 3,
        "d.txt.gz": b"not gzip",
        "e.txt": "\n\n".join(["Accept all cookies\nOne more line.\nThe same document."] * 9).encode(),
        "f.txt": tiny_run.corpus(20).encode(),
    }
    for name, data in texts.items():
        (folder / name).write_bytes(data)
    return sorted(folder.iterdir())


def render_check(files: list[Path], **keywords: Any) -> tuple[str, dict[str, Any]]:
    report = check_corpus(files, benchmark=False, **keywords)
    return corpus_page(report), report


@pytest.fixture
def pages(tmp_path: Path) -> dict[str, str]:
    """Return pages of unusual inputs by name."""
    (tiny := tmp_path / "tiny.txt").write_text("One line.\nAnother line.\nA third.\n", encoding="utf-8")
    (one := tmp_path / "one.txt").write_text("word\n", encoding="utf-8")
    (chinese := tmp_path / "zh.txt").write_text("我们今天去图书馆看书，明天再去。\n" * 20, encoding="utf-8")
    (empty := tmp_path / "empty.txt").write_text("", encoding="utf-8")
    tokenizer = tiny_run.tokenizer()
    rng = random.Random(0)
    many = {
        long_name(str(i)): Tokenizer.from_vocabulary(
            [*SPECIALS, *rng.sample(tiny_run.WORDS, 5 * i)], lowercase=True
        )
        for i in range(8)
    }
    prose = tmp_path / "prose.txt"
    prose.write_text(tiny_run.corpus(10), encoding="utf-8")
    return {
        "faulty": render_check(write_faulty_files(tmp_path / "faulty"), tokenizer=tokenizer)[0],
        "tiny": render_check([tiny])[0],
        "one": render_check([one])[0],
        "empty": render_check([empty])[0],
        "chinese": render_check([chinese], tokenizer=tokenizer)[0],
        "many tokenizers": tokenizers_page(compare_tokenizers([prose, chinese], many)),
        "one tokenizer": tokenizers_page(compare_tokenizers([chinese], {"it": tokenizer})),
    }


class Page(HTMLParser):
    """Collect a page's text, and the classes of the elements around each table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.around_tables: list[list[str]] = []
        self._open: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        name = attributes.get("class") or ""
        if tag == "table":
            self.around_tables.append([name, *(classes for _, classes in self._open)])
        if tag not in ("meta", "path", "use", "rect"):
            self._open.append((tag, name))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open[-1][0] != tag:
            self._open.pop()
        if self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not any(tag == "style" for tag, _ in self._open):
            self.words.append(data)


def test_every_page_fits_phones_and_is_self_contained(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        page = Page(text)
        assert (
            "meta",
            {"name": "viewport", "content": "width=device-width, initial-scale=1"},
        ) in page.tags, name
        assert not {"script", "img", "link", "a"} & {tag for tag, _ in page.tags}, name
        assert "url(http" not in text
        assert "prefers-color-scheme: dark" in text
        assert "@media print" in text
        for around in page.around_tables:
            assert "bars" in around or "scroll" in around, name
        for tag, attributes in page.tags:
            if tag == "svg" or attributes.get("class") in ("scroll", "stack"):
                assert attributes.get("aria-label"), name


def test_numbers_have_no_exponents_and_nouns_agree(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        words = " ".join(Page(text).words)
        assert not re.search(r"\de[+-]\d", words), name
        assert not re.search(
            r"\b1\s(documents|sentences|words|lines|bytes|files|characters|tokens)\b", words
        ), name
        assert not re.search(r"-\d+(\.\d+)?\s?%", words), name


def test_all_of_one_script_is_100_percent(pages: dict[str, str]) -> None:
    assert re.search(r"Latin</th>.*?width: 100\.00%.*?>100\u00a0%<", pages["tiny"])


def test_a_single_value_has_no_histogram(pages: dict[str, str]) -> None:
    words = " ".join(" ".join(Page(pages["tiny"]).words).split())
    assert "1 document of 32 characters" in words
    assert "20 lines of 16 characters each" in " ".join(" ".join(Page(pages["chinese"]).words).split())
    assert pages["tiny"].count("<svg") == 2  # sentences and lines; the one document has no picture
    assert pages["one"].count("<svg") == 0


def test_the_faults_of_every_file_are_listed(tmp_path: Path) -> None:
    files = write_faulty_files(tmp_path / "x")
    text, report = render_check(files)
    words = " ".join(" ".join(Page(text).words).split())
    listed = words[words.index("Faults by file") : words.index("Suitable training tasks")]
    for file in files:
        assert (str(file) in listed) == (file.name not in ("e.txt", "f.txt")), file
    assert "NUL characters: 40, first at 1:18, 2:18, 3:18, 4:18, 5:18, …" in listed.replace(" ,", ",")
    assert "bytes that are not UTF-8: 2, first at 2:4 0xE9" in listed
    assert "cannot be read to its end: this is not a whole gz file" in listed
    report["faults_by_file"] = {
        "files": [{**report["faults_by_file"]["files"][0], "file": f"file-{i}"} for i in range(300)],
        "files_not_listed": 7,
    }
    words = " ".join(" ".join(Page(corpus_page(report)).words).split())
    assert "107 more files have faults" in words


def test_more_than_ten_scripts_are_summarized(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(tiny_run.corpus(5), encoding="utf-8")
    _, report = render_check([tmp_path / "a.txt"])
    for number, last in ((10, "script 9"), (13, "4 others")):
        report["scripts"] = {f"script {i}": {"number": 1, "share": 1 / number} for i in range(number)}
        text = corpus_page(report)
        names = re.findall(r'row">((?:script )?\d+(?: others)?)</th>', text)
        assert len(names) == 10
        assert names[-1] == last


def test_seconds_have_two_digits(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(tiny_run.corpus(20), encoding="utf-8")
    _, report = render_check([tmp_path / "a.txt"])
    report["forecast"] |= {"seconds": 2.30209, "seconds_per_update": 2.30209}
    assert "2.3\u00a0s per update" in corpus_page(report)


def test_unknown_words_are_a_separate_part(tmp_path: Path) -> None:
    (text := tmp_path / "a.txt").write_text("kaba κ κ κ\n", encoding="utf-8")
    report = compare_tokenizers([text], {"knows little": tiny_run.tokenizer()})
    assert word_shares(report["tokenizers"]["knows little"]) == [0.25, 0, 0, 0, 0.75]
    page = tokenizers_page(report)
    assert "one piece 25.0\u00a0%" in page
    assert "unknown 75.0\u00a0%" in page
    assert '<span class="problem">75.0\u00a0% of the words are unknown</span>' in page
    assert "Not comparable" in page


@pytest.mark.slow
def test_no_page_is_wider_than_its_window(pages: dict[str, str], tmp_path: Path) -> None:
    """Measure in a browser that nothing overflows and that plots have text of readable size."""
    import browser

    if browser.chromium() is None:
        pytest.skip("there is no Chromium on this machine")
    with browser.Browser() as shown:
        for name, text in pages.items():
            file = tmp_path / f"{name}.html"
            file.write_text(text, encoding="utf-8")
            for width in browser.WIDTHS:
                shown.open(file, width)
                assert shown.ask("innerWidth") == width
                assert shown.ask("document.documentElement.scrollWidth") <= width, (name, width)
                outside = shown.ask(_OUTSIDE)
                assert outside == [], (name, width)
                for size in shown.ask(_SIZES_OF_PLOTS):
                    assert 9.5 <= size <= 14.5, (name, width)


_OUTSIDE = """[...document.querySelectorAll('main *')]
    .filter(e => !e.closest('.scroll, svg') || e.matches('.scroll'))
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
_SIZES_OF_PLOTS = """[...document.querySelectorAll('svg text')].map(e =>
    parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.getBoundingClientRect().width
    / e.ownerSVGElement.viewBox.baseVal.width)"""
