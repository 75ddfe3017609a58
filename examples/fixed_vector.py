"""One fixed vector against attention: texts that are written right, by the length of their source.

    python examples/fixed_vector.py                 # six decoders on the words of digits, in reverse order
    python examples/fixed_vector.py --epochs 4 --decoders bilinear concat

The source is a row of digits, and the target has their words in reverse order: 3 1 4 → four one three. Without
attention the decoder has one vector of the source, however long it is (Cho et al. 2014; Bahdanau et al. 2015). All
models are trained from random weights, on the same examples; the table has the ratio of texts without an error.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import bertsmith as bs

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
DECODERS = ["none", "dot", "bilinear", "concat", "additive", "transformer"]
BANDS = [(1, 4), (5, 8), (9, 12), (13, 16), (17, 20)]
"""The shortest and the longest source of each column of the table, in digits."""


def examples(count: int, seed: int) -> list[dict[str, str]]:
    """Return rows of digits with their words in reverse order, equally many of each length."""
    draw = random.Random(seed)
    rows = []
    for i in range(count):
        digits = draw.choices(range(10), k=1 + i % BANDS[-1][1])
        target = " ".join(WORDS[digit] for digit in reversed(digits))
        rows.append({"source": " ".join(map(str, digits)), "target": target})
    return rows


def create_encoder(name: str, tokenizer: bs.Tokenizer, hidden_size: int, folder: Path) -> bs.Model:
    """Return one layer with random weights."""
    sizes: dict[str, Any] = {
        "hidden_size": hidden_size,
        "num_hidden_layers": 1,
        "intermediate_size": hidden_size * (1 if name == "lstm" else 4),
        "max_position_embeddings": 32,
    }
    if name == "lstm":
        # Token vectors are the output weights, too: near 0, learning starts slowly.
        sizes["initializer_range"] = 0.2
    return bs.create_model(f"{name}-mini", tokenizer, folder / f"{name}-encoder", **sizes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--decoders", nargs="+", default=DECODERS)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--train", type=int, default=3000, help="number of training examples")
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--output-dir", type=Path, default=Path("fixed-vector"))
    options = parser.parse_args()
    pieces = [*SPECIAL_TOKENS, *map(str, range(10)), *WORDS]
    tokenizer = bs.Tokenizer.from_vocabulary(pieces, lowercase=False, max_length=32)
    encoders = {
        name: create_encoder(name, tokenizer, options.hidden_size, options.output_dir)
        for name in {"transformer" if name == "transformer" else "lstm" for name in options.decoders}
    }
    train, validation, test = (examples(n, seed) for seed, n in enumerate((options.train, 400, 2000)))
    by_band = [[row for row in test if a <= len(row["source"].split()) <= b] for a, b in BANDS]
    print("| decoder | " + " | ".join(f"{a}–{b} digits" for a, b in BANDS) + " | parameters | minutes |")
    print("|---|" + "---|" * (len(BANDS) + 2))
    for name in options.decoders:
        start = time.perf_counter()
        encoder = "transformer" if name == "transformer" else "lstm"
        decoder: dict[str, Any] = {"decoder_type": encoder}
        if encoder == "lstm":
            decoder["attention_score"] = name
        model = bs.finetune(
            "translate",
            encoders[encoder],
            options.output_dir / name,
            train=train,
            validation=validation,
            num_train_epochs=options.epochs,
            learning_rate=3e-3,
            hidden_dropout_prob=0.0,
            label_smoothing=0.0,
            **decoder,
        )
        minutes = (time.perf_counter() - start) / 60
        scores = [f"{model.evaluate(rows).exact_match:.1%}" for rows in by_band]
        parameters = f"{model.info()['parameters']:,}"
        print(f"| {name} | " + " | ".join(scores) + f" | {parameters} | {minutes:.1f} |", flush=True)


if __name__ == "__main__":
    main()
