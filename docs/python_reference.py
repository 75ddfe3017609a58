"""A Sphinx directive that documents every public name of bertsmith: `{python-api}`."""

from __future__ import annotations

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

import bertsmith

OPTIONS = {
    "BertClassifier": ":members: fit, predict, predict_proba",
    "Encoder": ":members: forward",
    "Ensemble": ":members:\n   :inherited-members:",
    "Model": ":members:\n   :inherited-members:",
    "ModelConfig": "",
}
"""Options of autodoc, where they are not `:members:`."""


class PythonApi(Directive):
    """The documentation of all names of `dir(bertsmith)`, and of the scikit-learn estimator."""

    def run(self) -> list[nodes.Node]:
        """Return what autodoc generates."""
        names = [name for name in dir(bertsmith) if not name.startswith("_")]
        lines = [f"bertsmith.{name}" for name in sorted(names, key=lambda name: (name[0].isupper(), name))]
        text = "\n".join(map(_directive, [*lines, "bertsmith.sklearn.BertClassifier"]))
        block = nodes.Element()
        content = StringList(["```{eval-rst}", *text.splitlines(), "```"], source="python_reference.py")
        self.state.nested_parse(content, self.content_offset, block)
        return block.children


def _directive(path: str) -> str:
    """Return the lines of reStructuredText that document a name."""
    name = path.rpartition(".")[2]
    value = getattr(bertsmith, name, None)
    if not name[0].isupper():
        return f".. autofunction:: {path}\n"
    is_error = isinstance(value, type) and issubclass(value, Exception)
    return f".. auto{'exception' if is_error else 'class'}:: {path}\n   {OPTIONS.get(name, ':members:')}\n"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("python-api", PythonApi)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
