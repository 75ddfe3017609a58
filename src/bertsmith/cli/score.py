"""`bertsmith score`: how likely a masked model finds texts, and its accuracy on minimal pairs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bertsmith.cli import options
from bertsmith.cli.computing import On, computed
from bertsmith.cli.verbs import Verb
from bertsmith.errors import InputError
from bertsmith.formatting import format_percent, pluralize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bertsmith.inference.pseudo_likelihood import Scorer

_HOW = "give texts, --input FILE or --pairs FILE, or pipe lines in: … | bertsmith score MODEL"
_OF_PAIRS = ("good_column", "bad_column", "group_columns", "sample", "seed")


@click.command(cls=Verb)
@click.argument("model")
@click.argument("texts", nargs=-1)
@click.option("--input", "file", metavar="FILE", help="Texts: a .txt with one per line, or a table.")
@click.option("--text-column", metavar="NAME", help="The column of --input that holds the texts [text].")
@click.option("--encoding", metavar="NAME", help="The encoding of a file that is not UTF-8.")
@click.option(
    "--pairs", metavar="FILE", help="Minimal pairs: a .jsonl, .csv or .tsv with columns good and bad."
)
@click.option("--good-column", metavar="NAME", help="The column of the good sentences [good].")
@click.option("--bad-column", metavar="NAME", help="The column of the bad sentences [bad].")
@click.option(
    "--group-column",
    "group_columns",
    multiple=True,
    metavar="NAME",
    help="A column to count pairs by; may be repeated [phenomenon and paradigm, where they are there].",
)
@click.option(
    "--sample",
    type=click.IntRange(1),
    metavar="N",
    help="Score only so many pairs, of each group its share: a quick look.",
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="The seed of --sample [0].")
@click.option(
    "--variant",
    type=click.Choice(["within_word", "token"]),
    help="What is masked with a token: the later tokens of its word too, or it alone [within_word]. A model that "
    "reads from left to right has none.",
)
@click.option(
    "--output",
    "out",
    metavar="FILE",
    help="Write a row for each text or pair here: .csv, .jsonl, .json or .txt.",
)
@computed
@options.as_json
def score(
    model: str,
    texts: tuple[str, ...],
    file: str | None,
    text_column: str | None,
    encoding: str | None,
    pairs: str | None,
    variant: Any,
    out: str | None,
    on: On,
    as_json: bool,
    **of_pairs: Any,
) -> None:
    """Say how likely the pre-trained MODEL finds TEXTS, a file's texts or the lines of standard input; or, with
    --pairs, how often it finds the good one of two sentences likelier.

    \b
    Example:
      bertsmith score bert "The river sings." "The river sing."
      bertsmith score bert --input hypotheses.txt --output scores.csv
      bertsmith score bert --pairs blimp.jsonl --sample 1000

    The score of a text is its pseudo-log-likelihood: the sum over its tokens of log p(token | the others), each
    masked in turn, in nats; the higher, the likelier. It ranks hypotheses, such as the lines of a recogniser's
    list. The pseudo-perplexity, exp(-score / tokens), compares texts of different lengths; both compare models
    only under one tokenizer. A pair is right where the good sentence has the higher score; chance is 50 %, a tie
    is wrong. Empty texts are counted, not scored.
    """
    from bertsmith import hardware
    from bertsmith.inference import output
    from bertsmith.inference.model import load

    _check_inputs(texts, file, pairs, text_column, of_pairs)
    if encoding is not None and file is None and pairs is None:
        raise InputError(
            "option_needs_file", "--encoding is of --input or --pairs", hint="give the file, or leave it out"
        )
    form = output.format_of(out, None)
    if out:
        output.refuse_existing(Path(out))
    if as_json and out and pairs is None:
        raise InputError(
            "single_json_document", "--json is one JSON document on standard output", hint="leave one out"
        )
    hardware.configure_process()
    scorer = load(model, **on).scorer(variant)
    if pairs is not None:
        _score_pairs(scorer, pairs, out, form, as_json=as_json, encoding=encoding, **of_pairs)
    else:
        _score_texts(scorer, _placed(texts, file, text_column, encoding), out, form, as_json=as_json)


def _check_inputs(
    texts: tuple[str, ...],
    file: str | None,
    pairs: str | None,
    text_column: str | None,
    of_pairs: Mapping[str, Any],
) -> None:
    """InputError where there is nothing to score, or more than one thing, or an option of another one."""
    given = [
        name
        for name, value in (("texts", texts), ("--input", file), ("--pairs", pairs))
        if value not in (None, ())
    ]
    if len(given) > 1:
        raise InputError(
            "texts_and_file", f"{' and '.join(given)} are given together", hint="give one of them"
        )
    if not given and sys.stdin.isatty():
        raise InputError("no_text", "there is no text to score", hint=_HOW)
    for name in _OF_PAIRS:
        if pairs is None and of_pairs[name] not in (None, ()):
            flag = name.removesuffix("s").replace("_", "-")
            raise InputError(
                "option_needs_pairs",
                f"--{flag} is for minimal pairs",
                hint="give them with --pairs FILE, or leave it out",
            )
    if of_pairs["seed"] is not None and of_pairs["sample"] is None:
        raise InputError(
            "option_needs_sample",
            "--seed is the seed of --sample",
            hint="say how many pairs to draw, or leave it out",
        )
    if text_column is not None and file is None:
        raise InputError(
            "option_needs_file", "--text-column is a column of --input", hint="give the file, or leave it out"
        )


def _placed(
    texts: tuple[str, ...], file: str | None, column: str | None, encoding: str | None
) -> list[tuple[str, str]]:
    """The texts to score, each with its place."""
    from bertsmith.inference.scoring import read_texts
    from bertsmith.inference.text_input import texts_of_lines

    if file is not None:
        return read_texts(file, column, encoding)
    if texts:
        return [(f"text {number}", text) for number, text in enumerate(texts, start=1)]
    if found := list(texts_of_lines(sys.stdin.buffer, "standard input")):
        return found
    raise InputError("no_text", "standard input is empty", hint=_HOW)


def _score_texts(
    scorer: Scorer, placed: list[tuple[str, str]], out: str | None, form: str, *, as_json: bool
) -> None:
    from bertsmith import console
    from bertsmith.inference.scoring import as_table, ranked, write_rows

    with console.ProgressBar("scoring", len(placed), unit="texts") as bar:
        rows = ranked(placed, scorer, bar.update)
    if as_json:
        console.print_json(rows)
    elif out is not None:
        write_rows(rows, form, Path(out))
        console.print_note(f"{out}: {pluralize(len(rows), 'score')}")
    elif rows:
        console.print_table("", *as_table(rows, shutil.get_terminal_size((100, 24)).columns))


def _score_pairs(
    scorer: Scorer,
    file: str,
    out: str | None,
    form: str,
    *,
    as_json: bool,
    sample: int | None,
    seed: int | None,
    **how: Any,
) -> None:
    from bertsmith import console
    from bertsmith.inference.minimal_pairs import read_pairs, score_pairs, told_of_pairs
    from bertsmith.inference.scoring import write_rows

    pairs = read_pairs(file, **how).sampled(sample, seed or 0)
    with console.ProgressBar("scoring", 2 * len(pairs), unit="sentences") as bar:
        scores = score_pairs(pairs, scorer, bar.update)
    for sentence in told_of_pairs(scores):
        console.print_note(sentence)
    if out is not None:
        write_rows(list(scores.rows()), form, Path(out))
        console.print_note(f"{out}: {pluralize(len(pairs), 'pair')}")
    document = scores.document()
    if as_json:
        console.print_json(document)
        return
    rows = [("accuracy", accuracy_of_pairs(document)), ("ties, counted as wrong", f"{document['ties']:,}")]
    rows += [
        (f"mean over {pluralize(len(document[f'by_{column}']), 'group')} of {column}", format_percent(mean))
        for column, mean in document["mean_over"].items()
    ]
    console.print_table(f"minimal pairs, {scorer.variant}", ["what", "figure"], rows)
    show_groups(document)


def accuracy_of_pairs(document: Mapping[str, Any]) -> str:
    """The accuracy of a report on minimal pairs in words: "61.2 % of 33,500 pairs (chance: 50 %)"."""
    chance = f"chance: {100 * document['chance']:.0f} %"
    return f"{format_percent(document['accuracy'])} of {pluralize(document['pairs'], 'pair')} ({chance})"


def show_groups(document: Mapping[str, Any]) -> None:
    """The table by the coarsest groups of a report on minimal pairs, the best first; none without groups."""
    from bertsmith import console

    column = next(iter(document["mean_over"]), None)
    if column is None:
        return
    groups = sorted(document[f"by_{column}"].items(), key=lambda item: -item[1]["accuracy"])
    console.print_table(
        f"accuracy on minimal pairs by {column}",
        [column, "pairs", "accuracy"],
        [(name or "–", f"{group['pairs']:,}", format_percent(group["accuracy"])) for name, group in groups],
    )
