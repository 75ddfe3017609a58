# The whole interface of a developer.
.PHONY: setup check lint types docs test unit slow bench

setup:
	pip install -c constraints.txt -e '.[dev]'

check: lint
	$(MAKE) -j types docs

lint:
	ruff check .
	ruff format --check .
	lint-imports

types:
	mypy

docs:
	sphinx-build -W --keep-going -q docs docs/_build

# The slow checks run beside the tests.
test: lint
	$(MAKE) -j types docs unit

# The tests' files have a short name, since their paths stand in tables of 80 columns.
unit:
	files=$$(mktemp -d /tmp/XXXXXX); trap 'rm -rf "$$files"' EXIT; \
		pytest -n auto --dist=loadfile --no-loadscope-reorder --basetemp="$$files"

slow:
	pytest -m slow

bench:
	@echo "one script a measurement, one at a time; each is resumable and writes its part of RESULTS.md:"
	@ls benchmarks/*.py
