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

    Others may have written what belongs to others, is a link, or is in a folder that they can write to; and who
    can write to a folder above may exchange it, as in OpenSSH's check of authorized_keys. This is logged, once.
    Nobody else can write to what is in a folder of mode 0700.

    Args:
        folder: The folder; no folder above it is a link.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        files = [path for path in folder.rglob("*") if not path.name.count(".tmp.")]  # Numba renames those
        statuses = [path.lstat() for path in (folder, *files)]
        parents = [path.lstat() for path in folder.parents]
    except OSError:
        return False
    is_closed = not statuses[0].st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    is_private = all(
        not stat.S_ISLNK(status.st_mode)
        and status.st_uid == os.geteuid()
        and (is_closed or not _others_can_write(status))
        for status in statuses
    ) and all(
        status.st_uid in (0, os.geteuid())
        and (status.st_mode & stat.S_ISVTX or not _others_can_write(status))
        for status in parents
    )
    if not is_private:
        logger.warning("%s: others can write here, or exchange this folder; nothing in it is used", folder)
    return is_private


def _others_can_write(status: os.stat_result) -> bool:
    """Return True if others can write; a group with the number of its user has no other members."""
    is_shared_group = status.st_gid not in (0, status.st_uid)
    return bool(status.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if is_shared_group else 0)))
