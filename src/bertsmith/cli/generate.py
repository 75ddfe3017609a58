"""The command that continues texts: `generate`."""

from __future__ import annotations

from typing import Any

import rich_click as click

from bertsmith import console
from bertsmith.cli import options, tables
from bertsmith.cli.commands import Command
from bertsmith.cli.options import FILE, Integer


@click.command(cls=Command)
@options.model
@options.texts
@click.option(
    "--input",
    "file",
    type=FILE,
    help="Prompts: a .txt with one per line, or .jsonl, .csv, .tsv, or .parquet.",
)
@options.text_column
@options.encoding
@click.option("--max-new-tokens", type=Integer(1), default=50, help="Tokens to generate at most.")
@click.option(
    "--temperature",
    type=float,
    default=1.0,
    help="Divisor of the logits; 0: the most probable token (greedy).",
)
@click.option(
    "--top-k", type=Integer(1), help="Number of most probable tokens to choose among; default: all."
)
@click.option(
    "--top-p", type=float, default=1.0, help="Choose among the fewest tokens with this probability together."
)
@options.random_seed
@options.inference
def generate(
    model: str,
    texts: tuple[str, ...],
    file: str | None,
    text_column: str | None,
    encoding: str | None,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int,
    device: str,
    precision: str,
    as_json: bool,
) -> None:
    """Continue TEXTS, a file, or the lines of standard input with MODEL, a left-to-right language model.

    \b
    Example:
      bertsmith generate gpt "The river" --max-new-tokens 30
      bertsmith generate gpt "The river" --temperature 0
      bertsmith generate gpt --input prompts.txt --top-p 0.9 --seed 1

    The continuation of one text appears as it is generated. Several texts give one JSON object per text, in order,
    with the text that follows it, the number of its tokens, and why it ends; --json prints one list. Empty texts
    are counted, and continued from the start of a text.
    """
    from bertsmith.inference.generation import Sampling
    from bertsmith.inference.text_input import read_text_rows

    options.check_texts(texts, file)
    options.require(["text_column"], {"text_column": text_column, "input": file}, "input")
    sampling = Sampling(max_new_tokens, temperature, top_k, top_p, seed)
    generator = options.load_model(model, device, precision).text_generator(sampling)
    if len(texts) == 1 and not as_json:
        _stream(generator, texts[0])
        return
    if file:
        located = [(row.location, row.text) for row in read_text_rows(file, text_column, None, encoding)]
    else:
        located = options.read_lines(texts)
    results = generator([text for _, text in located], [location for location, _ in located])
    tables.print_json_objects((result.to_dict() for result in results), as_json)


def _stream(generator: Any, prompt: str) -> None:
    """Print a prompt and its continuation piece by piece."""
    console.print_piece(prompt)
    for piece in generator.stream(prompt):
        console.print_piece(piece)
    console.print_piece("\n")
