"""Write models in the formats of other tools, and run their files: ONNX, ONNX in int8, and OpenVINO."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.export.padded_model import PaddedModel

Session = Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]
"""Runs an exported model: named inputs to named outputs."""

_OPSET = 18  # the newest that the versions of ONNX Runtime of the last years read
_MAX_FILE_BYTES = 2**31  # of a file of protocol buffers


class Format(NamedTuple):
    """A format.

    Attributes:
        file: The path of the model in the output folder.
        packages: The packages that it needs.
        extra: The extra of bertsmith that installs them.
        convert: Writes the file from that of the format "onnx"; None for "onnx" itself.
        open: Opens the file.
        is_int8: True if weights and activations are rounded to int8.
    """

    file: str
    packages: tuple[str, ...]
    extra: str
    convert: Callable[[Path, Path], None] | None
    open: Callable[[Path], Session]
    is_int8: bool = False


def write_onnx(model: PaddedModel, file: Path) -> None:
    """Write a model as one ONNX file with named axes.

    Raises:
        InputError: The model is too large for one file.
    """
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    if num_bytes >= _MAX_FILE_BYTES:
        message = f"the model has {num_bytes / 2**30:.1f} GiB in fp32, and an ONNX file has less than 2 GiB"
        raise InputError("export_too_large", message, hint="distill a smaller model")
    with _quiet():
        program = torch.onnx.export(
            model,
            model.example_inputs,
            dynamo=True,
            dynamic_shapes=[tuple(model.axes.values())],
            input_names=model.input_names,
            output_names=model.output_names,
            opset_version=_OPSET,
            verbose=False,
        )
        assert program is not None
        program.save(file, external_data=False)


def open_onnx(file: Path) -> Session:
    """Open a model in ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def _quantize(onnx_file: Path, file: Path) -> None:
    """Quantize the weights of a model to int8 per channel, and activations when it runs.

    Weights are unsigned: without VNNI, ONNX Runtime adds products with signed ones in saturating 16 bits.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(onnx_file, file, per_channel=True, weight_type=QuantType.QUInt8)


def _convert_to_openvino(onnx_file: Path, file: Path) -> None:
    import openvino

    openvino.save_model(openvino.convert_model(onnx_file), file, compress_to_fp16=False)


def _open_openvino(file: Path) -> Session:
    import openvino

    # By default the CPU plug-in computes in bf16 where the processor has it.
    compiled = openvino.compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {output.any_name: values for output, values in compiled(dict(inputs)).items()}

    return run


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop warnings, which exporters log about their own parts."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            logging.disable(logging.WARNING)
            yield
        finally:
            logging.disable(disabled)


_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
FORMATS = {
    "onnx": Format("onnx/model.onnx", _ONNX_PACKAGES, "onnx", None, open_onnx),
    "onnx-int8": Format("onnx/model_quantized.onnx", _ONNX_PACKAGES, "onnx", _quantize, open_onnx, True),
    "openvino": Format(
        "openvino/openvino_model.xml",
        (*_ONNX_PACKAGES, "openvino"),
        "openvino",
        _convert_to_openvino,
        _open_openvino,
    ),
}
"""The formats by name; the file names are those by which tools look for them."""


def get_format(name: str) -> Format:
    """Return the format of a name.

    Raises:
        InputError: There is no such format, or one of its packages is missing.
    """
    if name not in FORMATS:
        message, hint = f"there is no format {name!r}", f"use one of {', '.join(FORMATS)}"
        raise InputError("unknown_export_format", message, argument="to", hint=hint)
    target = FORMATS[name]
    missing = [package for package in target.packages if importlib.util.find_spec(package) is None]
    if missing:
        message = f"the format {name} needs the package {missing[0]}"
        hint = f"pip install 'bertsmith[{target.extra}]'"
        raise InputError("export_package_missing", message, hint=hint)
    return target
