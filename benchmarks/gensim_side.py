"""Train word vectors with gensim, for word_vectors.py: run by the Python of an environment that has gensim.

    PYTHON benchmarks/gensim_side.py CORPUS OUTPUT.bin ALGORITHM LOSS MAX_SUBWORD EPOCHS SEED

CORPUS has a sentence per line. Prints JSON: the seconds of processor time of counting words and training, and the
path of the published evaluation files that gensim has.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import gensim
from gensim.models import FastText, Word2Vec


def main() -> None:
    corpus, output, algorithm, loss, max_subword, epochs, seed = sys.argv[1:]
    sentences = [line.split() for line in Path(corpus).read_text(encoding="utf-8").splitlines()]
    negatives = 5 if loss == "negative_sampling" else 0
    options = {"vector_size": 100, "window": 5, "min_count": 5, "sample": 1e-3, "workers": 1}
    options |= {"sg": int(algorithm == "skip_gram"), "hs": int(not negatives), "negative": negatives}
    options |= {"epochs": int(epochs), "seed": int(seed)}
    start = time.process_time()
    if int(max_subword):
        model = FastText(sentences, min_n=3, max_n=int(max_subword), **options)
    else:
        model = Word2Vec(sentences, **options)
    seconds = time.process_time() - start
    model.wv.save_word2vec_format(output, binary=True)
    files = Path(gensim.__file__).parent / "test" / "test_data"
    print(json.dumps({"seconds": seconds, "files": str(files), "version": gensim.__version__}))


if __name__ == "__main__":
    main()
