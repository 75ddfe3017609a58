"""Compare the speed of embedding texts with peers, from raw texts in shuffled order to vectors.

Run it by `python -m benchmarks.speed infer [--sets sst2 emotion squad1.1] [--threads 2] [--windows 5]`.

Every side gets the same list of strings and returns a vector per text, the mean of the last hidden states of
all-MiniLM-L6-v2. Ours: `Model.embed`. transformers: batches of 32 in the order of the texts, or sorted by length,
in fp32, or in bf16 by autocast. sentence-transformers: `encode`, which sorts; in fp32, or loaded in bf16. ONNX
Runtime (fp32, or int8 by its dynamic quantization) and OpenVINO (fp32 or bf16): the exported model on batches of
32 sorted by length. Sides in bf16 are left out on processors where bf16 is slower than fp32. The vectors are
compared with the reference's in fp32; sides that miss the bound are timed, but never count as a peer. Peers are
timed in the process that ours configured, which speeds them up, too.
"""

from __future__ import annotations

import gzip
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import bertsmith as bs
from bertsmith import hardware
from bertsmith.kernels.backend_selection import select_training_backend
from cpu_isa import isa_limit
from finetune import checkpoint
from record import (
    DATA,
    WORK,
    load_records,
    machine_name,
    markdown_table,
    median_and_range,
    processor_class,
    ratios,
    require_packages,
    run_once,
    versions,
    versions_in,
    write_section,
)

PEER_PACKAGES = ("sentence-transformers", "onnxruntime", "openvino")
EXPORT_PACKAGES = ("onnx", "onnxscript")  # torch needs them to export the model
PEERS = {  # prefixes of sides, and the columns of the table
    "the reference": "transformers",
    "sentence-transformers": "sentence-transformers",
    "ONNX Runtime": "ONNX Runtime",
    "OpenVINO": "OpenVINO",
}
BATCH_SIZE, MAX_LENGTH = 32, 512
INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")
MIN_COSINES = {"fp32": 0.99999, "bf16": 0.999, "int8": 0.995}

Vectors = NDArray[np.float32]
Arrays = dict[str, NDArray[np.int64]]


def run(sets: Sequence[str], threads: int, windows: int) -> None:
    """Measure each set of texts once, and write the section of RESULTS.md."""
    if isa_limit() and (isa_limit() != "avx512_vnni" or "amx" in machine_name()):
        raise SystemExit(
            "--max-isa: infer takes only avx512_vnni, and on a processor without AMX: ONNX Runtime and OpenVINO "
            "detect the processor themselves"
        )
    require_packages(*PEER_PACKAGES, *EXPORT_PACKAGES)
    hardware.configure_process(threads)
    for name in sets:
        key = f"{name}, {threads} threads; {machine_name()}; {versions(*PEER_PACKAGES)}"
        run_once("speed_infer", key, partial(measure, name, threads, windows))
        report()


def load_texts(name: str) -> list[str]:
    """Return the texts of a set, shuffled."""
    folder = DATA / "tasks" / name
    if name == "sst2":
        lines = (folder / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
        texts = [line.split("\t")[0] for line in lines]
    elif name == "emotion":
        lines = (folder / "dev.txt").read_text(encoding="utf-8").splitlines()
        texts = [line.split(";")[0] for line in lines[:1000]]
    elif name == "squad1.1":
        articles = json.loads(gzip.decompress((folder / "dev.json.gz").read_bytes()))["data"]
        contexts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
        texts = contexts[::4][:250]
    else:
        raise SystemExit(f"--sets {name}: choose from sst2, emotion, and squad1.1")
    random.Random(0).shuffle(texts)
    return texts


def sides(threads: int) -> Iterator[tuple[str, str, Callable[[Sequence[str]], Vectors]]]:
    """Yield each side's name, precision, and function from texts to vectors."""
    has_bf16 = not isa_limit() and hardware.choose_precision() == "bf16"
    float_precisions = ("fp32", "bf16") if has_bf16 else ("fp32",)
    reference = Reference()
    hidden_size = reference.model.config.hidden_size
    select_training_backend("auto", hidden_size)  # compiles kernels, for which inference would not wait
    for precision in (*float_precisions, "int8"):
        model = bs.load(checkpoint(), precision=precision)
        # the model's folder asks for shorter texts
        yield f"ours, {precision}", precision, partial(model.embed, max_length=MAX_LENGTH)
    for precision in float_precisions:
        for is_sorted in (False, True):
            order = "sorted" if is_sorted else "as they come"
            embed = partial(reference.embed, precision=precision, is_sorted=is_sorted)
            yield f"the reference, {order}, {precision}", precision, embed
    for precision in float_precisions:
        yield f"sentence-transformers, {precision}", precision, sentence_transformers(precision)
    file = export_onnx(reference)
    for precision in ("fp32", "int8"):
        session = onnx_runtime(file, precision, threads)
        yield f"ONNX Runtime, {precision}", precision, partial(reference.embed_exported, session)
    for precision in float_precisions:
        session = openvino(file, precision, threads)
        yield f"OpenVINO, {precision}", precision, partial(reference.embed_exported, session)


class Reference:
    """The tokenizer and model of transformers."""

    def __init__(self) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint())
        self.model: Any = AutoModel.from_pretrained(checkpoint()).eval()

    def batches(self, texts: Sequence[str], *, is_sorted: bool) -> Iterator[tuple[list[int], Any]]:
        """Yield the indices of a batch's texts and the tokenizer's output."""
        order = list(range(len(texts)))
        if is_sorted:
            order.sort(key=lambda i: len(texts[i]))
        for start in range(0, len(order), BATCH_SIZE):
            indices = order[start : start + BATCH_SIZE]
            yield indices, self.tokenize([texts[i] for i in indices], padding=True, return_tensors="pt")

    def tokenize(self, texts: Sequence[str], **options: Any) -> Any:
        """Tokenize and truncate texts."""
        return self.tokenizer(list(texts), truncation=True, max_length=MAX_LENGTH, **options)

    def embed(self, texts: Sequence[str], *, precision: str, is_sorted: bool) -> Vectors:
        """Return a vector per text."""
        vectors = np.empty((len(texts), self.model.config.hidden_size), np.float32)
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
        with torch.inference_mode(), autocast:
            for indices, inputs in self.batches(texts, is_sorted=is_sorted):
                hidden = self.model(**inputs).last_hidden_state.float()
                mask = inputs["attention_mask"][..., None]
                vectors[indices] = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
        return vectors

    def embed_exported(self, session: Callable[[Arrays], Vectors], texts: Sequence[str]) -> Vectors:
        """Return a vector per text by an exported model."""
        vectors = np.empty((len(texts), self.model.config.hidden_size), np.float32)
        for indices, inputs in self.batches(texts, is_sorted=True):
            arrays = {name: inputs[name].numpy() for name in INPUT_NAMES}
            mask = arrays["attention_mask"][..., None]
            vectors[indices] = (session(arrays) * mask).sum(1) / mask.sum(1)
        return vectors


def sentence_transformers(precision: str) -> Callable[[Sequence[str]], Vectors]:
    """Return sentence-transformers' function from texts to vectors."""
    from sentence_transformers import SentenceTransformer

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = SentenceTransformer(str(checkpoint()), device="cpu", model_kwargs={"torch_dtype": dtype})
    model.max_seq_length = MAX_LENGTH

    def embed(texts: Sequence[str]) -> Vectors:
        vectors: Any = model.encode(list(texts), batch_size=BATCH_SIZE, convert_to_tensor=True)
        return np.asarray(vectors.float().numpy())

    return embed


def onnx_runtime(file: Path, precision: str, threads: int) -> Callable[[Arrays], Vectors]:
    """Return ONNX Runtime's function from a batch to its hidden states."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if precision == "int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantized = file.with_name("int8.onnx")
        quantize_dynamic(file, quantized, weight_type=QuantType.QInt8, per_channel=True)
        file = quantized
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda arrays: session.run(["hidden"], arrays)[0]


def openvino(file: Path, precision: str, threads: int) -> Callable[[Arrays], Vectors]:
    """Return OpenVINO's function from a batch to its hidden states."""
    from openvino import Core

    hints = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": {"fp32": "f32"}.get(precision, precision),
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = Core().compile_model(str(file), "CPU", hints)
    return lambda arrays: compiled(arrays)["hidden"]


def export_onnx(reference: Reference) -> Path:
    """Write the reference's model as an ONNX file."""
    file = WORK / "onnx" / "fp32.onnx"
    file.parent.mkdir(parents=True, exist_ok=True)
    inputs = reference.tokenize(["a text", "a longer text"], padding=True, return_tensors="pt")

    class HiddenStates(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = reference.model

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.model(
                **dict(zip(INPUT_NAMES, tensors, strict=True))
            ).last_hidden_state
            return states

    torch.onnx.export(
        HiddenStates().eval(),  # the exporter restores this mode in the model
        tuple(inputs[name] for name in INPUT_NAMES),
        str(file),
        input_names=list(INPUT_NAMES),
        output_names=["hidden"],
        dynamic_axes={name: {0: "texts", 1: "tokens"} for name in (*INPUT_NAMES, "hidden")},
        opset_version=17,
        dynamo=False,
    )
    return file


def measure(name: str, threads: int, windows: int) -> dict[str, Any]:
    """Return each side's texts per second by window and its least cosine with the reference in fp32."""
    texts, reference = load_texts(name), Reference()
    exact = reference.embed(texts, precision="fp32", is_sorted=False)
    figures: dict[str, Any] = {}
    embed_functions = {}
    for side, precision, embed in sides(threads):
        vectors = embed(texts)
        norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(exact, axis=1)
        cosine = float(((vectors * exact).sum(1) / norms).min())
        is_within = cosine >= MIN_COSINES[precision]
        figures[side] = {"precision": precision, "cosine": cosine, "within": is_within, "rates": []}
        embed_functions[side] = embed
    for window in range(windows):
        for side, embed in embed_functions.items():
            start = hardware.clock()
            embed(texts)
            figures[side]["rates"].append(len(texts) / (hardware.clock() - start))
        rates = {side: round(values["rates"][-1], 1) for side, values in figures.items()}
        print(name, window, rates, flush=True)
    for values in figures.values():
        values["rate"] = statistics.median(values["rates"])
    return {"texts": len(texts), "sides": figures}


def report() -> None:
    """Write the section of RESULTS.md from the records."""
    records = load_records("speed_infer")
    rows = sorted(row(key, value["sides"]) for key, value in records.items())
    columns = ["processor", "texts", *MIN_COSINES, *PEERS.values(), "ratio", "least cosine of int8"]
    write_section(
        "Inference speed",
        f"""`python -m benchmarks.speed infer [--sets sst2 emotion squad1.1]`; two CPU cores;
{versions_in(records)}.

From raw texts in shuffled order to vectors: all-MiniLM-L6-v2, the mean of the last hidden states, at most 512
tokens. Texts per second, medians of interleaved windows. Of each peer the fastest variant (precision, sorted by
length or not) whose vectors are near enough to fp32 (least cosine 0.999 in bf16, 0.995 in int8); ONNX Runtime's
int8 is not, with least cosines of 0.964 to 0.989. The ratio compares our fastest precision with the fastest peer
(median, minimum, and maximum over windows). ONNX Runtime and OpenVINO cannot be limited to older instructions.

{markdown_table(columns, rows)}""",
    )


def row(key: str, sides: dict[str, Any]) -> list[str]:
    """Return the table's row of one set of texts on one machine."""
    ours = {values["precision"]: values for side, values in sides.items() if side.startswith("ours")}
    fastest_of_peers = [
        max(
            (values for side, values in sides.items() if side.startswith(peer) and values["within"]),
            key=lambda values: values["rate"],
        )
        for peer in PEERS
    ]
    best = max(ours.values(), key=lambda values: values["rate"])
    peer = max(fastest_of_peers, key=lambda values: values["rate"])
    return [
        processor_class(key),
        key.partition(",")[0],
        *(f"{ours[precision]['rate']:.0f}" if precision in ours else "–" for precision in MIN_COSINES),
        *(f"{values['rate']:.0f} ({values['precision']})" for values in fastest_of_peers),
        median_and_range(ratios(best["rates"], peer["rates"])),
        f"{ours['int8']['cosine']:.4f}",
    ]
