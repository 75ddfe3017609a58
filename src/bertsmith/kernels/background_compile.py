"""Kernels are compiled in a process of its own, one at a time, while short commands do without them:

python -m bertsmith.kernels.background_compile
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

_UNLESS = "unless-another-does"


def start_background_compile() -> None:
    """Begin. The process yields to others, and goes on when this one has ended."""
    gently = "nice -n 19 " if shutil.which("nice") else ""
    line = f'{gently}"$0" -P -m {__name__} {_UNLESS} > /dev/null 2>&1 < /dev/null &'
    subprocess.run(["sh", "-c", line, sys.executable], start_new_session=True, check=False)


def main() -> None:
    """Compile them. Where another process is at the same, wait for it, or leave it to that one. Ends with 2 where
    it cannot be done here."""
    if (found := missing_numba_error()) is not None:
        _end(found)
    mode = fcntl.LOCK_EX | (fcntl.LOCK_NB if _UNLESS in sys.argv else 0)
    handle = os.open(_lock(), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, mode)
    except BlockingIOError:
        os.close(handle)
        return
    try:
        compile_all()
    except Exception as error:  # Numba's are of no type that is known before it is loaded
        _end(compile_error(error))
    finally:
        os.close(handle)


def _end(error: InputError) -> NoReturn:
    print(f"error: {error.message}\n       {error.hint}", file=sys.stderr)
    sys.exit(2)


def _lock() -> Path:
    """A file of this user, this installation and the folder that Numba is told to keep code in."""
    where = f"{Path(__file__).parent} {os.environ.get('NUMBA_CACHE_DIR')} {os.environ.get('XDG_CACHE_HOME')}"
    name = f"bertsmith-kernels-{os.getuid()}-{zlib.crc32(where.encode()):08x}.lock"
    return Path(tempfile.gettempdir()) / name


if __name__ == "__main__":
    main()
