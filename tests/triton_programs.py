"""Compile the programs of Triton as a model of some width launches them, for a GPU that need not be here.

    python tests/triton_programs.py WIDTH CAPABILITY

Prints a line of JSON: of each program, by its name, the most shared memory that it asks for, in bytes.
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

from bertsmith.kernels.gpu import activation, attention, column_sums, layer_norm, loss
from bertsmith.kernels.gpu.triton_backend import ByTriton
from bertsmith.kernels.reference import Bounds, LayerParts
from bertsmith.models.layers import Dropout

KINDS = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
LOW = torch.bfloat16
shared: dict[str, int] = {}


class Compiled:
    """In place of a program: when it is launched it is compiled, and computes nothing."""

    def __init__(self, program: Any, target: GPUTarget) -> None:
        self.program, self.target = program, target

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launched(*given: Any, **options: int) -> None:
            signature, constants = {}, {}
            for parameter, one in zip(self.program.params, given, strict=True):
                if parameter.is_constexpr or one is None:
                    signature[parameter.name], constants[parameter.name] = "constexpr", one
                else:
                    signature[parameter.name] = (
                        KINDS[one.dtype]
                        if isinstance(one, Tensor)
                        else "i32"
                        if isinstance(one, int)
                        else "fp32"
                    )
            aligned = {
                (i,): [["tt.divisibility", 16]] for i, one in enumerate(given) if isinstance(one, Tensor)
            }
            source = ASTSource(self.program, signature, constants, aligned)
            made = compile(source, target=self.target, options=options)
            name = self.program.__name__
            shared[name] = max(shared.get(name, 0), made.metadata.shared)

        return launched


def main(width: int, capability: int) -> None:
    target = GPUTarget("cuda", capability, 32)
    for room, names in (
        (activation, ("_activate", "_activate_back")),
        (attention, ("_attend", "_of_queries", "_of_keys")),
        (loss, ("_cross_entropy",)),
        (layer_norm, ("_norm", "_norm_back")),
        (column_sums, ("_sum",)),
    ):
        for name in names:
            setattr(room, name, Compiled(getattr(room, name), target))
    kernels, rows = ByTriton(), 64
    dropout = Dropout(0.1, torch.Generator()).train()
    bounds = Bounds(torch.tensor([0, rows]), "all", rows, rows)
    x = torch.randn(rows, width).to(LOW).requires_grad_()
    table, numbers = nn.Embedding(2, width), torch.zeros(rows, dtype=torch.long)
    parts = [nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)]
    parts += [nn.Linear(width, width), nn.Linear(width, width), nn.LayerNorm(width)]
    made = kernels.embedded(x, [(table, numbers)] * 2, nn.LayerNorm(width), dropout, LOW)
    assert made is not None
    for share in (0.1, 0.0):
        dropout.p = share
        made = kernels.layers(made, bounds, [LayerParts(*parts, width // 64, dropout, dropout, F.gelu)])
        assert made is not None
    made.sum().backward()
    kernels.table_loss(torch.randn(8, 128).to(LOW), torch.zeros(128), torch.zeros(8, dtype=torch.long))
    print(json.dumps(shared))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
