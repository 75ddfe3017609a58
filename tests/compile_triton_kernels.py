"""Compile the Triton kernels for a hidden size and a GPU that need not be present.

    python tests/compile_triton_kernels.py HIDDEN_SIZE CAPABILITY

Prints a line of JSON: the largest shared memory of each kernel in bytes, by its name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from bertsmith.kernels.gpu import activation, attention, layer_norm, loss
from bertsmith.kernels.gpu.triton_backend import TritonBackend
from bertsmith.kernels.reference import EncoderLayerModules, SequenceLayout
from bertsmith.models.layers import Dropout

TRITON_TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
DTYPE = torch.bfloat16
shared_memory: dict[str, int] = {}


class CompileOnly:
    """A kernel that is compiled instead of launched."""

    def __init__(self, kernel: Any, target: GPUTarget) -> None:
        self.kernel, self.target = kernel, target

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **options: int) -> None:
            signature, constants = {}, {}
            for parameter, value in zip(self.kernel.params, args, strict=True):
                if parameter.is_constexpr or value is None:
                    signature[parameter.name], constants[parameter.name] = "constexpr", value
                elif isinstance(value, Tensor):
                    signature[parameter.name] = TRITON_TYPES[value.dtype]
                else:
                    signature[parameter.name] = "i32" if isinstance(value, int) else "fp32"
            aligned = {
                (i,): [["tt.divisibility", 16]] for i, value in enumerate(args) if isinstance(value, Tensor)
            }
            source = ASTSource(self.kernel, signature, constants, aligned)
            compiled = compile(source, target=self.target, options=options)
            name = self.kernel.__name__
            shared_memory[name] = max(shared_memory.get(name, 0), compiled.metadata.shared)

        return launch


def main(hidden_size: int, capability: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    for module in (activation, attention, layer_norm, loss):
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            setattr(module, name, CompileOnly(getattr(module, name), target))
    kernels, num_tokens = TritonBackend(), 64
    dropout = Dropout(0.1, torch.Generator()).train()
    layout = SequenceLayout(torch.tensor([0, num_tokens]), "all", num_tokens, num_tokens)
    x = torch.randn(num_tokens, hidden_size).to(DTYPE).requires_grad_()
    lookup = nn.Embedding(2, hidden_size), torch.zeros(num_tokens, dtype=torch.long)
    hidden = kernels.embed(x, [lookup] * 2, nn.LayerNorm(hidden_size), dropout, DTYPE)
    assert hidden is not None
    modules = [
        nn.Linear(hidden_size, 3 * hidden_size),
        nn.Linear(hidden_size, hidden_size),
        nn.LayerNorm(hidden_size),
        nn.Linear(hidden_size, hidden_size),
        nn.Linear(hidden_size, hidden_size),
        nn.LayerNorm(hidden_size),
    ]
    layer = EncoderLayerModules(*modules, hidden_size // 64, dropout, dropout, F.gelu)
    for p in (0.1, 0.0):
        dropout.p = p
        hidden = kernels.encoder_layer(hidden, layout, layer)
        assert hidden is not None
    hidden.sum().backward()
    logits, labels = torch.randn(8, 128).to(DTYPE), torch.zeros(8, dtype=torch.long)
    kernels.fused_cross_entropy(logits, torch.zeros(128), labels)
    print(json.dumps(shared_memory))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
