"""Static vectors: the recipe's steps, texts, folders, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.inference.model import Model
from bertsmith.predecessors.static_vectors import StaticModel, distill_static_vectors
from bertsmith.predecessors.word_vectors import WordVectors


@pytest.fixture(scope="module")
def static(base: Model) -> StaticModel:
    return distill_static_vectors(base, dimensions=8)


def plain_vectors(model: Model) -> StaticModel:
    return distill_static_vectors(model, dimensions=None, sif_coefficient=None)


def test_vectors_are_those_of_the_tokens_by_themselves(base: Model) -> None:
    """Tolerance: the order of sums in batches of different sizes."""
    plain, tokenizer = plain_vectors(base), base.folder.tokenizer()
    words = [token for token in tokenizer.tokens if token.isalpha()][:20]
    ids = [tokenizer.encode_ids([word])[0] for word in words]
    assert all(len(row) == 1 for row in ids)
    expected = base.embed(words, pooling="mean", normalize=False)
    np.testing.assert_allclose(plain.vectors[[row[0] for row in ids]], expected, atol=1e-5)
    for token_id in tokenizer.all_special_ids:
        assert not plain.vectors[token_id].any()


def test_components_are_ordered_and_uncorrelated(base: Model) -> None:
    """With equal weights, all components restore the distances; the first ones have the largest variance."""
    plain, rotated = (
        plain_vectors(base),
        distill_static_vectors(base, dimensions=10_000, sif_coefficient=None),
    )
    rows = np.flatnonzero(plain.vectors.any(1))
    covariance = np.cov(rotated.vectors[rows].T)
    variances = np.diag(covariance)
    assert (np.diff(variances) <= 1e-6).all()
    np.testing.assert_allclose(covariance, np.diag(variances), atol=1e-4 * variances[0])
    np.testing.assert_allclose(
        np.linalg.norm(rotated.vectors[rows[1:]] - rotated.vectors[rows[:-1]], axis=1),
        np.linalg.norm(plain.vectors[rows[1:]] - plain.vectors[rows[:-1]], axis=1),
        rtol=1e-3,
        atol=1e-5,
    )
    assert rotated.config["apply_pca"] == plain.vectors.shape[1]
    reduced = distill_static_vectors(base, dimensions=3, sif_coefficient=None)
    np.testing.assert_allclose(reduced.vectors, rotated.vectors[:, :3], atol=1e-6)


def test_weights_are_by_rank_or_by_the_frequencies_of_a_corpus(
    base: Model, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plain, tokenizer = plain_vectors(base), base.folder.tokenizer()
    rows = np.flatnonzero(plain.vectors.any(1))
    zipf = distill_static_vectors(base, dimensions=None, sif_coefficient=1e-3)
    probabilities = 1 / np.arange(2, len(rows) + 2)
    probabilities /= probabilities.sum()
    expected = plain.vectors[rows] * (1e-3 / (1e-3 + probabilities))[:, None]
    np.testing.assert_allclose(zipf.vectors[rows], expected, rtol=1e-5)
    import tiny_run

    shards = tiny_run.make_shards(tmp_path_factory.mktemp("static"))
    corpus = shards if isinstance(shards, Shards) else Shards.open(shards)
    counted = distill_static_vectors(base, dimensions=None, sif_coefficient=1e-3, corpus=corpus)
    counts = np.bincount(corpus.take(np.arange(corpus.tokens)), minlength=tokenizer.vocab_size)
    weights = 1e-3 / (1e-3 + counts / counts.sum())
    np.testing.assert_allclose(counted.vectors, plain.vectors * weights[:, None], rtol=1e-5)


def test_a_text_is_the_normalized_mean_of_its_tokens(static: StaticModel) -> None:
    tokenizer = static.tokenizer
    words = [token for token in tokenizer.tokens if token.isalpha()][:3]
    texts = [" ".join(words), words[0], "", f"{words[0]} ☃", "☃"]
    vectors = static.embed(texts)
    ids = tokenizer.encode_ids(texts)
    assert tokenizer.unk_token_id in ids[3]
    mean = static.vectors[ids[0]].mean(0)
    np.testing.assert_allclose(vectors[0], mean / np.linalg.norm(mean), rtol=1e-5)
    np.testing.assert_array_equal(vectors[3], vectors[1])
    assert not vectors[[2, 4]].any()
    np.testing.assert_array_equal(static.embed(texts[0]), vectors[0])
    many = static.embed(texts * 500)
    np.testing.assert_array_equal(many[-5:], vectors)


def test_a_saved_folder_has_the_layout_of_model2vec(static: StaticModel, tmp_path: Path) -> None:
    folder = static.save(tmp_path / "static")
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["hidden_dim"], config["normalize"]) == ("model2vec", 8, True)
    loaded = StaticModel.load(folder)
    np.testing.assert_array_equal(loaded.vectors, static.vectors)
    np.testing.assert_array_equal(loaded.embed("a b"), static.embed("a b"))
    with pytest.raises(InputError):
        static.save(folder)
    static.save(folder, overwrite=True)


def test_sentence_transformers_reads_the_folder(static: StaticModel, tmp_path: Path) -> None:
    """Tolerance: the library sums in another order."""
    from sentence_transformers import SentenceTransformer

    words = [token for token in static.tokenizer.tokens if token.isalpha()]
    texts = [" ".join(words[:4]), words[5], f"{words[6]} ☃ {words[7]}", ""]
    model = SentenceTransformer(str(static.save(tmp_path / "static")), device="cpu")
    np.testing.assert_allclose(model.encode(texts), static.embed(texts), atol=1e-6)


def test_words_of_static_vectors_have_neighbors(static: StaticModel) -> None:
    words = [token for token in static.tokenizer.tokens if token.isalpha()][:30]
    vectors = WordVectors(words, static.embed(words))
    assert len(vectors.neighbors(words[0], 5)) == 5


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"dimensions": 0}, "number_too_small"),
        ({"sif_coefficient": 0.0}, "invalid_sif_coefficient"),
        ({"sif_coefficient": 1.0}, "invalid_sif_coefficient"),
        ({"pooling": "median"}, "unknown_pooling"),
    ],
)
def test_settings_out_of_range_are_errors(options: dict[str, object], code: str, base: Model) -> None:
    with pytest.raises(InputError) as caught:
        distill_static_vectors(base, **options)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.argument) == (code, next(iter(options)))


@pytest.mark.parametrize(
    ("file", "content", "code"),
    [
        ("config.json", b"{}", "not_static_vectors"),
        ("config.json", b"", "invalid_json"),
        ("model.safetensors", b"", "damaged_vectors"),
        ("model.safetensors", None, "damaged_vectors"),
    ],
)
def test_a_damaged_folder_is_an_error(
    file: str, content: bytes | None, code: str, static: StaticModel, tmp_path: Path
) -> None:
    folder = static.save(tmp_path / "static")
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(InputError) as caught:
        StaticModel.load(folder)
    assert caught.value.code == code


def test_a_model_folder_holds_no_static_vectors(base: Model) -> None:
    with pytest.raises(InputError) as caught:
        StaticModel.load(base.model_folder)
    assert caught.value.code == "not_static_vectors"
