"""What --help shows of every verb, what a mistyped word is answered, and what shells complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from rich.cells import cell_len

from bertsmith.cli import commands
from bertsmith.cli.main import bertsmith, main
from bertsmith.tasks.registry import TASKS, get_task


def verbs() -> Iterator[tuple[list[str], click.Command]]:
    """Every verb with the words that lead to it."""
    top = click.Context(bertsmith)
    yield [], bertsmith
    for name in bertsmith.list_commands(top):
        command = bertsmith.get_command(top, name)
        assert command is not None
        yield [name], command
        if isinstance(command, click.Group):
            below = click.Context(command)
            for inner in command.list_commands(below):
                found = command.get_command(below, inner)
                assert found is not None
                yield [name, inner], found


VERBS = {" ".join(words) or "bertsmith": (words, command) for words, command in verbs()}


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[object, str, str]:
    """Exit code, stdout, stderr of `bertsmith …`."""
    monkeypatch.setattr(sys, "argv", ["bertsmith", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, *capsys.readouterr()


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("verb", VERBS)
def test_a_help_fits_the_terminal_and_begins_with_an_example_and_what_is_required(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    words, command = VERBS[verb]
    code, out, told = run(capsys, monkeypatch, *words, "--help")
    assert (code, told) == (0, "")
    for line in out.splitlines():
        assert cell_len(line) <= columns, line
    assert "Example" in out
    assert f"bertsmith {' '.join(words)}".strip() in re.sub(r"\s+(\\\s+)?", " ", out)
    required = [param for param in command.params if isinstance(param, click.Option) and param.required]
    panel = out[out.index("─ Required ─") : out.index("─ Options ─")] if required else ""
    for option in required:
        assert f" {option.opts[0]} " in panel
    assert ("─ Required ─" in out) == bool(required)


def test_no_help_imports_torch() -> None:
    program = """
import contextlib, io, sys
import click
from bertsmith.cli.main import bertsmith
for words in sys.stdin.read().splitlines():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(click.exceptions.Exit):
        bertsmith.main([*words.split(), "--help"], prog_name="bertsmith", standalone_mode=False)
    heavy = {"torch", "sklearn", "pyarrow"} & sys.modules.keys()
    assert not heavy, (words, heavy)
"""
    lines = "\n".join(" ".join(words) for words, _ in VERBS.values())
    subprocess.run([sys.executable, "-c", program], input=lines, text=True, check=True)


def test_the_settings_of_all_tasks_are_options_of_commands_on_runs() -> None:
    kinds: dict[str, object] = {}
    for name in TASKS:
        for option in commands.task_options(get_task(name).settings_type):
            same = (option.is_flag, option.type.name, option.type.to_info_dict().get("choices"))
            assert kinds.setdefault(str(option.name), same) == same, option.name
    for verb in ("evaluate", "predict", "compare"):
        command = VERBS[verb][1]
        params = command.get_params(click.Context(command))
        flags = [flag for param in params for flag in (*param.opts, *param.secondary_opts)]
        assert len(flags) == len(set(flags))
        assert {str(param.name) for param in params} >= kinds.keys()


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_and_argument_is_explained(verb: str) -> None:
    _, command = VERBS[verb]
    context = click.Context(command, info_name=verb)
    text = command.help or ""
    for param in command.get_params(context):
        if isinstance(param, click.Argument):
            assert re.search(rf"\b{param.make_metavar(context).strip('[].')}\b", text), param.name
        else:
            assert isinstance(param, click.Option)
            assert param.help, param.name
            assert "RANGE" not in param.make_metavar(context), param.name


def test_the_help_of_pretrain_names_every_preset(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertsmith.models.family import FAMILIES, abbreviate_names, get_family

    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, monkeypatch, "pretrain", "--help")
    section = re.sub(r"[│\s]", "", out[out.index("Presets") : out.index("Settings (")])
    for name in FAMILIES:
        shown = abbreviate_names(get_family(name).presets)
        assert sorted(full for short in shown for full in _expanded(short)) == sorted(
            get_family(name).presets
        )
        for short in shown:
            assert short in section


def _expanded(short: str) -> list[str]:
    """What a shell makes of a{b,c}d."""
    found = re.search(r"\{([^}]*)\}", short)
    if not found:
        return [short]
    return [
        full
        for word in found[1].split(",")
        for full in _expanded(short[: found.start()] + word + short[found.end() :])
    ]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["pretrian"], "pretrain"),
        (["tokeniser", "train"], "tokenizer"),
        (["fill_mask"], "fill-mask"),
        (["data", "chekc"], "check"),
        (["finetune", "clasify"], "classify"),
        (["pretrain", "--batch_size", "8"], "--batch-size"),
        (["tokenizer", "train", "--vocab", "800"], "--vocab-size"),
    ],
)
def test_a_mistyped_word_is_answered_by_what_was_meant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], meant: str
) -> None:
    code, out, told = run(capsys, monkeypatch, *words)
    assert (code, out) == (2, "")
    sentence, remedy = told.splitlines()
    assert sentence.startswith("error: ")
    assert f"'{meant}'" in sentence
    assert remedy.startswith("       see `bertsmith")


@pytest.mark.parametrize(
    "words",
    [
        ["qwertz"],
        ["tokenizer", "qwertz"],
        ["finetune", "qwertz"],
        ["pretrain", "--qwertz"],
        ["pretrain", "--output-dir", "x"],
        ["pretrain", "--data"],
        ["pretrain", "--data", "x", "--output-dir", "y", "--minutes", "abc"],
        ["pretrain", "--data", "x", "--output-dir", "y", "--batch-size", "0"],
        ["pretrain", "--data", "x", "--output-dir", "y", "--seed", "1.5"],
        ["tokenizer", "train", "x", "--output-dir", "y", "--kind", "bpe"],
        ["fill-mask", "bert"],
        ["fill-mask", "bert", "Paris", "is", "[MASK]"],
        ["data", "prepare", "x", "--tokenizer", "t", "--output-dir", "o", "--max-ram", "much"],
        ["data", "prepare", "x", "--tokenizer", "t", "--output-dir", "o", "--address", "a"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_wrong_command_line_is_an_error_like_all_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], as_json: bool
) -> None:
    code, out, told = run(capsys, monkeypatch, *(["--json"] if as_json and words[0] == "qwertz" else []), *words,
                          *(["--json"] if as_json else []))  # fmt: skip
    assert code == 2
    lines = told.splitlines()
    assert lines[0].startswith("error: ")
    assert not lines[0].endswith(".")
    assert len(lines) <= 2
    assert all(line.startswith("       ") for line in lines[1:])
    if not as_json:
        assert out == ""
        return
    error = json.loads(out)["error"]
    assert error["exit_code"] == 2
    assert error["kind"] == "usage"
    assert lines == [f"error: {error['message']}", *([f"       {error['hint']}"] if error["hint"] else [])]


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("bertsmith pre", {"plain,pretrain", "plain,predict"}),
        ("bertsmith data ", {"plain,check", "plain,prepare", "plain,show"}),
        ("bertsmith finetune ", {f"plain,{task}" for task in (*TASKS, "glue")}),
        ("bertsmith pretrain --learning", {"plain,--learning-rate"}),
        ("bertsmith pretrain --data sha", {"file,sha"}),
        ("bertsmith tokenizer train cor", {"file,cor"}),
        ("bertsmith data check --documents l", {"plain,line"}),
    ],
)
def test_shells_complete_verbs_options_choices_and_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, completed: set[str]
) -> None:
    monkeypatch.setenv("_BERTSMITH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    code, out, told = run(capsys, monkeypatch)
    assert (code, told) == (0, "")
    assert set(out.split()) == completed


@pytest.mark.parametrize(
    ("words", "both"),
    [
        (["--epochs", "3", "--steps", "4"], ("--epochs", "--steps")),
        (["--epochs", "3", "--minutes", "4"], ("--epochs", "--minutes")),
        (["--steps", "3", "--minutes", "4"], ("--steps", "--minutes")),
        (["--steps", "3", "--set", "train.max_tokens=4"], ("--steps", "--set train.max_tokens")),
        (
            ["--minutes", "3", "--set", "train.num_train_epochs=4"],
            ("--minutes", "--set train.num_train_epochs"),
        ),
        (["--steps", "3", "--set", "train.max_steps=4"], ("--steps", "--set train.max_steps")),
        (["--seed", "3", "--set", "train.seed=4"], ("--seed", "--set train.seed")),
        (
            ["--validation-split", "3%", "--set", "data.validation_split=3"],
            ("--validation-split", "--set data.validation_split"),
        ),
    ],
)
def test_what_is_given_twice_is_refused(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    both: tuple[str, str],
) -> None:
    code, _, told = run(capsys, monkeypatch, "pretrain", "--data", "x", "--output-dir", "y", *words)
    assert code == 2
    assert f"error: {both[0]} and {both[1]} exclude each other" in told


def test_an_option_and_the_same_assignment_are_no_conflict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--seed", "3", "--set", "train.seed=3", "--steps", "4", "--set", "train.max_steps=4"]
    code, _, told = run(capsys, monkeypatch, "pretrain", "--data", "x", "--output-dir", "y", *words)
    assert (code, told.splitlines()[0]) == (2, "error: x: no such folder")
