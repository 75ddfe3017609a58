"""Layouts by which an output folder is recognized, so that only files of bertsmith are replaced or removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from bertsmith.errors import InputError, option
from bertsmith.io import atomic


@dataclass(frozen=True)
class FolderLayout:
    """The layout of an output folder.

    Attributes:
        description: A description, such as "a trained tokenizer".
        required_name: A file or folder that it always contains.
        patterns: Patterns of the paths of all files in it, relative to it: "checkpoints/step-*/state.json".
        argument: Python's name of the argument that names the folder.
    """

    description: str
    required_name: str
    patterns: tuple[str, ...]
    argument: str = "output_dir"

    def check_replaceable(self, out: Path, *, overwrite: bool, in_place: bool = False) -> bool:
        """Return True if `out` contains a folder of this layout to replace; False if it is missing or empty.

        Raises:
            InputError: As `check_output_folder` does, or if `out` contains anything else, which is never removed.
        """
        if not overwrite or not os.path.isdir(out) or not any(out.iterdir()):
            atomic.check_output_folder(
                out, in_place=in_place, replaceable=not in_place, argument=self.argument
            )
            return False
        self.check_only(out, self.required_name)
        atomic.refuse_in_use(out, in_place, self.argument)
        return True

    def check_only(self, folder: Path, *required_names: str) -> None:
        """Raise InputError if a folder holds a link, or a file that is not of this layout, or lacks one of it."""
        atomic.check_files(folder)
        reasons = [f"it holds '{name}'" for name in self.other_files(folder)]
        reasons += [f"it has no {name}" for name in required_names if not (folder / name).exists()]
        if reasons:
            message = f"is not replaced, since it is not only {self.description}: {reasons[0]}"
            hint = f"choose another {option(self.argument)}, or move what is not of bertsmith"
            raise InputError("not_replaceable", message, location=folder, argument=self.argument, hint=hint)

    def other_files(self, folder: Path) -> list[str]:
        """Return the relative paths of the files in a folder that are not of this layout."""
        names = sorted(name for name, _ in atomic.walk(folder))
        return [name for name in names if not any(_matches(name, pattern) for pattern in self.patterns)]

    def copy_other_files(self, folder: Path, new_folder: Path) -> None:
        """Copy the files of a folder that are not of this layout into the folder that will replace it."""
        for name in self.other_files(folder):
            (new_folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / name, new_folder / name, follow_symlinks=False)


def in_folder(folder: str, patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns of a layout for files in a subfolder."""
    return tuple(f"{folder}/{pattern}" for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))
