"""Preparation writes the same bytes for any number of workers, atomically, with correct counts."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import logging
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from bertsmith.corpus import encode as encode_module
from bertsmith.corpus import prepare as prepare_module
from bertsmith.corpus.encode import encode_locally
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.prepare_state import PrepareState
from bertsmith.corpus.shards import Shards, document_hash, write_shard
from bertsmith.errors import InputError, MachineError
from bertsmith.io import documents as io_documents
from bertsmith.io.documents import read_documents
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training.train import train_tokenizer

LETTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.", "中"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary(LETTERS, lowercase=True)


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
    monkeypatch.setattr(prepare_module, "_PORTION_BYTES", 50_000)
    monkeypatch.setattr(prepare_module, "_SHARD_TOKENS", 100_000)
    files = [shared_data / f"corpora/sample/{name}.txt" for name in ("english", "chinese", "mixed")]
    digests = []
    for workers in (1, 2, 4):
        prepare(files, shared_data / "vocabs/bert-base-uncased", tmp_path / str(workers), workers=workers)
        digests.append(contents(tmp_path / str(workers)))
    assert len(digests[0]) > 6
    assert digests[0] == digests[1] == digests[2]


def test_encoded_and_dropped_text_is_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = "a b.\nc d.\n\n\x00\x01\n\na\n\x02\nb zz9\n\n\u200b\n"
    progress: list[int] = []
    shards = prepare([corpus(tmp_path, text)], tokenizer, tmp_path / "out", progress=progress.append)
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
    assert progress[-1] == 23
    assert shards.take(np.arange(3)).tolist() == [LETTERS.index(t) for t in ("a", "b", ".")]
    assert shards.document_sentence_offsets.tolist() == [0, 2, 4]
    assert shards.sentence_ends.tolist() == [3, 6, 7, 9]


def test_the_language_is_detected_or_set(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = corpus(tmp_path, "中中中。中中！\n")
    assert prepare([file], tokenizer, tmp_path / "a").language == "zh"
    assert prepare([file], tokenizer, tmp_path / "b", language="en").language == "en"
    assert prepare([corpus(tmp_path, "a b c.")], tokenizer, tmp_path / "c").language == "en"


def test_a_filled_folder_is_not_overwritten(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = corpus(tmp_path, "a b.")
    (tmp_path / "empty").mkdir()
    assert prepare([file], tokenizer, tmp_path / "empty").documents == 1
    before = contents(tmp_path)
    with pytest.raises(InputError) as caught:
        prepare([file], tokenizer, tmp_path / "empty")
    assert str(tmp_path / "empty") in str(caught.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("bad", [b"fine\n\nb\xff\n", b"\n", b"\x01\n\n\x02"])
def test_nothing_is_kept_after_an_input_error(tmp_path: Path, tokenizer: Tokenizer, bad: bytes) -> None:
    file = tmp_path / "corpus.txt"
    file.write_bytes(bad)
    with pytest.raises(InputError, match=r"corpus\.txt:\d"):
        prepare([file], tokenizer, tmp_path / "deep" / "out")
    assert not list((tmp_path / "deep").iterdir())


def test_a_corpus_needs_a_file(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError) as caught:
        prepare([], tokenizer, tmp_path / "out")
    assert (caught.value.code, caught.value.argument) == ("files_missing", "files")


def test_a_full_disk_is_a_machine_error(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prepare_module, "write_shard", fail)
    with pytest.raises(MachineError) as caught:
        prepare([corpus(tmp_path, "a b.")], tokenizer, tmp_path / "out")
    assert (caught.value.code, caught.value.location) == ("disk_full", str(tmp_path))
    assert [f.name for f in tmp_path.iterdir()] == ["corpus.txt"]


def test_shards_hold_the_ids_of_the_documents(shared_data: Path, tmp_path: Path) -> None:
    file = shared_data / "corpora/sample/mixed.txt"
    vocabulary = Tokenizer.load(shared_data / "vocabs/bert-base-uncased")
    prepare([file], vocabulary, tmp_path / "out")
    shards = Shards.open(tmp_path / "out")
    documents = list(read_documents([file]))
    assert shards.counts["documents"] + shards.counts["empty_documents_dropped"] == len(documents) == 72
    ids = [i for document in documents for i in vocabulary.encode_ids([document.text])[0]]
    assert shards.take(np.arange(shards.tokens)).tolist() == ids


def prepared(files: list[Path], tokenizer: Tokenizer, out: Path, **options: Any) -> dict[str, str]:
    prepare(files, tokenizer, out, **options)
    return contents(out)


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "_PORTION_BYTES", 40)
    monkeypatch.setattr(prepare_module, "_SHARD_TOKENS", 60)


def sentences(documents: int) -> str:
    return "\n\n".join(f"a {' '.join('abcdefghij'[int(d)] for d in str(i))}.\nd e." for i in range(documents))


class Killed(BaseException):
    """Simulate a kill within the process."""


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("shard", range(1, 5))
def test_an_interrupted_preparation_resumes(
    tmp_path: Path,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    shard: int,
) -> None:
    file = corpus(tmp_path, sentences(40) + "\n\n" + sentences(12))
    options: dict[str, Any] = {"workers": 1, "deduplicate": "exact"}
    expected = prepared([file], tokenizer, tmp_path / "uninterrupted", **options)
    write, calls = prepare_module.write_shard, 0

    def kill(path: Path, parts: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == shard:
            path.write_bytes(b"half a shard")
            raise Killed
        return write(path, parts)

    monkeypatch.setattr(prepare_module, "write_shard", kill)
    with pytest.raises(Killed):
        prepare([file], tokenizer, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(prepare_module, "write_shard", write)
    record = tmp_path / ".out.unfinished" / "progress.json"
    done = json.loads(record.read_text())["counts"]["documents"] if shard > 1 else 0
    encoded: list[int] = []
    monkeypatch.setattr(
        prepare_module, "encode_locally", lambda portions, *a: counted(encode_locally(portions, *a), encoded)
    )
    caplog.set_level(logging.INFO, "bertsmith.corpus")
    caplog.clear()
    shards = prepare([file], tokenizer, tmp_path / "out", **options)
    assert contents(tmp_path / "out") == expected
    assert sorted(f.name for f in tmp_path.iterdir()) == ["corpus.txt", "out", "uninterrupted"]
    assert shards.counts["documents"] == 40
    assert shards.counts["duplicates_dropped"] == 12
    assert sum(encoded) == 52 - done  # Finished shards are not encoded again.
    assert len(informed(caplog)) == (shard > 1)


def informed(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages at level INFO."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]


def counted(results: Any, documents: list[int]) -> Any:
    for portion, counts in results:
        documents.append(counts["documents"])
        yield portion, counts


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("shard", [1, 3])
def test_an_interrupt_logs_what_is_kept(
    tmp_path: Path,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    shard: int,
) -> None:
    calls = 0

    def interrupt(path: Path, parts: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == shard:
            raise KeyboardInterrupt
        return write_shard(path, parts)

    monkeypatch.setattr(prepare_module, "write_shard", interrupt)
    caplog.set_level(logging.INFO, "bertsmith.corpus")
    with pytest.raises(KeyboardInterrupt):
        prepare([corpus(tmp_path, sentences(30))], tokenizer, tmp_path / "out")
    record = tmp_path / ".out.unfinished" / "progress.json"
    (message,) = informed(caplog)
    if shard == 1:
        assert "nothing is kept" in message
        assert not record.exists()
    else:
        done = json.loads(record.read_text())["counts"]["documents"]
        assert message.startswith(f"{done} documents in 2 finished shards")


def test_only_prepare_suggests_skipping_lines(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("Köln\n".encode() * 5 + b"caf\xe9\n" + "Köln\n".encode() * 5)
    with pytest.raises(InputError) as caught:
        prepare([file], tokenizer, tmp_path / "out")
    assert caught.value.code == "not_utf8"
    with pytest.raises(InputError) as caught:
        train_tokenizer([file], tmp_path / "tokenizer", vocab_size=100)
    assert "on_error" not in str(caught.value)


@pytest.mark.usefixtures("small_portions")
def test_another_request_starts_over(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = corpus(tmp_path, sentences(30))
    save = PrepareState.save

    def kill(self: PrepareState, progress: Any) -> None:
        save(self, progress)
        raise Killed

    monkeypatch.setattr(PrepareState, "save", kill)
    with pytest.raises(Killed):
        prepare([file], tokenizer, tmp_path / "out")
    monkeypatch.setattr(PrepareState, "save", save)
    file.write_text(sentences(31))
    caplog.set_level(logging.INFO, "bertsmith.corpus")
    caplog.clear()
    prepare([file], tokenizer, tmp_path / "out")
    assert not caplog.records
    assert contents(tmp_path / "out") == prepared([file], tokenizer, tmp_path / "uninterrupted")


@pytest.mark.usefixtures("small_portions")
def test_a_changed_shard_is_not_resumed_from(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = corpus(tmp_path, sentences(30))
    monkeypatch.setattr(prepare_module, "write_manifest", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        prepare([file], tokenizer, tmp_path / "out")
    shard = tmp_path / ".out.unfinished" / "encoded-00000.arrow"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    monkeypatch.undo()
    monkeypatch.setattr(prepare_module, "_PORTION_BYTES", 40)
    monkeypatch.setattr(prepare_module, "_SHARD_TOKENS", 60)
    caplog.clear()
    prepare([file], tokenizer, tmp_path / "out")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"{shard}: ")
    Shards.open(tmp_path / "out").verify()


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"portions":', '"portion":'),
        ('"portions":', '"portions":"many","x":'),
        ('"encoded-00000.arrow"', '"../corpus.txt"'),
        ("}", ""),
        ('"counts":{', '"counts":{"x":-1,'),
    ],
)
def test_an_invalid_progress_file_starts_over_with_a_warning(
    tmp_path: Path,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    old: str,
    new: str,
) -> None:
    file = corpus(tmp_path, sentences(30))
    expected = prepared([file], tokenizer, tmp_path / "uninterrupted")
    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "write_manifest", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            prepare([file], tokenizer, tmp_path / "out")
    progress = tmp_path / ".out.unfinished" / "progress.json"
    assert old in progress.read_text()
    progress.write_text(progress.read_text().replace(old, new))
    caplog.clear()
    prepare([file], tokenizer, tmp_path / "out")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"{progress}: ")
    assert contents(tmp_path / "out") == expected


def test_unreadable_lines_are_skipped_on_request_and_listed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(b'{"text": "a b."}\n{"text": []}\n{"text": "c \xff"}\nno json\n{"text": "d."}\n')
    shards = prepare([file], tokenizer, tmp_path / "out", on_error="skip")
    assert shards.counts["documents"] == 2
    assert shards.counts["rejected"] == 3
    lines = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert [line["line"] for line in lines] == [2, 3, 4]
    assert all(line["file"] == str(file) and line["reason"] for line in lines)
    assert lines[0]["byte"] == 17
    assert lines[0]["raw"] == '{"text": []}'
    assert base64.b64decode(lines[1]["raw_base64"]) == b'{"text": "c \xff"}'
    shards.verify()
    with pytest.raises(InputError) as caught:
        prepare([file], tokenizer, tmp_path / "other", on_error="skip", max_rejects=2)
    assert (caught.value.code, caught.value.location) == ("too_many_rejects", f"{file}:4")
    assert caught.value.argument == "max_rejects"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["corpus.jsonl", "out"]


def test_duplicates_are_dropped_on_request(tmp_path: Path, tokenizer: Tokenizer) -> None:
    long = " ".join(f"{a} {b}" for a in "abcdefgh" for b in "klmnopqr")
    file = corpus(tmp_path, f"{long}.\n\na b.\n\n{long}.\n\na b.\n\n{long} z.\n")
    counts = {
        method: prepare([file], tokenizer, tmp_path / method, deduplicate=method).counts  # type: ignore[arg-type]
        for method in ("no", "exact", "near")
    }
    assert [counts[method]["documents"] for method in ("no", "exact", "near")] == [5, 3, 2]
    assert counts["exact"]["duplicates_dropped"] == 2
    assert counts["near"]["duplicates_dropped"] == 3


def test_max_ram_limits_the_workers(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = corpus(tmp_path, "a b.")
    with pytest.raises(InputError) as caught:
        prepare([file], tokenizer, tmp_path / "out", max_ram=100_000_000)
    assert (caught.value.code, caught.value.argument) == ("max_ram_too_small", "max_ram")
    assert prepare([file], tokenizer, tmp_path / "out", max_ram=512_000_000).documents == 1
    assert prepare_module._num_workers(8, 512_000_000, "local") < 8
    assert prepare_module._num_workers(2, 1 << 40, "local") == 2


@pytest.mark.filterwarnings("ignore::FutureWarning")  # from the start of Ray
def test_ray_writes_the_same_bytes(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
    monkeypatch.setattr(prepare_module, "_PORTION_BYTES", 50_000)
    monkeypatch.setattr(prepare_module, "_SHARD_TOKENS", 100_000)
    files = [shared_data / f"corpora/sample/{name}.txt" for name in ("english", "chinese")]
    tokenizer = shared_data / "vocabs/bert-base-uncased"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        prepare(files, tokenizer, tmp_path / "ray", engine="ray", workers=2)
    finally:
        ray.shutdown()
    prepare(files, tokenizer, tmp_path / "local")
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def test_a_worker_that_ends_early_is_a_machine_error(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_module, "_PORTION_BYTES", 40)
    monkeypatch.setattr(encode_module, "__name__", "bertsmith.no_such_module")
    with pytest.raises(MachineError) as caught:
        prepare([corpus(tmp_path, sentences(40))], tokenizer, tmp_path / "out", workers=2)
    assert caught.value.code == "worker_ended"
    assert [f.name for f in tmp_path.iterdir()] == ["corpus.txt"]


def test_arrow_opens_the_shards(tmp_path: Path, tokenizer: Tokenizer) -> None:
    shards = prepare([corpus(tmp_path, "a b.\nc.\n\nd e.")], tokenizer, tmp_path / "out")
    table = pyarrow.ipc.open_file(tmp_path / "out" / "shard-00000.arrow").read_all()
    assert table.column("ids").to_pylist() == [
        tokenizer.encode_ids(["a b. c."])[0],
        tokenizer.encode_ids(["d e."])[0],
    ]
    assert table.column("sentence_ends").to_pylist() == [[3, 5], [3]]
    assert [Path(location).name for location in table.column("place").to_pylist()] == [
        "corpus.txt:1",
        "corpus.txt:4",
    ]
    assert shards.documents == 2


def test_byte_level_sentences_keep_the_space_between_them(shared_data: Path, tmp_path: Path) -> None:
    file = corpus(tmp_path, "One came. His father went.\nA third.\n\nAnother one.")
    roberta = Tokenizer.load(shared_data / "vocabs/roberta-base")
    shards = prepare([file], roberta, tmp_path / "out")
    ids = roberta.encode_ids(["One came. His father went. A third.", "Another one."])
    assert shards.take(np.arange(shards.tokens)).tolist() == [*ids[0], *ids[1]]
    assert shards.document_sentence_offsets.tolist() == [0, 3, 4]


def test_files_of_rejects_alone_are_refused_with_a_reason(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("some text".encode("utf-16"))
    with pytest.raises(InputError) as caught:
        prepare([file], tokenizer, tmp_path / "out", on_error="skip")
    assert caught.value.code == "nothing_readable"
    assert (caught.value.code, caught.value.location) == ("nothing_readable", str(file))


def test_a_tokenizer_without_separators_is_refused(shared_data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        prepare([corpus(tmp_path, "a b.")], shared_data / "vocabs/gpt2", tmp_path / "out")
    assert caught.value.code == "tokenizer_without_separators"


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split documents at 60 characters."""
    monkeypatch.setattr(io_documents, "_MAX_CHARACTERS", 60)
    monkeypatch.setattr(prepare_module, "_PORTION_BYTES", 100)
    monkeypatch.setattr(prepare_module, "_SHARD_TOKENS", 150)


def lines(number: int, first: str = "a") -> str:
    return "\n".join(f"{first} {' '.join('abcdefghij'[int(d)] for d in str(i))}." for i in range(number))


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("workers", [1, 2])
def test_all_parts_of_a_document_have_one_hash(tmp_path: Path, tokenizer: Tokenizer, workers: int) -> None:
    """A corpus without blank lines is one document, which must not be on both sides of a validation split."""
    long, other, short = lines(60), lines(25, "b"), "c d."
    file = corpus(tmp_path, "\n\n".join([short, long, other, short, long]))
    shards = prepare([file], tokenizer, tmp_path / "out", workers=workers)
    assert shards.counts["documents_parted"] == 3
    assert shards.documents > 15
    groups = [value for value, _ in groupby(shards.hashes.tolist())]
    assert len(groups) == 5  # Each document has one hash, and its neighbors have others.
    assert groups[0] == groups[3]  # Equal documents have equal hashes, split or not.
    assert groups[1] == groups[4]
    assert groups[1] == document_hash(shards.take(np.arange(*token_range(shards, 1))))
    if workers > 1:
        assert contents(tmp_path / "out") == prepared([file], tokenizer, tmp_path / "one", workers=1)


def token_range(shards: Shards, document: int) -> tuple[int, int]:
    ends = np.concatenate([[0], shards.sentence_ends])[shards.document_sentence_offsets]
    return int(ends[document]), int(ends[document + 1])


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("shard", [1, 2, 3])
def test_parts_have_one_hash_after_an_interruption(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, shard: int
) -> None:
    file = corpus(tmp_path, lines(200))
    expected = prepared([file], tokenizer, tmp_path / "uninterrupted")
    calls: list[Path] = []

    def kill(path: Path, parts: Any) -> Any:
        calls.append(path)
        if len(calls) > shard:
            raise Killed
        return write_shard(path, parts)

    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "write_shard", kill)
        with pytest.raises(Killed):
            prepare([file], tokenizer, tmp_path / "out")
    shards = prepare([file], tokenizer, tmp_path / "out")
    assert contents(tmp_path / "out") == expected
    assert len(set(shards.hashes.tolist())) == 1


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("method", ["exact", "near"])
def test_parts_are_compared_one_by_one(tmp_path: Path, tokenizer: Tokenizer, method: Any) -> None:
    """A repeated long document is dropped completely; one that only starts alike keeps its other parts."""
    long = lines(30)
    alike = long[:90] + "\n" + lines(60, "z")[300:]
    file = corpus(tmp_path, "\n\n".join([long, "b c.", long, alike]))
    shards = prepare([file], tokenizer, tmp_path / method, deduplicate=method)
    single = prepare([corpus(tmp_path, long)], tokenizer, tmp_path / f"{method}-single")
    assert shards.counts["duplicates_dropped"] >= single.documents + 1
    hashes = shards.hashes.tolist()
    assert len(set(hashes[: single.documents])) == 1
    assert len(hashes) > single.documents + 1
    assert len(set(hashes)) == 3  # of the long document, the short one, and the rest of the last


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("path", [None, "", "nowhere::"])
def test_workers_do_not_import_from_the_current_folder(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    """Workers are new processes, which must not import a json.py beside a downloaded corpus."""
    for name in ("json", "random", "signal", "numpy", "pyarrow", "bertsmith"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    prepare([corpus(tmp_path, sentences(40))], tokenizer, tmp_path / "out", workers=2)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow  # starts a cluster
@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::ResourceWarning"
)  # from the start and end of Ray
def test_ray_does_not_import_from_the_current_folder(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    for name in ("json", "random", "numpy", "pyarrow", "rjieba"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    file = corpus(tmp_path, sentences(40))
    assert prepare([file], tokenizer, tmp_path / "out", engine="ray", workers=1).documents == 40
    assert not (tmp_path / "ran").exists()


def test_a_second_preparation_of_a_folder_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = corpus(tmp_path, "a b.")

    def prepare_again(_: int) -> None:
        with pytest.raises(InputError) as caught:
            prepare([file], tokenizer, tmp_path / "out")
        errors.append(caught.value)

    errors: list[InputError] = []
    assert prepare([file], tokenizer, tmp_path / "out", progress=prepare_again).documents == 1
    (error,) = errors
    assert str(tmp_path / "out") in str(error)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["corpus.txt", "out"]


def test_a_link_to_an_empty_folder_is_filled_and_the_current_folder_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = corpus(tmp_path, "a b.")
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    assert prepare([file], tokenizer, tmp_path / "out").documents == 1
    assert (tmp_path / "out").is_symlink()
    assert Shards.open(tmp_path / "disk").documents == 1
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    with pytest.raises(InputError) as caught:
        prepare([file], tokenizer, ".", progress=lambda _: pytest.fail("the work was started"))
    assert caught.value.code == "folder_in_use"
    assert str(caught.value.location).endswith(".")
