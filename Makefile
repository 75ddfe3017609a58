# The whole interface of a developer.
.PHONY: setup check docs test slow bench

setup:
	pip install -c constraints.txt -e '.[dev]'

check:
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	$(MAKE) docs

docs:
	sphinx-build -W --keep-going -q docs docs/_build

test: check
	pytest -n auto --dist=loadfile --basetemp=$$(mktemp -d /tmp/XXXXXX)/t  # short: paths stand in tables

slow:
	pytest -m slow

bench:
	@echo "one script a measurement, one at a time; each is resumable and writes its part of RESULTS.md:"
	@ls benchmarks/*.py
