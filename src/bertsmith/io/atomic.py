"""Atomic writes of files and folders: complete or absent.

Everything is written into a hidden folder next to its destination, with a random name, and reaches the disk before
it gets its own name. The writer holds an advisory lock on the hidden folder, which the kernel releases if the
writer is killed. The next writer at the same destination removes hidden folders that nobody holds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from bertsmith.errors import InputError, MachineError, option
from bertsmith.io.compression import check_name

_HIDDEN = re.compile(r"\..*\.[0-9a-f]{16}\.bertsmith", re.DOTALL)
_MAX_BYTES = 1 << 30  # of a file that is read at once
_MAX_NAME_BYTES = 240  # of an output: file systems allow 255, and hidden names are longer
_MAX_NAME_LENGTH = 48  # characters of a name that a hidden name repeats: file systems allow 255 bytes


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Raise MachineError for an OSError in the block."""
    try:
        yield
    except OSError as error:
        message = f"the file could not be written ({error.strerror})"
        raise MachineError("file_not_written", message, location=path) from None


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8 with line ends unchanged; the old file stays until the new one is on the disk."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file; the old file stays until the new one is on the disk."""
    with atomic_file(path) as part:
        part.write_bytes(content)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to with any library; if no error occurs, the file written there becomes `path`.

    The file gets the mode that the umask allows, whatever the library set.

    Raises:
        InputError: `path` is a folder or a device.
    """
    if path.exists() and not path.is_file():
        raise InputError("not_a_file", "is not a regular file", location=path, hint="name a file to write")
    with _part_folder(path) as folder:
        yield folder / path.name
        _flush(folder)
        os.replace(folder / path.name, path)


@contextmanager
def atomic_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a hidden folder to write into; if no error occurs, it becomes `target`.

    Args:
        target: The folder to make. It must be missing or empty, unless `replace`.
        replace: Replace an existing folder atomically.

    Raises:
        InputError: As `check_output_folder` does, before anything is written.
    """
    if not replace:
        check_output_folder(target)
    target = _resolve(target)
    backup = _backup_name(target)
    if replace and backup.exists() and not target.exists():  # killed between the two renames of `_exchange`
        backup.rename(target)
    with _part_folder(target) as folder:
        yield folder
        commit_folder(folder, target, replace=replace)


def commit_folder(folder: Path, target: Path, *, replace: bool = False) -> None:
    """Flush a folder to the disk and rename it to `target`, which is missing or empty, unless `replace`."""
    _flush(folder)
    if replace and target.exists():
        _exchange(folder, target, _backup_name(target))
        shutil.rmtree(folder, ignore_errors=True)
    else:
        os.replace(folder, target)
    fsync(target.parent)


def walk(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield relative path and mode of all in a folder but folders and what killed writers left; follow no link."""
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = [name for name in subfolders if not _HIDDEN.fullmatch(name)]
        for path in (os.path.join(parent, name) for name in (*subfolders, *names)):
            with suppress(FileNotFoundError):  # just removed
                mode = os.lstat(path).st_mode
                if not stat.S_ISDIR(mode):
                    yield os.path.relpath(path, folder), mode


def check_files(folder: Path) -> None:
    """Raise InputError for a link, a pipe, or a device in a folder to write into.

    A link would lead to files outside of the folder. The folder itself may be a link.
    """
    for name, mode in sorted(walk(folder)):
        refuse_link(folder / name)
        if not stat.S_ISREG(mode):
            message = "is not a regular file, which is not written to"
            raise InputError("not_a_file", message, location=folder / name, hint="remove it")


def refuse_link(path: Path) -> None:
    """Raise InputError for a link as the name of an output inside of an output folder."""
    if os.path.islink(path):
        message = "is a symbolic link, which is not written to"
        hint = "remove it; to keep files on another disk, link the whole output folder"
        raise InputError("not_a_file", message, location=path, hint=hint)


def clear_folder(folder: Path) -> None:
    """Remove everything in a folder; the folder itself stays, and so does its lock."""
    for path in sorted(_resolve(folder).iterdir()):
        if path.is_dir() and not path.is_symlink():
            remove_folder(path)
        else:
            path.unlink()


def output_path(path: str | Path) -> Path:
    """Return the path of an output, without links if it has any: one that changes later has no effect."""
    real = _resolve(Path(path))
    return Path(path) if str(real) == os.path.abspath(path) else real


def check_output_folder(
    out: Path, *, in_place: bool = False, replaceable: bool = False, argument: str = "output_dir"
) -> None:
    """Raise InputError if a folder `out`, which an argument names, is not empty or cannot be written.

    With `in_place` the folder is not replaced but written into. With `replaceable`, the Python function has an
    argument `overwrite`, which the hint names.
    """
    target = _resolve(out)
    if in_place and target.is_dir():
        remove_abandoned(target)
    content = walk(target) if in_place else target.iterdir()
    is_other = os.path.lexists(target) and not target.is_dir()
    if is_other or (target.is_dir() and any(content)):
        message = "is a file, not a folder" if is_other else "already exists and is not empty"
        hint = f"choose another {option(argument)}"
        if replaceable and not is_other:
            hint += "; in Python, overwrite=True replaces it"
        raise InputError("output_exists", message, location=out, argument=argument, hint=hint)
    refuse_in_use(out, in_place, argument)


def check_output_file(out: Path, *, overwrite: bool | None = None, argument: str = "output") -> None:
    """Raise InputError if a file `out`, which an argument names, exists or cannot be written.

    `overwrite` is None if the Python function has no such argument, which the hint names otherwise.
    """
    check_name(out, _MAX_NAME_BYTES)
    is_other = out.exists() and not out.is_file()
    if is_other or (os.path.lexists(out) and not overwrite):
        message = "is not a regular file" if is_other else "already exists"
        hint = f"choose another {option(argument)}"
        hint += "" if is_other or overwrite is None else "; in Python, overwrite=True replaces it"
        raise InputError("output_exists", message, location=out, argument=argument, hint=hint)
    _refuse_unwritable(out, out.parents, argument)


def refuse_in_use(out: Path, in_place: bool, argument: str) -> None:
    """Raise InputError for a folder that cannot be replaced, or with `in_place` not written into."""
    target = _resolve(out)
    if not in_place and target.is_dir() and (target == Path.cwd() or target.is_mount()):
        message = "this folder is in use (as the current folder or a mount point) and cannot be replaced"
        hint = f"name a folder inside it: {out / 'result'}"
        raise InputError("folder_in_use", message, location=out, hint=hint)
    _refuse_unwritable(out, [target, *target.parents] if in_place else target.parents, argument)


def _refuse_unwritable(out: Path, ancestors: Iterable[Path], argument: str = "output_dir") -> None:
    """Raise InputError if nothing can be written into the first of the folders that exists."""
    hint = f"choose another {option(argument)}"
    ancestor = next(folder for folder in ancestors if os.path.lexists(folder))
    if not ancestor.is_dir():
        raise InputError("not_a_folder", f"{ancestor} is a file, not a folder", location=out, hint=hint)
    try:
        tempfile.TemporaryFile(dir=ancestor).close()
    except OSError as error:
        message = f"nothing can be written into {ancestor} ({error.strerror})"
        raise InputError("permission_denied", message, location=out, hint=hint) from None


@contextmanager
def folder_lock(folder: Path, writer: str, display_path: Path | None = None) -> Iterator[None]:
    """Hold a folder for one writer at a time.

    The lock is the kernel's and on the folder itself, so it ends with the process and leaves no file. On a file
    system without locks, nothing is held.

    Args:
        folder: The folder, which is made if it is missing; removed at the end if it was made and is empty.
        writer: A noun for the writers, such as "run".
        display_path: The folder that messages name instead.

    Raises:
        InputError: Another process holds the folder.
    """
    check_name(folder, _MAX_NAME_BYTES)
    if folder.name.startswith(".") and folder.is_symlink():  # an attack: nobody links a hidden name
        message = "is a symbolic link, which is not followed"
        raise InputError("symbolic_link", message, location=folder, hint="remove it")
    path = _resolve(folder)
    _refuse_unwritable(display_path or folder, [path, *path.parents])
    is_new = not path.exists()
    while True:
        path.mkdir(parents=True, exist_ok=True)
        handle = _open_folder(path)
        if not _lock(handle, without_locks=True):
            time.sleep(0.05)  # seconds: `watch` and `runs` hold the lock for an instant to see if it is free
        if not _lock(handle, without_locks=True):
            os.close(handle)
            message = f"another {writer} is writing here"
            hint = f"wait until it ends, or choose another {option('output_dir')}"
            raise InputError("folder_locked", message, location=display_path or folder, hint=hint)
        if _has_name(handle, path):
            break
        os.close(handle)  # removed or replaced between opening and locking
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # not empty
                path.rmdir()
        os.close(handle)


def remove_abandoned(folder: Path) -> None:
    """Remove the hidden folders that killed writers left in `folder`."""
    for path in [Path(entry.path) for entry in os.scandir(folder) if _HIDDEN.fullmatch(entry.name)]:
        with suppress(OSError):  # a link, another user's, just removed, or on a file system without locks
            handle = _open_folder(path)
            try:
                if _lock(handle):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


def remove_folder(folder: Path) -> None:
    """Remove a folder under a hidden name, so that the next writer removes the rest if this process is killed."""
    hidden = _hidden_name(folder)
    folder.rename(hidden)
    shutil.rmtree(hidden)


def fsync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_for_appending(path: Path, num_bytes: int | None = None) -> BinaryIO:
    """Open a file for appending after its first bytes, or after all.

    The file is a new copy of them: a link of this name, and other names of the same file, keep what they have.
    """
    with write_errors(path):
        write_bytes(path, read_file(path)[:num_bytes] if path.exists() else b"")
        return open(path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW))


def open_file(path: str | Path) -> BufferedReader:
    """Open a regular file for reading; raise OSError for a pipe or a device, which would wait or never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_file(path: str | Path, max_bytes: int = _MAX_BYTES) -> bytes:
    """Return the content of a file, as `open_file` opens it; raise OSError if it is larger than `max_bytes`."""
    with open_file(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes", str(path))
    return content


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    import hashlib  # takes milliseconds, which --help saves

    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _part_folder(target: Path) -> Iterator[Path]:
    """Make and lock a hidden folder next to `target`; remove it at the end if it is still there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(target.parent)
    while True:
        folder = _hidden_name(target)
        folder.mkdir()  # fails if the name exists, and follows no link
        with suppress(FileNotFoundError):  # removed by another writer before it was locked
            handle = _open_folder(folder)
            if _lock(handle, without_locks=True) and _has_name(handle, folder):
                break
            os.close(handle)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _hidden_name(target: Path) -> Path:
    """Return a random path next to `target` that matches `_HIDDEN`."""
    return target.with_name(f".{target.name[:_MAX_NAME_LENGTH]}.{os.urandom(8).hex()}.bertsmith")


def _backup_name(target: Path) -> Path:
    return target.with_name(f".{target.name[:_MAX_NAME_LENGTH]}.old.bertsmith")


def _flush(folder: Path) -> None:
    """Flush a folder with its content to the disk; files get the mode of the umask (libraries set 0600)."""
    mode = folder.stat().st_mode & 0o666  # mkdir requested all bits; the umask removed some
    for path in [*folder.rglob("*"), folder]:
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)
        fsync(path)


def _exchange(new: Path, old: Path, backup: Path) -> None:
    """Exchange the names of two folders atomically, or by way of `backup` on systems that cannot."""
    import ctypes  # as in `digest`

    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, TypeError, OSError):
        is_exchanged = False
    else:
        at_fdcwd, rename_exchange = -100, 2  # linux/fcntl.h, linux/fs.h
        paths = at_fdcwd, os.fsencode(new), at_fdcwd, os.fsencode(old)
        is_exchanged = renameat2(*paths, rename_exchange) == 0
    if not is_exchanged:
        shutil.rmtree(backup, ignore_errors=True)
        old.rename(backup)
        new.rename(old)
        shutil.rmtree(backup, ignore_errors=True)


def _resolve(path: Path) -> Path:
    """Return the path of an output without links; `Path.resolve` raises a RuntimeError for a loop of links."""
    check_name(path, _MAX_NAME_BYTES)
    return Path(os.path.realpath(path))


def _open_folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _lock(handle: int, *, without_locks: bool = False) -> bool:
    """Take the advisory lock of an open folder; return False if another process holds it.

    Args:
        handle: The file descriptor of the folder.
        without_locks: Return True on a file system without locks, instead of raising an OSError.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if not without_locks:
            raise
    return True


def _has_name(handle: int, path: Path) -> bool:
    """Return whether an open folder still has this name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
