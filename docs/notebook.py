"""Write the tutorial "From n-grams to BERT" as a notebook: `python docs/notebook.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorials" / "from-n-grams-to-bert.md"
NOTEBOOK = ROOT / "examples" / "from_n_grams_to_bert.ipynb"
_FENCE = re.compile(r"```(python|\{math\})\n(.*?)```\n", re.DOTALL)


def notebook() -> str:
    """Return the notebook as JSON: Python fences are its code, and the rest is its text."""
    parts = _FENCE.split(PAGE.read_text(encoding="utf-8"))
    texts, languages, bodies = parts[::3], parts[1::3], parts[2::3]
    cells, markdown = [], texts[0]
    for language, body, text in zip(languages, bodies, texts[1:], strict=True):
        if language == "python":
            cells += [_cell("markdown", markdown), _cell("code", body)]
            markdown = text
        else:
            markdown += f"$$\n{body}$$\n{text}"
    cells.append(_cell("markdown", markdown))
    for index, cell in enumerate(cells):
        cell["id"] = f"cell-{index}"
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _cell(kind: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "cell_type": kind,
        "metadata": {},
        "source": text.strip("\n").splitlines(keepends=True),
    }
    return cell if kind == "markdown" else cell | {"execution_count": None, "outputs": []}


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
