"""Raw texts of shuffled lengths to vectors with a real checkpoint: ours beside what people use today, in turn.

    python benchmarks/speed_infer.py [--sets sst2 emotion squad1.1] [--threads 2] [--windows 5]

Every side gets the same list of strings and gives a vector a text: the mean of the last hidden states. Ours:
`Model.embed`. The reference library: its tokenizer and model in batches of 32, as the texts come, or sorted by
length first, in fp32 or by autocast in bf16. sentence-transformers: `encode`, which sorts; as it comes, or loaded
in bf16. ONNX Runtime and OpenVINO: the exported model on batches of 32 sorted by length; the first in fp32, or
quantised to int8 (dynamically, by its own tool), the second in fp32 or bf16. Sides in bf16 are left out where a
product in bf16 is slower than in fp32. No time is kept before the vectors of
a side were compared with the reference's; sides that miss the bound are shown with what they have. Peers are timed
in the process that ours prepared, which speeds them up, too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import bertsmith as bs
from bertsmith import hardware
from bertsmith.kernels.backend_selection import select_training_backend
from finetune import checkpoint
from cpu_isa import isa_limit
from record import (
    DATA,
    WORK,
    load_records,
    machine_name,
    markdown_table,
    median_and_range,
    processor_class,
    ratios,
    require,
    run_once,
    versions,
    versions_in,
    write_section,
)
from speed_sides import operands, quickest_way

CHECKPOINT = checkpoint()
SETS = ("sst2", "emotion", "squad1.1")
PEERS = ("sentence-transformers", "onnxruntime", "openvino")
EXPORT = ("onnx", "onnxscript")  # torch needs them to export the model
BATCH, LENGTH = 32, 512
TOGETHER, REPEATED = 4096, 5  # tokens of a product in the limit, and how often it is made
WIDTH = 384
BOUNDS = {"fp32": 0.99999, "bf16": 0.999, "int8": 0.995}  # of the least cosine
Vectors = NDArray[np.float32]
Side = Callable[[Sequence[str]], Vectors]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--windows", type=int, default=5)
    options = parser.parse_args()
    require(*PEERS, *EXPORT)
    hardware.configure_process(options.threads)
    for name in options.sets:
        run_once(
            "speed_infer",
            f"{name}, {options.threads} threads; {machine_name()}; {versions(*PEERS)}",
            partial(measured, name, options.threads, options.windows),
        )
        report()


def texts_of(name: str) -> list[str]:
    """The texts, in an order of their own."""
    place = DATA / "tasks" / name
    if name == "sst2":
        rows = (place / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
        texts = [row.split("\t")[0] for row in rows]
    elif name == "emotion":
        rows = (place / "dev.txt").read_text(encoding="utf-8").splitlines()
        texts = [row.split(";")[0] for row in rows[:1000]]
    else:
        whole = json.loads(gzip.decompress((place / "dev.json.gz").read_bytes()))
        texts = [paragraph["context"] for article in whole["data"] for paragraph in article["paragraphs"]][
            ::4
        ][:250]
    random.Random(0).shuffle(texts)
    return texts


def sides(threads: int) -> Iterator[tuple[str, str, Side]]:
    """Each side with its name and its precision."""
    in_bf16 = not isa_limit() and hardware.choose_precision().precision == "bf16"
    both = ("fp32", "bf16") if in_bf16 else ("fp32",)
    select_training_backend(
        "auto", WIDTH, print
    )  # answers do not wait for kernels that have yet to be compiled
    for precision in (*both, "int8"):
        own = bs.load(CHECKPOINT, precision=precision)
        # its folder asks for half of what the model takes, which all others are told to take
        yield f"ours, {precision}", precision, partial(own.embed, max_length=LENGTH)
    reference = Reference()
    for precision in both:
        for is_sorted in (False, True):
            order = "sorted" if is_sorted else "as they come"
            run = partial(reference.embed, precision=precision, is_sorted=is_sorted)
            yield f"the reference, {order}, {precision}", precision, run
    from sentence_transformers import SentenceTransformer

    for precision in both:
        more = {"model_kwargs": {"torch_dtype": torch.bfloat16}} if precision == "bf16" else {}
        other = SentenceTransformer(str(CHECKPOINT), device="cpu", **more)
        other.max_seq_length = LENGTH
        yield f"sentence-transformers, {precision}", precision, partial(of_sentence_transformers, other)
    for precision in ("fp32", "int8"):
        run = onnx_runtime(reference, precision, threads)
        yield f"ONNX Runtime, {precision}", precision, partial(of_export, reference, run)
    for precision in both:
        run = openvino(reference, precision, threads)
        yield f"OpenVINO, {precision}", precision, partial(of_export, reference, run)


def of_sentence_transformers(model: Any, texts: Sequence[str]) -> Vectors:
    """Its vectors as float32."""
    found: Vectors = model.encode(list(texts), batch_size=BATCH, convert_to_tensor=True).float().numpy()
    return found


class Reference:
    """The reference library's tokenizer and model, the mean of the states."""

    def __init__(self) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
        self.model = AutoModel.from_pretrained(CHECKPOINT).eval()

    def batches(self, texts: Sequence[str], *, is_sorted: bool) -> Iterator[tuple[list[int], Any]]:
        """The numbers of some texts, and what the tokenizer makes of them."""
        order = list(range(len(texts)))
        if is_sorted:
            order.sort(key=lambda i: len(texts[i]))
        for at in range(0, len(order), BATCH):
            some = order[at : at + BATCH]
            yield (
                some,
                self.tokenizer(
                    [texts[i] for i in some],
                    padding=True,
                    truncation=True,
                    max_length=LENGTH,
                    return_tensors="pt",
                ),
            )

    def embed(self, texts: Sequence[str], *, precision: str, is_sorted: bool) -> Vectors:
        """A vector a text."""
        found = np.empty((len(texts), self.model.config.hidden_size), np.float32)
        low = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()
        with torch.inference_mode(), low:
            for some, inputs in self.batches(texts, is_sorted=is_sorted):
                hidden = self.model(**inputs).last_hidden_state.float()
                found[some] = mean_of(hidden, inputs["attention_mask"]).numpy()
        return found


def mean_of(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean of each row's real states."""
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


Given = dict[str, NDArray[np.int64]]


def onnx_runtime(reference: Reference, precision: str, threads: int) -> Callable[[Given], Vectors]:
    """The reference's model exported, on ONNX Runtime: from a batch's arrays to its states."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    file = exported(reference)
    if precision == "int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        small = file.with_name("int8.onnx")
        quantize_dynamic(file, small, weight_type=QuantType.QInt8, per_channel=True)
        file = small
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda given: session.run(["hidden"], given)[0]


def openvino(reference: Reference, precision: str, threads: int) -> Callable[[Given], Vectors]:
    """The same file on OpenVINO."""
    from openvino import Core

    hints = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": {"fp32": "f32"}.get(precision, precision),
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = Core().compile_model(str(exported(reference)), "CPU", hints)
    return lambda given: compiled(given)["hidden"]


def of_export(reference: Reference, run: Callable[[Given], Vectors], texts: Sequence[str]) -> Vectors:
    """A vector a text, by an exported model."""
    found = np.empty((len(texts), reference.model.config.hidden_size), np.float32)
    for some, inputs in reference.batches(texts, is_sorted=True):
        given = {name: inputs[name].numpy() for name in NAMES}
        mask = given["attention_mask"]
        found[some] = (run(given) * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return found


class Limit:
    """The products with the weights of a model for all texts, so many tokens at a time, and nothing else."""

    def __init__(self, reference: Reference, texts: Sequence[str], precision: str) -> None:
        config, kind = reference.model.config, torch.bfloat16 if precision == "bf16" else torch.float32
        width, inner = config.hidden_size, config.intermediate_size
        tokens = sum(
            map(len, reference.tokenizer(list(texts), truncation=True, max_length=LENGTH)["input_ids"])
        )
        self.times, self.products = config.num_hidden_layers * tokens / TOGETHER, []
        for terms, columns in ((width, 3 * width), (width, width), (width, inner), (inner, width)):
            x, weight, _ = operands(1, TOGETHER, terms, columns, kind, torch.device("cpu"))
            self.products.append((quickest_way(x, weight), x, weight))

    def seconds(self) -> float:
        """What the products of all layers and tokens take, by those of one layer and some tokens."""
        begin = hardware.clock()
        for _ in range(REPEATED):
            for way, x, weight in self.products:
                way(x, weight)
        return (hardware.clock() - begin) / REPEATED * self.times


NAMES = ("input_ids", "attention_mask", "token_type_ids")


def exported(reference: Reference) -> Path:
    """The model as an ONNX file."""
    folder = WORK / "onnx"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "fp32.onnx"
    inputs = reference.tokenizer(["a text", "a longer text"], padding=True, return_tensors="pt")

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = reference.model

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.model(**dict(zip(NAMES, given, strict=True))).last_hidden_state
            return states

    axes = {0: "texts", 1: "tokens"}
    torch.onnx.export(
        Last().eval(),  # the exporter leaves the whole model as it found this
        tuple(inputs[name] for name in NAMES),
        str(file),
        input_names=list(NAMES),
        output_names=["hidden"],
        dynamic_axes=dict.fromkeys([*NAMES, "hidden"], axes),
        opset_version=17,
        dynamo=False,
    )
    return file


def measured(name: str, threads: int, windows: int) -> dict[str, Any]:
    """Texts a second of each side, in turn, and its least cosine with the reference in fp32."""
    texts = texts_of(name)
    every = list(sides(threads))
    exact = next(run for side, _, run in every if side == "the reference, as they come, fp32")(texts)
    found: dict[str, Any] = {}
    for side, precision, run in every:
        vectors = run(texts)
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(exact, axis=1)
        cosine = float(((vectors * exact).sum(1) / lengths).min())
        found[side] = {"precision": precision, "cosine": cosine, "within": cosine >= BOUNDS[precision]}
    limits, reference = {}, Reference()
    for precision in ("fp32", "bf16"):
        if f"ours, {precision}" in found:
            limits[f"limit, {precision}"] = Limit(reference, texts, precision)
            found[f"limit, {precision}"] = {"precision": precision, "cosine": None, "within": False}
    rates: dict[str, list[float]] = {side: [] for side in found}
    for window in range(windows):
        for side, _, run in every:
            begin = hardware.clock()
            run(texts)
            rates[side].append(len(texts) / (hardware.clock() - begin))
        for side, limit in limits.items():
            rates[side].append(len(texts) / limit.seconds())
        print(name, window, {side: round(values[-1], 1) for side, values in rates.items()}, flush=True)
    for side, values in rates.items():
        found[side] |= {"rate": statistics.median(values), "rates": values}
    return {"texts": len(texts), "sides": found}


def report() -> None:
    """Write the section of RESULTS.md from the records."""
    known = load_records("speed_infer")
    rows = sorted(row(key, found["sides"]) for key, found in known.items())
    columns = [
        "processor",
        "texts",
        "fp32",
        "bf16",
        "int8",
        *OTHERS.values(),
        "ratio",
        "least cosine of int8",
    ]
    write_section(
        "Inference speed",
        f"""`python -m benchmarks.speed infer [--sets sst2 emotion squad1.1]`; two CPU cores;
{versions_in(known)}.

From raw texts in shuffled order to vectors: all-MiniLM-L6-v2, the mean of the last hidden states, at most {LENGTH}
tokens. Texts per second, medians of windows in turn. Of each peer the fastest variant (precision, sorted by length
or not) whose vectors are near enough to fp32 (least cosine 0.999 in bf16, 0.995 in int8); ONNX Runtime's int8 is
not, with least cosines of 0.964 to 0.989. The ratio compares our fastest precision with the fastest peer (median,
least, and most over windows). ONNX Runtime and OpenVINO cannot be limited to older instructions.

{markdown_table(columns, rows)}""",
    )


OTHERS = {
    "the reference": "transformers",
    "sentence-transformers": "sentence-transformers",
    "ONNX Runtime": "ONNX Runtime",
    "OpenVINO": "OpenVINO",
}


def row(key: str, sides: dict[str, Any]) -> list[str]:
    """Return the table's row of one set of texts on one machine."""
    ours = {one["precision"]: one for side, one in sides.items() if side.startswith("ours")}
    fastest = [
        max(
            (one for side, one in sides.items() if side.startswith(peer) and one["within"]),
            key=lambda one: one["rate"],
        )
        for peer in OTHERS
    ]
    best = max(ours.values(), key=lambda one: one["rate"])
    peer = max(fastest, key=lambda one: one["rate"])
    return [
        processor_class(key),
        key.partition(",")[0],
        *(f"{ours[precision]['rate']:.0f}" if precision in ours else "–" for precision in BOUNDS),
        *(f"{one['rate']:.0f} ({one['precision']})" for one in fastest),
        median_and_range(ratios(best["rates"], peer["rates"])),
        f"{ours['int8']['cosine']:.4f}",
    ]


if __name__ == "__main__":
    main()
