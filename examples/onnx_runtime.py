"""Classify texts with ONNX Runtime, without PyTorch: python onnx_runtime.py FOLDER TEXT …

`bertsmith export moods --output-dir FOLDER` writes the folder. Packages: onnxruntime, tokenizers, numpy.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder, texts = Path(sys.argv[1]), sys.argv[2:]
labels = json.loads((folder / "config.json").read_text(encoding="utf-8"))["id2label"]
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.enable_padding()
session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
encodings = tokenizer.encode_batch(texts)
values = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
inputs = {i.name: np.array([getattr(e, values[i.name]) for e in encodings]) for i in session.get_inputs()}
(logits,) = session.run(None, inputs)
probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
for text, row in zip(texts, probabilities, strict=True):
    print(f"{labels[str(row.argmax())]}\t{row.max():.4f}\t{text}")
