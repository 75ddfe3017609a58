"""`python -m bertsmith`: the command line."""

from bertsmith.cli.main import main

main()
