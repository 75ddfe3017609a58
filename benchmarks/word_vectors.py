"""Measure word vectors against gensim with one worker, and static vectors against Model2Vec.

    python benchmarks/word_vectors.py train --gensim PYTHON [--tokens 3000000] [--epochs 4] [--seeds 2]
    python benchmarks/word_vectors.py planted --gensim PYTHON
    python benchmarks/word_vectors.py static [--model2vec SITE_PACKAGES]

PYTHON is that of an environment with gensim; SITE_PACKAGES is the folder of one with model2vec and skeletoken
(both installed with --no-deps). Each case is recorded in records/word_vectors.jsonl and measured once. Times are
seconds of processor time from sentences in memory to vectors, since other processes may run; both sides take
turns. Both vectors are evaluated by the same functions, on the files in gensim's wheel.
"""

from __future__ import annotations

import csv
import gzip
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.inference.model import load
from bertsmith.io.documents import read_documents
from bertsmith.io.sources import Texts
from bertsmith.predecessors.static_vectors import StaticModel, distill_static_vectors
from bertsmith.predecessors.word2vec import train_word_vectors
from bertsmith.predecessors.word_corpus import read_words
from bertsmith.predecessors.word_evaluation import evaluate_analogies, evaluate_similarity
from bertsmith.predecessors.word_vectors import WordVectors
from record import DATA, WORK, argument_parser, run_once

NAME = "word_vectors"
CASES = (
    ("skip_gram", "negative_sampling", 0),
    ("cbow", "negative_sampling", 0),
    ("skip_gram", "hierarchical_softmax", 0),
    ("skip_gram", "negative_sampling", 6),
)
MODEL = "bert-mini-uncased-en"


def write_corpus(tokens: int) -> Path:
    """Write the first words of enwiki as BERT splits them, a paragraph per line, and return the file."""
    file = WORK / f"words-{tokens}.txt"
    if file.exists():
        return file
    texts, characters = [], 0
    for document in read_documents([DATA / "corpora" / "enwiki.txt.zst"]):
        texts.append(document.text)
        characters += len(document.text)
        if characters > 7 * tokens:  # more than enough: a word has about five characters
            break
    words = read_words(Texts(texts))
    last = int(np.searchsorted(words.sentence_ends, tokens))
    parts = np.split(words.ids[: words.sentence_ends[last]], words.sentence_ends[:last])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "\n".join(" ".join(words.words[i] for i in part) for part in parts) + "\n", encoding="utf-8"
    )
    return file


def train_with_gensim(python: str, corpus: Path, case: tuple[str, str, int], epochs: int, seed: int) -> Any:
    """Return the vectors of gensim and what gensim_side.py prints."""
    output = WORK / "gensim.bin"
    arguments = [corpus, output, *case, epochs, seed]
    command = [python, Path(__file__).with_name("gensim_side.py"), *arguments]
    result = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return WordVectors.load(output), json.loads(result.stdout.splitlines()[-1])


def train_ours(sentences: Any, case: tuple[str, str, int], epochs: int, seed: int, **options: Any) -> Any:
    """Return the vectors and the seconds."""
    algorithm, loss, max_subword = case
    start = time.process_time()
    vectors = train_word_vectors(
        sentences,
        algorithm=algorithm,  # type: ignore[arg-type]
        loss=loss,  # type: ignore[arg-type]
        max_subword=max_subword,
        num_train_epochs=epochs,
        seed=seed,
        **options,
    )
    return vectors, time.process_time() - start


def scores(vectors: WordVectors, files: Path) -> dict[str, Any]:
    """Return the scores on word pairs and analogies."""
    analogies = evaluate_analogies(vectors, files / "questions-words.txt").to_dict()
    return {
        "wordsim353": evaluate_similarity(vectors, files / "wordsim353.tsv").to_dict(),
        "simlex999": evaluate_similarity(vectors, files / "simlex999.txt").to_dict(),
        "analogies": {name: value for name, value in analogies.items() if not isinstance(value, dict)},
    }


def measure_training(
    python: str, corpus: Path, case: tuple[str, str, int], epochs: int, seed: int
) -> dict[str, Any]:
    """Train on both sides, one after the other."""
    sentences = [line.split() for line in corpus.read_text(encoding="utf-8").splitlines()]
    words = sum(map(len, sentences)) * epochs
    train_ours(sentences[:100], case, 1, 0, min_count=1, subsampling=0)  # loads the compiled kernel
    ours, seconds = train_ours(sentences, case, epochs, seed)
    theirs, reply = train_with_gensim(python, corpus, case, epochs, seed)
    files = Path(reply["files"])
    result: dict[str, Any] = {"types": len(ours), "words": words, "gensim_version": reply["version"]}
    for side, vectors, time_taken in (("ours", ours, seconds), ("gensim", theirs, reply["seconds"])):
        # Without subwords for words that are not in the vocabulary, which gensim's file does not have.
        plain = WordVectors(vectors.words, vectors.vectors)
        result[side] = {"words_per_second": words / time_taken, "seconds": time_taken, **scores(plain, files)}
    result["ours"]["losses"] = ours.report["losses"]
    return result


def measure_planted(python: str) -> dict[str, Any]:
    """Count planted synonyms that are nearest among the planted words, on both sides."""
    rng = np.random.default_rng(0)
    topics, sentences = 20, []
    for topic in rng.integers(topics, size=20_000):
        context = [f"topic{topic}word{i}" for i in rng.permutation(6)]
        context.insert(int(rng.integers(2, 5)), f"{('left', 'right')[int(rng.integers(2))]}{topic}")
        sentences.append(context)
    corpus = WORK / "planted.txt"
    corpus.parent.mkdir(parents=True, exist_ok=True)
    corpus.write_text("\n".join(map(" ".join, sentences)) + "\n", encoding="utf-8")
    result: dict[str, Any] = {"pairs": topics}
    for case in CASES[:3]:
        sides = {
            "ours": train_ours(sentences, case, 5, 0)[0],
            "gensim": train_with_gensim(python, corpus, case, 5, 0)[0],
        }
        nearest = {
            side: [_nearest_planted(vectors, f"left{t}") for t in range(topics)]
            for side, vectors in sides.items()
        }
        correct = {
            side: sum(w == f"right{t}" for t, w in enumerate(words)) for side, words in nearest.items()
        }
        agreements = sum(a == b for a, b in zip(nearest["ours"], nearest["gensim"], strict=True))
        result[" ".join(map(str, case[:2]))] = {**correct, "agree": agreements}
    return result


def _nearest_planted(vectors: WordVectors, word: str) -> str:
    return next(other for other, _ in vectors.neighbors(word, len(vectors)) if not other.startswith("topic"))


def read_stsb() -> tuple[list[str], list[str], list[float]]:
    """Return the sentence pairs and similarities of the validation file of STS-B."""
    with gzip.open(DATA / "tasks" / "stsb" / "dev.tsv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return (
        [row["sentence1"] for row in rows],
        [row["sentence2"] for row in rows],
        [float(row["score"]) for row in rows],
    )


def measure_static(model2vec: str | None) -> dict[str, Any]:
    """Compare static vectors with those of their model: STS-B, time per text, and agreement with Model2Vec."""
    from scipy.stats import spearmanr

    model = load(MODEL, precision="fp32")
    start = time.process_time()
    static = distill_static_vectors(model)
    result: dict[str, Any] = {
        "seconds_to_distill": time.process_time() - start,
        "vectors": list(static.vectors.shape),
    }
    first, second, similarity = read_stsb()
    for name, embed in (("model", model.embed), ("static", static.embed)):
        embed(first[:64])
        start = time.process_time()
        pairs = embed(first), embed(second)
        seconds = time.process_time() - start
        unit = [
            vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12) for vectors in pairs
        ]
        correlation = spearmanr((unit[0] * unit[1]).sum(1), similarity).statistic
        result[name] = {
            "stsb_dev_spearman": float(correlation),
            "ms_per_text": 1e3 * seconds / (2 * len(first)),
        }
    if model2vec is not None:
        result["model2vec"] = compare_with_model2vec(static, model.model_folder, model2vec, first)
    return result


def compare_with_model2vec(
    static: StaticModel, folder: Path, packages: str, texts: list[str]
) -> dict[str, Any]:
    """Return the agreement of token vectors and of texts, and with a saved folder that Model2Vec loads."""
    sys.path.append(packages)
    import torch
    from model2vec import StaticModel as Reference
    from model2vec.distill import distill_from_model
    from transformers import AutoModel, AutoTokenizer

    hf_model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    start = time.process_time()
    reference = distill_from_model(hf_model, tokenizer, quantize_to="float32", device="cpu")
    seconds = time.process_time() - start
    rows = {token: row for row, token in enumerate(reference.tokens)}
    ids = [i for i, token in enumerate(static.tokenizer.tokens) if token in rows and static.vectors[i].any()]
    ours = static.vectors[ids]
    theirs = reference.embedding[[rows[static.tokenizer.tokens[i]] for i in ids]]
    token_cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    text_cosines = (static.embed(texts) * reference.encode(texts)).sum(1)
    loaded = Reference.from_pretrained(
        str(static.save(WORK / "static", overwrite=True)), force_download=False
    )
    return {
        "seconds_to_distill": seconds,
        "tokens": [len(ids), len(rows)],
        "token_cosine": {"min": float(token_cosines.min()), "median": float(np.median(token_cosines))},
        "text_cosine": {"min": float(text_cosines.min()), "median": float(np.median(text_cosines))},
        "largest_difference_of_our_folder": float(np.abs(loaded.encode(texts) - static.embed(texts)).max()),
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=["train", "planted", "static"])
    parser.add_argument("--gensim", help="the Python of an environment with gensim")
    parser.add_argument("--model2vec", help="the site-packages of an environment with model2vec")
    parser.add_argument("--tokens", type=int, default=3_000_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    logging.getLogger("bertsmith.predecessors").setLevel(logging.WARNING)
    if options.what == "static":
        print(
            json.dumps(
                run_once(NAME, f"static vectors of {MODEL}", lambda: measure_static(options.model2vec))
            )
        )
        return
    if options.gensim is None:
        parser.error("name the Python of an environment with gensim: --gensim PYTHON")
    if options.what == "planted":
        print(json.dumps(run_once(NAME, "planted", lambda: measure_planted(options.gensim))))
        return
    corpus = write_corpus(options.tokens)
    for seed in range(options.seeds):
        for case in CASES[: None if seed == 0 else 2]:
            key = (
                f"{'-'.join(map(str, case))}, {options.tokens:,} tokens, {options.epochs} epochs, seed {seed}"
            )
            arguments = (options.gensim, corpus, case, options.epochs, seed)
            print(
                key, json.dumps(run_once(NAME, key, lambda arguments=arguments: measure_training(*arguments)))
            )


if __name__ == "__main__":
    main()
