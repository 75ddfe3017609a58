"""Mutated files of every kind that is read: an answer, or one error of ours, soon and in bounded memory.

Each input is a function of its target's name and its number. 2,000 are tried here, 100,000 with `pytest -m slow`;
`BERTSMITH_FUZZ=name:number` tries a single one, and says what it does.
"""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import shutil
import signal
import struct
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, MachineError
from bertsmith.finetuning.run import finetune
from bertsmith.inference.model import load
from bertsmith.inspection.show import show_instance
from bertsmith.io import atomic
from bertsmith.io.documents import read_documents
from bertsmith.pretraining.resolve_settings import new_settings, settings_type_of_file
from bertsmith.runs.run_folder import settings_of_run
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training import checkpoint

INPUTS, INPUTS_SLOW = 2_000, 100_000
LONGEST = 20.0  # seconds for one input
MOST_MEMORY = 512 * 2**20  # bytes above what the files as they were need

NASTY: list[Any] = [
    None, True, False, 0, 1, -1, 7, 255, 2**31, 2**63, -(2**63), 2**70, 10**400, 0.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "x", "0", "\x00", "\x1b[2J", "é" * 300, "\ud800", "../../etc/passwd", "/etc/passwd", "nan",
    [], [None], [[]], [1, "a", None], {}, {"": None}, {"a": {"b": []}}, {"0": "x"}, ["x"] * 2_000,
]  # fmt: skip
CHUNKS = [
    b"", b"\0", b"\xff", b"\xff\xfe", b"\n", b"\r", b"\n\n", b'"', b"'", b",", b";", b"\t", b"[" * 3_000,
    b"{" * 3_000, b"9" * 5_000, b"1e999", b"NaN", b"-", b"\\", b"\\ud800", b"\xe2\x80\xa8", b"*a", b"&a [*a]",
    b": ", b"!!binary x",
]  # fmt: skip


def bytes_changed(content: bytes, draw: random.Random) -> bytes:
    """One to three of: a bit flipped, the end cut off, a stretch removed or doubled, something put in between."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(content) + 1)
        to = min(len(content), at + draw.choice([1, 2, 8, 64, 1_000]))
        way = draw.randrange(5)
        if way == 0 and at < len(content):
            flipped = bytearray(content)
            flipped[at] ^= 1 << draw.randrange(8)
            content = bytes(flipped)
        elif way == 1:
            content = content[:at]
        elif way == 2:
            content = content[:at] + content[to:]
        elif way == 3:
            content = content[:to] + content[at:]
        else:
            content = content[:at] + draw.choice(CHUNKS) + content[at:]
    return content


def value_changed(value: Any, draw: random.Random) -> Any:
    """One to three of: a value of another kind, a key missing, a key of another name, an entry twice."""
    value = copy.deepcopy(value)
    for _ in range(draw.randint(1, 3)):
        holders = [held for held in _holders(value) if held]
        if not holders:
            return draw.choice(NASTY)
        held = draw.choice(holders)
        key = draw.choice(list(held) if isinstance(held, dict) else range(len(held)))
        way = draw.randrange(6)
        if way <= 2:
            held[key] = copy.deepcopy(draw.choice(NASTY))
        elif way == 3:
            del held[key]
        elif isinstance(held, list):
            held.insert(key, copy.deepcopy(held[draw.randrange(len(held))]))
        elif way == 4:
            held[draw.choice(["", "x", "\x00", f"{key} "])] = held.pop(key)
        else:
            held[key] = [copy.deepcopy(held[key])]
    return value


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value[:50]:
            yield from _holders(inner)


def json_changed(content: bytes, draw: random.Random) -> bytes:
    """The text or, mostly, the values of a JSON or YAML file changed."""
    if draw.random() < 0.3:
        return bytes_changed(content, draw)
    value = value_changed(
        yaml.load(content, yaml.CSafeLoader) if content[:1] != b"{" else json.loads(content), draw
    )
    return json.dumps(value).encode()


def header_changed(content: bytes, draw: random.Random) -> bytes:
    """The header of a safetensors file changed, its length mostly told right; or any bytes."""
    (length,) = struct.unpack("<Q", content[:8])
    if draw.random() < 0.3:
        return bytes_changed(content, draw)
    header = json_changed(content[8 : 8 + length], draw)
    told = len(header) if draw.random() < 0.8 else draw.choice([0, 1, length, 2**40, 2**63])
    return struct.pack("<Q", told) + header + content[8 + length :]


def lines_changed(content: bytes, draw: random.Random) -> bytes:
    """A line of JSON, or any bytes, changed."""
    lines = content.splitlines(keepends=True)
    if draw.random() < 0.5 or not lines:
        return bytes_changed(content, draw)
    at = draw.randrange(len(lines))
    lines[at] = json.dumps(value_changed(json.loads(lines[at]), draw)).encode() + b"\n"
    return b"".join(lines)


@dataclass(frozen=True)
class Target:
    """A file, how it is changed, what is signed anew then, and who reads it."""

    file: Path
    change: Callable[[bytes, random.Random], bytes]
    use: Callable[[], Any]
    sign: Callable[[], None] = lambda: None


def resigned(
    manifest: Path, entries: Callable[[Any], Iterator[tuple[str, dict[str, Any]]]], size: str
) -> None:
    """Sizes and digests of a manifest's entries as the files now are."""
    document = json.loads(manifest.read_bytes())
    for name, entry in entries(document):
        entry[size], entry["sha256"] = (
            (manifest.parent / name).stat().st_size,
            atomic.sha256_of_file(manifest.parent / name),
        )
    manifest.write_text(json.dumps(document))


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    world = tmp_path_factory.mktemp("world")
    shards = tiny_run.make_shards(world)
    few = ["train.max_steps=2", "train.save_steps=1"]
    tiny_run.run(shards, world / "bert", *few)
    rows = tiny_run.table(world / "train.csv", tiny_run.examples(15))
    quick = ["train.max_steps=1", "train.threads=1", "train.precision=fp32", "train.report_to=none"]
    finetune("classify", world / "bert", world / "moods", train=rows, validation=rows, settings=quick)
    lines = [json.dumps({"text": text, "label": label}) for text, label in tiny_run.examples(15)]
    (world / "train.jsonl").write_text("\n".join(lines) + "\n")
    texts = tiny_run.corpus(6)
    (world / "text.txt").write_text(texts)
    (world / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts.split("\n\n")))
    (world / "text.csv").write_text("text,n\n" + "".join(f'"{t}",1\n' for t in texts.split("\n\n")))
    recipes = Path(__file__).resolve().parents[2] / "recipes"
    shutil.copy(sorted(recipes.glob("*.yaml"))[0], world / "recipe.yaml")
    shutil.copytree(shards.folder / "tokenizer", world / "tokenizer")
    model, run = world / "moods" / "model", world / "bert"
    newest, data = run / "checkpoints" / "step-2", shards.folder
    shard = next(data.glob("*.arrow"))

    def sign_model() -> None:
        record = json.loads((model / "bertsmith.json").read_bytes())
        record["weights_sha256"] = atomic.sha256_of_file(model / "model.safetensors")
        (model / "bertsmith.json").write_text(json.dumps(record))

    def sign_data() -> None:
        resigned(data / "manifest.json", lambda d: ((e["name"], e) for e in d["files"]), "size")

    def sign_checkpoint() -> None:
        resigned(newest / "manifest.json", lambda d: iter(d["files"].items()), "bytes")

    def predict() -> object:
        return [one.to_dict() for one in load(model, "cpu").predict(["kaba lode", "mi"])]

    def show() -> object:
        Shards.open(data).verify()
        return show_instance(data, 0, settings=["data.sequence_length=32"])

    def go_on() -> object:
        return checkpoint.load_newest(run / "checkpoints")

    def settle() -> object:
        return settings_of_run(settings_type_of_file(run / "settings.yaml"), run, {})

    def cook() -> object:
        return new_settings(None, world / "recipe.yaml", {}, tiny_run.tokenizer()).to_yaml()

    def read(name: str) -> Callable[[], object]:
        return lambda: [len(document.text) for document in read_documents([world / name])]

    def evaluate(name: str) -> Callable[[], object]:
        return lambda: load(model, "cpu").evaluate(world / name).to_dict()

    def encode() -> object:
        return Tokenizer.load(world / "tokenizer").encode("Kaba lode, mi.")

    return {
        "config": Target(model / "config.json", json_changed, predict),
        "record": Target(model / "bertsmith.json", json_changed, predict),
        "weights": Target(model / "model.safetensors", header_changed, predict, sign_model),
        "tokenizer": Target(world / "tokenizer" / "tokenizer.json", json_changed, encode),
        "tokenizer-config": Target(world / "tokenizer" / "tokenizer_config.json", json_changed, encode),
        "vocabulary": Target(world / "tokenizer" / "vocab.txt", bytes_changed, encode),
        "settings": Target(run / "settings.yaml", json_changed, settle),
        "recipe": Target(world / "recipe.yaml", json_changed, cook),
        "task-csv": Target(world / "train.csv", bytes_changed, evaluate("train.csv")),
        "task-jsonl": Target(world / "train.jsonl", lines_changed, evaluate("train.jsonl")),
        "corpus-txt": Target(world / "text.txt", bytes_changed, read("text.txt")),
        "corpus-jsonl": Target(world / "text.jsonl", lines_changed, read("text.jsonl")),
        "corpus-csv": Target(world / "text.csv", bytes_changed, read("text.csv")),
        "manifest": Target(data / "manifest.json", json_changed, show),
        "arrow": Target(shard, bytes_changed, show, sign_data),
        "checkpoint-manifest": Target(newest / "manifest.json", json_changed, go_on),
        "state": Target(newest / "state.json", json_changed, go_on, sign_checkpoint),
        "checkpoint-weights": Target(newest / "weights.safetensors", header_changed, go_on, sign_checkpoint),
    }


@contextmanager
def hurried() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault(target: Target, name: str, number: int) -> str | None:
    """What one input does that it may not do: the error and where it was raised; None where all is well."""
    folder = target.file.parent
    kept = {
        path: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.stat().st_size < 2**20
    }
    changed = target.change(target.file.read_bytes(), random.Random(f"{name}:{number}"))
    target.file.write_bytes(changed)
    try:
        target.sign()
        with hurried():
            target.use()
    except (InputError, MachineError) as error:
        sentence = error.sentence_for("command line")
        if "\n" in sentence or len(sentence) > 1_000:
            return f"{type(error).__name__} of {len(sentence)} characters: {sentence[:200]!r}"
    except BaseException as error:  # pyo3's panics are no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "/bertsmith/" in f.filename]
        where = f"{ours[-1].filename.rpartition('/bertsmith/')[2]}:{ours[-1].lineno}" if ours else "?"
        return f"{type(error).__name__} in {where}: {str(error)[:150]}"
    finally:
        for path, content in kept.items():
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)
    return None


def try_all(targets: dict[str, Target], inputs: int) -> list[str]:
    """Each fault, with the first input that shows it."""
    found: dict[str, str] = {}
    for number in range(-(-inputs // len(targets))):
        for name, target in targets.items():
            if (what := fault(target, name, number)) is not None:
                found.setdefault(what, f"{name}:{number}")
    return [f"{first} {what}" for what, first in found.items()]


def test_the_files_as_they_were_are_read(targets: dict[str, Target]) -> None:
    for target in targets.values():
        target.sign()
        target.use()


def test_mutated_files_are_read_or_refused(targets: dict[str, Target]) -> None:
    if single := os.environ.get("BERTSMITH_FUZZ"):
        name, _, number = single.partition(":")
        assert fault(targets[name], name, int(number)) is None
        return
    for target in targets.values():
        target.use()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = try_all(targets, INPUTS)
    assert ascii("\n".join(found)) == ascii("")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < MOST_MEMORY


@pytest.mark.slow
def test_many_mutated_files_are_read_or_refused(targets: dict[str, Target]) -> None:
    assert "\n".join(try_all(targets, INPUTS_SLOW)) == ""
