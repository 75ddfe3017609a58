"""The Sphinx configuration. `make docs` treats warnings as errors, so a broken link or a missing name fails."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "bertsmith"
copyright = "the bertsmith authors"
html_title = "bertsmith"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "command_reference",
    "mathml",
    "python_reference",
    "settings_reference",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide-tables.css"]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_dmath_double_inline = False
html_math_renderer = "mathml"  # in the page itself; MathJax would need a network
myst_heading_anchors = 3

smartquotes = False  # quotes in commands stay as they are
default_role = "literal"  # one pair of backticks in docstrings is code
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
