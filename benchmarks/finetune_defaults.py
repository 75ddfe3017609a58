"""Compare the defaults of fine-tuning with a small grid and with cheap methods, on few and on many rows.

    python benchmarks/finetune_defaults.py [--model FOLDER] [--sets sst2 …] [--sizes 8 32 …] [--seeds 0]
        [--threads 2] [--no-grid]

The rules of `finetuning/defaults.py` were chosen on the sets of CHOSEN_ON; the section reports the others. Dev
rows whose labels are not among the training rows are left out. A cell is the best evaluation on dev. Each score
is recorded: an interrupted script resumes.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import re
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import bertsmith as bs
import record
from bertsmith import hardware

NAME = "finetune_defaults"
CHOSEN_ON = ("stsb_genre", "ewt_genre", "sick", "rte", "ud_ewt")
REPORTED = {
    "classification": ("sst2", "emotion", "cola", "imdb", "goemotions", "semeval", "squad_title"),
    "pairs": ("mrpc", "qqp"),
    "tags": ("conll2003", "conll2000"),
}
SIZES = (8, 32, 100, 600, 5_000)
MAX_DEV_ROWS = 1_000
MAX_DEV_SENTENCES = 700
GRID = ((3e-4, 10), (3e-4, 20), (6e-4, 20))  # learning rate and epochs
TASKS = record.DATA / "tasks"
FOLDER = record.WORK / "finetune_defaults"
Row = tuple[str, ...]


def main() -> None:
    parser = record.argument_parser(__doc__)
    parser.add_argument("--model", default="bert-mini-uncased-en")
    parser.add_argument("--sets", nargs="+", default=[name for names in REPORTED.values() for name in names])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0,))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-grid", action="store_true")
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    for size in options.sizes:
        for name in options.sets:
            for seed in options.seeds:
                measure_cell(options, name, size, seed)
                report(options)


def measure_cell(options: Namespace, name: str, size: int, seed: int) -> None:
    """Measure the defaults, with their baselines, and the grid, on one sample of a set."""
    train, dev = write_files(name, size, seed)
    if train is None:
        return
    key = f"{Path(options.model).name} {name} {size} {seed}"
    finetune = partial(finetune_scores, options, name, train, dev)
    record.run_once(NAME, f"{key} default", finetune)
    for rate, epochs in () if options.no_grid else GRID:
        eval_steps = max(1, -(-size // 32) * epochs // 10)
        settings = [
            f"train.learning_rate={rate}",
            f"train.num_train_epochs={epochs}",
            f"train.eval_steps={eval_steps}",
        ]
        record.run_once(NAME, f"{key} {rate:g} {epochs}", partial(finetune, settings))


def finetune_scores(
    options: Namespace, name: str, train: Path, dev: Path, settings: Sequence[str] = ()
) -> dict[str, float]:
    """Fine-tune a model, and return its score on dev and those of the baselines."""
    out = FOLDER / f"run-{os.getpid()}"
    own = ["task.second_column=second"] if name in ("mrpc", "qqp", "sick", "rte") else []
    own += ["task.max_length=128"] if name == "imdb" else []
    verb = "tag" if train.suffix == ".tsv" else "classify"
    model = bs.finetune(
        verb,
        options.model,
        out,
        train=train,
        validation=dev,
        overwrite=True,
        settings=[*own, f"train.threads={options.threads}", "train.report_to=none", *settings],
    )
    metric = model.report["decided_by"]
    baselines = {column: values[metric] for column, values in model.report["baselines"].items()}
    shutil.rmtree(out)
    return {"score": model.report["validation"][metric], **baselines}


def write_files(name: str, size: int, seed: int) -> tuple[Path | None, Path]:
    """Write a random sample of a set's training rows, and the dev rows with its labels."""
    train, dev = read_set(name)
    is_tagging = isinstance(train[0], list)
    random.Random(13).shuffle(dev)
    random.Random(seed).shuffle(train)
    suffix = "tsv" if is_tagging else "csv"
    train_file, dev_file = (FOLDER / f"{name}-{size}-{seed}-{part}.{suffix}" for part in ("train", "dev"))
    if len(train) < size:
        return None, dev_file
    sample = train[:size]
    FOLDER.mkdir(parents=True, exist_ok=True)
    if is_tagging:
        tags = {tag for sentence in sample for _, tag in sentence}
        known = [s for s in dev[:MAX_DEV_SENTENCES] if all(is_known(tag, tags) for _, tag in s)]
        for file, sentences in ((train_file, sample), (dev_file, known)):
            lines = ["".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in sentences]
            file.write_text("\n".join(lines), encoding="utf-8")
        return train_file, dev_file
    if len(labels := {row[-1] for row in sample}) == 1:  # a classifier needs two
        sample[-1] = next(row for row in train if row[-1] not in labels)
        labels.add(sample[-1][-1])
    known = [row for row in dev[:MAX_DEV_ROWS] if row[-1] in labels]
    columns = ("text", "second", "label") if len(sample[0]) == 3 else ("text", "label")
    for file, rows in ((train_file, sample), (dev_file, known)):
        with file.open("w", encoding="utf-8", newline="") as out:
            csv.writer(out).writerows([columns, *rows])
    return train_file, dev_file


def is_known(tag: str, tags: set[str]) -> bool:
    """Return whether a tag, or another tag of its type, is among the training tags."""
    return tag in tags or any(f"{prefix}{tag[2:]}" in tags for prefix in ("B-", "I-"))


def read_set(name: str) -> tuple[list[Any], list[Any]]:
    """Return the training and the dev rows: (text, label), (text, second, label), or lists of (word, tag)."""
    train, dev = (READERS[name](part) for part in ("train", "dev"))
    return train, dev


def read_lines(folder: str, part: str) -> list[str]:
    file = next((TASKS / folder).glob(f"{part}.*"))
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return data.decode("utf-8-sig").replace("\r\n", "\n").split("\n")


def columns(folder: str, *indices: int, header: bool = True) -> Callable[[str], list[Row]]:
    """Return a reader of a table without quotes."""

    def read(part: str) -> list[Row]:
        rows = [line.split("\t") for line in read_lines(folder, part)[header:] if line]
        return [tuple(row[i] for i in indices) for row in rows]

    return read


def sentences(folder: str, word: int, tag: int, separator: str) -> Callable[[str], list[list[Row]]]:
    """Return a reader of one word per line; of CoNLL-U, without tokens of several words."""

    def read(part: str) -> list[list[Row]]:
        result: list[list[Row]] = [[]]
        for line in read_lines(folder, part):
            cells = line.split(separator)
            if not line.strip():
                result.append([])
            elif not line.startswith(("#", "-DOCSTART")) and (separator == " " or cells[0].isdigit()):
                result[-1].append((cells[word], cells[tag]))
        return [sentence for sentence in result if sentence]

    return read


def emotion(part: str) -> list[Row]:
    return [tuple(line.rsplit(";", 1)) for line in read_lines("emotion", part) if line]


def imdb(part: str) -> list[Row]:
    reviews = map(json.loads, filter(None, read_lines("imdb", part)))
    return [(review["text"], review["label"]) for review in reviews]


def goemotions(part: str) -> list[Row]:
    """Return the texts with a single label."""
    return [row for row in columns("goemotions", 0, 1, header=False)(part) if "," not in row[1]]


def semeval(part: str) -> list[Row]:
    """Return the sentences without the marks of their entities, and their relations."""
    lines = read_lines("semeval2010_task8", part)
    starts = [(match, i) for i, line in enumerate(lines) if (match := re.match(r'\d+\t"(.*)"\s*$', line))]
    return [(re.sub(r"</?e\d>", "", match[1]), lines[i + 1].strip()) for match, i in starts]


def squad_title(part: str) -> list[Row]:
    """Return questions and the titles of their articles, with the paragraphs of both parts apart."""
    articles = json.loads("\n".join(read_lines("squad1.1", "dev")))["data"]
    paragraphs = [
        [(question["question"], article["title"]) for question in paragraph["qas"]]
        for article in articles
        for paragraph in article["paragraphs"]
    ]
    random.Random(13).shuffle(paragraphs)
    cut = len(paragraphs) // 5
    chosen = paragraphs[cut:] if part == "train" else paragraphs[:cut]
    return [row for paragraph in chosen for row in paragraph]


def stsb_genre(part: str) -> list[Row]:
    rows = dict.fromkeys(columns("stsb", 7, 1)(part))
    return [(text, genre.replace("forums", "forum")) for text, genre in rows]


def ewt_genre(part: str) -> list[Row]:
    """Return the sentences of at least 16 characters, and the genres of their documents."""
    return list(_ewt_rows(part))


def _ewt_rows(part: str) -> Iterator[Row]:
    genre = ""
    for line in read_lines("ud_ewt", part):
        if line.startswith("# newdoc id = "):
            genre = line.split("= ")[1].split("-")[0]
        elif line.startswith("# text = ") and len(line) > 25:
            yield line.removeprefix("# text = "), genre


READERS: dict[str, Callable[[str], list[Any]]] = {
    "sst2": columns("sst2", 0, 1),
    "emotion": emotion,
    "cola": columns("cola", 3, 1, header=False),
    "imdb": imdb,
    "goemotions": goemotions,
    "semeval": semeval,
    "squad_title": squad_title,
    "mrpc": columns("mrpc", 3, 4, 0),
    "qqp": columns("qqp", 1, 2, 0, header=False),
    "conll2003": sentences("conll2003", 0, 3, " "),
    "conll2000": sentences("conll2000", 0, 2, " "),
    "stsb_genre": stsb_genre,
    "ewt_genre": ewt_genre,
    "sick": columns("sick", 1, 2, 4),
    "rte": columns("rte", 1, 2, 3),
    "ud_ewt": sentences("ud_ewt", 1, 3, "\t"),
}


def report(options: Namespace) -> None:
    """Write the section of RESULTS.md from what is measured."""
    records, rows = record.load_records(NAME), []
    for name in [name for names in REPORTED.values() for name in names]:
        for model in dict.fromkeys(key.split()[0] for key in records):
            for size in SIZES:
                cells = [c for seed in range(5) if (c := cell(records, f"{model} {name} {size} {seed}"))]
                if cells:
                    points = [record_points([c[i] for c in cells]) for i in range(len(COLUMNS))]
                    rows.append([name, model, f"{size:,}", len(cells), *points])
    record.write_section(
        "Defaults of fine-tuning",
        f"""`python benchmarks/finetune_defaults.py`; {record.environment(options.threads)}, and
the machines that the records name.

Accuracy, or F1 of entities for conll2003 and conll2000, in points: the best evaluation on at most
{MAX_DEV_ROWS:,} dev rows, mean over seeds. "Text" is TF-IDF with a linear model, or for tags the most frequent tag
of each word; "frozen" trains the head alone. Grid: learning rate and epochs
{", ".join(f"({rate:g}, {epochs})" for rate, epochs in GRID)}. The rules were chosen on
{", ".join(CHOSEN_ON)}. imdb is truncated to 128 tokens; squad_title (the article of a question) and the labels of
goemotions and semeval are classes of single texts. That 5,000 rows need more than three epochs was first seen on
goemotions; the number was chosen on sick and ewt_genre.

{record.markdown_table(["set", "model", "rows", "seeds", *COLUMNS], rows)}""",
    )


COLUMNS = ("majority", "text", "frozen", "defaults", "best of the grid")


def cell(records: dict[str, Any], key: str) -> list[float] | None:
    """Return the figures of one sample: those of the baselines, of the defaults, and of the best of the grid."""
    if (default := records.get(f"{key} default")) is None:
        return None
    grid = [records[k]["score"] for rate, epochs in GRID if (k := f"{key} {rate:g} {epochs}") in records]
    majority, *texts = [value for name, value in default.items() if name not in ("score", "frozen encoder")]
    frozen = default.get("frozen encoder", float("nan"))
    return [
        majority,
        max(texts, default=float("nan")),
        frozen,
        default["score"],
        max(grid, default=float("nan")),
    ]


def record_points(values: Sequence[float]) -> str:
    """Format the mean of figures in points; "–" if one is missing."""
    mean = sum(values) / len(values)
    return "–" if mean != mean else f"{100 * mean:.1f}"


if __name__ == "__main__":
    main()
