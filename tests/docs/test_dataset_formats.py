"""bertsmith reads each example of the page of dataset formats."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bertsmith.inference.minimal_pairs import read_pairs
from bertsmith.io.documents import Reading, read_documents
from bertsmith.tasks.registry import TASKS, get_task

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "dataset-formats.md"
EXAMPLE = re.compile(r"^`([\w.]+)`([^\n]*):\n\n```text\n(.*?)^```", re.M | re.S)


def examples() -> list[tuple[str, str, str, str]]:
    """Return the section, the file name, the text before the example, and the example."""
    sections = re.split(r"^## (.*)\n", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
    pairs = zip(sections[::2], sections[1::2], strict=True)
    return [(title, *match.groups()) for title, section in pairs for match in EXAMPLE.finditer(section)]


def settings_of(remark: str) -> dict[str, Any]:
    """Return the settings of the options that a remark names."""
    words = [word for code in re.findall(r"`(--[^`]+)`", remark) for word in code.split()]
    settings: dict[str, Any] = {}
    for word, value in pairwise([*words, "--"]):
        if word.startswith("--no-"):
            settings[word.removeprefix("--no-")] = False
        elif word.startswith("--"):
            settings[word.removeprefix("--").replace("-", "_")] = True if value.startswith("--") else value
    return settings


@pytest.mark.parametrize(
    ("section", "name", "remark", "text"), [pytest.param(*e, id=f"{e[0]}/{e[1]}") for e in examples()]
)
def test_example_is_read(section: str, name: str, remark: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    if section == "Text for pre-training":
        assert len(list(read_documents([file], Reading()))) >= 2
    elif section == "Minimal pairs":
        assert len(read_pairs(file)) >= 2
    else:
        task = get_task(section)
        settings = task.settings_type(**settings_of(remark))
        data = task.part("data")(settings, {})
        assert data.read(file)


def test_every_task_has_examples() -> None:
    sections = {section for section, *_ in examples()}
    assert set(TASKS) <= sections
    assert {"Text for pre-training", "Minimal pairs"} <= sections
