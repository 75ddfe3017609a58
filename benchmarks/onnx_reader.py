"""Run an exported folder with ONNX Runtime and tokenizers alone, without PyTorch and without bertsmith.

    python onnx_reader.py FOLDER FILE < requests.json

FILE is the model in FOLDER. requests.json is a list of examples, each {"texts": [[text, pair or null], …],
"marks": [character, …] or null}: several texts for choices, and marks where the model takes indices of tokens. It
prints the outputs of each example, a list of numbers by name; hidden states are pooled as 1_Pooling says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

_ENCODED = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


def main() -> None:
    folder, file = Path(sys.argv[1]), sys.argv[2]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / file, options)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    answers = []
    for example in json.load(sys.stdin):
        texts = [(text,) if pair is None else (text, pair) for text, pair in example["texts"]]
        encodings = tokenizer.encode_batch([text if len(text) == 2 else text[0] for text in texts])
        inputs = {value.name: _input(value, encodings, example["marks"]) for value in session.get_inputs()}
        names = [output.name for output in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, inputs), strict=True))
        if "last_hidden_state" in outputs:
            outputs = {"vector": _pool(folder, outputs["last_hidden_state"][0])}
        answers.append({name: values.ravel().tolist() for name, values in outputs.items()})
    assert not {"torch", "bertsmith", "transformers"} & sys.modules.keys()
    print(json.dumps(answers))


def _input(value: Any, encodings: list[Encoding], marks: list[int] | None) -> NDArray[np.int64]:
    """Return the input of a name; the sequences of all choices are one item."""
    if value.name not in _ENCODED:
        assert marks is not None
        return np.array([[encodings[0].char_to_token(mark) for mark in marks]])
    rows = np.array([getattr(encoding, _ENCODED[value.name]) for encoding in encodings])
    return rows[None] if len(value.shape) == 3 else rows


def _pool(folder: Path, states: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of hidden states, scaled to length 1 if modules.json says so."""
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    assert pooling["pooling_mode_mean_tokens"]
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    vector = states.mean(0)
    is_scaled = any(module["type"].endswith("Normalize") for module in modules)
    return vector / np.linalg.norm(vector) if is_scaled else vector


if __name__ == "__main__":
    main()
