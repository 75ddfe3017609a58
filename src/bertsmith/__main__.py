"""`python -m bertsmith`: the command line."""

import os
import sys

# `python -m` imports from the current folder first, where a downloaded corpus may bring a json.py.
if not sys.flags.safe_path and os.path.isdir(sys.path[0]) and os.path.samefile(sys.path[0], "."):
    del sys.path[0]

from bertsmith.cli.main import main

main()
