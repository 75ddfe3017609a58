"""`tokenizer inspect`: some tokenizers on the same text, measured, and drawn on request."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from bertsmith import console
from bertsmith.artifacts.locate import locate_tokenizer
from bertsmith.corpus.checks.tokenizer_comparison import measure
from bertsmith.errors import InputError, MachineError
from bertsmith.io import atomic
from bertsmith.io.files import Reading
from bertsmith.io.memory import Sources, as_files
from bertsmith.keywords import with_keywords
from bertsmith.notebook import Report
from bertsmith.tokenizer.tokenizer import Tokenizer

PICTURES = (".png", ".svg")


@console.with_bar("reading")
def inspect_tokenizers(
    tokenizers: str | Path | Sequence[str | Path],
    files: Sources,
    *,
    cased: Collection[str | Path] = (),
    reading: Reading = Reading(),  # noqa: B008  # frozen
    limit: int | None = None,
    listed: int = 20,
    html: str | Path | None = None,
    plot: str | Path | None = None,
    progress: Callable[[int], None] | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Measure tokenizers on the text of some files: see `survey.inspect.measure`, whose report this is, by the
    shortest names that tell them apart.

    tokenizers: folders, files, runs or published names; cased: those that are bare word lists and keep case,
    which such a list does not say. files: one path or several, or data in memory, as in `prepare`. how: fields
    of `reading` by name, such as text_column="title". html: also write the report as a page; plot: its picture,
    .png or .svg. Raises `InputError` for what is no tokenizer, one named twice, and pages that cannot be
    written there.
    """
    for name, suffixes in ((html, None), (plot, PICTURES)):
        if name is not None:
            _check_target(Path(name), suffixes)
    names = [str(name) for name in ([tokenizers] if isinstance(tokenizers, str | Path) else tokenizers)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{twice[0]}: this tokenizer is named twice", "name each once")
    if foreign := [str(name) for name in cased if str(name) not in names]:
        raise InputError(
            f"{foreign[0]}: is said to keep case, and is not one of the tokenizers", "name it among them, too"
        )
    keep = {str(name) for name in cased}
    opened = {
        label: Tokenizer.load(locate_tokenizer(name), lowercase=False if name in keep else None)
        for label, name in zip(_labels(names), names, strict=True)
    }
    reading = with_keywords(reading, how, inspect_tokenizers)
    report = measure(as_files(files), opened, reading=reading, limit=limit, listed=listed, progress=progress)
    _draw(report, html, plot)
    return Report(report, shown=("text", "tokenizers", "notes"))


def _labels(names: Sequence[str]) -> list[str]:
    """As many last parts of each path as tell them apart."""
    parts = [Path(os.path.abspath(name)).parts if os.path.exists(name) else (name,) for name in names]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        labels = ["/".join(part[-depth:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return list(names)


def _check_target(path: Path, suffixes: Sequence[str] | None) -> None:
    if path.is_dir():
        raise InputError(f"{path}: this is a folder", "name a file")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} is not there", "make it first")
    if suffixes is not None and path.suffix.lower() not in suffixes:
        raise InputError(f"{path}: a plot is a .png or a .svg", "give it such a name")


def _draw(report: dict[str, Any], html: str | Path | None, plot: str | Path | None) -> None:
    if html is None and plot is None:
        return
    from bertsmith.reports.tokenizers import tokenizers_page, tokenizers_plot

    try:
        if html is not None:
            atomic.write_text(Path(html), tokenizers_page(report))
        if plot is not None:
            with atomic.new_file(Path(plot)) as file:
                tokenizers_plot(report).savefig(file, format=file.suffix[1:].lower(), dpi=150)
    except OSError as error:
        raise MachineError(
            f"{error.filename or html or plot}: could not be written ({error.strerror})"
        ) from None
