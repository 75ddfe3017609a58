"""`bertsmith data check`: the look through a corpus, and what it will cost to train on it, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith import console, hardware
from bertsmith.corpus.checks.check import CheckOptions, check
from bertsmith.errors import InputError, MachineError
from bertsmith.formatting import counted, percent
from bertsmith.instances.settings import FILL
from bertsmith.io import atomic
from bertsmith.io.compressed import check_name
from bertsmith.io.files import Reading, find_files
from bertsmith.io.memory import Sources, as_files, size_of
from bertsmith.keywords import with_keywords
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import preset
from bertsmith.models.parameter_count import count_parameters, operations_per_token
from bertsmith.notebook import Report
from bertsmith.suggestions import absent
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.settings import TrainSettings

_LENGTH, _MASKED = 128, 0.15
_PIECES_A_WORD = (
    1.12  # measured there with the published uncased vocabulary; a Chinese character is one piece
)
_BYTES_A_SENTENCE, _BYTES_A_DOCUMENT = (
    4,
    60,
)  # of a shard: a sentence's end; a document's place, hash and offsets
_MOST_EPOCHS = 1_000_000
_PROBE_SECONDS = 3.0
_BEGINNING, _SOME_FILES = 500_000, 8  # bytes and files that wrapped lines are looked for in
_LONGEST_UPDATE = 5.0  # seconds: the update of a larger model is computed from the rate of a matrix product
_OF_PEAK = 0.45  # what an update reaches of a large product's rate
_PRODUCT, _PRODUCT_SECONDS = 1024, 0.2


@console.with_bar("looking")
def check_corpus(
    files: Sources,
    options: CheckOptions | None = None,
    *,
    tokenizer: Tokenizer | str | Path | None = None,
    against: Sources = (),
    preset_name: str | None = None,
    epochs: float = 1.0,
    probe: bool = True,
    html: str | Path | None = None,
    progress: Callable[[int], None] | None = None,
    tell: Callable[[str], None] = console.tell,
    **how: Any,
) -> dict[str, Any]:
    """Look through a corpus (`survey.check.check`, whose report this is) and add a `forecast` for a preset:
    tokens, disk, updates and time. preset_name: none is bert-mini-chinese for Chinese text, else
    bert-mini-uncased.

    files, against: one path or several, or data in memory, as in `prepare`. how: fields of the options and of
    their `reading` by name, such as sample=10_000_000 or text_column="title". probe: measure a few updates here
    for the time; else none is told. html: also write the report as a page. Raises `InputError` for missing
    files, an unknown preset, epochs that are no number above 0 and up to a million, an html file whose folder
    is missing.
    """
    if not 0 < epochs <= _MOST_EPOCHS:  # nor NaN
        raise InputError(
            f"--epochs {epochs}: this is not above 0 and up to {_MOST_EPOCHS:,}", "give 1, or 40"
        )
    if preset_name is not None:
        preset(preset_name)  # unknown names are refused before the text is read
    if html is not None:
        _check_page(Path(html))
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    options, files = with_keywords(options or CheckOptions(), how, check_corpus), as_files(files)
    report = check(
        files, options, tokenizer=tokenizer, against=as_files(against, "against"), progress=progress
    )
    if preset_name is None:
        preset_name = "bert-mini-chinese" if report["language"] == "zh" else "bert-mini-uncased"
    config = preset(preset_name, **({"vocab_size": tokenizer.vocab_size} if tokenizer is not None else {}))
    report["forecast"] = forecast(report, config, preset_name, epochs, probe, options.sample, tell)
    if html is not None:
        from bertsmith.reports.corpus import corpus_page

        try:
            atomic.write_text(Path(html), corpus_page(report))
        except OSError as error:
            raise MachineError(f"{html}: could not be written ({error.strerror})") from None
    return Report(report, shown=("findings", "forecast"))


def wrapped_lines(files: Sequence[str | Path], reading: Reading, language: str | None) -> str | None:
    """A remark where lines at the beginning of the first files are wrapped inside sentences; else None."""
    options = CheckOptions(reading, language, sample=_BEGINNING)
    for fault in check(find_files(files)[:_SOME_FILES], options)["structure"]["faults"]:
        if fault["fault"] == "hard_wrapped":
            return f"{fault['what']}; {fault['remedy']}"
    return None


def forecast(
    report: dict[str, Any],
    config: ModelConfig,
    preset_name: str,
    epochs: float,
    probe: bool,
    sample: int | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Tokens, bytes of shards, updates and seconds of `epochs` passes; each an estimate whose ground is told."""
    counted = report.get("tokenizer")
    scale, reach = _scale(report, sample)
    tokens = round((counted["tokens"] if counted else _tokens(report)) * scale)
    sentences = report["documents"]["sentences"] * scale
    documents = report["documents"]["number"] * scale
    size = 2 if config.vocab_size <= 1 << 16 else 4
    settings = TrainSettings()
    instances = round(tokens / (FILL * _LENGTH - 3))
    steps = (
        max(1, round(epochs * instances / (settings.batch_size * settings.accumulate))) if instances else 0
    )
    found: dict[str, Any] = {
        "preset": preset_name,
        "epochs": epochs,
        "covers": reach,
        "tokens": tokens,
        "tokens_are": "counted" if counted and scale == 1 else "estimated",
        "shard_bytes": round(tokens * size + sentences * _BYTES_A_SENTENCE + documents * _BYTES_A_DOCUMENT),
        "sequence_length": _LENGTH,
        "batch_size": settings.batch_size,
        "instances_an_epoch": instances,
        "steps": steps,
        "parameters": sum(term.size for term in count_parameters(config, ("pooler", "masked", "pair"))),
        "seconds_per_update": None,
        "seconds": None,
        "rests_on": _ground(counted is not None) + "; the time was not probed",
    }
    if probe and steps:
        timed = seconds_per_update(config, settings, tell)
        found["seconds_per_update"] = round(timed.seconds, 5)
        found["seconds"] = round(timed.seconds * steps, 1)
        found["rests_on"] = f"{_ground(counted is not None)}; {timed.ground}"
    return found


@dataclass(frozen=True)
class _Timed:
    """Seconds of an update, and what the figure rests on."""

    seconds: float
    ground: str


def seconds_per_update(config: ModelConfig, settings: TrainSettings, tell: Callable[[str], None]) -> _Timed:
    """How long an update takes here: a few are made on random text; where they would take too long, it is computed
    from the rate of a matrix product."""
    from bertsmith.pretraining.settings import PretrainSettings
    from bertsmith.pretraining.speed_probe import timed_on_random_text
    from bertsmith.runs.run_folder import place_of

    place = place_of(settings, config, tell, is_look=True)
    rate = hardware.product_rate(place.device, place.precision, _PRODUCT, _PRODUCT_SECONDS)
    tokens = settings.batch_size * settings.accumulate * _LENGTH * FILL
    computed = tokens * operations_per_token(config, _MASKED) / (rate * _OF_PEAK)
    if computed > _LONGEST_UPDATE:
        return _Timed(
            computed,
            f"seconds per update computed from a matrix product of {rate / 1e9:,.0f} GFLOP/s, of which training "
            f"reaches some {percent(_OF_PEAK)}, in {place.precision} on {hardware.name_of(place.device)}, as busy "
            "as it was",
        )
    tell("measuring the speed of an update ...")
    measured, way = timed_on_random_text(PretrainSettings(model=config), place, _PROBE_SECONDS)
    return _Timed(
        measured,
        f"seconds per update measured in {_PROBE_SECONDS:g} s of them on random text, in {way.precision} on "
        f"{counted(way.threads, 'thread')} of this machine, as busy as it was",
    )


def _scale(report: dict[str, Any], sample: int | None) -> tuple[float, str]:
    """By what a sample's figures are multiplied, and what the forecast covers."""
    if sample is None or not any(limit.startswith("a sample") for limit in report["limits"]):
        return 1.0, "the whole corpus"
    packed = (".gz", ".zst", ".bz2", ".xz", ".parquet")
    if any(file.lower().endswith(packed) for file in report["files"]):
        return 1.0, "the sample alone: how much text is in compressed files is not known before they are read"
    whole = sum(size_of(file) for file in report["files"])
    return max(
        1.0, whole / max(1, report["bytes"])
    ), "the whole corpus, from the sample by the size of the files"


def _tokens(report: dict[str, Any]) -> int:
    classes = report["characters"]["classes"]
    signs: int = sum(classes[name]["number"] for name in ("punctuation", "symbols") if name in classes)
    han = int(report["scripts"].get("Han", {"number": 0})["number"])
    spaced = max(0, int(report["words"]) - han)
    return round(_PIECES_A_WORD * spaced + min(han, int(report["words"])) + signs)


def _ground(counted: bool) -> str:
    tokens = (
        "tokens counted with this tokenizer"
        if counted
        else f"tokens estimated: {_PIECES_A_WORD:g} pieces per word, one per sign (--tokenizer counts them)"
    )
    return f"{tokens}; segment pairs of {_LENGTH} tokens filled to {percent(FILL)}"


def _check_page(page: Path) -> None:
    """Refuse a page that cannot be written before hours are spent on what it would show."""
    check_name(page)
    if page.is_dir():
        raise InputError(f"{page}: this is a folder", "name a file: --html report.html")
    if not page.parent.is_dir():
        raise absent(page.parent, "folder", "make it first")
