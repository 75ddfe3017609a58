"""Compilation of the kernels in a separate process, one at a time, while short commands compute without them.

Run as: python -m bertsmith.kernels.background_compile
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import NoReturn

from bertsmith.errors import InputError
from bertsmith.kernels.backend_selection import compile_all, compile_error, missing_numba_error

_UNLESS_RUNNING = "unless-another-does"


def start_background_compile() -> None:
    """Start compilation with low priority; it continues if this process ends."""
    nice = "nice -n 19 " if shutil.which("nice") else ""
    command = f'{nice}"$0" -P -m {__name__} {_UNLESS_RUNNING} > /dev/null 2>&1 < /dev/null &'
    subprocess.run(["sh", "-c", command, sys.executable], start_new_session=True, check=False)


def main() -> None:
    """Compile all kernels; exit with code 2 if they cannot be compiled.

    If another process compiles them, wait for it, or with the argument `unless-another-does` return at once.
    """
    if (error := missing_numba_error()) is not None:
        _fail(error)
    mode = fcntl.LOCK_EX | (fcntl.LOCK_NB if _UNLESS_RUNNING in sys.argv else 0)
    lock = os.open(_lock_path(), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, mode)
    except BlockingIOError:
        os.close(lock)
        return
    try:
        compile_all()
    except Exception as exception:  # Numba's types of errors are unknown before it is imported
        _fail(compile_error(exception))
    finally:
        os.close(lock)


def _fail(error: InputError) -> NoReturn:
    print(f"error: {error.message}\n       {error.hint}", file=sys.stderr)
    sys.exit(2)


def _lock_path() -> Path:
    """Return the lock file of this user, this installation, and this cache."""
    scope = f"{Path(__file__).parent} {os.environ.get('NUMBA_CACHE_DIR')} {os.environ.get('XDG_CACHE_HOME')}"
    name = f"bertsmith-kernels-{os.getuid()}-{zlib.crc32(scope.encode()):08x}.lock"
    return Path(tempfile.gettempdir()) / name


if __name__ == "__main__":
    main()
