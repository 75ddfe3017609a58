"""Kernels are compiled in a process of its own, one at a time, while short commands do without them:

python -m bertsmith.kernels.beside
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bertsmith.kernels.choice import compile_all

_UNLESS = "unless-another-does"


def compile_beside() -> None:
    """Begin. The process yields to others, and goes on when this one has ended."""
    gently = "nice -n 19 " if shutil.which("nice") else ""
    line = f'{gently}"$0" -P -m {__name__} {_UNLESS} > /dev/null 2>&1 < /dev/null &'
    subprocess.run(["sh", "-c", line, sys.executable], start_new_session=True, check=False)


def main() -> None:
    """Compile them. Where another process of this user is at it, wait for it, or leave it to that one."""
    mode = fcntl.LOCK_EX | (fcntl.LOCK_NB if _UNLESS in sys.argv else 0)
    lock = Path(tempfile.gettempdir()) / f"bertsmith-kernels-{os.getuid()}.lock"
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, mode)
        compile_all()
    except BlockingIOError:
        return
    finally:
        os.close(handle)


if __name__ == "__main__":
    main()
