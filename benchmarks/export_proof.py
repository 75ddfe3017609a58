"""Export a model of each task, compare scores, and compare the files' outputs in a program that is not ours.

    python benchmarks/export_proof.py [--tasks classify …]

A small model is fine-tuned for each task. The export compares it with its file on up to 1,000 validation examples;
then onnx_reader.py, which has neither PyTorch nor bertsmith, tokenizes and runs 50 of these.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bertsmith as bs
import record
from bertsmith import hardware
from bertsmith.errors import InputError
from bertsmith.export.formats import FORMATS
from bertsmith.tasks.multiple_choice.model import text_pairs
from bertsmith.tasks.relation_extraction.model import with_markers

NAME = "export"
FOLDER = record.WORK / "export"
MAX_READ = 50  # examples
MAX_ARTICLES = 3  # of the questions' validation file, whose passages have many windows
SETTINGS = ("train.max_steps=60", "train.threads=1", "train.report_to=none", "task.max_length=128")


class Data(NamedTuple):
    """The data of a task: files, settings, and the number of training examples."""

    train: str
    validation: str
    settings: Sequence[str] = ()
    sample: int = 3_000


_PAIR = ("task.text_column=sentence1", "task.second_column=sentence2", "task.label_column=score")
_CODAH = ("header=false", "context_column=2", "choices_column=3,4,5,6", "label_column=7")
DATA = {
    "classify": Data("sst2/train.tsv.gz", "sst2/dev.tsv", ["task.text_column=sentence"]),
    "regress": Data("stsb/train.tsv.gz", "stsb/dev.tsv.gz", _PAIR),
    "tag": Data("conll2003/train.txt.gz", "conll2003/dev.txt.gz"),
    "answer": Data("squad1.1/train.json.gz", "squad1.1/dev.json.gz", sample=1_000),
    "choose": Data("codah/train.tsv.gz", "codah/dev.tsv", [f"task.{value}" for value in _CODAH]),
    "relate": Data("semeval2010_task8/train.txt.gz", "semeval2010_task8/dev.txt"),
    "embed": Data("stsb/train.tsv.gz", "stsb/dev.tsv.gz", _PAIR),
}


def main() -> None:
    parser = record.argument_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(DATA), choices=list(DATA))
    hardware.configure_process(1)
    for task in parser.parse_args().tasks:
        for name in ("onnx", "onnx-int8"):
            record.run_once(NAME, f"{task} {name}", partial(measure, task, name))
    print(table())


def finetuned(task: str) -> bs.Model:
    """Return the small model of a task."""
    run, data = FOLDER / task, DATA[task]
    if (run / "report.json").exists():
        return bs.load(run, precision="fp32")
    bs.finetune(
        task,
        "bert-mini-uncased-en",
        run,
        train=record.DATA / "tasks" / data.train,
        validation=validation_file(task),
        sample=data.sample,
        overwrite=True,
        settings=[*SETTINGS, *data.settings],
    )
    return bs.load(run, precision="fp32")


def validation_file(task: str) -> Path:
    """Return the validation file of a task; of SQuAD's, one with the shortest articles."""
    file = record.DATA / "tasks" / DATA[task].validation
    if task != "answer":
        return file
    shortened = FOLDER / "squad.json"
    if not shortened.exists():
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            content = json.load(lines)
        content["data"] = sorted(content["data"], key=lambda article: len(json.dumps(article)))[:MAX_ARTICLES]
        shortened.write_text(json.dumps(content), encoding="utf-8")
    return shortened


def measure(task: str, name: str) -> dict[str, Any]:
    """Export a model to a format; return the report and the largest difference in the other program."""
    model, out = finetuned(task), FOLDER / f"{task}-{name}"
    if not out.exists():
        try:
            bs.export_model(model, out, to=name)
        except InputError as error:
            return {"refused": error.message}
    (report,) = json.loads((out / "export.json").read_text(encoding="utf-8"))["files"]
    examples, references = expected_outputs(task, model)
    command = [sys.executable, str(record.HERE / "onnx_reader.py"), str(out), FORMATS[name].file]
    result = subprocess.run(command, input=json.dumps(examples), capture_output=True, text=True, check=True)
    answers = json.loads(result.stdout)
    pairs = [
        (answer[key], values)
        for answer, reference in zip(answers, references, strict=True)
        for key, values in reference.items()
    ]
    difference = max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)
    del report["checked_on"]
    return report | {"read_examples": len(examples), "read_difference": difference}


def expected_outputs(task: str, model: bs.Model) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return examples of a task as onnx_reader.py takes them, and the outputs of the model."""
    predictor = model.predictor
    examples = predictor.read(validation_file(task))
    requests, references = [], []
    for example in examples:
        items = predictor.preprocess([example])
        if len(requests) == MAX_READ:
            break
        if len(items) != 1 or any(s.tokens_read < s.tokens for s in items[0].sequences):
            continue  # onnx_reader.py has neither windows nor truncation
        requests.append(as_request(task, example))
        outputs = predictor.forward(items)
        (values,) = outputs.per_item
        if task == "embed":
            reference: dict[str, Any] = {"vector": model.embed(example.query)}
        elif task == "answer":
            reference = {"start_logits": values[:, 0], "end_logits": values[:, 1]}
        else:
            reference = {"logits": values, **outputs.shared}
        references.append({name: np.asarray(value).ravel() for name, value in reference.items()})
    return requests, references


def as_request(task: str, example: Any) -> dict[str, Any]:
    """Return an example as onnx_reader.py takes it."""
    marks = None
    if task == "tag":
        texts = [(" ".join(example.words), None)]
    elif task == "answer":
        texts = [(example.question, example.context)]
    elif task == "choose":
        texts = list(text_pairs(example))
    elif task == "relate":
        text, spans = with_markers(example)
        texts, marks = [(text, None)], [start for start, _ in spans]
    elif task == "embed":
        texts = [(example.query, None)]
    else:
        texts = [(example.text, example.second)]
    return {"texts": texts, "marks": marks}


def table() -> str:
    """Return the records as a table."""
    columns = (
        "task",
        "format",
        "MB",
        "largest difference",
        "in ONNX Runtime alone",
        "score",
        "of PyTorch",
        "interval",
    )
    rows = []
    for key, value in record.load_records(NAME).items():
        if "refused" in value:
            rows.append([*key.split(), value["refused"], *[""] * 5])
            continue
        low, high = value["interval"]
        numbers = f"{value['difference']:.1e}", f"{value['read_difference']:.1e}"
        scores = f"{value['metric']} {value['score']:.4f}", f"{value['score_before']:.4f}"
        rows.append(
            [*key.split(), f"{value['bytes'] / 1e6:.1f}", *numbers, *scores, f"{low:.4f} to {high:.4f}"]
        )
    return record.markdown_table(columns, rows)


if __name__ == "__main__":
    main()
