"""The cache of compiled kernels is unpickled, so only the user may be able to write to it."""

from __future__ import annotations

import fcntl
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bertsmith.kernels import backend_selection, kernel_cache
from bertsmith.private_folder import is_private_folder


@pytest.fixture(autouse=True)
def _no_other_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))


def planted(parent: Path) -> Path:
    """Return the folder of the kernels with a file of a cache, as bertsmith makes it."""
    folder = kernel_cache.cache_folder()
    assert folder is not None
    assert folder.is_relative_to(parent / "cache")
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "cpu").mkdir()
    (folder / "cpu" / "kernel.nbi").write_bytes(b"")
    (folder / "cpu" / "kernel.nbi.tmp.0a").symlink_to("gone")  # another process is compiling
    is_private_folder.cache_clear()
    return folder


def test_what_is_written_by_the_user_is_used(tmp_path: Path) -> None:
    folder = planted(tmp_path)
    (folder / "cpu" / "kernel.nbi").chmod(0o664)  # umask 002, and nobody else can enter the folder
    assert kernel_cache.cache_folder() == folder
    is_private_folder.cache_clear()
    folder.chmod(0o755)
    (folder / "cpu" / "kernel.nbi").chmod(0o644)
    assert kernel_cache.cache_folder() == folder


def by_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a path belong to another user."""
    lstat = Path.lstat

    def status(self: Path) -> os.stat_result:
        values = list(lstat(self))
        values[4] += self == path  # st_uid
        return os.stat_result(values)

    monkeypatch.setattr(Path, "lstat", status)


def linked(path: Path, _: pytest.MonkeyPatch) -> None:
    """Move a path, and put a link in its place."""
    path.rename(path.parent.parent / "moved")
    path.symlink_to(path.parent.parent / "moved")


def writable(path: Path, _: pytest.MonkeyPatch) -> None:
    """Let everybody write to a path."""
    path.parent.chmod(0o755)
    path.chmod(0o777)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *itertools.product([".", "cpu", "cpu/kernel.nbi"], [by_others, linked, writable]),
        *itertools.product(
            ["..", "../.."], [by_others, writable]
        ),  # who can write there can exchange the folder
    ],
)
def test_what_others_can_write_is_not_used_and_said_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    change: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    folder = planted(tmp_path)
    if change is writable and name == "cpu/kernel.nbi":
        folder.chmod(0o755)
    change(Path(os.path.abspath(folder / name)), monkeypatch)
    for _ in range(3):
        assert kernel_cache.cache_folder() != folder
    assert len([text for text in caplog.messages if text.startswith(f"{folder}: ")]) == 1


def test_a_link_above_is_followed_once_and_a_folder_for_temporary_files_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "link").symlink_to("cache")
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "link"))
    folder = kernel_cache.cache_folder()
    assert folder is not None
    assert folder.parent == tmp_path / "cache"


@pytest.mark.parametrize("home", ["", "nowhere"])
def test_without_a_home_there_is_no_cache_and_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, home: str
) -> None:
    for name in ("HOME", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path if home else "/proc/nowhere/.cache")
    monkeypatch.setattr(kernel_cache, "SOURCES", tmp_path / "sources")
    (tmp_path / "sources").write_text("")  # nothing can be made in it
    monkeypatch.chdir(tmp_path)
    assert kernel_cache.cache_folder() is None
    assert not (tmp_path / "~").exists()
    assert backend_selection.select_training_backend("auto", 128, waits=False).name == "torch"
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    "arguments", [["bertsmith", "--version"], ["bertsmith.kernels.background_compile", "unless-another-does"]]
)
def test_a_module_of_the_current_folder_is_not_imported(tmp_path: Path, arguments: list[str]) -> None:
    """Try names of the standard library, of dependencies, and of bertsmith itself in `python -m`."""
    names = (
        "__future__",
        "json",
        "typing",
        "re",
        "enum",
        "random",
        "click",
        "numpy",
        "torch",
        "errors",
        "IPython",
    )
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(9)\n")
    command = [sys.executable, "-m", *arguments]
    folder = kernel_cache.cache_folder()
    assert folder is not None
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # so that nothing is compiled
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    os.close(lock)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
