"""Files and folders are written atomically, and two writers exclude each other."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.io.folder_layout import FolderLayout


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def run_and_kill(code: str, *arguments: Path) -> None:
    """Run Python code in a process that is killed when it has printed "ready"."""
    program = f"import sys, time\nfrom pathlib import Path\nfrom bertsmith.io import atomic\n{code}"
    child = subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)


WAIT = "print('ready', flush=True); time.sleep(60)"


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.txt"
    atomic.write_text(file, "one\r\n")

    def fail_while_writing() -> None:
        with atomic.atomic_file(file) as part:
            part.write_text("half")
            assert file.read_bytes() == b"one\r\n"
            raise KeyError

    with pytest.raises(KeyError):
        fail_while_writing()
    assert [path.name for path in file.parent.iterdir()] == ["a.txt"]
    atomic.write_bytes(file, b"\xff")
    assert file.read_bytes() == b"\xff"
    for path in (tmp_path, Path("/dev/null")):
        with pytest.raises(InputError) as caught:
            atomic.write_text(path, "x")
        assert (caught.value.code, caught.value.location) == ("not_a_file", str(path))


def test_files_get_the_mode_of_the_umask(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    for bits, expected in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        with umask(bits):
            target = tmp_path / f"{bits:o}"
            with atomic.atomic_folder(target) as folder:
                (folder / "inner").mkdir()
                save_file({"w": torch.ones(2)}, folder / "inner" / "w.safetensors")  # writes mode 0600
            atomic.write_text(target / "b.txt", "b")
            assert mode(target / "inner" / "w.safetensors") == mode(target / "b.txt") == expected


def test_temporary_names_are_random_and_follow_no_link(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with atomic.atomic_file(tmp_path / "a.txt") as part:
            part.write_text("x")
            names.add(part.parent.name)
    assert len(names) == 3
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "precious").write_text("x")
    for name in names:
        (tmp_path / name).symlink_to(trap)
    atomic.write_text(tmp_path / "a.txt", "y")
    assert (trap / "precious").read_text() == "x"


@pytest.mark.parametrize(
    ("writer", "options"), [("atomic_file", {}), ("atomic_folder", {}), ("atomic_folder", {"replace": True})]
)
def test_folders_of_killed_writers_are_removed_and_those_of_running_writers_stay(
    tmp_path: Path, writer: str, options: dict[str, bool]
) -> None:
    target = tmp_path / "a [1]*"
    code = f"with atomic.{writer}(Path(sys.argv[1]), **{options}) as p:\n "
    run_and_kill(f"{code}(p / 'x').write_text('x') if p.is_dir() else p.write_text('x')\n {WAIT}", target)
    assert [path.suffix for path in tmp_path.iterdir()] == [".bertsmith"]
    with getattr(atomic, writer)(target, **options) as part:
        (part / "y" if part.is_dir() else part).write_text("y")
        (hidden,) = tmp_path.iterdir()
        if writer == "atomic_file" or options:  # It removes what killed writers left, but not `hidden`.
            with getattr(atomic, writer)(target, **options) as other:
                (other / "z" if other.is_dir() else other).write_text("z")
            assert hidden.is_dir()
    assert list(tmp_path.iterdir()) == [target]
    assert (target / "y" if target.is_dir() else target).read_text() == "y"


def test_a_new_folder_may_be_missing_empty_or_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "dangling").symlink_to(tmp_path / "later")
    monkeypatch.chdir(tmp_path)
    for name in ("missing/deep", "empty", "link", "dangling", "empty/../relative"):
        with atomic.atomic_folder(Path(name)) as folder:
            (folder / "a").write_text("a")
        assert (tmp_path / name / "a").read_text() == "a"
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in tmp_path.rglob(".*")] == []


def test_an_unusable_output_folder_is_an_error_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "filled").mkdir()
    (tmp_path / "filled" / "a").write_text("a")
    (tmp_path / "file").write_text("a")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    for out, code in {
        "../filled": "output_exists",
        "../file": "output_exists",
        "../loop": "output_exists",
        ".": "folder_in_use",
        "../current": "folder_in_use",
        "../file/below": "not_a_folder",
        "/proc": "output_exists",
        "/proc/new": "permission_denied",
        "letters" * 40: "unusable_name",
        f"{'letters' * 40}/below": "unusable_name",
    }.items():
        with pytest.raises(InputError) as caught:
            atomic.check_output_folder(Path(out))
        assert (caught.value.code, caught.value.location) == (code, out)
        with pytest.raises(InputError), atomic.atomic_folder(Path(out)):
            raise AssertionError("the work began")


def test_a_name_that_no_file_can_get_is_refused_before_the_work_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").symlink_to(".")
    monkeypatch.chdir(tmp_path)
    for overwrite in (False, True):
        for out, code in {
            "file": "output_exists",
            "link": "output_exists",
            "broken": "output_exists",
            "/dev/full": "output_exists",
            ".": "output_exists",
            "folder": "output_exists",
            "file/below": "not_a_folder",
            "broken/below": "not_a_folder",
            "/proc/new": "permission_denied",
            "letters" * 40: "unusable_name",
            "new/file": "",
        }.items():
            is_replaced = overwrite and out in ("file", "link", "broken")
            with pytest.raises(InputError) if code and not is_replaced else nullcontext() as caught:
                atomic.check_output_file(Path(out), overwrite=overwrite, argument="html")
            if caught is not None:
                assert (caught.value.code, caught.value.location) == (code, out)
    assert sorted(os.listdir()) == ["broken", "file", "folder", "link"]


def test_only_a_folder_of_the_layout_is_replaced(tmp_path: Path) -> None:
    layout = FolderLayout("an index", "manifest.json", ("manifest.json", "*.bin"), "folder")
    out = tmp_path / "out"
    assert not layout.check_replaceable(out, overwrite=True)
    out.mkdir()
    (out / "a.bin").write_text("a")
    with pytest.raises(InputError) as caught:  # the required file is missing
        layout.check_replaceable(out, overwrite=True)
    assert (caught.value.code, caught.value.argument) == ("not_replaceable", "folder")
    (out / "manifest.json").write_text("{}")
    assert layout.check_replaceable(out, overwrite=True)
    with pytest.raises(InputError) as caught:
        layout.check_replaceable(out, overwrite=False)
    assert (caught.value.code, caught.value.argument) == ("output_exists", "folder")
    (out / "thesis.tex").write_text("a")
    with pytest.raises(InputError) as caught:
        layout.check_replaceable(out, overwrite=True)
    assert caught.value.code == "not_replaceable"


@pytest.mark.parametrize("is_atomic", [True, False])
def test_a_folder_is_replaced_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_atomic: bool
) -> None:
    if not is_atomic:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: None)
    target = tmp_path / "model"
    for content in ("one", "two"):
        with atomic.atomic_folder(target, replace=True) as folder:
            (folder / content).write_text(content)
    with pytest.raises(KeyError), atomic.atomic_folder(target, replace=True) as folder:
        raise KeyError
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "two"]
    target.rename(tmp_path / ".model.old.bertsmith")  # the state between the two renames
    with pytest.raises(KeyError), atomic.atomic_folder(target, replace=True) as folder:
        raise KeyError
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "two"]


def test_one_writer_at_a_time_and_a_killed_one_blocks_nobody(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with atomic.folder_lock(run, "run"):
        with pytest.raises(InputError) as caught, atomic.folder_lock(run, "run"):
            pass
        assert (caught.value.code, caught.value.location) == ("folder_locked", str(run))
        assert run.is_dir()
    assert not run.exists()  # nothing was written
    run_and_kill(f"with atomic.folder_lock(Path(sys.argv[1]), 'run'):\n {WAIT}", run)
    (tmp_path / "link").symlink_to(run)
    with atomic.folder_lock(tmp_path / "link", "run"):
        with pytest.raises(InputError), atomic.folder_lock(run, "run"):
            pass
        (run / "log").write_text("x")
    assert [path.name for path in run.iterdir()] == ["log"]
    (run / "log").unlink()
    (tmp_path / ".hidden").symlink_to(run)
    with pytest.raises(InputError) as caught, atomic.folder_lock(tmp_path / ".hidden", "run"):
        pass
    assert caught.value.code == "symbolic_link"
    with atomic.folder_lock(run, "run"):
        pass
    assert run.is_dir()  # it existed before


def test_a_lock_excludes_other_processes(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom bertsmith.io import atomic\n"
        "from bertsmith.errors import InputError\n"
        "try:\n"
        "    with atomic.folder_lock(Path(sys.argv[1]), 'preparation', Path('shards')): pass\n"
        "except InputError as error: print(error.code, error.location)"
    )
    with atomic.folder_lock(tmp_path / "run", "preparation"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "run")],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert done.stdout == "folder_locked shards\n"


def test_the_path_of_an_output_has_no_links(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "latest").symlink_to("run")
    assert atomic.output_path(tmp_path / "latest" / "a") == tmp_path / "run" / "a"
    assert atomic.output_path("run") == Path("run")
