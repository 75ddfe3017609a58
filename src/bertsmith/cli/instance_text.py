"""How `data show` prints an instance: colours on a terminal, marks elsewhere."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from bertsmith import console
from bertsmith.formatting import pluralize

# kind → (style, how it is written without colours, what it means)
_KINDS = {
    "mask": ("bold white on red", "{{{now}←{was}}}", "predicted, behind the mask token"),
    "random": ("bold black on yellow", "{{{now}←{was}}}", "predicted, behind a random token"),
    "kept": ("bold black on green", "{{{now}=}}", "predicted, left as it was"),
}


def print_instance(found: dict[str, Any]) -> None:
    """The instance as `look.show` describes it, on stdout."""
    colours = console.has_colors()
    drawn = found["drawn_as_epoch"]
    static = (
        f" (the instances and masks of epoch {drawn}, in an order of their own)"
        if drawn != found["epoch"]
        else ""
    )
    console.print_result(
        f"{found['data']}: epoch {found['epoch']}{static}, instance {found['index']:,} of "
        f"{found['instances_of_epoch']:,}; {found['instances']}, {found['masking']} masks, seed {found['seed']}"
    )
    if found["label"] is not None:
        console.print_result(
            f"label ({found['sentence_task']}): {found['label']} {found['label_name']}: {found['label_means']}"
        )
    console.print_result("")
    console.print_text(_tokens(found, colours))
    console.print_result("")
    for kind, (style, form, meaning) in _KINDS.items():
        example = _Form(form, colours, "[MASK]" if kind == "mask" else "token", "original")
        line = example.text(style)
        line.append(f"  {meaning}: {found['counts'][kind]}")
        console.print_text(line)
    counts = found["counts"]
    console.print_result(
        f"{counts['predicted']} of {pluralize(counts['ordinary'], 'token')} predicted ({counts['share']:.1%}); "
        f"{counts['tokens']} with the special ones"
    )
    console.print_result("")
    for part in found["parts"]:
        console.print_result(
            f"{part['name']}: document {part['document']:,}, {part['place']}, "
            f"{pluralize(part['tokens'], 'token')} from its "
            f"token {part['first_token']:,} on"
        )
        console.print_result(f"   {part['text']}")


class _Form:
    """One predicted token in its two forms."""

    def __init__(self, form: str, colours: bool, now: str, was: str) -> None:
        self._form, self._colours, self._now, self._was = form, colours, now, was

    def text(self, style: str) -> Text:
        """Coloured, the original beside it in dim letters; or between marks."""
        if not self._colours:
            return Text(self._form.format(now=self._now, was=self._was))
        shown = Text()
        shown.append(self._now, style=style)
        if "←" in self._form:
            shown.append(f"←{self._was}", style="dim")
        return shown


def _tokens(found: dict[str, Any], colours: bool) -> Text:
    kind_of = dict(zip(found["rows"], found["kinds"], strict=True))
    line = Text()
    for row, (now, was) in enumerate(zip(found["tokens"], found["original_tokens"], strict=True)):
        if row:
            line.append(" ")
        if row in kind_of:
            style, form, _ = _KINDS[kind_of[row]]
            line.append_text(_Form(form, colours, now, was).text(style))
        else:
            line.append(now)
    return line
