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

# The kernels are compiled once, during the checks. The tests' files have a short name, since their paths stand in
# tables of 80 columns.
test:
	python -m bertsmith.kernels.background_compile & compiler=$$!; \
		$(MAKE) check || { kill $$compiler; exit 1; }; wait $$compiler || true
	files=$$(mktemp -d /tmp/XXXXXX); trap 'rm -rf "$$files"' EXIT; pytest -n auto --dist=loadfile --basetemp="$$files"

slow:
	pytest -m slow

bench:
	@echo "one script a measurement, one at a time; each is resumable and writes its part of RESULTS.md:"
	@ls benchmarks/*.py
