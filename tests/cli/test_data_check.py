"""`bertsmith data check`: tables of 80 columns, one JSON document, a page; exits with 2 for a missing file."""

from __future__ import annotations

import json
import random
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tiny_run
from bertsmith.cli.main import main
from bertsmith.corpus.shards import Shards

ATTACK = "</script><img onerror=alert(1) src=x>"


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bertsmith", "data", "check", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    out, told = capsys.readouterr()
    assert ended.value.code == code, told
    return out, told


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Prose, with a document twice, a NUL and a footer in each document."""
    texts = [f"{text}\nAccept all cookies" for text in tiny_run.corpus(20).strip().split("\n\n")]
    texts += [texts[3], "A NUL\0 stands here. And on it goes."]
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_the_tables_fit_80_columns_and_begin_with_the_findings(
    capsys: pytest.CaptureFixture[str], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tokenizer = tiny_run.tokenizer()
    tokenizer.save(corpus.parent / "tokenizer")
    task = tiny_run.table(corpus.parent / "validation.csv", tiny_run.examples(9))
    out, _ = run(
        capsys, corpus, "--tokenizer", corpus.parent / "tokenizer", "--against", task, "--no-benchmark"
    )  # fmt: skip
    assert out.startswith("findings\n")
    for line in out.splitlines():
        if line[:1] in "┏┃┡│└":
            assert len(line) <= 80
    for part in (
        "NUL characters",
        "word for word",
        "nsp".upper(),
        "pieces per known word",
        "task rows",
        "forecast",
    ):
        assert part in out


def test_the_tables_can_be_read_on_40_columns(
    capsys: pytest.CaptureFixture[str], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    tiny_run.tokenizer().save(corpus.parent / "tokenizer")
    task = tiny_run.table(corpus.parent / "validation.csv", tiny_run.examples(9))
    out, _ = run(
        capsys, corpus, "--tokenizer", corpus.parent / "tokenizer", "--against", task, "--no-benchmark"
    )  # fmt: skip
    tables = [line for line in out.splitlines() if line[:1] in "┏┃┡│└"]
    assert max(map(len, tables)) <= 40
    for word in ("problem", "warning", "note", "number", "documents", "fit", "share"):
        assert any(word in line.replace("┃", " ").replace("│", " ").split() for line in tables), word


def test_json_is_one_document_with_everything(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    out, _ = run(capsys, corpus, "--json", "--no-benchmark", "--epochs", "3")
    report = json.loads(out)
    assert {"findings", "encoding", "characters", "duplicates", "lines", "documents", "scripts",
            "structure", "forecast", "limits"} <= set(report)  # fmt: skip
    assert report["duplicates"]["exact"]["number"] == 1
    assert report["findings"][0]["severity"] == "problem"
    forecast = report["forecast"]
    assert forecast["epochs"] == 3
    assert forecast["seconds"] is None
    assert forecast["tokens_are"] == "estimated"
    assert forecast["tokens"] > report["words"] > 0


def test_the_forecast_counts_tokens_and_measures_updates(
    capsys: pytest.CaptureFixture[str], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertsmith.pretraining import speed_probe

    monkeypatch.setattr(speed_probe, "_BENCHMARK_SECONDS", 0.01)
    tiny_run.tokenizer().save(corpus.parent / "tokenizer")
    out, _ = run(
        capsys, corpus, "--json", "--tokenizer", corpus.parent / "tokenizer", "--preset", "bert-tiny-uncased"
    )
    report = json.loads(out)
    forecast = report["forecast"]
    assert forecast["tokens"] == report["tokenizer"]["tokens"]
    assert forecast["tokens_are"] == "counted"
    assert forecast["seconds"] == pytest.approx(
        forecast["steps"] * forecast["seconds_per_update"], rel=0.01, abs=0.1
    )
    assert 0 < forecast["seconds_per_update"] < 60
    assert "of this machine" in forecast["rests_on"]
    assert forecast["shard_bytes"] >= 2 * forecast["tokens"]


class Page(HTMLParser):
    """The tags of a page and the words between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_stands_alone_and_escapes_everything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "a<b>&"
    folder.mkdir()
    name = "<img onerror=alert(1) src=x>.txt"
    texts = [f"{ATTACK} {text}\n{ATTACK}\nÃ© {ATTACK}" for text in tiny_run.corpus(8).strip().split("\n\n")]
    (folder / name).write_bytes(
        ("\n\n".join([*texts, texts[0]]) + "\n").encode() + ATTACK.encode() + b"\xff\n"
    )
    hit = " ".join(random.Random(1).choices(tiny_run.WORDS, k=20))
    with (folder / name).open("ab") as file:
        file.write(f"\n{ATTACK} {hit}\n".encode())
    (folder / "validation.txt").write_text(f"{ATTACK} {hit}\n", encoding="utf-8")
    tiny_run.tokenizer().save(folder / "tokenizer")
    html = tmp_path / "report.html"
    run(
        capsys, folder / name, "--html", html, "--against", folder / "validation.txt", "--tokenizer",
        folder / "tokenizer", "--no-benchmark",
    )  # fmt: skip
    text = html.read_text(encoding="utf-8")
    page = Page(text)
    assert text.startswith("<!doctype html>")
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "img", "link", "iframe", "object", "embed", "form", "a", "image"} & set(tags)
    for _, attributes in page.tags:
        for attribute, value in attributes.items():
            assert not attribute.startswith("on")
            if attribute.endswith(("href", "src")):
                assert str(value).startswith("#")
    assert tags.count("svg") == 4  # of lengths; shares are bars of the page's own
    assert "".join(page.words).count(ATTACK) >= 5
    assert name in "".join(page.words)
    assert "@import" not in text
    assert "url(http" not in text


def test_a_missing_file_exits_with_2_and_findings_with_0(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, corpus: Path
) -> None:
    _, told = run(capsys, tmp_path / "none.txt", code=2)
    assert "no such file" in told
    _, told = run(capsys, corpus, "--against", tmp_path / "none.tsv", code=2)
    assert "no such file" in told
    _, told = run(capsys, corpus, "--preset", "bert-mni-uncased", code=2)
    assert "did you mean bert-mini-uncased" in told.lower()
    _, told = run(capsys, corpus, "--html", corpus / "r.html", code=2)
    assert "is a file, not a folder" in told
    _, told = run(capsys, corpus, "--sample", "many", code=2)
    assert "not a size" in told
    (tmp_path / "empty.txt").write_bytes(b"")
    out, _ = run(capsys, tmp_path / "empty.txt", "--html", tmp_path / "r.html")
    assert "there is no text" in out


def test_against_takes_files_and_globs(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    for name in ("a.tsv", "b.tsv"):
        (corpus.parent / name).write_text("text\tlabel\n", encoding="utf-8")
    one, other = corpus.parent / "a.tsv", corpus.parent / "b.tsv"
    for arguments in (
        (corpus, "--json", "--no-benchmark", "--against", corpus.parent / "*.tsv"),
        (corpus, "--against", one, "--against", other, "--json", "--no-benchmark"),
    ):
        report = json.loads(run(capsys, *arguments)[0])
        assert report["files"] == [str(corpus)]
        assert [file["file"] for file in report["against"]["files"]] == [str(one), str(other)]


def test_large_models_are_computed_and_not_probed(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertsmith.inspection import check
    from bertsmith.pretraining import speed_probe

    monkeypatch.setattr(speed_probe, "_MAX_MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(speed_probe, "probe_speed", lambda *_: pytest.fail("an update was made"))
    small, large = (
        check.check_corpus([corpus], preset_name=name)["forecast"]
        for name in ("bert-mini-uncased", "bert-large-uncased")
    )
    assert "computed from a matrix product" in large["rests_on"]
    assert large["seconds_per_update"] > 10 * small["seconds_per_update"]


def test_the_forecast_of_a_sample_reaches_over_plain_files(corpus: Path, tmp_path: Path) -> None:
    import gzip

    from bertsmith.corpus.checks.check import CheckOptions
    from bertsmith.inspection.check import check_corpus

    plain = tmp_path / "long.txt"
    plain.write_text(tiny_run.corpus(4000), encoding="utf-8")
    packed = tmp_path / "long.txt.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    whole = check_corpus([plain], benchmark=False)["forecast"]
    options = CheckOptions(sample=plain.stat().st_size // 4)
    sample = check_corpus([plain], options, benchmark=False)["forecast"]
    assert sample["tokens"] == pytest.approx(whole["tokens"], rel=0.05)
    assert sample["tokens_are"] == "estimated"
    assert "from the sample" in sample["covers"]
    alone = check_corpus([packed], options, benchmark=False)["forecast"]
    assert alone["tokens"] < 0.3 * whole["tokens"]
    assert "only the sample" in alone["covers"]


def test_what_acts_on_a_terminal_is_only_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts and file names are other people's: colours, titles and line ends in them do nothing."""
    monkeypatch.setenv("COLUMNS", "200")
    acting = "\x1b[31mred\x1b]0;title\x07 \x9b2J"
    text = f"click here {acting} and more text of one line."
    path = tmp_path / f"a{acting[:8]}\nb.txt"
    path.write_text("\n\n".join([text] * 4 + ["é".encode().decode("latin1")]), encoding="utf-8")
    for how in ([], ["--json"]):
        out, told = run(capsys, path, "--no-benchmark", *how)
        assert not {c for c in out + told if ord(c) < 32 or 0x7F <= ord(c) < 0xA0} - {"\n"}
        assert "red" in out
    out, _ = run(capsys, path, "--no-benchmark")
    assert "\\n→" not in out  # a finding's own lines are lines


@pytest.mark.parametrize("epochs", ["nan", "inf", "1e300"])
def test_epochs_are_a_number_that_can_be(
    capsys: pytest.CaptureFixture[str], corpus: Path, epochs: str
) -> None:
    _, told = run(capsys, corpus, "--no-benchmark", "--epochs", epochs, code=2)
    assert "--epochs" in told
    assert "Traceback" not in told


def test_a_name_that_is_not_utf8_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "caf\udce9.txt"
    path.write_text("text")
    _, told = run(capsys, tmp_path, "--no-benchmark", code=2)
    assert "this name is not UTF-8" in told


def test_one_document_has_no_spread(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "one.txt"
    file.write_text("One line of text, and no more of it.\n", encoding="utf-8")
    out, _ = run(capsys, file, "--no-benchmark")
    shown = " ".join(out.split())
    assert "documents │ 1 of 36 characters" in shown
    assert "sentences │ 1, 1 per document" in shown
    assert "(median" not in shown
    assert "documents without a word │ 0" in shown


def test_both_verbs_take_the_tokenizer_of_a_model(
    capsys: pytest.CaptureFixture[str], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, shards = "bert-mini-uncased-en", corpus.parent / "shards"
    report, _ = run(capsys, corpus, "--json", "--tokenizer", name, "--no-benchmark")
    verb = ["data", "prepare", corpus, "--tokenizer", name, "--output-dir", shards, "--workers", 1]
    monkeypatch.setattr(sys, "argv", ["bertsmith", *map(str, verb)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    counts = Shards.open(shards).counts
    assert json.loads(report)["tokenizer"]["tokens"] == counts["tokens"] > 0
