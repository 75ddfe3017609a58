"""The tutorial from n-grams to BERT: its code runs, and the notebook is the same page."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import notebook  # noqa: E402

SMALL = {
    "settings": {
        "train.max_steps": 2,
        "train.batch_size": 4,
        "train.threads": 1,
        "data.sequence_length": 32,
        "data.validation_split": 0.1,
    }
}


def test_the_notebook_is_the_page() -> None:
    assert notebook.NOTEBOOK.read_text(encoding="utf-8") == notebook.notebook()


def test_the_notebook_runs_on_a_small_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    monkeypatch.chdir(tmp_path)
    words, draw = ("the", "of", "is", "in", "city", "north", "river", "country", "house"), random.Random(0)
    documents = []
    for _ in range(60):
        sentences = [draw.choices(words, range(9, 0, -1), k=draw.randint(4, 12)) for _ in range(12)]
        documents.append("\n".join(" ".join([*sentence, "."]) for sentence in sentences))
    Path("corpus.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    namespace: dict[str, object] = {}
    for cell in code:
        small = cell.replace('{"minutes": 3}', repr(SMALL)).replace("**budget,\n)", "tokens=500,\n)")
        small = small.replace('"num_train_epochs": 100', '"num_train_epochs": 2').replace("=8_000", "=100")
        exec(compile(small, "tutorial", "exec"), namespace)
    assert '"perplexity"' in code[-1]
    assert "trigram" in capsys.readouterr().out
    assert (tmp_path / "history" / "report.html").is_file()
