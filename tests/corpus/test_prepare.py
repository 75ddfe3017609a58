"""Preparation: the same bytes for any number of workers, whole or not there, honest counts."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from bertsmith.corpus import prepare as preparing
from bertsmith.corpus import worker_process
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.prepare_state import Unfinished
from bertsmith.corpus.shards import Shards, hash_of, write_shard
from bertsmith.corpus.workers import locally
from bertsmith.errors import InputError, MachineError
from bertsmith.io import files
from bertsmith.io.files import read_documents
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training.train import train_tokenizer

LETTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.", "中"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.of_vocabulary(LETTERS, lowercase=True)


def corpus(folder: Path, text: str) -> Path:
    file = folder / "corpus.txt"
    file.write_text(text)
    return file


def contents(folder: Path) -> dict[str, str]:
    files = sorted(f for f in folder.rglob("*") if f.is_file())
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_the_bytes_are_the_same_for_any_number_of_workers(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "_PORTION", 50_000)
    monkeypatch.setattr(preparing, "_SHARD", 100_000)
    files = [shared_data / f"corpora/sample/{name}.txt" for name in ("english", "chinese", "mixed")]
    found = []
    for workers in (1, 2, 4):
        prepare(files, shared_data / "vocabs/bert-base-uncased", tmp_path / str(workers), workers=workers)
        found.append(contents(tmp_path / str(workers)))
    assert len(found[0]) > 6
    assert found[0] == found[1] == found[2]


def test_counts_are_of_what_is_there_and_of_what_is_not(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = "a b.\nc d.\n\n\x00\x01\n\na\n\x02\nb zz9\n\n\u200b\n"
    heard: list[int] = []
    shards = prepare([corpus(tmp_path, text)], tokenizer, tmp_path / "out", progress=heard.append)
    assert shards.counts == {
        "documents": 2,
        "sentences": 4,
        "tokens": 9,
        "unknown": 1,
        "characters": 9 + 2 + 9 + 1,
        "bytes": 9 + 2 + 9 + 3,
        "empty_documents_dropped": 2,
        "empty_sentences_dropped": 3,
    }
    assert heard[-1] == 23
    assert shards.take(np.arange(3)).tolist() == [LETTERS.index(t) for t in ("a", "b", ".")]
    assert shards.document_sentences.tolist() == [0, 2, 4]
    assert shards.sentence_ends.tolist() == [3, 6, 7, 9]


def test_the_language_is_seen_from_the_text_or_given(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = corpus(tmp_path, "中中中。中中！\n")
    assert prepare([file], tokenizer, tmp_path / "a").language == "zh"
    assert prepare([file], tokenizer, tmp_path / "b", language="en").language == "en"
    assert prepare([corpus(tmp_path, "a b c.")], tokenizer, tmp_path / "c").language == "en"


def test_what_is_there_is_not_overwritten(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = corpus(tmp_path, "a b.")
    (tmp_path / "empty").mkdir()
    assert prepare([file], tokenizer, tmp_path / "empty").documents == 1
    before = contents(tmp_path)
    with pytest.raises(InputError, match="empty: already exists and is not empty"):
        prepare([file], tokenizer, tmp_path / "empty")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("bad", [b"fine\n\nb\xff\n", b"\n", b"\x01\n\n\x02"])
def test_a_fault_leaves_nothing_behind(tmp_path: Path, tokenizer: Tokenizer, bad: bytes) -> None:
    file = tmp_path / "corpus.txt"
    file.write_bytes(bad)
    with pytest.raises(InputError, match=r"corpus\.txt:\d"):
        prepare([file], tokenizer, tmp_path / "deep" / "out")
    assert not list((tmp_path / "deep").iterdir())


def test_no_file_is_no_corpus(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="no file"):
        prepare([], tokenizer, tmp_path / "out")


def test_a_full_disk_is_one_sentence(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(preparing, "write_shard", full)
    with pytest.raises(MachineError, match="the disk is full"):
        prepare([corpus(tmp_path, "a b.")], tokenizer, tmp_path / "out")
    assert [f.name for f in tmp_path.iterdir()] == ["corpus.txt"]


def test_documents_keep_their_ids(shared_data: Path, tmp_path: Path) -> None:
    file = shared_data / "corpora/sample/mixed.txt"
    vocabulary = Tokenizer.load(shared_data / "vocabs/bert-base-uncased")
    prepare([file], vocabulary, tmp_path / "out")
    shards = Shards.open(tmp_path / "out")
    documents = list(read_documents([file]))
    assert shards.counts["documents"] + shards.counts["empty_documents_dropped"] == len(documents) == 72
    whole = [i for document in documents for i in vocabulary.pieces([document.text])[0]]
    assert shards.take(np.arange(shards.tokens)).tolist() == whole


def unbroken(files: list[Path], tokenizer: Tokenizer, out: Path, **how: Any) -> dict[str, str]:
    prepare(files, tokenizer, out, **how)
    return contents(out)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "_PORTION", 40)
    monkeypatch.setattr(preparing, "_SHARD", 60)


def sentences(documents: int) -> str:
    return "\n\n".join(f"a {' '.join('abcdefghij'[int(d)] for d in str(i))}.\nd e." for i in range(documents))


class Killed(BaseException):
    """What a kill is within a process."""


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("moment", range(1, 5))
def test_killed_and_started_again_it_goes_on(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    file = corpus(tmp_path, sentences(40) + "\n\n" + sentences(12))
    how: dict[str, Any] = {"workers": 1, "deduplicate": "exact"}
    expected = unbroken([file], tokenizer, tmp_path / "straight", **how)
    write, calls = preparing.write_shard, 0

    def killing(path: Path, rows: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == moment:
            path.write_bytes(b"half a shard")
            raise Killed
        return write(path, rows)

    monkeypatch.setattr(preparing, "write_shard", killing)
    with pytest.raises(Killed):
        prepare([file], tokenizer, tmp_path / "out", **how)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(preparing, "write_shard", write)
    record = tmp_path / ".out.unfinished" / "progress.json"
    done = json.loads(record.read_text())["counts"]["documents"] if moment > 1 else 0
    encoded: list[int] = []
    monkeypatch.setattr(preparing, "locally", lambda portions, *a: counting(locally(portions, *a), encoded))
    heard: list[str] = []
    shards = prepare([file], tokenizer, tmp_path / "out", **how, tell=heard.append)
    assert contents(tmp_path / "out") == expected
    assert sorted(f.name for f in tmp_path.iterdir()) == ["corpus.txt", "out", "straight"]
    assert shards.counts["documents"] == 40
    assert shards.counts["duplicates_dropped"] == 12
    assert sum(encoded) == 40 - done  # whole shards are not made again
    assert [text[:14] for text in heard] == (["continuing after"[:14]] if moment > 1 else [])


def counting(results: Any, heard: list[int]) -> Any:
    for rows, counts in results:
        heard.append(counts["documents"])
        yield rows, counts


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("moment", [1, 3])
def test_who_interrupts_hears_what_is_kept(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    calls = 0

    def interrupted(path: Path, rows: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == moment:
            raise KeyboardInterrupt
        return write_shard(path, rows)

    monkeypatch.setattr(preparing, "write_shard", interrupted)
    heard: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        prepare([corpus(tmp_path, sentences(30))], tokenizer, tmp_path / "out", tell=heard.append)
    record = tmp_path / ".out.unfinished" / "progress.json"
    if moment == 1:
        assert heard == ["nothing is kept: no shard was finished yet; the same command starts over"]
        assert not record.exists()
    else:
        done = json.loads(record.read_text())["counts"]["documents"]
        assert heard == [f"{done} documents in 2 finished shards kept; the same command continues after them"]


def test_the_option_that_skips_is_named_by_the_verb_that_has_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("Köln\n".encode() * 5 + b"caf\xe9\n" + "Köln\n".encode() * 5)
    with pytest.raises(InputError) as refused:
        prepare([file], tokenizer, tmp_path / "out")
    assert refused.value.remedy is not None
    assert refused.value.remedy.endswith("; --on-error skip leaves such lines out")
    with pytest.raises(InputError) as refused:
        train_tokenizer([file], tmp_path / "tokenizer", vocab_size=100)
    assert refused.value.remedy == "the lines around it are UTF-8: correct this one, or take it out"


@pytest.mark.usefixtures("small_pieces")
def test_another_request_starts_anew(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = corpus(tmp_path, sentences(30))
    record = Unfinished.record

    def killing(self: Unfinished, progress: Any) -> None:
        record(self, progress)
        raise Killed

    monkeypatch.setattr(Unfinished, "record", killing)
    with pytest.raises(Killed):
        prepare([file], tokenizer, tmp_path / "out")
    monkeypatch.setattr(Unfinished, "record", record)
    file.write_text(sentences(31))
    heard: list[str] = []
    prepare([file], tokenizer, tmp_path / "out", tell=heard.append)
    assert not heard
    assert contents(tmp_path / "out") == unbroken([file], tokenizer, tmp_path / "straight")


@pytest.mark.usefixtures("small_pieces")
def test_a_shard_that_changed_in_between_is_not_gone_on_from(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = corpus(tmp_path, sentences(30))
    monkeypatch.setattr(preparing, "write_manifest", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        prepare([file], tokenizer, tmp_path / "out")
    shard = tmp_path / ".out.unfinished" / "shard-00000.arrow"
    torn = bytearray(shard.read_bytes())
    torn[len(torn) // 2] ^= 1
    shard.write_bytes(torn)
    monkeypatch.undo()
    monkeypatch.setattr(preparing, "_PORTION", 40)
    monkeypatch.setattr(preparing, "_SHARD", 60)
    heard: list[str] = []
    prepare([file], tokenizer, tmp_path / "out", tell=heard.append)
    assert heard == [f"{shard}: its contents changed since it was written; starting over"]
    Shards.open(tmp_path / "out").verify()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"portions":', '"portion":'),
        ('"portions":', '"portions":"many","x":'),
        ('"shard-00000.arrow"', '"../corpus.txt"'),
        ("}", ""),
        ('"last":[', '"last":[7,'),
    ],
)
def test_a_bent_progress_starts_anew_and_says_so(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    file = corpus(tmp_path, sentences(30))
    expected = unbroken([file], tokenizer, tmp_path / "straight")
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "write_manifest", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            prepare([file], tokenizer, tmp_path / "out")
    record = tmp_path / ".out.unfinished" / "progress.json"
    assert old in record.read_text()
    record.write_text(record.read_text().replace(old, new))
    heard: list[str] = []
    prepare([file], tokenizer, tmp_path / "out", tell=heard.append)
    assert len(heard) == 1
    assert heard[0].startswith(f"{record}: ")
    assert heard[0].endswith("; starting over")
    assert contents(tmp_path / "out") == expected


def test_what_cannot_be_read_is_skipped_on_request_and_kept(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(b'{"text": "a b."}\n{"text": 3}\n{"text": "c \xff"}\nno json\n{"text": "d."}\n')
    shards = prepare([file], tokenizer, tmp_path / "out", on_error="skip")
    assert shards.counts["documents"] == 2
    assert shards.counts["rejected"] == 3
    lines = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert [line["line"] for line in lines] == [2, 3, 4]
    assert all(line["file"] == str(file) and line["reason"] for line in lines)
    assert lines[0]["byte"] == 17
    assert lines[0]["raw"] == '{"text": 3}'
    assert base64.b64decode(lines[1]["raw_base64"]) == b'{"text": "c \xff"}'
    shards.verify()
    with pytest.raises(InputError, match="more than 2 lines or rows cannot be read"):
        prepare([file], tokenizer, tmp_path / "other", on_error="skip", max_rejects=2)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["corpus.jsonl", "out"]


def test_repeated_documents_are_dropped_on_request(tmp_path: Path, tokenizer: Tokenizer) -> None:
    long = " ".join(f"{a}{b}" for a in "abcdefgh" for b in "klmnopqr")
    file = corpus(tmp_path, f"{long}.\n\na b.\n\n{long}.\n\na b.\n\n{long} z.\n")
    found = {
        kind: prepare([file], tokenizer, tmp_path / kind, deduplicate=kind).counts  # type: ignore[arg-type]
        for kind in ("no", "exact", "near")
    }
    assert [found[kind]["documents"] for kind in ("no", "exact", "near")] == [5, 3, 2]
    assert found["exact"]["duplicates_dropped"] == 2
    assert found["near"]["duplicates_dropped"] == 3


def test_memory_rules_the_workers(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = corpus(tmp_path, "a b.")
    with pytest.raises(InputError, match=r"max_ram=100 MB is too little"):
        prepare([file], tokenizer, tmp_path / "out", max_ram=100_000_000)
    assert prepare([file], tokenizer, tmp_path / "out", max_ram=512_000_000).documents == 1
    assert preparing._workers(8, 512_000_000, "local") < 8
    assert preparing._workers(2, 1 << 40, "local") == 2


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of Ray's own start
def test_a_cluster_writes_the_same_bytes(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
    monkeypatch.setattr(preparing, "_PORTION", 50_000)
    monkeypatch.setattr(preparing, "_SHARD", 100_000)
    files = [shared_data / f"corpora/sample/{name}.txt" for name in ("english", "chinese")]
    tokenizer = shared_data / "vocabs/bert-base-uncased"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        prepare(files, tokenizer, tmp_path / "ray", engine="ray", workers=2)
    finally:
        ray.shutdown()
    prepare(files, tokenizer, tmp_path / "local")
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def test_a_worker_that_dies_is_one_sentence(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "_PORTION", 40)
    monkeypatch.setattr(worker_process, "__name__", "bertsmith.no_such_module")
    with pytest.raises(MachineError, match="a worker process of the preparation ended with 1"):
        prepare([corpus(tmp_path, sentences(40))], tokenizer, tmp_path / "out", workers=2)
    assert [f.name for f in tmp_path.iterdir()] == ["corpus.txt"]


def test_other_tools_open_the_shards(tmp_path: Path, tokenizer: Tokenizer) -> None:
    shards = prepare([corpus(tmp_path, "a b.\nc.\n\nd e.")], tokenizer, tmp_path / "out")
    table = pyarrow.ipc.open_file(tmp_path / "out" / "shard-00000.arrow").read_all()
    assert table.column("ids").to_pylist() == [
        tokenizer.pieces(["a b. c."])[0],
        tokenizer.pieces(["d e."])[0],
    ]
    assert table.column("sentence_ends").to_pylist() == [[3, 5], [3]]
    assert [Path(place).name for place in table.column("place").to_pylist()] == [
        "corpus.txt:1",
        "corpus.txt:4",
    ]
    assert shards.documents == 2


def test_byte_level_sentences_keep_the_blank_between_them(shared_data: Path, tmp_path: Path) -> None:
    file = corpus(tmp_path, "One came. His father went.\nA third.\n\nAnother one.")
    roberta = Tokenizer.load(shared_data / "vocabs/roberta-base")
    shards = prepare([file], roberta, tmp_path / "out")
    whole = roberta.pieces(["One came. His father went. A third.", "Another one."])
    assert shards.take(np.arange(shards.tokens)).tolist() == [*whole[0], *whole[1]]
    assert shards.document_sentences.tolist() == [0, 3, 4]


def test_nothing_left_to_read_is_told_by_its_reason(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("some text".encode("utf-16"))
    with pytest.raises(InputError, match=r"nothing in the files can be read; .*UTF-16"):
        prepare([file], tokenizer, tmp_path / "out", on_error="skip")


def test_a_vocabulary_without_a_frame_is_refused_before_the_work(shared_data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not frame texts as a BERT reads them"):
        prepare([corpus(tmp_path, "a b.")], shared_data / "vocabs/gpt2", tmp_path / "out")


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents are parted at 60 characters."""
    monkeypatch.setattr(files, "_LONGEST", 60)
    monkeypatch.setattr(preparing, "_PORTION", 100)
    monkeypatch.setattr(preparing, "_SHARD", 150)


def lines(number: int, first: str = "a") -> str:
    return "\n".join(f"{first} {' '.join('abcdefghij'[int(d)] for d in str(i))}." for i in range(number))


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("workers", [1, 2])
def test_all_parts_of_a_document_have_one_hash(tmp_path: Path, tokenizer: Tokenizer, workers: int) -> None:
    """A corpus without blank lines is one document: its parts must not stand on both sides of a split."""
    long, other, short = lines(60), lines(25, "b"), "c d."
    file = corpus(tmp_path, "\n\n".join([short, long, other, short, long]))
    shards = prepare([file], tokenizer, tmp_path / "out", workers=workers)
    whole = [(short, 1), (long, None), (other, None), (short, 1), (long, None)]
    parts = [shards.counts["documents_parted"], shards.documents]
    assert parts[0] == 3
    assert parts[1] > 15
    found = shards.hashes.tolist()
    groups = [found[0]]
    for value in found[1:]:
        groups += [value] if value != groups[-1] else []
    assert len(groups) == len(whole)  # each document has one hash, and its neighbours another
    assert groups[0] == groups[3]  # equal documents still share theirs, parted or not
    assert groups[1] == groups[4]
    assert groups[1] == hash_of(shards.take(np.arange(*_rows(shards, 1))))
    if workers > 1:
        assert contents(tmp_path / "out") == unbroken([file], tokenizer, tmp_path / "one", workers=1)


def _rows(shards: Shards, document: int) -> tuple[int, int]:
    ends = np.concatenate([[0], shards.sentence_ends])[shards.document_sentences]
    return int(ends[document]), int(ends[document + 1])


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("moment", [1, 2, 3])
def test_parts_keep_their_hash_across_a_kill(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    file = corpus(tmp_path, lines(200))
    expected = unbroken([file], tokenizer, tmp_path / "straight")
    calls: list[Path] = []

    def killing(path: Path, rows: Any) -> Any:
        calls.append(path)
        if len(calls) > moment:
            raise Killed
        return write_shard(path, rows)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "write_shard", killing)
        with pytest.raises(Killed):
            prepare([file], tokenizer, tmp_path / "out")
    shards = prepare([file], tokenizer, tmp_path / "out")
    assert contents(tmp_path / "out") == expected
    assert len(set(shards.hashes.tolist())) == 1


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("kind", ["exact", "near"])
def test_parts_are_compared_one_by_one(tmp_path: Path, tokenizer: Tokenizer, kind: Any) -> None:
    """A long document that comes again goes altogether; one that only begins alike keeps what is its own."""
    long = lines(30)
    alike = long[:90] + "\n" + lines(30, "z")[300:]
    file = corpus(tmp_path, "\n\n".join([long, "b c.", long, alike]))
    shards = prepare([file], tokenizer, tmp_path / kind, deduplicate=kind)
    alone = prepare([corpus(tmp_path, long)], tokenizer, tmp_path / f"{kind}-alone")
    assert shards.counts["duplicates_dropped"] >= alone.documents + 1
    hashes = shards.hashes.tolist()
    assert len(set(hashes[: alone.documents])) == 1
    assert len(hashes) > alone.documents + 1
    assert len(set(hashes)) == 3  # the long one, the short one, what is left of the last


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("path", [None, "", "nowhere::"])
def test_code_of_the_current_folder_does_not_run(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    """Workers are new processes: a json.py beside a downloaded corpus must not be theirs."""
    for name in ("json", "random", "signal", "numpy", "pyarrow", "bertsmith"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    prepare([corpus(tmp_path, sentences(40))], tokenizer, tmp_path / "out", workers=2)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow  # a cluster is started
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")  # of Ray's own start and end
def test_code_of_the_current_folder_does_not_run_on_a_cluster(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    for name in ("json", "random", "numpy", "pyarrow", "rjieba"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    file = corpus(tmp_path, sentences(40))
    assert prepare([file], tokenizer, tmp_path / "out", engine="ray", workers=1).documents == 40
    assert not (tmp_path / "ran").exists()


def test_two_preparations_of_one_folder_do_not_meet(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = corpus(tmp_path, "a b.")

    def second(_: int) -> None:
        with pytest.raises(InputError, match="out: another preparation is writing here"):
            prepare([file], tokenizer, tmp_path / "out")
        heard.append(1)

    heard: list[int] = []
    assert prepare([file], tokenizer, tmp_path / "out", progress=second).documents == 1
    assert heard == [1]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["corpus.txt", "out"]


def test_a_link_to_an_empty_folder_is_filled_and_the_current_folder_refused(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = corpus(tmp_path, "a b.")
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    assert prepare([file], tokenizer, tmp_path / "out").documents == 1
    assert (tmp_path / "out").is_symlink()
    assert Shards.open(tmp_path / "disk").documents == 1
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match=r"^\.: this folder is in use"):
        prepare([file], tokenizer, ".", progress=lambda _: pytest.fail("the work was begun"))
