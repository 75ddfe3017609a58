"""Emotions in text, from a labeled file to a predictor: every step of the usual walk-through.

    python examples/emotion.py                        # the included model on the bundled sample, in two minutes
    python examples/emotion.py roberta-base --train train.txt --validation validation.txt --test test.txt \\
        --epochs 3 --learning-rate 2e-5 --output-dir roberta

The files are tables with the columns text and label, or .txt files with `text;label` in each line. Without
--validation and --test, a fifth of the rows is held out to test, and a tenth of the rest to choose the epoch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import bertsmith as bs

SAMPLE = Path(__file__).parent / "data" / "emotions.csv"
LINES = {"header": False, "delimiter": ";", "text_column": "1", "label_column": "2"}  # of a .txt
TEXTS = ["i feel wonderful today", "i am so tired of being alone"]
LOAD = "import sys, bertsmith as bs; print(bs.load(sys.argv[1]).predict(sys.argv[2:])[0].label)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="bert-mini-uncased-en", help="of any family")
    parser.add_argument("--train", type=Path, default=SAMPLE)
    parser.add_argument("--validation", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--output-dir", type=Path, default=Path("emotion"))
    parser.add_argument("--sample", type=int, help="use so many training texts only")
    parser.add_argument("--rate-steps", type=int, default=50, help="updates of the range test")
    parser.add_argument("--learning-rate", type=float, help="default: the range test's suggestion")
    parser.add_argument("--epochs", type=float, default=8)
    parser.add_argument("--batch-size", type=int, default=6)
    options = parser.parse_args()
    options.output_dir.mkdir(parents=True, exist_ok=True)

    # The hardware.
    machine = bs.info()
    gpus = machine["gpus"] or "no GPU"
    print(f"{machine['processor']}, {machine['cores']} cores, {gpus}: {machine['precision']}")

    # The rates at which the loss falls, and where it diverges (Smith 2017); the plot says more than the numbers.
    bert = bs.load(options.model)
    columns = LINES if options.train.suffix == ".txt" else {}
    data = {"train": options.train, "sample": options.sample, "batch_size": options.batch_size, **columns}
    plot = options.output_dir / "rates.png"
    rates = bs.find_rate(
        "classify", bert, seeds=1, steps=options.rate_steps, output=plot, overwrite=True, **data
    )
    print(f"{rates.message} ({rates.seconds:.0f} s)")
    rate = options.learning_rate or rates.suggestion
    if rate is not None:  # otherwise the default of the model's size
        data["learning_rate"] = rate

    # One cycle: the rate rises to its peak in the middle and falls; beta 1 moves against it.
    splits = {
        "validation": options.validation,
        "validation_split": None if options.validation else 0.1,
        "test_split": None if options.test else 0.2,
    }
    emotions = bs.finetune(
        "classify",
        bert,
        options.output_dir / "run",
        num_train_epochs=options.epochs,
        lr_scheduler_type="one_cycle_linear",
        overwrite=True,
        **splits,
        **data,
    )
    lengths = emotions.report["lengths"]["train"]
    print(f"tokens of a training text: {lengths}")
    chosen = emotions.report["validation"]
    print(f"validation, which chose the epoch: accuracy {chosen['accuracy']:.4f} of {chosen['examples']}")

    # Once on the test examples: each class, and what it is taken for.
    scores = emotions.evaluate(options.test).to_dict() if options.test else emotions.report["test"]
    print(
        f"test: accuracy {scores['accuracy']:.4f}, macro F1 {scores['macro_f1']:.4f} of {scores['examples']}"
    )
    for label, row in zip(emotions.labels or [], scores["confusion"], strict=True):
        figures = scores["classes"][label]
        print(f"{label:10} F1 {figures['f1']:.3f} of {figures['support']:4}: {row}")

    # A predictor: use it, save it, and load it in another process.
    saved = emotions.save(options.output_dir / "predictor", overwrite=True)
    print(f"classes: {', '.join(emotions.labels or [])}")
    for answer in emotions.predict(TEXTS):
        print(f"{answer.label} ({answer.score:.2f})")
    again = subprocess.run(
        [sys.executable, "-c", LOAD, saved, *TEXTS], capture_output=True, text=True, check=True
    )
    print(f"the same model in another process: {again.stdout.strip()}")


if __name__ == "__main__":
    main()
