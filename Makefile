# The whole interface of a developer.
.PHONY: setup check test slow bench

setup:
	pip install -c constraints.txt -e '.[dev]'

check:
	ruff check .
	ruff format --check .
	mypy
	lint-imports

test: check
	pytest

slow:
	pytest -m slow

bench:
	@echo "one script a measurement, one at a time; each is resumable and writes its part of RESULTS.md:"
	@ls benchmarks/*.py
