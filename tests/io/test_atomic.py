"""What is written is whole or not there, by one way, and two writers do not meet."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith.io import atomic


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def killed_while(code: str, *arguments: Path) -> None:
    """Run Python lines that say "ready" and wait, and kill them there."""
    program = f"import sys, time\nfrom pathlib import Path\nfrom bertsmith import disk\n{code}"
    child = subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)


WAIT = "print('ready', flush=True); time.sleep(60)"


def test_a_file_is_the_old_one_until_it_is_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.txt"
    atomic.write_text(file, "one\r\n")

    def stop_half_way() -> None:
        with atomic.new_file(file) as beside:
            beside.write_text("half")
            assert file.read_bytes() == b"one\r\n"
            raise KeyError

    with pytest.raises(KeyError):
        stop_half_way()
    assert [path.name for path in file.parent.iterdir()] == ["a.txt"]
    atomic.write_bytes(file, b"\xff")
    assert file.read_bytes() == b"\xff"
    with pytest.raises(InputError, match="not a regular file"):
        atomic.write_text(tmp_path, "x")
    with pytest.raises(InputError, match="not a regular file"):
        atomic.write_text(Path("/dev/null"), "x")


def test_all_files_get_the_mode_that_the_umask_allows(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    for bits, wanted in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        with umask(bits):
            place = tmp_path / f"{bits:o}"
            with atomic.new_folder(place) as folder:
                (folder / "inner").mkdir()
                save_file({"w": torch.ones(2)}, folder / "inner" / "w.safetensors")  # writes 0600 by itself
            atomic.write_text(place / "b.txt", "b")
            assert mode(place / "inner" / "w.safetensors") == mode(place / "b.txt") == wanted


def test_temporary_names_cannot_be_guessed_and_follow_no_link(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with atomic.new_file(tmp_path / "a.txt") as beside:
            beside.write_text("x")
            names.add(beside.parent.name)
    assert len(names) == 3
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "precious").write_text("x")
    for name in names:
        (tmp_path / name).symlink_to(trap)
    atomic.write_text(tmp_path / "a.txt", "y")
    assert (trap / "precious").read_text() == "x"


@pytest.mark.parametrize("way", ["new_file", "new_folder", "replace_folder"])
def test_what_a_killed_writer_left_is_swept_and_what_a_living_one_writes_is_not(
    tmp_path: Path, way: str
) -> None:
    place = tmp_path / "a [1]*"
    begin = f"with disk.{way}(Path(sys.argv[1])) as p:\n "
    killed_while(f"{begin}(p / 'x').write_text('x') if p.is_dir() else p.write_text('x')\n {WAIT}", place)
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
    with getattr(atomic, way)(place) as mine:
        (mine / "y" if mine.is_dir() else mine).write_text("y")
        (living,) = tmp_path.iterdir()
        if way != "new_folder":
            with getattr(atomic, way)(place) as other:  # sweeps, and leaves `living` alone
                (other / "z" if other.is_dir() else other).write_text("z")
            assert living.is_dir()
    assert list(tmp_path.iterdir()) == [place]
    assert (place / "y" if place.is_dir() else place).read_text() == "y"


def test_a_new_folder_becomes_its_place_wherever_that_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "dangling").symlink_to(tmp_path / "later")
    monkeypatch.chdir(tmp_path)
    for name in ("missing/deep", "empty", "link", "dangling", "empty/../relative"):
        with atomic.new_folder(Path(name)) as folder:
            (folder / "a").write_text("a")
        assert (tmp_path / name / "a").read_text() == "a"
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in tmp_path.rglob(".*")] == []


def test_what_cannot_become_a_new_folder_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "filled").mkdir()
    (tmp_path / "filled" / "a").write_text("a")
    (tmp_path / "file").write_text("a")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for out, words in {
        "../filled": "already exists and is not empty",
        "../file": "already exists and is not empty",
        "../loop": "already exists",
        ".": "the current folder",
        "../here": "the current folder",
        "../file/below": "is a file, not a folder",
        "/proc": "is not empty",
    }.items():
        with pytest.raises(InputError, match=words) as refused:
            atomic.refuse_filled(Path(out))
        assert refused.value.sentence.startswith(f"{out}: ")
        with pytest.raises(InputError), atomic.new_folder(Path(out)):
            raise AssertionError("the work began")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(InputError, match="permission denied"):
        atomic.refuse_filled(Path("new"))


@pytest.mark.parametrize("at_one_stroke", [True, False])
def test_a_folder_is_replaced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_one_stroke: bool
) -> None:
    if not at_one_stroke:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: None)
    place = tmp_path / "model"
    for content in ("one", "two"):
        with atomic.replace_folder(place) as folder:
            (folder / content).write_text(content)
    with pytest.raises(KeyError), atomic.replace_folder(place) as folder:
        raise KeyError
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "two"]
    place.rename(tmp_path / ".model.old")  # as a kill between two renamings leaves it
    with pytest.raises(KeyError), atomic.replace_folder(place) as folder:
        raise KeyError
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "two"]


def test_one_writer_at_a_time_and_a_killed_one_blocks_nobody(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with atomic.locked(run, "run"):
        with pytest.raises(InputError, match="run: another run is writing here"), atomic.locked(run, "run"):
            pass
        assert run.is_dir()
    assert not run.exists()  # nothing was written
    killed_while(f"with disk.locked(Path(sys.argv[1]), 'run'):\n {WAIT}", run)
    (tmp_path / "link").symlink_to(run)
    with atomic.locked(tmp_path / "link", "run"):
        with pytest.raises(InputError), atomic.locked(run, "run"):
            pass
        (run / "log").write_text("x")
    assert [path.name for path in run.iterdir()] == ["log"]
    (run / "log").unlink()
    (tmp_path / ".hidden").symlink_to(run)
    with pytest.raises(InputError, match="symbolic link"), atomic.locked(tmp_path / ".hidden", "run"):
        pass
    with atomic.locked(run, "run"):
        pass
    assert run.is_dir()  # it was there before


def test_another_process_is_refused_while_one_writes(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom bertsmith import disk\n"
        "with disk.locked(Path(sys.argv[1]), 'preparation', Path('shards')): pass"
    )
    with atomic.locked(tmp_path / "run", "preparation"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "run")],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert "InputError: shards: another preparation is writing here" in done.stderr
