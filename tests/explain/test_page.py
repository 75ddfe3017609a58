"""The pages of attention weights and explanations: what they hold, escape, and do in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import bertsmith as bs
import browser
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.explain.attention import AttentionMaps
from bertsmith.explain.explanation import Explanation, WordAttribution
from bertsmith.explain.faithfulness import Faithfulness
from bertsmith.explain.page import (
    plot_explanations,
    render_attention,
    render_explanations,
    save_explanations,
    save_page,
)
from bertsmith.reports import plots
from bertsmith.reports.page import notebook_frame

ATTACK = "</script><img src=x onerror=\"document.title='attacked'\">"
NUM_LAYERS, NUM_HEADS = 3, 2


def random_maps(texts: list[list[str]], seed: int = 0) -> AttentionMaps:
    """Return random weights of a text or a pair of texts, given as tokens."""
    tokens, sources = ["[CLS]"], [-1]
    for i, text in enumerate(texts):
        tokens += [*text, "[SEP]"]
        sources += [i] * len(text) + [-1]
    logits = np.random.default_rng(seed).normal(
        scale=2, size=(NUM_LAYERS, NUM_HEADS, len(tokens), len(tokens))
    )
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return AttentionMaps(
        tokens,
        np.array(sources, dtype=np.int8),
        np.array([token in ",.。" for token in tokens]),
        weights.astype(np.float32),
        list(range(NUM_LAYERS)),
        list(range(NUM_HEADS)),
        ATTACK,
    )


PAIR = random_maps([["the", ATTACK, "bank", "."], ["苹果", "很", "甜", "。"]])


class Elements(HTMLParser):
    """The elements of a page, each with its attributes and the text in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}", {}, ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)

    def scripts(self, kind: str | None) -> list[str]:
        """Return the scripts of a type; None: those without a type, which run."""
        return [
            text for tag, attributes, text in self.found if tag == "script" and attributes.get("type") == kind
        ]


def explanation(target: str = "joy", **changes: Any) -> Explanation:
    word = WordAttribution(ATTACK, "text", 0, 3, 0.5, 0.25, [1])
    values = Explanation(target, 1.0, "mask", 0.5, 0.001, 20, ["[CLS]", "a", "[SEP]"], [0, 0.5, 0], [word])
    return replace(values, model=ATTACK, **changes)


def test_a_page_holds_all_weights_within_the_rounding() -> None:
    page = Elements(render_attention(PAIR))
    (data,) = map(json.loads, page.scripts("application/json"))
    assert data["tokens"] == PAIR.tokens
    assert data["measures"]["entropy"] == [row["entropy"] for row in PAIR.summary()]
    texts = page.scripts("text/plain")
    assert len(texts) == NUM_LAYERS * NUM_HEADS
    for text, weights in zip(texts, PAIR.weights.reshape(-1, *PAIR.weights.shape[2:]), strict=True):
        values = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
        assert np.abs((values.reshape(weights.shape) / 255) ** 2 - weights).max() < 0.004


@pytest.mark.parametrize("has_attention", [True, False])
def test_pages_escape_every_text_and_permit_only_their_own_script(has_attention: bool) -> None:
    attention = [PAIR] if has_attention else []
    one = render_explanations([explanation(ATTACK, attention=attention)])
    two = render_explanations([explanation(ATTACK, attention=attention)] * 2)
    for page in (one, two, render_attention(PAIR)):
        elements = Elements(page)
        assert not {"img", "link", "a", "iframe"} & {tag for tag, _, _ in elements.found}
        assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")
        (policy,) = [a["content"] for _, a, _ in elements.found if "http-equiv" in a]
        assert policy is not None
        scripts = elements.scripts(None)
        assert len(scripts) == ("script-src" in policy) <= 1
        for script in scripts:
            digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
            assert f"script-src 'sha256-{digest}'" in policy


def test_a_page_of_explanations_has_attention_only_if_it_was_requested() -> None:
    counts = {
        count: len(
            Elements(render_explanations([explanation(attention=[PAIR] * count)])).scripts("application/json")
        )
        for count in (0, 1, 2)
    }
    assert counts == {0: 0, 1: 1, 2: 2}
    assert "attention" not in explanation(attention=[PAIR]).to_dict()


def test_files_are_pages_or_plots_by_their_endings(tmp_path: Path) -> None:
    models = [explanation(), explanation("fear", words=[])]
    assert save_explanations(tmp_path / "two.PNG", models).read_bytes().startswith(b"\x89PNG")
    assert explanation().save(tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert "fear" in save_explanations(tmp_path / "two.html", models).read_text(encoding="utf-8")
    for save in (PAIR.save, explanation().save):
        with pytest.raises(InputError) as caught:
            save(tmp_path / "page.pdf")
        assert (caught.value.code, caught.value.argument) == ("wrong_file_suffix", "output")
    with pytest.raises(InputError) as caught:
        save_page(tmp_path / "large.html", "x" * 64_000_001, "use a shorter text")
    assert (caught.value.code, caught.value.hint) == ("page_too_large", "use a shorter text")
    assert not (tmp_path / "large.html").exists()


def test_a_notebook_shows_the_page_in_a_frame() -> None:
    (tag, attributes, _), _ = Elements(PAIR._repr_html_()).found
    assert (tag, attributes["sandbox"]) == ("iframe", "allow-scripts")
    assert attributes["srcdoc"] == render_attention(PAIR)


def test_a_notebook_does_not_show_a_page_that_is_too_large() -> None:
    assert "<iframe" in notebook_frame("a" * 16_000_000)
    assert "<iframe" not in notebook_frame("a" * 16_000_001)


def test_the_command_writes_one_page_of_two_models(base: bs.Model, tmp_path: Path) -> None:
    page, text, model = tmp_path / "page.html", "kaba [MASK] lode", str(base.path)
    arguments = ["explain", model, text, "--against", model, "--json", "--output", str(page)]
    document = json.loads(CliRunner().invoke(bertsmith, arguments).stdout)
    assert document == {"models": [base.explain(text).to_dict()] * 2}
    assert len(Elements(page.read_text(encoding="utf-8")).scripts("application/json")) == 2
    result = CliRunner().invoke(bertsmith, [*arguments, "--no-attention"])
    assert result.exit_code == 0
    assert not Elements(page.read_text(encoding="utf-8")).scripts("application/json")


@pytest.fixture(scope="module")
def shown() -> Iterator[browser.Browser]:
    if browser.chromium() is None:
        pytest.skip("there is no Chromium on this machine")
    with browser.Browser() as result:
        yield result


def open_page(
    shown: browser.Browser, folder: Path, page: str, width: int = 1400, scheme: str = "light"
) -> None:
    """Open a page, and wait until its first head is drawn."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    shown.open(folder / "page.html", width, scheme)
    wait(shown, "[...document.querySelectorAll('.box')].every(box => box.ariaBusy === 'false')")


def wait(shown: browser.Browser, condition: str) -> None:
    """Wait until a condition holds in the page, at most five seconds."""
    script = f"""new Promise((done) => {{ const start = performance.now(); const check = () => {{
        if ({condition}) done(true); else if (performance.now() - start > 5000) done(false);
        else requestAnimationFrame(check); }}; check(); }})"""
    assert shown.ask(script), condition


def choose(shown: browser.Browser, name: str, value: str) -> None:
    """Choose an option of a control."""
    shown.ask(
        f"(() => {{ const e = document.querySelector('[name={name}]'); e.value = '{value}'; "
        "e.dispatchEvent(new Event('change')); })()"
    )


def reading(shown: browser.Browser) -> str:
    return str(shown.ask("document.querySelector('.reading').textContent"))


def displayed_weight(weight: float) -> float:
    """Return a weight as the page rounds it."""
    return float((np.rint(np.sqrt(weight) * 255) / 255) ** 2)


def assert_reading(
    shown: browser.Browser, maps: AttentionMaps, head: tuple[int, int], row: int, column: int
) -> None:
    start = f"{maps.tokens[row]} → {maps.tokens[column]}: "
    wait(shown, f"document.querySelector('.reading').textContent.startsWith({json.dumps(start)})")
    number = reading(shown).removeprefix(start)
    assert float(number) == pytest.approx(displayed_weight(maps.weights[(*head, row, column)]), abs=6e-4)


def test_hovering_shows_the_weight_of_a_cell(shown: browser.Browser, tmp_path: Path) -> None:
    open_page(shown, tmp_path, render_attention(PAIR))
    count = len(PAIR.tokens)
    for row, column in ((0, 0), (2, 7), (count - 1, 3)):
        shown.point(".cells canvas", (column + 0.5) / count, (row + 0.5) / count)
        assert_reading(shown, PAIR, (0, 0), row, column)
    assert shown.ask("document.title") == "Attention"


def test_heads_open_by_click_selection_and_arrow_keys(shown: browser.Browser, tmp_path: Path) -> None:
    open_page(shown, tmp_path, render_attention(PAIR))
    drawn = "document.querySelector('.cells canvas').toDataURL()"
    pictures = [shown.ask(drawn)]

    def opened(layer: int, head: int) -> None:
        wait(shown, f"document.querySelector('.name').textContent === 'Layer {layer}, head {head}'")
        wait(shown, f"{drawn} !== {json.dumps(pictures[-1])}")
        pictures.append(shown.ask(drawn))
        pressed = "document.querySelector('.heads [aria-pressed=true]').ariaLabel"
        assert shown.ask(pressed) == f"layer {layer}, head {head}"
        entropy = float(shown.ask("document.querySelector('[data-measure=entropy]').textContent"))
        assert entropy == pytest.approx(PAIR.summary()[layer * NUM_HEADS + head]["entropy"], abs=0.006)

    shown.point("[aria-label='layer 1, head 0']", click=True)
    opened(1, 0)
    for key, place in (
        ("ArrowDown", (2, 0)),
        ("ArrowRight", (2, 1)),
        ("ArrowUp", (1, 1)),
        ("ArrowLeft", (1, 0)),
    ):
        shown.press(key)
        opened(*place)
        assert shown.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    choose(shown, "layer", "2")
    opened(2, 0)
    shown.ask("document.querySelector('.box').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):  # the first one selects the first cell
        shown.press(key)
    assert_reading(shown, PAIR, (2, 0), 1, 1)


def test_tokens_are_chosen_by_text(shown: browser.Browser, tmp_path: Path) -> None:
    open_page(shown, tmp_path, render_attention(PAIR))
    for value, rows, columns in (("AB", 0, 1), ("BA", 1, 0), ("AA", 0, 0), ("BB", 1, 1)):
        choose(shown, "tokens", value)
        row, column = np.flatnonzero(PAIR.sources == rows)[1], np.flatnonzero(PAIR.sources == columns)[2]
        shown.point(".cells canvas", 2.5 / 4, 1.5 / 4)
        assert_reading(shown, PAIR, (0, 0), int(row), int(column))
    open_page(shown, tmp_path, render_attention(random_maps([["a", "b"]])))
    assert shown.ask("[...document.querySelector('[name=tokens]').options].map(o => o.value)") == [
        "all",
        "words",
    ]


def test_an_empty_first_text_has_no_weights_to_show(shown: browser.Browser, tmp_path: Path) -> None:
    open_page(shown, tmp_path, render_attention(random_maps([[], ["a", "b"]])))
    for form in ("matrix", "lines"):
        choose(shown, "form", form)
        choose(shown, "tokens", "AB")
        shown.ask("document.querySelector('.box').focus()")
        shown.press("ArrowDown")
        assert reading(shown).startswith("Layer 0, head 0.")
        choose(shown, "tokens", "BB")
        shown.press("ArrowDown")
        assert reading(shown).startswith("a → ")


def test_lines_name_the_tokens_with_the_largest_weights(shown: browser.Browser, tmp_path: Path) -> None:
    open_page(shown, tmp_path, render_attention(PAIR))
    choose(shown, "form", "lines")
    for side, arrow, weights in (
        ("rows", "→", PAIR.weights[0, 0, 3]),
        ("columns", "←", PAIR.weights[0, 0, :, 3]),
    ):
        shown.point(f".lines .{side} .token:nth-child(4)")
        wait(shown, f"document.querySelector('.reading').textContent.startsWith('bank {arrow}')")
        names = reading(shown).removeprefix(f"bank {arrow} ").split(" · ")
        assert names[0].rpartition(" ")[0] == PAIR.tokens[int(weights.argmax())]
        assert [float(name.rpartition(" ")[2]) for name in names] == pytest.approx(
            [displayed_weight(weight) for weight in sorted(weights)[: -len(names) - 1 : -1]], abs=6e-4
        )
    assert shown.ask(
        "document.querySelector('.lines canvas').getContext('2d').getImageData(0, 0, 200, 150).data.some(v => v)"
    )


def test_pages_fit_their_windows_and_follow_the_color_scheme(shown: browser.Browser, tmp_path: Path) -> None:
    long = random_maps([[f"token{i}" for i in range(100)]])
    two = [explanation(attention=[PAIR]), explanation("a" * 200, attention=[long])]
    colors = {}
    for name, page in (("attention", render_attention(long)), ("explanations", render_explanations(two))):
        for width in (360, 1400):
            for scheme in ("light", "dark"):
                open_page(shown, tmp_path, page, width, scheme)
                for form in ("lines", "matrix"):
                    choose(shown, "form", form)
                    assert shown.ask("document.documentElement.scrollWidth") <= width, (name, form)
                colors[scheme] = shown.ask(
                    "[...document.querySelector('.cells canvas').getContext('2d').getImageData(0, 0, 1, 1).data]"
                )
    assert colors["light"][:3] != colors["dark"][:3]
    assert shown.ask("document.title") != "attacked"


def test_the_page_shows_the_text_between_the_words(base: bs.Model) -> None:
    explanation = base.explain("kaba [MASK], lode")
    page = re.sub("<[^>]+>", "", render_explanations([explanation]))
    assert "kaba [MASK], lode" in page


def test_a_mask_alone_has_no_words(base: bs.Model) -> None:
    with pytest.raises(InputError) as caught:
        base.explain("[MASK]")
    assert caught.value.code == "no_tokens"


def test_the_legend_covers_no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(plots, "to_png", figures.append)
    curve = [0.5, 0.25, 0.0]
    plot_explanations([explanation(faithfulness=Faithfulness(curve, curve, curve, curve, 0.5, 0.5, 0.5))])
    figures[0].canvas.draw()
    axes = figures[0].axes[1]
    assert axes.get_legend().get_window_extent().padded(-10).y0 >= axes.bbox.y1
