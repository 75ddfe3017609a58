"""Files and folders that are whole or not there: the only way anything is written.

Everything is made in a hidden folder beside its place, with a name that nobody can guess, and is on the disk
before it gets its own name. The writer holds an advisory lock on the hidden folder, which the kernel releases
when the writer is killed: the next writer in the same place tells by it what was left behind, and removes that.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from bertsmith.errors import InputError

_HIDDEN = re.compile(r"\..*\.[0-9a-f]{16}\.part", re.DOTALL)
_LONGEST = 48  # characters of a place's name in its hidden folder's: file systems allow 255 bytes


def write_text(path: Path, text: str) -> None:
    """Write a file as UTF-8 with line ends as they are; until all of it is on the disk the old one stays."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file; until all of it is on the disk the old one stays."""
    with new_file(path) as beside:
        beside.write_bytes(content)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A path to write a file to by whatever library; without an error in between that file becomes `path`.

    Its mode is what the umask allows, whatever the library gave it. Raises InputError where `path` is a folder
    or a device.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a regular file", "name a file to write")
    with _beside(path) as folder:
        yield folder / path.name
        _settle(folder)
        os.replace(folder / path.name, path)


@contextmanager
def new_folder(place: Path, *, replace: bool = False) -> Iterator[Path]:
    """A hidden folder to write into; without an error in between it becomes `place`, which must not hold anything,
    or takes its place (replace).

    Raises InputError as `refuse_filled` does, before anything is written.
    """
    if replace:
        with replace_folder(place) as folder:
            yield folder
        return
    refuse_filled(place)
    place = _real(place)
    with _beside(place) as folder:
        yield folder
        finish_folder(folder, place)


@contextmanager
def replace_folder(place: Path) -> Iterator[Path]:
    """A hidden folder to write into; without an error in between it takes the place of `place` at one stroke."""
    place = _real(place)
    aside = place.with_name(f".{place.name[:_LONGEST]}.old")
    if aside.exists() and not place.exists():  # killed between the two renamings of `_exchange`
        aside.rename(place)
    with _beside(place) as folder:
        yield folder
        if not place.exists():
            finish_folder(folder, place)
            return
        _settle(folder)
        _exchange(folder, place, aside)
        synchronise(place.parent)


def finish_folder(folder: Path, place: Path, *, replace: bool = False) -> None:
    """Have all of a folder on the disk, then give it its name; `place` is missing, or an empty folder, or it is
    replaced at one stroke and removed."""
    _settle(folder)
    if replace and place.exists():
        _exchange(folder, place, place.with_name(f".{place.name[:_LONGEST]}.old"))
        shutil.rmtree(folder, ignore_errors=True)
    else:
        os.replace(folder, place)
    synchronise(place.parent)


@dataclass(frozen=True)
class FolderLayout:
    """How a folder of ours is known, so that it may be replaced: what it is, a file or folder that it cannot be
    without, and patterns of all names in it."""

    what: str
    mark: str
    names: tuple[str, ...]
    argument: str = "out"  # what Python calls the place

    def is_replaced(self, out: Path, *, overwrite: bool, in_place: bool = False) -> bool:
        """Whether `out` holds a folder of this layout that gives way to a new one; False where it holds nothing.

        InputError as `refuse_filled`, and where anything else is in it: that is never removed.
        """
        place = _real(out)
        if not overwrite or not place.is_dir() or not any(place.iterdir()):
            refuse_filled(out, in_place=in_place, argument=self.argument)
            return False
        found = sorted(os.listdir(place))
        others = [name for name in found if not any(fnmatch(name, known) for known in self.names)]
        if others or not (place / self.mark).exists():
            said = (
                f"it holds '{others[0]}', which is not a part of it" if others else f"it has no {self.mark}"
            )
            raise InputError(
                f"{out}: is not replaced, since it is not only {self.what}: {said}",
                "name another --out, or remove it",
                python=f"name another {self.argument}, or remove it",
            )
        _refuse_in_use(out, in_place)
        return True


def clear_folder(folder: Path) -> None:
    """Remove all that is in a folder of ours, the folder itself stays, and its lock."""
    for path in sorted(_real(folder).iterdir()):
        if path.is_dir() and not path.is_symlink():
            remove_folder(path)
        else:
            path.unlink()


def refuse_filled(out: Path, *, in_place: bool = False, argument: str = "out") -> None:
    """InputError where a new folder cannot become `out`: it holds something, is a file, or cannot be replaced.

    in_place: the folder is not replaced, but written into as it is. argument: what Python calls it.
    """
    place = _real(out)
    if os.path.lexists(place) and (not place.is_dir() or any(place.iterdir())):
        raise InputError(
            f"{out}: already exists and is not empty",
            "name another --out, or remove it",
            python=f"name another {argument}, or replace it with overwrite=True",
        )
    _refuse_in_use(out, in_place)


def _refuse_in_use(out: Path, in_place: bool) -> None:
    place = _real(out)
    if not in_place and place.is_dir() and (place == Path.cwd() or place.is_mount()):
        raise InputError(
            f"{out}: this folder is in use (as the current folder or a mount point) and cannot be replaced",
            f"name a folder inside it: {out / 'result'}",
        )
    _refuse_unwritable(out, [place, *place.parents] if in_place else place.parents)


def _refuse_unwritable(out: Path, around: Iterable[Path]) -> None:
    above = next(folder for folder in around if os.path.lexists(folder))
    if not above.is_dir():
        raise InputError(f"{out}: {above} is a file, not a folder", "name another --out")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{out}: permission denied to write into {above}", "name another --out")


@contextmanager
def locked(folder: Path, what: str, shown: Path | None = None) -> Iterator[None]:
    """Hold `folder`, which is made if it is missing, for one writer at a time; `what` names the others.

    The lock is the kernel's and on the folder itself: it ends with the process, however that ends, and leaves
    no file. A folder that was made here and is still empty is removed. Raises InputError, which names `shown`
    or the folder, where another process holds it. Where the file system has no locks, nothing is held.
    """
    if folder.name.startswith(".") and folder.is_symlink():  # planted: nobody links a hidden name
        raise InputError(f"{folder}: is a symbolic link, which is not followed", "remove it")
    place = _real(folder)
    _refuse_unwritable(shown or folder, [place, *place.parents])
    made = not place.exists()
    while True:
        place.mkdir(parents=True, exist_ok=True)
        handle = _open_folder(place)
        if not _locks(handle, without_locks=True):
            os.close(handle)
            raise InputError(
                f"{shown or folder}: another {what} is writing here", "wait for it, or name another --out"
            )
        if _is_named(handle, place):
            break
        os.close(handle)  # removed or replaced between opening and locking
    try:
        yield
    finally:
        if made:
            with suppress(OSError):  # it holds something now
                place.rmdir()
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove what killed writers left in `folder`: the hidden folders that nobody holds any more."""
    for path in [Path(entry.path) for entry in os.scandir(folder) if _HIDDEN.fullmatch(entry.name)]:
        with suppress(OSError):  # a link, another's, just removed, or on a file system without locks
            handle = _open_folder(path)
            try:
                if _locks(handle):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


def remove_folder(folder: Path) -> None:
    """Remove a folder, out of sight first: what a kill leaves of it has a name that the next writer sweeps."""
    away = _hidden(folder)
    folder.rename(away)
    shutil.rmtree(away)


def synchronise(path: Path) -> None:
    """Have the disk hold what was written to a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    import hashlib  # some milliseconds, which --help has not to spare

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """A fresh folder beside `place`, held by this process; removed at the end where it is still there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    sweep(place.parent)
    while True:
        folder = _hidden(place)
        folder.mkdir()  # takes nothing that exists, and follows no link
        with suppress(FileNotFoundError):  # swept by another writer before it was held
            handle = _open_folder(folder)
            if _locks(handle, without_locks=True) and _is_named(handle, folder):
                break
            os.close(handle)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _hidden(place: Path) -> Path:
    """A name beside `place` that nobody can guess, matched by `_HIDDEN`."""
    return place.with_name(f".{place.name[:_LONGEST]}.{os.urandom(8).hex()}.part")


def _settle(folder: Path) -> None:
    """Have all in a folder on the disk, each file with the mode that the umask gives (libraries write 0600)."""
    mode = folder.stat().st_mode & 0o666  # mkdir asked for all bits: what is missing, the umask took
    for path in [*folder.rglob("*"), folder]:
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)
        synchronise(path)


def _exchange(new: Path, old: Path, aside: Path) -> None:
    """Let two folders change names at one stroke; where the system cannot, in two, over `aside`."""
    import ctypes  # see `digest`

    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, TypeError, OSError):
        done = False
    else:
        here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of linux/fs.h
        done = renameat2(here, os.fsencode(new), here, os.fsencode(old), exchange) == 0
    if not done:
        shutil.rmtree(aside, ignore_errors=True)
        old.rename(aside)
        new.rename(old)
        shutil.rmtree(aside, ignore_errors=True)


def _real(path: Path) -> Path:
    """The path without links; pathlib's own resolve raises a RuntimeError for links that lead in a circle."""
    return Path(os.path.realpath(path))


def _open_folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _locks(handle: int, *, without_locks: bool = False) -> bool:
    """Take the advisory lock of an open folder; False where another holds it.

    without_locks: the answer where the file system has none; OSError if False.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if not without_locks:
            raise
    return True


def _is_named(handle: int, path: Path) -> bool:
    """Whether an open folder still has this name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
