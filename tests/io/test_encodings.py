"""Files that are not UTF-8: read in the encoding that is named, else refused with a guess; never decoded by it."""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.io import compression, text_io
from bertsmith.io.documents import Document, Reading, read_documents
from bertsmith.io.encodings import guess_encoding
from bertsmith.io.tables import read_table
from bertsmith.io.text_io import RejectedRow, read_lines
from bertsmith.tasks.question_answering.data import read_questions
from bertsmith.tasks.settings import AnswerSettings, TagSettings
from bertsmith.tasks.tagging.data import TagData
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer.wordpiece import BERT_SPECIAL_TOKENS

SMART = "He said “don’t go” — it’s fine…\n"
CHINESE = "红楼梦是中国古典小说。贾宝玉和林黛玉的故事，人人都知道。\n"
RUSSIAN = "Москва столица России, и в ней живёт много людей.\n"


def refused(file: Path, reading: Reading | None = None) -> InputError:
    with pytest.raises(InputError) as error:
        list(read_documents([file], reading or Reading()))
    return error.value


def encoding_in(error: InputError) -> str:
    """Return the encoding that the hint of an error suggests."""
    hint = error.hint_for("command line") or ""
    return hint.partition("--encoding ")[2].partition(",")[0]


# Short texts beside much ASCII.
ROW = "\n1,https://example.org/a/long/path/of/ascii/letters,2024-01-01,"
TABLES = {
    "cp932": f"id,url,date,text{ROW}とても良い映画{ROW}東京都庁",
    "euc_jp": f"id,url,date,text{ROW}とても良い映画{ROW}東京都庁",
    "gb18030": f"id,url,date,text{ROW}这部电影很好看{ROW}太无聊了",
    "big5": f"id,url,date,text{ROW}這部電影很好看{ROW}太無聊了",
    "cp949": f"id,url,date,text{ROW}이 영화는 정말 재미있다{ROW}지루하다",
}


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (SMART, "cp1252"),
        ("Naïve café, 5 €.\n", "latin-1"),  # as browsers read it: latin-1 has no such quotes and no euro
        (CHINESE, "gb18030"),
        (CHINESE, "gbk"),
        (CHINESE, "utf-16"),
        (CHINESE, "utf-16-be"),
        (RUSSIAN, "koi8-r"),
        (RUSSIAN, "utf-16-le"),
        (SMART, "utf-32"),
        ("吾輩は猫である。名前はまだ無い。\n", "shift_jis"),
        ("吾輩は猫である。\n", "iso2022_jp"),
    ],
)
@pytest.mark.parametrize("pack", [False, True])
def test_a_named_encoding_is_read_with_the_places_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, encoding: str, pack: bool
) -> None:
    monkeypatch.setattr(text_io, "BLOCK_BYTES", 7)  # characters are cut by the borders of blocks
    monkeypatch.setattr(compression, "BLOCK_BYTES", 7)
    data = f"{text}\n{text * 3}\n\n{text}".encode("cp1252" if encoding == "latin-1" else encoding)
    file = tmp_path / ("a.txt.gz" if pack else "a.txt")
    file.write_bytes(gzip.compress(data) if pack else data)
    line = text.strip()
    assert list(read_documents([file], Reading(encoding=encoding))) == [
        Document(line, f"{file}:1"),
        Document("\n".join([line] * 3), f"{file}:3"),
        Document(line, f"{file}:8"),
    ]


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t"), min_size=30))
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "gb18030"])
def test_the_lines_are_those_of_the_text(
    tmp_path_factory: pytest.TempPathFactory, encoding: str, text: str
) -> None:
    text = "It was so.\n" + text
    file = tmp_path_factory.mktemp("encoded") / "a.txt"
    file.write_bytes(("" if encoding == "gb18030" else "\ufeff").encode(encoding) + text.encode(encoding))
    assert [line for _, line in read_lines(file, encoding)] == text.removesuffix("\n").split("\n")


def test_files_that_are_utf8_or_have_a_mark_are_read_as_that_whatever_is_named(tmp_path: Path) -> None:
    """One --encoding serves a folder of old and new files."""
    for name, data in {
        "ascii.txt": b"plain",
        "mark16.txt": codecs.BOM_UTF16_LE + SMART.encode("utf-16-le"),
        "mark8.txt": codecs.BOM_UTF8 + SMART.encode(),
        "old.txt": SMART.encode("cp1252"),
        "utf8.txt": SMART.encode(),
    }.items():
        (tmp_path / name).write_bytes(data)
    found = [document.text for document in read_documents([tmp_path], Reading(encoding="cp1252"))]
    assert found == ["plain", *[SMART.strip()] * 4]
    (tmp_path / "old.txt").unlink()
    found = [document.text for document in read_documents([tmp_path], Reading(encoding="utf-16"))]
    assert found == ["plain", *[SMART.strip()] * 3]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (SMART, "cp1252"),
        ("Some plain text in English that isn’t long.", "cp1252"),
        (SMART * 40 + "Naïve café.", "cp1252"),
        ("L’été dernier, j’ai été à l’hôtel où le garçon m’a servi un café à 3 €.\n", "cp1252"),
        ("Die Straße über die Brücke führt nach Köln.\n", "cp1252"),
        ("Die Straße über die Brücke führt nach Köln. Äpfel und Öl sind schön.\n" * 5, "cp437"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy. Česká republika.\n" * 4, "cp1250"),
        (RUSSIAN * 3, "cp1251"),
        (RUSSIAN * 3, "koi8_r"),
        ("Η Αθήνα είναι η πρωτεύουσα της Ελλάδας.\n" * 3, "cp1253"),
        (CHINESE, "gb18030"),
        ("吾輩は猫である。名前はまだ無い。どこで生れたか。\n" * 5, "cp932"),
        ("안녕하세요. 오늘은 날씨가 좋습니다.\n" * 5, "cp949"),
        *((text, name) for name, text in TABLES.items()),
    ],
)
def test_the_refusal_guesses_the_encoding_and_following_it_gives_the_text(
    tmp_path: Path, text: str, encoding: str
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(text.encode(encoding))
    error = refused(file)
    assert error.code == "not_utf8"
    guess = encoding_in(error)
    assert [d.text for d in read_documents([file], Reading(encoding=guess))] == [text.strip()]


# As novels have it: no blanks, a line end now and then, so that a sample's end cuts through a character.
NOVELS = {
    "gb18030": "话说天下大势，分久必合，合久必分。周末七国分争，并入于秦。及秦灭之后，楚汉分争，又并入于汉。",
    "big5": "話說天下大勢，分久必合，合久必分。周末七國分爭，並入於秦。及秦滅之後，楚漢分爭，又並入於漢。",
    "cp932": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。何でも薄暗い所で泣いていた。",
    "euc_jp": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。何でも薄暗い所で泣いていた。",
    "cp949": "안녕하세요.오늘은날씨가좋습니다.우리나라의역사와문화를알아보자.그는학교에갔다.",
    "utf-16-le": "话说天下大势，一分久必合，合久必分。周末七国分争，并入于秦。一统天下，楚汉分争，又并入于汉。\n",
    "utf-16-be": "안녕하세요.오늘은날씨가좋습니다.우리나라의역사와문화를알아보자.가나다라마바사.\n",
}


@pytest.mark.parametrize("encoding", NOVELS)
@pytest.mark.parametrize("size", [10_000, 16_000, 40_000])
@pytest.mark.parametrize("offset", range(4))
def test_a_guess_is_right_wherever_its_sample_ends(
    tmp_path: Path, encoding: str, size: int, offset: int
) -> None:
    text = "x" * offset + NOVELS[encoding] * (size // len(NOVELS[encoding]) + 1)
    file = tmp_path / "novel.txt"
    file.write_bytes(text.encode(encoding))
    guess = encoding_in(refused(file))
    assert codecs.lookup(guess) == codecs.lookup(encoding)
    if not encoding.startswith("utf"):
        cut = file.read_bytes()[: size + offset]
        assert guess_encoding(cut) == encoding


def test_no_guess_where_there_is_none() -> None:
    assert guess_encoding(bytes(range(0x80, 0x100))) is None


def test_a_bad_line_among_good_utf8_is_not_another_encoding(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("Köln\n".encode() * 5 + b"caf\xe9\n" + "Köln\n".encode() * 5)
    error = refused(file)
    assert (error.code, error.location) == ("not_utf8", f"{file}:6:4")
    assert "encoding" not in (error.hint or "")


@pytest.mark.parametrize(
    ("encoding", "data", "location", "byte", "good", "raw"),
    [
        ("cp1252", b"ok\n\xe9t\xe9 \x81!\nend\n", ":2:5", "0x81", ["ok\nend"], b"\xe9t\xe9 \x81!"),
        ("gb18030", CHINESE.encode("gb18030") + b"a\xff\n", ":2:2", "0xFF", [CHINESE.strip()], b"a\xff"),
    ],
)  # fmt: skip
def test_a_byte_that_the_named_encoding_lacks_is_an_error_with_its_location(
    tmp_path: Path, encoding: str, data: bytes, location: str, byte: str, good: list[str], raw: bytes
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(data)
    reading = Reading(encoding=encoding)
    error = refused(file, reading)
    assert (error.code, error.location) == ("not_in_encoding", f"{file}{location}")
    assert byte in error.message
    rejects: list[RejectedRow] = []
    assert [d.text for d in read_documents([file], reading, on_reject=rejects.append)] == good
    assert [(r.line, r.byte, r.raw) for r in rejects] == [(2, None, raw)]


@pytest.mark.parametrize("rest", [b"e", b"\xd6"])
def test_truncated_utf16_is_an_error_with_its_line(tmp_path: Path, rest: bytes) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("one\ntwo\nthre".encode("utf-16") + rest)
    error = refused(file, Reading(encoding="utf-16"))
    assert (error.code, error.location) == ("decoding_failed", f"{file}:3")
    rejects: list[RejectedRow] = []
    found = read_documents([file], Reading("line", encoding="utf-16"), on_reject=rejects.append)
    assert [d.text for d in found] == ["one", "two"]
    assert [reject.line for reject in rejects] == [3]


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (CHINESE.encode("utf-16-le") * 3, "utf-16le"),
        (CHINESE.encode("utf-16-be") * 3, "utf-16be"),
        (RUSSIAN.encode("utf-16-le"), "utf-16le"),
        (SMART.encode("utf-16"), "utf-16"),
        (SMART.encode("utf-32"), "utf-32"),
        (SMART.encode("utf-32-be"), "utf-32be"),
    ],
)
def test_utf16_is_refused_by_its_name_in_every_script(tmp_path: Path, data: bytes, encoding: str) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(data)
    error = refused(file)
    assert (error.code, error.location) == ("other_encoding", f"{file}:1:1")
    assert encoding_in(error) == encoding
    assert list(read_documents([file], Reading(encoding=encoding)))
    rejects: list[RejectedRow] = []
    assert not list(read_documents([file], on_reject=rejects.append))
    assert [(r.code, r.encoding) for r in rejects] == [("other_encoding", encoding)]
    if "16" in encoding and data[:2] != codecs.BOM_UTF16_LE:
        error = refused(file, Reading(encoding="cp1252"))
        assert (error.code, encoding_in(error)) == ("other_encoding", encoding)


@pytest.mark.parametrize("name", ["latn1", "rot13", "base64", "undefined", "nonsense-17", "", "a\0b"])
def test_an_encoding_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        Reading(encoding=name)
    assert (caught.value.code, caught.value.argument) == ("unknown_encoding", "encoding")


def test_one_encoding_has_one_name() -> None:
    assert {Reading(encoding=name) for name in ("latin1", "ISO-8859-1", "windows-1252", "cp1252")} == {
        Reading(encoding="cp1252")
    }
    assert Reading(encoding="GBK").encoding == "gb18030"


def test_task_files_of_every_form_are_read_in_the_named_encoding(tmp_path: Path) -> None:
    def file(name: str, text: str) -> Path:
        (tmp_path / name).write_bytes(text.encode("cp1252"))
        return tmp_path / name

    table = file("a.csv", "text,label\n“go”,joy\n")
    assert read_table(table, encoding="cp1252").column("text") == ["“go”"]
    with pytest.raises(InputError) as caught:
        read_table(table)
    assert (caught.value.code, caught.value.location) == ("not_utf8", f"{table}:2:1")
    objects = file("a.jsonl", json.dumps({"text": "“go”"}, ensure_ascii=False))
    assert read_table(objects, encoding="cp1252").column("text") == ["“go”"]
    tagged = file("a.conll", "Café O\n")
    assert TagData(TagSettings(encoding="cp1252"), {}).read(tagged)[0].words == ("Café",)
    row = {"question": "où?", "context": "à Paris", "answer": "Paris", "start": 2}
    squad = file("a.json", json.dumps([row], ensure_ascii=False))
    assert [asked.question for _, asked, _ in read_questions(squad, AnswerSettings(encoding="cp1252"))] == [
        "où?"
    ]


def test_half_a_character_is_no_encoding(tmp_path: Path) -> None:
    """Some programs write it so; read as another encoding it would be other letters."""
    file = tmp_path / "a.txt"
    file.write_bytes("Grüße\n".encode() + b"\xed\xa0\x80 hello\n")
    error = refused(file)
    assert (error.code, error.location) == ("not_utf8", f"{file}:2:1")
    assert "0xED" in error.message
    assert "surrogate" in (error.hint or "")


def test_without_the_option_the_advice_is_to_convert_the_file(tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    tokens = [*BERT_SPECIAL_TOKENS.values(), "für", "Brücke", "über", "schön"]
    for encoding in ("cp1252", "utf-16-le"):
        file.write_bytes("\n".join(tokens * 2).encode(encoding))
        with pytest.raises(InputError) as caught:
            Tokenizer.load(file)
        assert "iconv -f" in str(caught.value)
        assert "encoding=" not in str(caught.value)
