"""Questions to a collection of texts: search finds passages, and a model reads the answer in each of them.

    bertsmith embed similar --input passages.jsonl --index index
    python examples/questions.py index ANSWERS "Where does the river rise?"

ANSWERS is a run of `bertsmith finetune answer`.
"""

from __future__ import annotations

import sys
from typing import Any

import bertsmith as bs


def answer(index: str, reader: bs.Model, question: str, top_k: int = 5) -> list[dict[str, Any]]:
    """The answer in each of the nearest passages, with its place there, the likeliest first."""
    passages = bs.search(index, question, top_k=top_k)
    predictions = reader.predict([question] * len(passages), [passage.text for passage in passages])
    pairs = zip(passages, predictions, strict=True)
    answers = [passage.to_dict() | prediction.to_dict() for passage, prediction in pairs if prediction.answer]
    return sorted(answers, key=lambda row: row["score"], reverse=True)


def main() -> None:
    reader = bs.load(sys.argv[2])
    for question in sys.argv[3:]:
        for found in answer(sys.argv[1], reader, question):
            print(
                f"{found['score']:.3f}  {found['answer']}  ({found['place']}, {found['start']}-{found['end']})"
            )


if __name__ == "__main__":
    main()
