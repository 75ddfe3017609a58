"""The verbs of a vocabulary: `tokenizer train`, `inspect`, `extend`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from bertsmith.cli.options import Size, as_json, bytes_of, reading_of, reading_options
from bertsmith.cli.verbs import Verbs
from bertsmith.formatting import pluralize


@click.group(cls=Verbs)
def tokenizer() -> None:
    """Train a vocabulary, compare vocabularies, add words to one.

    \b
    Example:
      bertsmith tokenizer train corpus.txt --output-dir tokenizer --vocab-size 8000
      bertsmith tokenizer inspect tokenizer --text corpus.txt
    """


@tokenizer.command("train")
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--output-dir",
    "out",
    required=True,
    metavar="DIR",
    help="The folder to write, in the Hugging Face layout.",
)
@click.option(
    "--vocab-size",
    type=click.IntRange(10, 10_000_000),
    default=30_000,
    show_default=True,
    metavar="N",
    help="Entries of the vocabulary, special ones included.",
)
@click.option(
    "--kind",
    type=click.Choice(["wordpiece", "byte-level-bpe", "unigram"]),
    default="wordpiece",
    show_default=True,
    help="BERT's, RoBERTa's (case is kept) or ALBERT's.",
)
@click.option("--cased", is_flag=True, help="Keep case and accents.")
@click.option(
    "--chinese", is_flag=True, help="For Chinese text: every character that fits is kept; each is a word."
)
@click.option(
    "--min-frequency",
    type=click.IntRange(1, 1_000_000_000),
    default=2,
    show_default=True,
    metavar="K",
    help="Merge what occurs at least K times (not for unigram); rarer characters are kept while there is room.",
)
@click.option(
    "--normalizer",
    type=click.Choice(["hf", "google"]),
    default="hf",
    show_default=True,
    help="WordPiece's reading of BERT's rules: the library's, or the original's with Unicode pinned.",
)
@click.option(
    "--max-ram",
    type=Size(),
    metavar="SIZE",
    help="Stay below this much memory (512MB, 2GB) by sampling documents.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="With --max-ram: which documents are drawn.",
)
@reading_options
@as_json
def tokenizer_train(files: tuple[str, ...], out: str, as_json: bool, **how: Any) -> None:
    """Train a vocabulary from text files.

    \b
    Example:
      bertsmith tokenizer train corpus.txt more.jsonl.gz --output-dir tokenizer --vocab-size 8000

    FILES: plain text with a blank line between documents, .jsonl, .csv or .parquet with a column "text", folders
    and globs of them; each also compressed. The same files give the same vocabulary, always.
    """
    from bertsmith import console
    from bertsmith.cli.hints import prepare_hint
    from bertsmith.errors import InputError
    from bertsmith.tokenizer.script_coverage import describe_script_mismatch
    from bertsmith.tokenizer_training.train import train_tokenizer

    how["reading"] = reading_of(how)
    how["kind"] = how["kind"].replace("-", "_")
    if how["cased"] and how["chinese"]:
        raise InputError(
            "exclusive_options",
            "--cased and --chinese exclude each other",
            hint="a Chinese vocabulary is lower-cased",
        )
    if how["kind"] == "byte_level_bpe" and not how["cased"]:
        how["cased"] = None  # it keeps case whether asked or not
    with console.ProgressBar("reading", bytes_of(files)) as bar:
        trained = train_tokenizer(
            files,
            out,
            progress=lambda done: bar.update(done, f"{done / 1e6:,.0f} MB"),
            **how,
        )
    record = json.loads((Path(out) / "training.json").read_text(encoding="utf-8"))
    if as_json:
        console.print_json({"tokenizer": out, "vocab_size": trained.vocab_size, **record})
    else:
        console.print_result(
            f"{out}: {pluralize(trained.vocab_size, 'entry', 'entries')} from {pluralize(record['words'], 'word')}"
        )
    for note in _left_out(record, how["max_ram"], how["kind"]):
        console.print_note(note)
    fits_not = describe_script_mismatch(
        record["scripts"], how["kind"], lowercase=trained.lowercase, chinese=how["chinese"]
    )
    if fits_not is not None:
        console.print_note(fits_not if as_json else f"{fits_not}; or, with this one as it is:")
    if not as_json:
        console.print_note(prepare_hint(files, how["reading"], out))


def _left_out(record: dict[str, Any], max_ram: int | None, kind: str) -> list[str]:
    """What a training did not see or keep, in sentences."""
    notes = []
    if record["share_sampled"] < 1 and max_ram is not None:
        notes.append(
            f"the words of all documents ({record['documents']:,}) do not fit into {max_ram / 1e6:,.0f} MB: "
            f"this vocabulary was made from {record['documents_sampled']:,} of them, "
            f"{record['share_sampled']:.3%} "
            "asked for and drawn evenly over the corpus"
        )
    if record["size"] < record["requested_size"]:
        notes.append(
            f"the text has only {record['size']:,} of the {record['requested_size']:,} requested tokens"
        )
    if record["characters_cut"]:
        first = " ".join(record["characters_cut_first"])
        notes.append(
            f"the vocabulary is full without the {pluralize(record['characters_cut'], 'rarest character')} "
            f"({record['characters_cut_share']:.3%} of the text; most often {first}): what holds one will be "
            "unknown; ask for a larger --vocab-size"
        )
    if record["words_cut"]:
        share = f"{pluralize(record['words_cut'], 'word')} ({record['words_cut'] / record['words']:.3%})"
        too_long = {
            "wordpiece": "too long and will be unknown",
            "byte_level_bpe": "too long to be learnt from",
        }
        causes = ["hold such a character"] * bool(record["characters_cut"])
        causes += [f"are {too_long[kind]}"] * (kind in too_long)
        notes.append(f"{share} {' or '.join(causes)}")
    return notes


@tokenizer.command("inspect")
@click.argument("tokenizers", nargs=-1, required=True)
@click.option(
    "--text", "files", multiple=True, required=True, metavar="FILE", help="A text file; may be repeated."
)
@reading_options
@click.option("--cased", multiple=True, metavar="TOKENIZER", help="This bare vocab.txt keeps case.")
@click.option("--limit", type=Size(), metavar="SIZE", help="Read only this much text: 10MB, 1GB, …")
@click.option("--html", metavar="FILE", help="Write the report as one page with its plot, too.")
@click.option(
    "--plot", metavar="FILE", help="Draw what becomes of the words, and unknown ones: a .png or .svg."
)
@as_json
def tokenizer_inspect(tokenizers: tuple[str, ...], files: tuple[str, ...], as_json: bool, **how: Any) -> None:
    """Compare tokenizers on the same text: pieces per word, unknowns, longest pieces, coverage by script.

    \b
    Example:
      bertsmith tokenizer inspect tokenizer bert-base-uncased --text corpus.txt --html report.html

    TOKENIZERS: folders, vocab.txt or tokenizer.json files, runs, published names. A word is a run of letters,
    marks and digits, or one ideograph, as after a space; the same for all of them.
    """
    from bertsmith import console
    from bertsmith.cli.tokenizer_table import print_inspection
    from bertsmith.inspection.inspect import inspect_tokenizers

    with console.ProgressBar("reading", how["limit"]) as bar:
        report = inspect_tokenizers(
            tokenizers,
            files,
            reading=reading_of(how),
            progress=lambda done: bar.update(done, f"{done / 1e6:,.0f} MB"),
            **how,
        )
    if as_json:
        console.print_json(report)
    else:
        print_inspection(report)
    for file in (how["html"], how["plot"]):
        if file is not None:
            console.print_note(f"written: {file}")


@tokenizer.command("extend")
@click.argument("files", nargs=-1)
@click.option("--model", metavar="DIR", help="A run or model folder: its vocabulary and its vectors grow.")
@click.option("--tokenizer", "vocabulary", metavar="DIR", help="A tokenizer alone.")
@click.option("--output-dir", "out", metavar="DIR", help="The folder to write; must be empty or new.")
@click.option("--words", type=click.IntRange(1), metavar="N", help="At most so many words.  [default: 1000]")
@click.option(
    "--min-frequency",
    type=click.IntRange(1),
    metavar="K",
    help="Only words that occur at least K times.  [default: 5]",
)
@click.option(
    "--min-pieces", type=click.IntRange(2), metavar="K", help="Only words of at least K pieces.  [default: 2]"
)
@click.option(
    "--against",
    multiple=True,
    metavar="FILE",
    help="Ordinary text: words that are common there are not proposed.",
)
@click.option(
    "--keep-others",
    is_flag=True,
    help="Leave out words that would change how other words of the files are split (WordPiece only).",
)
@click.option("--word-list", metavar="FILE", help="Add the words of this file instead, one per line.")
@click.option(
    "--init",
    type=click.Choice(["mean", "first"]),
    default="mean",
    show_default=True,
    help="A new word's vector: the mean of its pieces' vectors, or the first one's.",
)
@click.option("--propose-only", is_flag=True, help="Show the words and what they would save; write nothing.")
@reading_options
@as_json
def tokenizer_extend(
    files: tuple[str, ...],
    model: str | None,
    vocabulary: str | None,
    out: str | None,
    propose_only: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Add a domain's words to a vocabulary, and to the model that goes with it.

    \b
    Example:
      bertsmith tokenizer extend articles.txt --model bert --propose-only
      bertsmith tokenizer extend articles.txt --model bert --output-dir bert-medical --words 500

    FILES: the domain's text. Words that the vocabulary splits are proposed, those that save most tokens first. New
    words go to its end, so no id changes; a new word's vector is made of its pieces' vectors, and all other
    weights stay. Longer words that begin with a new one are split differently: the report shows them. Byte-level
    BPE joins a word from its pieces two at a time, and each joint is an entry, too.
    """
    from bertsmith import console
    from bertsmith.cli.tokenizer_table import print_extension
    from bertsmith.pretraining.extend_vocabulary import Choice, extend_tokenizer

    if (out is None) != propose_only:
        raise click.UsageError("give either --output-dir DIR or --propose-only")
    asked = {
        name: how.pop(name) for name in ("words", "min_frequency", "min_pieces", "against", "keep_others")
    }
    given = {name: value for name, value in asked.items() if value}
    if how["word_list"] and given:
        option = "--" + next(iter(given)).replace("_", "-")
        raise click.UsageError(f"{option} chooses among proposed words; --word-list names them")
    if not files and not how["word_list"]:
        raise click.UsageError("name the domain's text FILES, or a --word-list")
    with console.ProgressBar("reading", None) as bar:
        report = extend_tokenizer(
            files,
            out,
            tokenizer=vocabulary,
            model=model,
            choice=Choice(**given),
            reading=reading_of(how),
            progress=lambda done: bar.update(done, f"{done / 1e6:,.0f} MB"),
            **how,
        )
    if as_json:
        console.print_json(report)
        return
    print_extension(report)
    if not how["word_list"] and report["added"] < (wanted := given.get("words", Choice().words)):
        console.print_note(
            f"the files have no more such words: {report['added']:,} of the {wanted:,} asked for"
        )
    if out is not None:
        console.print_note(
            f"{out}: {report['vocab_size_before']:,} → {pluralize(report['vocab_size'], 'entry', 'entries')}"
        )
