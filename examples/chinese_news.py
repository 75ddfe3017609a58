"""Chinese news titles in ten classes, from one file: split, train, score, predict.

    python examples/chinese_news.py bert-base-chinese train.txt --names class.txt

train.txt has a title and the number of its class in each line, separated by a tab; class.txt the names of the
classes in their order.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import bertsmith as bs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a run, a model folder or a published name")
    parser.add_argument("file", type=Path)
    parser.add_argument("--names", type=Path, required=True)
    parser.add_argument("--output-dir", type=Path, default=Path("news"))
    parser.add_argument("--sample", type=int, help="use so many titles only")
    parser.add_argument("--epochs", type=float, default=3)
    options = parser.parse_args()

    news = bs.finetune(
        "classify",
        options.model,
        options.output_dir,
        train=options.file,
        validation_split=0.2,  # of each class; a title that occurs twice stays on one side
        label_names=options.names,
        sample=options.sample,
        settings={"files.seed": 42, "train.num_train_epochs": options.epochs},
        header=False,
        text_column="1",
        label_column="2",
    )
    print(f"accuracy on the titles that were held out: {news.report['validation']['accuracy']:.4f}")
    for name, figures in news.report["validation"]["classes"].items():
        print(f"{name:16} F1 {figures['f1']:.4f} of {figures['support']} titles")
    for title in ("国足今晚迎战日本队", "央行宣布下调存款准备金率"):
        (answer,) = news.predict([title])
        print(f"{title}: {answer.label} ({answer.score:.2f})")


if __name__ == "__main__":
    main()
