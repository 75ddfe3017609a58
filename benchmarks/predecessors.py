"""Compare the models before BERT with BERT by `baselines` on English Wikipedia and books, at equal tokens or time.

    python benchmarks/predecessors.py (--tokens N | --minutes M) --gensim-data FOLDER [--seeds 1] [--models A,B]
        [--tasks sst2,mrpc] [--jobs 2]

FOLDER has wordsim353.tsv, simlex999.txt, and questions-words.txt, which gensim's wheel carries in
gensim/test/test_data. The corpus is prepared once, with 16,000 pieces. Minimal pairs are a sample of 20 of each
paradigm of BLiMP; the tasks are SST-2 and MRPC with 2,000 training rows, and CoNLL-2003 with 1,000 sentences. An
interrupted script resumes.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import zstandard

import bertsmith as bs
import record

NAME = "predecessors"
FOLDER = record.WORK / NAME
TRAIN_ROWS, DEV_ROWS, TRAIN_SENTENCES, DEV_SENTENCES, PAIRS_PER_PARADIGM = 2_000, 1_000, 1_000, 500, 20


def main() -> None:
    parser = record.argument_parser(__doc__)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--gensim-data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--models")
    parser.add_argument("--tasks", default="sst2,mrpc,conll2003")
    parser.add_argument("--jobs", type=int)
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    budget = f"{options.tokens} tokens" if options.tokens else f"{options.minutes:g} minutes"
    out = FOLDER / budget.replace(" ", "-")
    report = bs.baselines(
        prepare_corpus(),
        out,
        models=None if options.models is None else options.models.split(","),
        tasks={name: task for name, task in write_tasks().items() if name in options.tasks.split(",")},
        pairs=write_pairs(),
        word_pairs=[options.gensim_data / name for name in ("wordsim353.tsv", "simlex999.txt")],
        analogies=options.gensim_data / "questions-words.txt",
        senses=write_senses(),
        minutes=options.minutes,
        tokens=options.tokens,
        seeds=options.seeds,
        jobs=options.jobs,
        resume=(out / "baselines.json").exists(),
    )
    record.run_once(NAME, f"{budget}, {options.seeds} seed", report.to_dict)


def prepare_corpus() -> bs.Shards:
    """Return the shards of both corpora."""
    files = [str(record.DATA / "corpora" / f"{name}.txt.zst") for name in ("enwiki", "books")]
    tokenizer, shards = FOLDER / "tokenizer", FOLDER / "shards"
    if not tokenizer.exists():
        bs.train_tokenizer(files, tokenizer, vocab_size=16_000)
    return bs.Shards.open(shards) if shards.exists() else bs.prepare(files, tokenizer, shards)


def write_pairs() -> Path:
    """Write the first pairs of each paradigm of BLiMP."""
    file, counts = FOLDER / "pairs.jsonl", Counter[str]()
    source = record.DATA / "minimal_pairs" / "blimp_dev.jsonl.zst"
    with zstandard.open(source, "rt", encoding="utf-8") as lines, file.open("w", encoding="utf-8") as out:
        for line in lines:
            paradigm = json.loads(line)["paradigm"]
            counts[paradigm] += 1
            if counts[paradigm] <= PAIRS_PER_PARADIGM:
                out.write(line)
    return file


def write_senses() -> Path:
    """Write the sentences with the two senses of bank that the tests have."""
    file = FOLDER / "senses.csv"
    source = record.HERE.parent / "tests" / "explain" / "bank.csv"
    with (
        source.open(encoding="utf-8", newline="") as rows,
        file.open("w", encoding="utf-8", newline="") as out,
    ):
        writer = csv.writer(out)
        writer.writerow(["word", "text", "sense"])
        writer.writerows(["bank", row["text"], row["sense"]] for row in csv.DictReader(rows))
    return file


def write_tasks() -> dict[str, Any]:
    """Write samples of three task sets, and return the tasks."""
    tasks = record.DATA / "tasks"
    settings = {
        "train.max_steps": 200,
        "train.eval_steps": 50,
        "train.head_probe": True,
        "task.max_length": 64,
    }
    declared: dict[str, Any] = {}
    for name, columns in (("sst2", ["sentence", "label"]), ("mrpc", ["#1 String", "#2 String", "Quality"])):
        files = {}
        for part, limit in (("train", TRAIN_ROWS), ("dev", DEV_ROWS)):
            source = next((tasks / name).glob(f"{part}.*"))
            opened = gzip.open if source.suffix == ".gz" else open
            files[part] = FOLDER / f"{name}-{part}.csv"
            with opened(source, "rt", encoding="utf-8-sig") as lines:
                rows = list(islice(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE), limit))
            with files[part].open("w", encoding="utf-8", newline="") as out:
                writer = csv.writer(out)
                writer.writerow(["text", "second", "label"][:: 1 if len(columns) == 3 else 2])
                writer.writerows([row[column] for column in columns] for row in rows)
        second = {"task.second_column": "second"} if len(columns) == 3 else {}
        declared[name] = {
            "verb": "classify",
            "train": str(files["train"]),
            "validation": str(files["dev"]),
            "settings": {**settings, **second},
        }
    files = {}
    for part, limit in (("train", TRAIN_SENTENCES), ("dev", DEV_SENTENCES)):
        text = gzip.decompress((tasks / "conll2003" / f"{part}.txt.gz").read_bytes()).decode("utf-8")
        sentences = [s for s in text.split("\n\n") if s.strip() and not s.startswith("-DOCSTART")][:limit]
        files[part] = FOLDER / f"conll2003-{part}.tsv"
        rows = [[(line.split()[0], line.split()[-1]) for line in s.strip().split("\n")] for s in sentences]
        files[part].write_text(
            "\n".join("".join(f"{word}\t{tag}\n" for word, tag in row) for row in rows), encoding="utf-8"
        )
    declared["conll2003"] = {
        "verb": "tag",
        "train": str(files["train"]),
        "validation": str(files["dev"]),
        "settings": settings,
    }
    return declared


if __name__ == "__main__":
    main()
