"""Emotions in text, from a labelled file to a predictor: every step of the usual walk-through.

    python examples/emotion.py bert-base-uncased train.txt validation.txt
    python examples/emotion.py roberta-base train.txt validation.txt --output-dir roberta

Each line of the files is `text;label`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import bertsmith as bs

COLUMNS = {"header": False, "delimiter": ";", "text_column": "1", "label_column": "2"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a run, a model folder or a published name, of any family")
    parser.add_argument("train", type=Path)
    parser.add_argument("validation", type=Path)
    parser.add_argument("--output-dir", type=Path, default=Path("emotion"))
    parser.add_argument("--sample", type=int, help="use so many training texts only")
    parser.add_argument("--rate-steps", type=int, default=100, help="updates of the range test")
    options = parser.parse_args()
    options.output_dir.mkdir(parents=True, exist_ok=True)

    # What there is to compute on.
    here = bs.info()
    print(f"{here['processor']}, {here['cores']} cores, {here['gpus'] or 'no GPU'}: {here['precision']}")

    # At which rates the loss falls, and where it diverges (Smith 2017); the plot says more than the number.
    bert = bs.load(options.model)
    data = {"train": options.train, "sample": options.sample, **COLUMNS}
    rates = bs.find_rate(
        "classify",
        bert,
        steps=options.rate_steps,
        output=options.output_dir / "rates.png",
        overwrite=True,
        **data,
    )
    print(rates.message)

    # Three epochs of one cycle: the rate rises to 2e-5 and falls to almost nothing.
    run = options.output_dir / "run"
    emotions = bs.finetune(
        "classify",
        bert,
        run,
        validation=options.validation,
        num_train_epochs=3,
        lr_scheduler_type="one_cycle",
        warmup_steps=0.3,
        learning_rate=2e-5,
        overwrite=True,
        **data,
    )

    # How well each emotion is told, and what it is taken for.
    scores = emotions.evaluate(options.validation)
    print(f"accuracy {scores.accuracy:.4f}, macro F1 {scores.macro_f1:.4f}")
    for label, row in zip(emotions.labels or [], scores.confusion, strict=True):
        figures = scores.classes[label]
        print(f"{label:10} F1 {figures['f1']:.3f} of {figures['support']:4}: {row}")

    # A predictor: use it, save it, load it again.
    saved = emotions.save(options.output_dir / "predictor", overwrite=True)
    predictor = bs.load(saved)
    print(f"classes: {', '.join(predictor.labels or [])}")
    for answer in predictor.predict(["i feel wonderful today", "i am so tired of being alone"]):
        print(f"{answer.label} ({answer.score:.2f})")


if __name__ == "__main__":
    main()
