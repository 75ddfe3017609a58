"""Chinese news titles, from one file: split, train, test once, predict, deploy.

    python examples/chinese_news.py          # pre-trains a tiny BERT on the titles of the bundled sample first
    python examples/chinese_news.py --model bert-base-chinese --file titles.tsv --epochs 10
    python examples/chinese_news.py --model bert-base-chinese --file train.txt --names class.txt

The file has the columns class and content. With --names, it has a title and the number of its class in each line,
and the names are in the order of the numbers. With --serve, the deployed copy also answers over HTTP, which needs
the extra `serve`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import bertsmith as bs
from bertsmith.io.tables import read_table

TITLES = ("国足今晚迎战日本队", "央行宣布下调存款准备金率")
SAMPLE = Path(__file__).parent / "data" / "chinese_titles.tsv"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a run, a model folder or a published name; default: a new, tiny one")
    parser.add_argument("--file", type=Path, default=SAMPLE)
    parser.add_argument("--names", type=Path)
    parser.add_argument("--output-dir", type=Path, default=Path("news"))
    parser.add_argument("--sample", type=int, help="use so many titles only")
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--pretrain-steps", type=int, default=300)
    parser.add_argument("--serve", action="store_true", help="also answer over HTTP, and end the server")
    options = parser.parse_args()

    model = options.model or pretrain(options.file, options.output_dir, options.pretrain_steps)
    columns = {"text_column": "content", "label_column": "class"}
    if options.names:
        columns = {"header": False, "text_column": "1", "label_column": "2"}
    news = bs.finetune(
        "classify",
        model,
        options.output_dir / "run",
        train=options.file,
        test_split=0.2,  # of each class; a title that occurs twice stays in one part
        validation_split=0.1,  # of the rest
        label_names=options.names,
        sample=options.sample,
        settings={"files.seed": 42, "train.num_train_epochs": options.epochs},
        overwrite=True,
        **columns,
    )
    validation, test = news.report["validation"], news.report["test"]
    print(f"accuracy on {validation['examples']} titles that chose the epoch: {validation['accuracy']:.4f}")
    print(f"accuracy on {test['examples']} titles that chose nothing: {test['accuracy']:.4f}")
    for name, figures in test["classes"].items():
        print(f"{name:16} F1 {figures['f1']:.4f} of {figures['support']} titles")
    for title in TITLES:
        answer = news.predict(title)
        print(f"{title}: {answer.label} ({answer.score:.2f})")

    # A folder that loads alone, and answers the titles that are stored in it as it did here.
    examples = [{"content" if not options.names else "1": title} for title in TITLES]
    deployed = news.save(options.output_dir / "deployed", examples=examples, overwrite=True)
    result = bs.load(deployed).self_test() or {}
    print(f"{deployed}: {result['examples']} stored titles, largest difference {result['difference']:.2g}")
    if options.serve:
        print(f"over HTTP: {answer_over_http(deployed, TITLES[0])}")


def pretrain(file: Path, folder: Path, steps: int) -> Path:
    """Pre-train a tiny BERT on the titles of a file, and return its folder; see the README for real ones."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "titles.txt"
    corpus.write_text("\n\n".join(read_table(file).column("content")) + "\n", encoding="utf-8")
    tokenizer = bs.train_tokenizer(corpus, folder / "tokenizer", vocab_size=800, overwrite=True)
    shards = bs.prepare(corpus, tokenizer, folder / "shards", overwrite=True)
    options = {"sentence_task": "none", "max_steps": steps}
    bs.pretrain(shards, folder / "bert", preset="bert-tiny-chinese", overwrite=True, **options)
    return folder / "bert"


def answer_over_http(folder: Path, title: str) -> str:
    """Start a server on a free port, return the label of a title, and end the server."""
    command = [sys.executable, "-P", "-m", "bertsmith", "serve", f"news={folder}", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            urls = (re.search(r"http://[\d.]+:\d+", line) for line in server.stderr)
            url = next(match[0] for match in urls if match)
            body = json.dumps({"inputs": {"text": title}}).encode()
            request = Request(f"{url}/v1/models/news/predict", body, {"Content-Type": "application/json"})
            with urlopen(request) as answer:
                (prediction,) = json.load(answer)["predictions"]
            return str(prediction["label"])
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
