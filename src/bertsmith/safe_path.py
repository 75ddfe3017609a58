"""Remove the current folder from the import path, for `python -m`, which imports from it first.

A downloaded corpus may bring a json.py.
"""

import os
import sys

if not sys.flags.safe_path and os.path.isdir(sys.path[0]) and os.path.samefile(sys.path[0], "."):
    del sys.path[0]
