"""The folder in which Numba caches the compiled kernels.

Numba checks for changes of the file that defines a kernel, but not of the files that it imports. The folder's name
therefore contains a digest of all files with compiled code, so that a change of any of them starts an empty
cache. A marker file tells that the cache is complete.

Numba unpickles what is in the cache and runs it, so a cache that another user can write to is not used.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from functools import cache
from pathlib import Path

from bertsmith.private_folder import is_private_folder

SOURCES = Path(__file__).parent / "cpu"
MARKER = "complete"
NO_FOLDER = "no folder for compiled kernels can be written to"


def cache_folder() -> Path | None:
    """Return the folder of compiled kernels, which is created if necessary; None if none can be used.

    It is in NUMBA_CACHE_DIR, or else next to the code, or else in the user's cache.
    """
    configured = os.environ.get("NUMBA_CACHE_DIR")
    users = Path(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    )  # "~" is kept without a home
    parents = [SOURCES / "__pycache__", *([users / "bertsmith"] if users.is_absolute() else [])]
    parents = [Path(configured), *parents] if configured else parents
    # Without links, since a link could be changed after the check.
    folders = (Path(os.path.realpath(parent)) / f"kernels-{_digest(SOURCES)}" for parent in parents)
    return next((folder for folder in folders if is_private_folder(folder)), None)


def is_complete() -> bool:
    """Return True if all kernels are in the cache."""
    folder = cache_folder()
    return folder is not None and (folder / MARKER).is_file()


def mark_complete() -> None:
    """Record that all kernels are in the cache."""
    if (folder := cache_folder()) is not None:
        (folder / MARKER).touch()


def clear() -> None:
    """Delete the cached kernels; the folder stays, since another process may write to it."""
    if (folder := cache_folder()) is not None:
        (folder / MARKER).unlink(missing_ok=True)
        for path in folder.rglob("*.nb[ic]"):
            path.unlink(missing_ok=True)


@cache
def _digest(sources: Path) -> str:
    """Return a digest of the files with compiled code; of their location too, since installations may differ."""
    digest = hashlib.sha256(f"{sources} {sys.implementation.cache_tag}".encode())
    for path in sorted(sources.glob("*.py")):
        source = path.read_bytes()
        if re.search(rb"from numba|@kernel", source):
            digest.update(source)
    return digest.hexdigest()[:16]
