"""Rules that hold for all of the source and in every process: R5, R19, R20."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import bertsmith

SOURCE = Path(bertsmith.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
TESTS = Path(__file__).resolve().parents[1]


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for file in FILES:
        for node in nodes_of(file):
            yield f"{file.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}", node


@cache
def function_of(call: ast.Call) -> str:
    return ast.unparse(call.func)


def forbidden(node: ast.AST) -> str | None:
    """What no line of the package may do."""
    unsafe = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    if isinstance(node, ast.Import):
        return next((alias.name for alias in node.names if alias.name.split(".")[0] in unsafe), None)
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in unsafe:
        return node.module
    if not isinstance(node, ast.Call):
        return None
    called = function_of(node)
    if called in (
        "eval",
        "exec",
        "compile",
        "__import__",
        "os.system",
        "torch.load",
        "yaml.load",
        "yaml.unsafe_load",
    ):
        return called
    if called in ("np.load", "numpy.load"):
        return called
    for keyword in node.keywords:
        value = getattr(keyword.value, "value", None)
        if keyword.arg == "errors" and value in ("ignore", "replace"):
            return f"errors={value}"
        if keyword.arg in ("shell", "trust_remote_code", "allow_pickle") and value is True:
            return f"{keyword.arg}=True"
    if (
        called.endswith(("decode", "encode"))
        and len(node.args) > 1
        and getattr(node.args[1], "value", "") == "ignore"
    ):
        return "ignore"
    return None


def test_nothing_in_the_package_unpickles_evaluates_or_swallows_bytes() -> None:
    assert len(FILES) > 30
    assert [f"{place} {found}" for place, node in nodes() if (found := forbidden(node))] == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from pickle import loads", "torch.load(f)", "eval('1')", "exec('1')", "import joblib",
        "open(f, errors='ignore')", "b.decode('utf-8', 'ignore')", "np.load(f)", "yaml.load(f)",
        "subprocess.run('ls', shell=True)",
    ],
)  # fmt: skip
def test_the_rule_sees_what_it_forbids(line: str) -> None:
    assert any(forbidden(node) for node in ast.walk(ast.parse(line)))


def test_no_global_generator_is_drawn_from() -> None:
    """Everything random names its seed: no `random.…`, no `np.random.…`, no `torch.manual_seed`."""
    found = []
    for place, node in nodes():
        if isinstance(node, ast.Call):
            called = function_of(node)
            if called.startswith(("random.", "np.random.", "numpy.random.")) or called in (
                "torch.manual_seed",
                "torch.seed",
                "torch.rand",
                "torch.randn",
                "torch.randint",
                "torch.randperm",
            ):
                found.append(f"{place} {called}")
    assert found == []


WALK = """
import sys
sys.path.insert(0, {tests!r})
import socket

class Refused(AssertionError):
    pass

def refuse(*_, **__):
    raise Refused("a socket was opened")

if {blocked}:
    sys.addaudithook(lambda name, args: refuse() if name in ("socket.connect", "socket.bind", "socket.getaddrinfo",
        "socket.sendto", "socket.gethostbyname") else None)
    class Socket(socket.socket):
        def __new__(cls, *a, **k):
            refuse()
    socket.socket = Socket
    socket.create_connection = refuse

import hashlib, json
from pathlib import Path
import tiny_run
import bertsmith as bs
folder = Path('.')
trained = bs.train_tokenizer([folder / "corpus.txt"], folder / "tokenizer", vocab_size=60)
shards = bs.prepare([folder / "corpus.txt"], trained, folder / "shards")
bert = tiny_run.run(shards, folder / "bert", "train.max_steps=4", "train.report_to=tensorboard")
few = ["train.max_steps=4", "train.threads=1", "train.precision=fp32"]
moods = bs.finetune("classify", folder / "bert", folder / "moods", train=folder / "train.csv",
                    validation_split=0.3, settings=few)
scores = moods.evaluate(folder / "train.csv").to_dict()
answers = [one.to_dict() for one in bs.load(folder / "moods").predict(["kaba lode", "mi"])]
masks = [one.to_dict() for one in bs.load(folder / "bert").fill_mask("kaba [MASK] lode")[0]]
files = sorted(p for p in folder.rglob("*") if p.suffix in (".safetensors", ".txt", ".arrow", ".jsonl", ".csv"))
digests = {{str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
           if p.name != "speed.jsonl"}}
print(json.dumps([digests, scores, answers, masks]))
"""


def walk(folder: Path, *, blocked: bool, hash_seed: str) -> list:
    sys.path.insert(0, str(TESTS))
    import tiny_run

    folder.mkdir()
    (folder / "corpus.txt").write_text(tiny_run.corpus(), encoding="utf-8")
    tiny_run.table(folder / "train.csv", tiny_run.examples(30))
    code = WALK.format(tests=str(TESTS), blocked=blocked)
    variables = os.environ | {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=variables,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_whole_walk_opens_no_socket_and_is_the_same_in_another_process(tmp_path: Path) -> None:
    """Vocabulary, shards, pre-training, fine-tuning, scores, predictions: equal bytes whatever the hash seed."""
    first = walk(tmp_path / "a", blocked=True, hash_seed="1")
    second = walk(tmp_path / "b", blocked=False, hash_seed="77")
    kinds = {Path(name).suffix for name in first[0]}
    assert kinds >= {".safetensors", ".txt", ".arrow", ".jsonl"}
    for mine, others in zip(first, second, strict=True):
        assert json.dumps(mine) == json.dumps(others)
    assert len(first[0]) > 10


def test_no_two_public_classes_share_a_name() -> None:
    """One word, one thing, in the whole house."""
    found: dict[str, list[str]] = {}
    for file in FILES:
        module = nodes_of(file)[0]
        assert isinstance(module, ast.Module)
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(file.relative_to(SOURCE)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_only_device_and_hardware_name_a_device() -> None:
    """The names "cpu" and "cuda" occur in device.py and hardware.py only, except in messages and folder names."""
    allowed = {"device.py", "hardware.py"}
    named = []
    for file in FILES:
        if str(file.relative_to(SOURCE)) in allowed:
            continue
        nodes = nodes_of(file)
        harmless = {
            id(argument)
            for node in nodes
            for argument in (
                node.args
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "option"
                else [node.right]
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
                else []
            )
        }
        named += [
            f"{file.relative_to(SOURCE)}:{node.lineno}"
            for node in nodes
            if isinstance(node, ast.Constant) and node.value in ("cpu", "cuda", "cuda:0")
            if id(node) not in harmless
        ]
    assert named == []
