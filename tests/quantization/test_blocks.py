"""Block formats against the `gguf` package's own dequantisation, bit for bit."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from mini_vllm.errors import UnsupportedModelError, WeightsError
from mini_vllm.kernels.tensors import FORMATS, HostTensor
from mini_vllm.quantization import check_supported, convert, dequantize

BLOCK_FORMATS = [name for name, (elements, _) in FORMATS.items() if elements > 1]
LEGACY = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]
# The last is more than one slice of 2^16 elements, and no whole number of slices.
SHAPES = [(1, 256), (3, 512), (2, 5, 768), (37, 2048)]


def reference(data: np.ndarray, format: str, shape: tuple[int, ...]) -> np.ndarray:
    rows = data.reshape(int(np.prod(shape[:-1])), -1)
    return gguf.quants.dequantize(rows, GGMLQuantizationType[format.upper()]).reshape(shape)


def finite_blocks(format: str, shape: tuple[int, ...], seed: int) -> HostTensor:
    """Random codes, and scales that are finite (their exponent bits are never all ones)."""
    elements, width = FORMATS[format]
    data = np.random.default_rng(seed).integers(0, 256, (int(np.prod(shape)) // elements, width), dtype=np.uint8)
    scales = {"q4_1": (1, 3), "q5_1": (1, 3), "q2_k": (81, 83), "q3_k": (109,), "q4_k": (1, 3), "q5_k": (1, 3)}
    for column in scales.get(format, (209,) if format == "q6_k" else (1,)):
        data[:, column] &= 0xBF
    return HostTensor("w", format, shape, data.reshape(-1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("format", BLOCK_FORMATS)
def test_equals_the_gguf_package_on_random_blocks(format: str, shape: tuple[int, ...]) -> None:
    tensor = finite_blocks(format, shape, seed=len(shape) + shape[-1])
    ours = dequantize(tensor)
    assert ours.dtype == np.float32
    assert ours.shape == shape
    assert np.isfinite(ours).all()
    assert len(np.unique(ours)) > 16
    np.testing.assert_array_equal(ours.view(np.uint32), reference(tensor.data, format, shape).view(np.uint32))


@pytest.mark.parametrize("format", LEGACY)
def test_reads_what_the_gguf_package_quantised(format: str) -> None:
    values = np.random.default_rng(7).standard_normal((8, 320), dtype=np.float32)
    data = gguf.quants.quantize(values, GGMLQuantizationType[format.upper()])
    ours = dequantize(HostTensor("w", format, (8, 320), data.reshape(-1)))
    span = np.abs(values).max()
    bits = 8 if format == "q8_0" else int(format[1])
    assert np.abs(ours - values).max() <= 1.2 * span / 2 ** (bits - 1)
    assert np.abs(ours - values).max() > 0


@pytest.mark.parametrize("format", BLOCK_FORMATS)
@pytest.mark.parametrize("target", ["f32", "f16", "bf16"])
def test_convert_rounds_the_dequantised_values(format: str, target: str) -> None:
    tensor = finite_blocks(format, (33, 2048), seed=3)
    made = convert(tensor, target)
    assert (made.format, made.shape, made.name) == (target, (33, 2048), "w")
    plain = convert(HostTensor("w", "f32", (33, 2048), dequantize(tensor).reshape(-1).view(np.uint8)), target)
    np.testing.assert_array_equal(made.data, plain.data)


def test_convert_keeps_a_tensor_that_has_the_format() -> None:
    tensor = HostTensor("w", "f16", (2,), np.zeros(4, dtype=np.uint8))
    assert convert(tensor, "f16") is tensor


def test_wrong_number_of_bytes_is_an_error() -> None:
    with pytest.raises(WeightsError, match=r"'w' of shape \[2, 32\] has 20 bytes; Q4_0 needs 36"):
        dequantize(HostTensor("w", "q4_0", (2, 32), np.zeros(20, dtype=np.uint8)))
    with pytest.raises(WeightsError, match="whole blocks of 32"):
        dequantize(HostTensor("w", "q4_0", (4, 8), np.zeros(18, dtype=np.uint8)))


@pytest.mark.parametrize("format", ["iq4_xs", "iq2_xxs", "mxfp4", "tq1_0", "nvfp4", "i32"])
def test_other_formats_are_refused_by_name(format: str) -> None:
    with pytest.raises(UnsupportedModelError, match=format.upper()):
        check_supported(format, where="tensor 'w'")
    with pytest.raises(UnsupportedModelError, match="take a file of the same model in Q4_K_M"):
        dequantize(HostTensor("w", format, (32,), np.zeros(18, dtype=np.uint8)))


def test_cannot_convert_to_a_block_format() -> None:
    with pytest.raises(UnsupportedModelError, match="choose f32, f16 or bf16"):
        convert(HostTensor("w", "f32", (32,), np.zeros(128, dtype=np.uint8)), "q4_0")
