"""Compilation of the kernels in a separate process, one at a time, while short commands compute without them.

Run as: python -m bertsmith.kernels.background_compile
"""

if __name__ == "__main__":
    import bertsmith.safe_path  # noqa: F401

import fcntl
import os
import shutil
import subprocess
import sys
import time
from typing import NoReturn

from bertsmith.errors import InputError
from bertsmith.kernels.backend_selection import compile_all, compile_error, missing_numba_error
from bertsmith.kernels.kernel_cache import NO_FOLDER, cache_folder

_UNLESS_RUNNING = "unless-another-does"
_MAX_WAIT = 120  # seconds for another process; compiling at the same time as it does no harm


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
    if (folder := cache_folder()) is None:
        _fail(compile_error(OSError(NO_FOLDER)))
    waits = _UNLESS_RUNNING not in sys.argv
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _take_lock(handle, _MAX_WAIT if waits else 0) or waits:
            compile_all()
    except Exception as exception:  # Numba's types of errors are unknown before it is imported
        _fail(compile_error(exception))
    finally:
        os.close(handle)


def _take_lock(folder: int, max_wait: float) -> bool:
    """Lock the open folder of the cache; return False if another process holds it after some seconds."""
    end = time.monotonic() + max_wait
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        except OSError:  # a file system without locks
            return True
        else:
            return True


def _fail(error: InputError) -> NoReturn:
    print(f"error: {error.message}\n       {error.hint}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
