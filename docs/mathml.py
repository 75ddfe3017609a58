"""A Sphinx extension: formulas become MathML when the pages are built, so that browsers need no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def visit_math(visitor: Any, node: nodes.math) -> None:
    visitor.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_math_block(visitor: Any, node: nodes.math_block) -> None:
    formula = convert(node.astext(), display="block")
    visitor.body.append(f'<div class="formula">{formula}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
