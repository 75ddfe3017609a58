"""`start.token_vectors`: a model that begins with given word vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import bertsmith as bs
import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.pretraining.model import read_token_vectors

STILL = ["train.max_steps=1", "train.learning_rate=1e-30", "train.weight_decay=0"]
TABLE = "bert.embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"))


def written(folder: Path, words: list[str], width: int = 32, seed: int = 0) -> Path:
    """word2vec's text, and the vectors of [CLS] and of a word that no token is."""
    random, file = np.random.default_rng(seed), folder / "vectors.txt"
    rows = [f"{word} {' '.join(map(str, random.normal(3, 2, width).round(4)))}" for word in words]
    file.write_text("\n".join([f"{len(rows)} {width}", *rows]) + "\n")
    return file


def table_of(run: bs.Model) -> np.ndarray:
    return load_file(run.model_folder / "model.safetensors")[TABLE].numpy()


def test_known_tokens_begin_with_their_vectors_and_the_others_as_before(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Turned by nothing and scaled by one number; [CLS] and the other special tokens are no words."""
    words = [*tiny_run.WORDS[:20], "elsewhere", "[CLS]"]
    file = written(tmp_path, words)
    drawn = table_of(tiny_run.run(shards, tmp_path / "drawn", *STILL))
    given = table_of(tiny_run.run(shards, tmp_path / "given", *STILL, f"start.token_vectors={file}"))
    tokens = shards.tokenizer.tokens
    known = [tokens.index(word) for word in words[:20]]
    others = np.setdiff1d(np.arange(len(tokens)), known)
    np.testing.assert_allclose(
        given[others], drawn[others], rtol=0, atol=1e-20
    )  # one update at a rate of 1e-30
    vectors = np.array(
        [line.split(" ")[1:] for line in file.read_text().splitlines()[1:21]], dtype=np.float32
    )
    np.testing.assert_allclose(given[known], vectors * (0.02 / vectors.std()), rtol=1e-5)
    (said,) = (line for line in caplog.messages if line.startswith(f"{file}: "))
    assert f"20 of {len(tokens) - 5} tokens start from these vectors" in said


def test_training_from_them_works_and_goes_on_without_the_file(shards: Shards, tmp_path: Path) -> None:
    """The spec's S41; and a run that was stopped needs no vectors any more."""
    file = written(tmp_path, tiny_run.WORDS)
    settings = [f"start.token_vectors={file}", "train.max_steps=60", "train.learning_rate=5e-3"]
    run = tiny_run.run(shards, tmp_path / "run", *settings, "train.save_steps=30")
    lines = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    losses = [line["mlm"] for line in lines if line["kind"] == "train"]
    assert np.mean(losses[-10:]) < np.mean(losses[:5]) - 0.1
    file.unlink()
    longer = bs.pretrain(shards, run.path, settings=["train.max_steps=62"], resume=True)
    assert longer.report["steps"] == 62


def test_over_the_vectors_of_neighbours_the_files_win(shards: Shards, tmp_path: Path) -> None:
    file = written(tmp_path, tiny_run.WORDS[:5])
    both = table_of(
        tiny_run.run(shards, tmp_path / "a", *STILL, "start.tokens=neighbours", f"start.token_vectors={file}")
    )
    near = table_of(tiny_run.run(shards, tmp_path / "b", *STILL, "start.tokens=neighbours"))
    differ = (np.abs(both - near) > 1e-20).any(1)
    assert [shards.tokenizer.tokens[i] for i in np.flatnonzero(differ)] == tiny_run.WORDS[:5]


@pytest.mark.parametrize("kind", ["byte_level_bpe", "unigram"])
def test_a_token_that_begins_a_word_has_the_words_vector(kind: str, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(tiny_run.corpus())
    made = bs.train_tokenizer([tmp_path / "corpus.txt"], tmp_path / kind, vocab_size=330, kind=kind)
    begins = "Ġ" if kind == "byte_level_bpe" else "▁"
    token = max((token for token in made.tokens if token.startswith(begins) and token[1:].isalpha()), key=len)
    found = read_token_vectors(str(written(tmp_path, [token[1:]], 4)), made, 4)
    own = [i for i, known in enumerate(made.tokens) if known in (token, token[1:])]
    assert np.flatnonzero(found.any(1)).tolist() == own
    exact = read_token_vectors(str(written(tmp_path, [token[1:], token], 4)), made, 4)
    assert not np.array_equal(found, exact)  # the token's own name is the nearer one


@pytest.mark.parametrize(
    ("words", "width", "codes"),
    [
        (["kaba"], 30, {"vector_length_differs"}),
        (["Paris"], 32, {"no_usable_vectors"}),
        ([], 32, {"no_vectors", "no_usable_vectors"}),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run_begins(
    shards: Shards, words: list[str], width: int, codes: set[str], tmp_path: Path
) -> None:
    file = written(tmp_path, words, width)
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, tmp_path / "run", *STILL, f"start.token_vectors={file}")
    assert caught.value.code in codes
    assert not (tmp_path / "run").exists()
