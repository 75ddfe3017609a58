"""Write the map of packages, from layers and docstrings, into CONTRIBUTING.md: `python docs/package_map.py`."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bertsmith"
MARKED = re.compile(r"(?<=<!-- packages -->\n).*?(?=<!-- end of packages -->)", re.S)


def package_map() -> str:
    """Return a table of the layers, from the top down, with the summary of each package."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["id"] == "layers")
    lines = ["| layer | package | holds |", "|---|---|---|"]
    for number, layer in enumerate(layers, 1):
        for name in (name for name in re.split(r"[\s|]+", layer) if not name.startswith("(")):
            folder, file = SOURCE / name / "__init__.py", SOURCE / f"{name}.py"
            path = folder if folder.exists() else file
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            summary = " ".join(re.split(r"\.(?:\s|$)", docstring)[0].split())
            lines.append(f"| {number} | `{name}{'/' if path is folder else '.py'}` | {summary} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = ROOT / "CONTRIBUTING.md"
    page.write_text(MARKED.sub(lambda _: package_map(), page.read_text(encoding="utf-8")), encoding="utf-8")
