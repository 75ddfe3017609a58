"""`python -m bertsmith`: the command line."""

import bertsmith.safe_path  # noqa: F401
from bertsmith.cli.main import main

main()
