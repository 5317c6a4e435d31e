"""Sixteen-bit floats: exact to float32, rounded to nearest even back."""

import numpy as np
import pytest
import torch

from mini_vllm.kernels.tensors import HostTensor
from mini_vllm.quantization import convert, dequantize


def tensor(values: np.ndarray, format: str) -> HostTensor:
    return HostTensor("w", format, values.shape, np.ascontiguousarray(values).reshape(-1).view(np.uint8))


def test_every_bfloat16_survives_the_way_to_float32_and_back() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    wide = dequantize(tensor(bits, "bf16"))
    np.testing.assert_array_equal(wide.view(np.uint32), bits.astype(np.uint32) << 16)
    back = convert(tensor(wide, "f32"), "bf16").data.view(np.uint16)
    nan = np.isnan(wide)
    np.testing.assert_array_equal(back[~nan], bits[~nan])
    assert np.isnan(dequantize(tensor(back[nan], "bf16"))).all()


def test_every_float16_survives_the_way_to_float32_and_back() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    wide = dequantize(tensor(bits, "f16"))
    back = convert(tensor(wide, "f32"), "f16").data.view(np.uint16)
    nan = np.isnan(wide)
    assert nan.sum() == 2 * 1023
    np.testing.assert_array_equal(back[~nan], bits[~nan])


@pytest.mark.parametrize(("format", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_rounds_as_torch_does(format: str, dtype: torch.dtype) -> None:
    generator = np.random.default_rng(5)
    bits = generator.integers(0, 2**32, 200_000, dtype=np.uint32)
    halfway = (generator.integers(0, 2**16, 50_000, dtype=np.uint32) << 16) | 0x8000  # ties of bfloat16
    near = halfway + generator.integers(0, 3, 50_000, dtype=np.uint32) - 1
    values = np.concatenate([bits, halfway, near, np.array([0x7F7FFFFF, 0xFF7FFFFF, 1], np.uint32)]).view(np.float32)
    values = values[~np.isnan(values)]
    ours = convert(tensor(values, "f32"), format).data.view(np.uint16)
    theirs = torch.from_numpy(values.copy()).to(dtype).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(ours, theirs)


def test_ties_go_to_even() -> None:
    values = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF], np.uint32).view(np.float32)
    assert convert(tensor(values, "f32"), "bf16").data.view(np.uint16).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80]


def test_a_nan_with_a_low_payload_stays_one() -> None:
    values = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    assert convert(tensor(values, "f32"), "bf16").data.view(np.uint16).tolist() == [0x7FC0, 0xFFC0, 0x7FFF]


def test_float32_is_copied_not_shared() -> None:
    values = np.arange(4, dtype=np.float32)
    wide = dequantize(tensor(values, "f32"))
    values[0] = 9.0
    assert wide.tolist() == [0.0, 1.0, 2.0, 3.0]
