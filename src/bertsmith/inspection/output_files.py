"""Pages and plots that an inspection writes: checked before the work, so that it is not lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bertsmith.errors import InputError, MachineError
from bertsmith.io.compression import check_name
from bertsmith.suggestions import not_found_error


def check_output_file(path: str | Path, argument: str, suffixes: Sequence[str] = ()) -> None:
    """Raise InputError for a file that cannot be written.

    Args:
        path: The file.
        argument: The argument that names it.
        suffixes: The suffixes that it may have; empty: any.
    """
    path = Path(path)
    check_name(path)
    if path.is_dir():
        raise InputError(
            "is_a_folder", "this is a folder", location=path, argument=argument, hint="name a file"
        )
    if not path.parent.is_dir():
        raise not_found_error(path.parent, "folder", "create it first")
    if suffixes and path.suffix.lower() not in suffixes:
        raise InputError(
            "suffix_unsupported",
            f"this file name does not end in {' or '.join(suffixes)}",
            location=path,
            argument=argument,
            hint="rename it",
        )


@contextmanager
def report_write_errors(path: str | Path) -> Iterator[None]:
    """Raise MachineError for an OSError in the block."""
    try:
        yield
    except OSError as error:
        raise MachineError(
            "page_not_written", f"the file could not be written ({error.strerror})", location=path
        ) from None
