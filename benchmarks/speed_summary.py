"""What was asked of speed and what was had, by class of machine: a summary of the records of speed.py and
speed_infer.py, for RESULTS.md.

    python benchmarks/speed_summary.py
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from record import ratios, recorded, section, table

Sides = Mapping[str, Mapping[str, Any]]

PLAIN, UNITS = "plain AVX-512 or AVX2", "AMX or bf16 units"
TRAINING = {  # the column of a key, and what is asked of it
    "train bert-tiny-uncased, fixed:128": ("tiny", {PLAIN: "4", UNITS: "4.5"}),
    "train bert-mini-uncased, fixed:128": ("mini", {PLAIN: "4", UNITS: "4"}),
    "train bert-small-uncased, fixed:128": ("small", {PLAIN: "3", UNITS: "3.5"}),
    "train bert-base-uncased, fixed:128": ("base", {PLAIN: "2.1", UNITS: "2.2"}),
    "finetune all-MiniLM-L6-v2 on sst2": ("fine-tuning", {PLAIN: "3.3", UNITS: "4"}),
}
ON_GPU = {
    "train bert-mini-uncased, fixed:128": ("mini", "5"),
    "train bert-small-uncased, fixed:128": ("small", "5"),
    "train bert-base-uncased, fixed:512": ("base", "3"),
}
SETS = ("sst2", "emotion", "squad1.1")
ANSWERS = {PLAIN: "fp32 1.6, int8 2", UNITS: "3"}
NAMED = ("sentence-transformers", "ONNX Runtime")  # the peers that the aim for answers names
# The units of a processor that tell its class, the best of them first.
BY_UNIT = (
    ("amx_bf16", "AMX", UNITS),
    ("avx512_bf16", "AVX-512 with bf16", UNITS),
    ("avx512_vnni", "AVX-512 with VNNI", PLAIN),
    ("avx512f", "AVX-512", PLAIN),
    ("avx2", "AVX2", PLAIN),
)


def main() -> None:
    report()


def report() -> None:
    """The section of RESULTS.md, of what was measured by now."""
    training, answers = recorded("speed"), recorded("speed_infer")
    section(
        "Speed in short",
        f"""What was asked for and what was measured, in multiples of the fastest peer's speed; how, and in
full, is under "Training beside its peers" and "Texts to vectors beside what people use". In training the
number in brackets is that of the model's matrix products alone, in the fastest way we know of: more than
that, but for noise, is out of reach for whoever makes all of these products in that precision. "int8" is
training with `train.int8`, where it was measured: its products are of 8-bit integers, and "Training in integers"
says what that does to losses and scores. "Held to" says that no side used the processor's later instructions.

Training, two threads:

{_training(training)}

Answers from raw text, two threads; in brackets against the faster of {" and ".join(NAMED)}
alone, the peers that were named when this was asked for. The number after "of" is what the products with
the model's weights alone would reach, where that was measured:

{_answers(answers)}

One GPU, pre-training:

{_on_gpu(training)}

{SHORT}""",
    )


SHORT = """What falls short, and why, as of 2026-11-28; the profiles are under "What was tried for speed":

* Fine-tuning with units for bf16. On AMD's processor 4 times the quickest peer would be some 55 ms an update. In
  8-bit integers products have 39, at three quarters of the instruction's rate and more, AdamW 11, at the memory's,
  attention 6, rounding the weights 5, the norm and LayerNorm 4. That makes 65; most of the 15 or so that remain is
  Python. On Intel's processor training in integers has not been measured.
* Mini, small and base with units for bf16 on AMD's processor: in bf16 they miss their aims, by 2 to 22 %, and
  reach them in 8-bit integers alone, which `train.int8` asks for. Of base in bf16 the products alone come to less
  than what was asked.
* Answers to short texts with units for bf16. On AMD's processor they come 3 times as fast as from
  sentence-transformers and ONNX Runtime, but not 3 times as fast as from OpenVINO in bf16. Integer products take
  three quarters of the time on both cores, at 75 to 85 % of the instruction's rate, attention has a tenth, and 13
  % are spent outside of programs, half of it waiting. With AMX int8 comes to 2.5 to 2.9 times; on AVX2, which has
  no products of 8-bit integers, to 1.5 and 1.7 where 2 was asked.
* Answers to short texts in fp32: the products with the weights alone come to 1.6 to 1.7 times the quickest peer's
  whole answers.
* Fine-tuning and base in fp32, without VNNI: the products alone come to 1.9 to 2.3 times the quickest peer's whole
  updates in fine-tuning, where 3.3 was asked, and 1.7 to 1.9 in base, where 2.1 was. Base is at 95 % of that and
  more on AMD's processors, at 76 % on Intel's, where these products are the library's. Mini and small, held to
  AVX2 and, on Intel's processor, to AVX-512, miss their aims by 1 to 6 %.
* One GPU. At 5 times the reference's speed an update of mini would have 2.7 ms, which products, attention, the
  loss over the vocabulary and AdamW take by themselves, each as quick as we know how to make it. At 3 times its
  speed one of base would have 24 ms, which products alone take.
"""


def class_of(key: str) -> tuple[str, str]:
    """The name of a key's class of processors, and which aims are its own."""
    maker = "AMD" if "AMD" in key else "Intel"
    if held := re.search(r"held to (\w+)", key):
        name = next(name for unit, name, _ in BY_UNIT if unit.removesuffix("f") == held[1])
        return f"{maker}, held to {name}", PLAIN
    name, aims = next((name, aims) for unit, name, aims in BY_UNIT if re.search(rf"\b{unit}\b", key))
    return f"{maker}, {name}", aims


def _training(known: Mapping[str, Sides]) -> str:
    cells: dict[str, dict[str, dict[str, str]]] = {PLAIN: {}, UNITS: {}}
    for key, sides in known.items():
        column = next((name for start, (name, _) in TRAINING.items() if key.startswith(start)), None)
        if column is not None and "NVIDIA" not in key:
            name, aims = class_of(key)
            cells[aims].setdefault(name, {})[column] = trained(sides)
    columns = [name for name, _ in TRAINING.values()]
    asked = {aims: [asked[aims] for _, asked in TRAINING.values()] for aims in cells}
    return _by_class(columns, asked, cells)


def trained(sides: Sides) -> str:
    """Of our fastest side in fp32 or bf16; behind it the limit in its precision, and our side in int8."""
    peers = {name: one for name, one in sides.items() if name.startswith("reference") and one["within"]}
    best = max(peers.values(), key=_rate)
    ours = {name: one for name, one in sides.items() if name.startswith("ours")}
    in_integers = ours.pop("ours, int8", None)
    own = max(ours.values(), key=_rate)
    limit = sides.get(f"limit, {own['precision']}")
    most = "" if limit is None else f" ({_ratio(limit, best):.2f})"
    more = ""
    if in_integers is not None and in_integers["within"]:
        more = f", int8 {_ratio(in_integers, best):.2f}"
    return f"{_ratio(own, best):.2f}{most}{more}"


def _answers(known: Mapping[str, Any]) -> str:
    cells: dict[str, dict[str, dict[str, str]]] = {PLAIN: {}, UNITS: {}}
    for key, found in known.items():
        name, aims = class_of(key)
        cells[aims].setdefault(name, {})[key.partition(",")[0]] = answered(found["sides"])
    return _by_class(SETS, {aims: [asked] * len(SETS) for aims, asked in ANSWERS.items()}, cells)


def answered(sides: Sides) -> str:
    """Of each of our precisions."""
    peers = {name: one for name, one in sides.items() if not name.startswith("ours") and one["within"]}
    best = max(peers.values(), key=_rate)
    named = max((one for name, one in peers.items() if name.startswith(NAMED)), key=_rate)
    told = []
    for name, one in sides.items():
        if name.startswith("ours"):
            precision = one["precision"]
            limit = sides.get(f"limit, {precision}")
            most = "" if limit is None else f" of {_ratio(limit, best):.2f}"
            told.append(f"{precision} {_ratio(one, best):.2f}{most} ({_ratio(one, named):.2f})")
    return ", ".join(told)


def _on_gpu(known: Mapping[str, Sides]) -> str:
    cells: dict[str, dict[str, str]] = {}
    for key, sides in known.items():
        column = next((name for start, (name, _) in ON_GPU.items() if key.startswith(start)), None)
        if column is not None and (card := re.search(r"NVIDIA \w+", key)):
            cells.setdefault(card[0], {})[column] = trained(sides)
    columns = [name for name, _ in ON_GPU.values()]
    return table(
        ["", *columns], [["asked for", *(asked for _, asked in ON_GPU.values())], *_rows(columns, cells)]
    )


def _by_class(
    columns: Iterable[str], asked: Mapping[str, Iterable[str]], cells: Mapping[str, Mapping[str, Any]]
) -> str:
    """A table of all classes, under each set of aims those that have them."""
    columns = list(columns)
    rows = [
        row
        for aims, own in cells.items()
        for row in ([f"asked for with {aims}", *asked[aims]], *_rows(columns, own))
    ]
    return table(["", *columns], rows)


def _rows(columns: Iterable[str], cells: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    return [[name, *(own.get(column, "–") for column in columns)] for name, own in cells.items()]


def _rate(one: Mapping[str, Any]) -> float:
    return statistics.median(one["rates"])


def _ratio(own: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The median of the ratios by window."""
    return statistics.median(ratios(own["rates"], other["rates"]))


if __name__ == "__main__":
    main()
