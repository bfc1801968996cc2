"""The conversions of ONNX Runtime: INT8 with scales found while running or beforehand, and FP16."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import Unsupported
from shoal.quantize.samples import Feed

KINDS = ("dynamic", "static", "fp16")
# The release of ONNX Runtime that can; older ones, such as the last for Python 3.10, have unsigned
# weights only.
_SIGNED_CONVOLUTIONS = (1, 24)
_LARGEST_FILE = 2_000_000_000  # bytes; beyond that, weights lie beside the file


def convert(
    source: Path, target: Path, kind: str, samples: Sequence[Feed], *, reduce_range: bool = False
) -> None:
    """Write `source` in another precision; inputs and outputs keep their types.

    `samples` are what static scales are found with. Raises Unsupported.
    """
    try:
        import onnx  # noqa: F401 - needed by all of them
    except ImportError as error:
        raise Unsupported("onnx is not installed: pip install onnx") from error
    try:
        with _quiet():
            _CONVERSIONS[kind](source, target, samples, reduce_range)
    except Unsupported:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise Unsupported(f"ONNX Runtime cannot convert '{source.name}': {reason}") from error


def _dynamic(source: Path, target: Path, _samples: Sequence[Feed], reduce_range: bool) -> None:
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    release = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    signed = release >= _SIGNED_CONVOLUTIONS
    quantize_dynamic(
        source,
        target,
        per_channel=signed,
        reduce_range=reduce_range,
        weight_type=QuantType.QInt8 if signed else QuantType.QUInt8,
        use_external_data_format=_is_large(source),
    )


def _static(source: Path, target: Path, samples: Sequence[Feed], reduce_range: bool) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        """Gives each sample once."""

        def __init__(self) -> None:
            self._left = iter(samples)

        def get_next(self) -> Feed | None:
            return next(self._left, None)

    with tempfile.TemporaryDirectory(prefix="shoal-quantize-") as scratch:
        prepared = Path(scratch) / "prepared.onnx"
        try:
            quant_pre_process(
                str(source),
                str(prepared),
                skip_symbolic_shape=True,
                save_as_external_data=_is_large(source),
            )
        except Exception:  # noqa: BLE001 - without it, only fewer shapes are known
            prepared = source
        quantize_static(
            prepared,
            target,
            Samples(),
            per_channel=True,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
            use_external_data_format=_is_large(source),
        )


def _fp16(source: Path, target: Path, _samples: Sequence[Feed], _reduce_range: bool) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model: Any = convert_float_to_float16(
        onnx.load(source), keep_io_types=True, disable_shape_infer=_is_large(source)
    )
    onnx.save(model, target, save_as_external_data=_is_large(source))


_CONVERSIONS = {"dynamic": _dynamic, "static": _static, "fp16": _fp16}


def _is_large(source: Path) -> bool:
    return sum(path.stat().st_size for path in source.parent.iterdir()) > _LARGEST_FILE


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the advice that the library logs for its own command line."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)
