"""Folders of code that Python runs without a question, such as caches of compiled functions."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)


@cache
def is_private_folder(folder: Path) -> bool:
    """Return True if the user can write to a folder, which is created if necessary, and nobody else can.

    Others may have written what belongs to others, is a link, or is in a folder that they can write to: this is
    logged, once. Nobody else can write to what is in a folder of mode 0700.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        files = [path for path in folder.rglob("*") if not path.name.count(".tmp.")]  # Numba renames those
        statuses = [path.lstat() for path in (folder, *files)]
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH if statuses[0].st_mode & (stat.S_IRWXG | stat.S_IRWXO) else 0
    is_private = not any(
        stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & others
        for status in statuses
    )
    if not is_private:
        logger.warning("%s: others can write here, so nothing in this folder is used", folder)
    return is_private
