"""Test the page of a run: number_scatter, escaping, and size."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bertsmith.formatting import shorten
from bertsmith.metrics.calibration import reliability_bins
from bertsmith.reports.page import score_name
from bertsmith.reports.run import StepTimer, render_run_page, report_figures, write_figures, write_report
from bertsmith.tasks.report import confusion, number_scatter, reliability

NASTY = "<script>alert(1)</script> & \u202eevil\u202c \x1b[31m"

pytestmark = pytest.mark.usefixtures("every_figure")


def report(labels: int = 3, examples: int = 4, text: str = "a text") -> dict[str, Any]:
    """Return a synthetic report with all optional parts."""
    names = [f"label {i} {text}"[:60] for i in range(labels)]
    labels_by_row = [names[i % labels] for i in range(10 * labels)]
    predictions = [names[(i * i) % labels] for i in range(10 * labels)]
    confidences = [(i % 9) / 9 for i in range(10 * labels)]
    is_correct = [a == b for a, b in zip(labels_by_row, predictions, strict=True)]
    histogram = {"edges": [1, 2, 4, 9], "counts": [5, 0, 2]}
    short = shorten(text, 400)
    truncation = {"limit": 8, "special_tokens": 2, "texts": 7, "tokens": 50, "tags": 40}
    return {
        "task": "classify",
        "base": text,
        "decided_by": "accuracy",
        "train_examples": 7,
        "steps": 20,
        "tokens": 1234,
        "seconds": 12.3,
        "tokens_per_second": 99.8,
        "precision": "fp32",
        "device": "cpu",
        "threads": 1,
        "best_step": 10,
        "baseline": {"accuracy": 0.25, "examples": 30},
        "baselines": {"without looking at the text": {"accuracy": 0.25}, "TF-IDF + linear": {"accuracy": 0.5}},
        "validation": {"accuracy": 0.987654, "macro_f1": 0.5, "examples": 30, "chance": 0.125, "notes": [text]},
        "evaluations": [
            {"step": step, "epoch": step / 10, "loss": 1.5, "accuracy": 0.5, "best": step == 10}
            for step in (10, 20)
        ],
        "curve": {
            "mean_of": 1,
            "points": [{"step": s, "loss": 3 / s, "learning_rate": 2e-5 / s} for s in (1, 10, 20)],
        },
        "answers": {
            "tables": [
                {
                    "title": "",
                    "columns": ["label", "F1", "support"],
                    "rows": [[name, "0.2500", "10"] for name in names[:200]],
                    "number": labels,
                }
            ],
            "confusion": confusion("texts", labels_by_row, predictions, names),
            "reliability": reliability("texts", confidences, is_correct),
            "numbers": number_scatter([float(i) for i in range(labels * 10)], confidences),
            "hardest": {
                "measure": "the squared error",
                "number": examples,
                "examples": [
                    {"place": f"f:{i}", "loss": 9.25 - i, "asked": {"t": short}, "truth": short, "prediction": "b"}
                    for i in range(min(20, examples))
                ],
            },
        },
        "lengths": {
            "train": {
                "number": 7, "least": 1, "median": 2, "percentile_95": 8, "most": 8, "histogram": histogram,
            }
        },
        "truncation": {
            "train": {
                **truncation,
                "cut": {"texts": 1, "tokens": 3, "tags": 2},
            }
        },
        "findings": [
            {"kind": "empty texts", "said": f"1 text is empty: {text}", "places": ["train.csv:3"], "number": 30}
        ],
        "settings": {
            "base": text,
            "files": {"train": "a.csv", "validation": None},
            "train": {"num_train_epochs": 3.0},
        },
        "warnings": ["the model did not learn", f"1 text is empty: {text}"],
        "wall_time": [{"step": "training", "seconds": 9.0}, {"step": "encoding", "seconds": 3.0}],
    }  # fmt: skip


def page_text(page: str) -> str:
    """Return the text of a page without tags."""
    words = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", words).replace("\u00a0", " ").split())


def test_the_page_has_the_numbers_of_the_report(tmp_path: Path) -> None:
    document = report()
    write_report(tmp_path, document, write_figures(tmp_path, document))
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == document
    words = page_text((tmp_path / "report.html").read_text(encoding="utf-8"))
    for expected in (
        "accuracy 0.9877 0.2500 0.5000",  # this model's, the baselines'
        "macro F1 0.5000 – – Random choices would be right in 12.5 % of the examples.",
        "7 of a.csv to train on, 30 held out of it",
        "the weights after update 10 were kept, the best by accuracy",
        "20 2 1.5000 0.5000",  # an evaluation: update, epoch, loss, score
        "tags 40 2 (5.00 %)",  # total, truncated
        "training 9.0 s",
        "train.num_train_epochs 3.0",
        "train.csv:3 and 29 more",
        "9.250 a text label a text · prediction b f:0",
    ):
        assert expected in words, expected
    for name in ("loss", "scores", "learning_rate", "reliability", "numbers", "confusion"):
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert words.count("1 text is empty") == 1  # among the findings, not among the warnings as well
    assert "the model did not learn" in words


@pytest.mark.parametrize("scores", [(0.17, 0.195, 0.225), (0.44, 0.7616, 0.7664), (0.3, 0.99, 0.5)])
def test_text_of_plots_is_not_cut_off(scores: tuple[float, float, float]) -> None:
    """Ticks are the same in layout and output."""
    document = report()
    document["evaluations"] = [
        {
            "step": step,
            "epoch": step / 10,
            "loss": 1.5,
            "accuracy": score,
            "macro_f1": score / 3,
            "best": False,
        }
        for step, score in zip((5, 10, 20), scores, strict=True)
    ]
    for report_figure in report_figures(document):
        report_figure.figure.draw_without_rendering()
        content, page, tolerance = (
            report_figure.figure.get_tightbbox(),
            report_figure.figure.bbox_inches,
            0.01,
        )  # inches
        assert content.x0 >= -tolerance, report_figure.name
        assert content.y0 >= -tolerance, report_figure.name
        assert content.x1 <= page.x1 + tolerance, report_figure.name
        assert content.y1 <= page.y1 + tolerance, report_figure.name


def test_figures_of_an_earlier_report_are_deleted(tmp_path: Path) -> None:
    write_figures(tmp_path, report())
    write_figures(tmp_path, {**report(), "answers": {"tables": []}})
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    assert names == {"loss.png", "scores.png", "learning_rate.png", "lengths_train.png"}


@pytest.mark.parametrize("text", [NASTY, "مرحبا بالعالم", "x" * 10_000, "$\\alpha$ _a_ {{ 1 }}", "我们"])
def test_text_from_files_is_escaped(text: str) -> None:
    page = render_run_page(report(text=text))
    assert "<script" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    shown = {
        NASTY: "&lt;script&gt;alert(1)&lt;/script&gt; &amp; \\u202eevil",
        "مرحبا بالعالم": '<span dir="auto">مرحبا بالعالم</span>',
    }
    assert shown.get(text, text[:200].rstrip()) in page
    assert len(re.findall(r"<svg\b", page)) == page.count("</svg>")


def test_the_size_of_a_page_is_bounded() -> None:
    document = report(labels=1500, examples=100_000, text="word " * 80)
    page = render_run_page(document)
    assert len(page) < 600_000
    assert len(json.dumps(document)) < 600_000
    words = page_text(page)
    assert "The first 200 of 1,500" in words
    assert "20 of 100,000 examples" in words
    assert re.search(r"30 of [\d,]+ pairs", words)
    assert "1,000 of 15,000 examples" in page


def test_a_confusion_matrix_has_a_cell_for_each_pair() -> None:
    result = confusion("texts", ["a", "a", "b", "c"], ["a", "b", "b", "b"], ["a", "b"])
    assert result["labels"] == ["a", "b", "c"]
    assert result["counts"] == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    assert (result["wrong"], result["pairs"], result["number"]) == (2, 2, 4)
    assert result["confused"][0] == {"truth": "a", "prediction": "b", "times": 1}
    many = confusion("texts", [str(i) for i in range(40)], ["0"] * 40)
    assert many["counts"] is None
    assert (many["labels"], many["wrong"], len(many["confused"]), many["pairs"]) == ([], 39, 30, 39)


def test_reliability_has_the_bins_of_the_calibration_error() -> None:
    result = reliability("texts", [0.9, 0.95, 0.1], [True, False, False])
    assert result["bins"] == [
        bin_._asdict() for bin_ in reliability_bins([0.9, 0.95, 0.1], [True, False, False])
    ]
    assert result["error"] == pytest.approx((abs(0.9 - 1) + 0.95 + 0.1) / 3)
    assert result["number"] == 3


def test_a_scatter_plot_is_evenly_sampled() -> None:
    result = number_scatter([float(i) for i in range(2500)], [0.123456789] * 2500)
    assert result["number"] == 2500
    assert [pair[0] for pair in result["pairs"]] == [float(i) for i in range(0, 2500, 3)]
    assert result["pairs"][0][1] == 0.12346


def test_writing_a_figure_does_not_change_it() -> None:
    document = report()
    expected = render_run_page(document)
    figures = list(report_figures(document))
    for figure in figures:
        figure.figure.savefig("/dev/null", format="png")
    assert render_run_page(document, figures) == expected


def test_a_nested_step_pauses_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("bertsmith.hardware.clock", lambda: now[0])
    steps = StepTimer()
    now[0] = 5.0  # outside of all steps
    with steps.step("training"):
        now[0] = 15.0
        with steps.step("evaluations"):
            now[0] = 18.0
        now[0] = 20.0
    with steps.step("evaluations"):
        now[0] = 21.0
    steps.reattribute("training", "checkpoints", 2.0)
    assert steps.to_list() == [
        {"step": "training", "seconds": 10.0},
        {"step": "evaluations", "seconds": 4.0},
        {"step": "checkpoints", "seconds": 2.0},
    ]


def test_score_names() -> None:
    assert score_name("macro_f1") == "macro F1"
    assert score_name("ndcg@10") == "nDCG@10"
    assert score_name("exact_match") == "exact match"


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1200])
def test_no_page_is_wider_than_its_window(tmp_path: Path, width: int) -> None:
    import browser

    if browser.chromium() is None:
        pytest.skip("there is no Chromium on this machine")
    (tmp_path / "page.html").write_text(
        render_run_page(report(labels=20, text="x" * 10_000)), encoding="utf-8"
    )
    with browser.Browser() as shown:
        for scheme in browser.SCHEMES:
            shown.open(tmp_path / "page.html", width, scheme)
            assert shown.ask("document.documentElement.scrollWidth") <= width
