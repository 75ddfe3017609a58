"""Log records appear on stderr of the command line, below a notebook's cell, and nowhere in a script."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOG = """
import logging
import bertsmith
logger = logging.getLogger("bertsmith.test")
logger.info("5 %s", "texts")
logger.warning("2 texts are empty")
"""
COMMAND_LINE = (
    "from bertsmith import log_handlers\nlog_handlers.install(log_handlers.ConsoleHandler())\n" + LOG
)
NOTEBOOK = """
import sys, types
module = types.ModuleType("IPython")
module.get_ipython = lambda: types.SimpleNamespace(kernel=True)
sys.modules["IPython"] = module
"""


@pytest.mark.parametrize(
    ("code", "out", "err"),
    [
        (LOG, "", "2 texts are empty\n"),
        (COMMAND_LINE, "", "5 texts\nwarning: 2 texts are empty\n"),
        (NOTEBOOK + LOG, "5 texts\nwarning: 2 texts are empty\n", ""),
    ],
    ids=["script", "command line", "notebook"],
)
def test_records_appear_in_their_interface(code: str, out: str, err: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (out, err)
