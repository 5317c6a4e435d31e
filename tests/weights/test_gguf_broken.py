"""Broken and hostile GGUF files: a clear error that names the field, at once, in little memory."""

import os
import re
import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from weights import raw_gguf, tiny

from mini_vllm.errors import ModelError, UnsupportedModelError, WeightsError
from mini_vllm.weights import open_checkpoint


@pytest.fixture
def bounded() -> Iterator[None]:
    """The test must stay below one second and 100 MB."""
    tracemalloc.start()
    start = time.perf_counter()
    yield
    seconds, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 1.0
    assert peak < 100_000_000


def refused(path: Path, pattern: str, kind: type[ModelError] = WeightsError) -> None:
    with pytest.raises(kind, match=pattern) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_small_file_itself_opens(tmp_path: Path) -> None:
    file = open_checkpoint(raw_gguf.build(tmp_path / "m.gguf"))
    assert file.names() == {"model.embed_tokens.weight"}
    assert file.get("model.embed_tokens.weight").shape == (4, 32)
    assert file.tokenizer_metadata is not None
    assert file.tokenizer_metadata["tokenizer.ggml.tokens"] == ["a", "b", "c", "d"]
    assert file.tokenizer_metadata["tokenizer.ggml.scores"] == [0.0, 1.0, 2.0, 3.0]


HUGE = 2**60
TENSORS: dict[str, tuple[list[bytes], str]] = {
    "a million dimensions": ([raw_gguf.tensor("w", (4,), num_dims=10**6)], "'w' has 1000000 dimensions; 1 to 4"),
    "2^32 - 1 dimensions": ([raw_gguf.tensor("w", (4,), num_dims=2**32 - 1)], "'w' has 4294967295 dimensions"),
    "no dimensions": ([raw_gguf.tensor("w", ())], "'w' has 0 dimensions"),
    "a product that wraps": ([raw_gguf.tensor("w", (2**33, 2**33))], "'w' needs bytes .* but the file has"),
    "a product that wraps to the size": ([raw_gguf.tensor("w", (2**62, 4, 2))], "'w' needs bytes"),
    "offset past the end": ([raw_gguf.tensor("w", (32,), offset=2**20)], "'w' needs bytes"),
    "offset that wraps": ([raw_gguf.tensor("w", (32,), offset=2**64 - 32)], "'w' needs bytes"),
    "offset off the alignment": ([raw_gguf.tensor("w", (32,), offset=4)], "'w' starts at 4, .* alignment 32"),
    "half a block": ([raw_gguf.tensor("w", (33,), type_id=2)], "rows of 'w' have 33 elements; Q4_0 needs a multiple"),
    "an unknown type": ([raw_gguf.tensor("w", (32,), type_id=999)], "'w' has the unknown tensor type 999"),
    "a name of 2^60 bytes": ([struct.pack("<Q", HUGE) + bytes(40)], f"name of tensor 0 needs {HUGE} bytes"),
    "an empty name": ([raw_gguf.tensor("", (32,))], "tensor 0 has an empty name"),
    "the same name twice": ([raw_gguf.EMBEDDING, raw_gguf.EMBEDDING], "'token_embd.weight' is listed twice"),
    "the same bytes twice": ([raw_gguf.EMBEDDING, raw_gguf.tensor("w", (32,))], "'w' overlap|overlap"),
    "no embedding": ([raw_gguf.tensor("w", (32,))], "'token_embd.weight' is missing"),
}


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("case", TENSORS)
def test_sec_02_broken_tensor_lists(case: str, tmp_path: Path) -> None:
    tensors, pattern = TENSORS[case]
    refused(raw_gguf.build(tmp_path / "m.gguf", tensors=tensors), pattern)


HEADERS = {
    "tensor_count": (raw_gguf.header(HUGE, 0), f"tensor_count is {HUGE}"),
    "metadata_kv_count": (raw_gguf.header(0, HUGE), f"metadata_kv_count is {HUGE}"),
    "both": (raw_gguf.header(2**64 - 1, 2**64 - 1), "metadata_kv_count is"),
    "magic": (raw_gguf.header(0, 0, magic=b"GGML"), "not a GGUF file"),
}


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("field", HEADERS)
def test_sec_02_broken_headers(field: str, tmp_path: Path) -> None:
    head, pattern = HEADERS[field]
    path = tmp_path / "m.gguf"
    path.write_bytes(head + bytes(4096))
    refused(path, pattern)


@pytest.mark.parametrize(("version", "reason"), [(1, "version is 1"), (4, "version is 4"), (0x03000000, "big-endian")])
def test_other_versions_are_refused(version: int, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw_gguf.header(0, 0, version=version) + bytes(64))
    refused(path, reason, UnsupportedModelError)


def long_array(element: str) -> bytes:
    """An array that claims 2^60 elements."""
    return raw_gguf.text("x.y") + struct.pack("<IIQ", 9, raw_gguf.CODES[element], HUGE)


VALUES = {
    "string": (raw_gguf.text("x.y") + struct.pack("<IQ", 8, HUGE), f"x.y needs {HUGE} bytes"),
    "key": (struct.pack("<Q", HUGE), "key of metadata entry 0 needs"),
    "array of strings": (long_array("str"), f"length of x.y is {HUGE}"),
    "array of bytes": (long_array("u8"), f"length of x.y is {HUGE}"),
    "array of u64": (long_array("u64"), f"length of x.y is {HUGE}"),
    "nested array": (long_array("array"), "x.y is an array of arrays"),
    "value type": (raw_gguf.text("x.y") + struct.pack("<I", 77), "x.y has the unknown value type 77"),
    "element type": (raw_gguf.text("x.y") + struct.pack("<IIQ", 9, 77, 1), "x.y has the unknown value type 77"),
    "empty key": (raw_gguf.entry("", "u32", 1), "metadata entry 0 has an empty key"),
    "key that is not UTF-8": (raw_gguf.entry(b"\xff\xfe", "u32", 1), "key of metadata entry 0 holds text that is not"),
    "text that is not UTF-8": (raw_gguf.entry("x.y", "str", b"\xff"), "x.y holds text that is not UTF-8"),
}


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("case", VALUES)
def test_sec_02_broken_metadata(case: str, tmp_path: Path) -> None:
    raw, pattern = VALUES[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw_gguf.header(0, 1) + raw + bytes(64))
    refused(path, pattern)


@pytest.mark.parametrize("alignment", [("u32", 0), ("u32", 4), ("u32", 24), ("u32", 2**31), ("str", "32"), ("bool", 1)])
def test_sec_02_broken_alignment(alignment: tuple[str, Any], tmp_path: Path) -> None:
    refused(raw_gguf.build(tmp_path / "m.gguf", change={"general.alignment": alignment}), "general.alignment is")


def real_file(path: Path) -> bytes:
    tensors = tiny.make_tensors("llama")
    return tiny.write_gguf(path, "llama", tensors).read_bytes()


def test_sec_02_truncated_at_each_byte_of_the_first_4_kib(tmp_path: Path) -> None:
    whole = real_file(tmp_path / "whole.gguf")
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    tracemalloc.start()
    for length in [len(whole) - 1, *reversed(range(4096))]:
        os.truncate(path, length)
        with pytest.raises(WeightsError):
            open_checkpoint(path)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_sec_02_flipped_bytes_never_crash(tmp_path: Path) -> None:
    whole = real_file(tmp_path / "whole.gguf")
    path = tmp_path / "m.gguf"
    generator = np.random.default_rng(11)
    outcomes = {"opened": 0, "refused": 0}
    for _ in range(1500):
        changed = bytearray(whole)
        for position in generator.integers(0, 4096, generator.integers(1, 4)):
            changed[position] = generator.integers(0, 256)
        path.write_bytes(changed)
        try:
            file = open_checkpoint(path)
            for name in file.names():
                file.get(name)
            outcomes["opened"] += 1
        except ModelError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "block_count 0": ({"llama.block_count": ("u32", 0)}, "llama.block_count is 0"),
    "block_count 2^31": ({"llama.block_count": ("u32", 2**31)}, "llama.block_count is"),
    "head_count 0": ({"llama.attention.head_count": ("u32", 0)}, "llama.attention.head_count is 0"),
    "head_count_kv 0": ({"llama.attention.head_count_kv": ("u32", 0)}, "llama.attention.head_count_kv is 0"),
    "heads that do not divide": ({"llama.attention.head_count_kv": ("u32", 3)}, "2 query heads cannot share 3"),
    "key_length 0": ({"llama.attention.key_length": ("u32", 0)}, "llama.attention.key_length is 0"),
    "rope dims 0": ({"llama.rope.dimension_count": ("u32", 0)}, "llama.rope.dimension_count is 0"),
    "embedding_length 0": ({"llama.embedding_length": ("u32", 0)}, "llama.embedding_length is 0"),
    "context_length 0": ({"llama.context_length": ("u32", 0)}, "llama.context_length is 0"),
    "epsilon NaN": ({"llama.attention.layer_norm_rms_epsilon": ("f32", float("nan"))}, "rms_epsilon is nan"),
    "block_count missing": ({"llama.block_count": None}, "metadata has no llama.block_count"),
    "block_count as text": ({"llama.block_count": ("str", "1")}, "llama.block_count is '1'"),
    "architecture missing": ({"general.architecture": None}, "general.architecture is None"),
    "empty key": ({"": ("u32", 1)}, "empty key"),
    "repeated token": ({"tokenizer.ggml.tokens": ("array", ("str", ["a", "b", "c", "a"]))}, "tokens lists 'a' twice"),
}


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("case", SETTINGS)
def test_sec_03_zeros_and_duplicates(case: str, tmp_path: Path) -> None:
    change, pattern = SETTINGS[case]
    refused(raw_gguf.build(tmp_path / "m.gguf", change=change), pattern)


@pytest.mark.parametrize("dims", [(4, 0), (0,), (0, 0), (32, 4, 0)])
def test_sec_03_zero_dimensions(dims: tuple[int, ...], tmp_path: Path) -> None:
    shape = re.escape(str(list(dims[::-1])))
    refused(raw_gguf.build(tmp_path / "m.gguf", tensors=[raw_gguf.tensor("w", dims)]), f"'w' has the shape {shape}")


TOKENIZERS: dict[str, tuple[str, tuple[str, Any], str]] = {
    "scores as bytes": ("scores", ("array", ("u8", [1, 2, 3, 4])), "scores is an array of u8; it must be one of f32"),
    "scores too short": ("scores", ("array", ("f32", [1.0])), "scores has 1 entries but there are 4 tokens"),
    "scores as a number": ("scores", ("f32", 1.0), "scores is 1.0; it must be an array"),
    "types too short": ("token_type", ("array", ("i32", [1, 1, 1])), "token_type has 3 entries"),
    "types as floats": ("token_type", ("array", ("f32", [1.0] * 4)), "token_type is an array of f32"),
    "merges as numbers": ("merges", ("array", ("u32", [1])), "merges is an array of u32"),
    "tokens as numbers": ("tokens", ("array", ("u32", [1, 2, 3, 4])), "tokens is an array of u32"),
    "tokens as text": ("tokens", ("str", "abcd"), "tokens is 'abcd'; it must be an array"),
    "tokens not UTF-8": ("tokens", ("array", ("str", [b"\xff", "b", "c", "d"])), "tokens holds text that is not UTF-8"),
    "more tokens than rows": ("tokens", ("array", ("str", list("abcde"))), "has 4 entries but there are 5 tokens"),
    "model as a number": ("model", ("u32", 1), "model is 1; it must be a string"),
    "eos out of range": ("eos_token_id", ("u32", 4), "eos_token_id is 4; the vocabulary has the ids 0 to 3"),
    "eos negative": ("eos_token_id", ("i32", -2), "eos_token_id is -2"),
    "eos as text": ("eos_token_id", ("str", "</s>"), "eos_token_id is '</s>'"),
}


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("case", TOKENIZERS)
def test_sec_04_tokenizer_arrays_are_checked(case: str, tmp_path: Path) -> None:
    key, content, pattern = TOKENIZERS[case]
    path = raw_gguf.build(tmp_path / "m.gguf", change={f"tokenizer.ggml.{key}": content})
    refused(path, pattern)


def test_sec_04_more_tokens_than_embedding_rows(tmp_path: Path) -> None:
    change: dict[str, Any] = {
        "tokenizer.ggml.tokens": ("array", ("str", list("abcde"))),
        "tokenizer.ggml.scores": None,
        "tokenizer.ggml.token_type": None,
    }
    path = raw_gguf.build(tmp_path / "m.gguf", change=change)
    refused(path, "there are 5 tokens but the embedding has 4 rows")


def test_an_id_that_means_none_is_left_out(tmp_path: Path) -> None:
    change: dict[str, Any] = {
        "tokenizer.ggml.padding_token_id": ("u32", 2**32 - 1),
        "tokenizer.ggml.bos_token_id": ("i32", -1),
    }
    file = open_checkpoint(raw_gguf.build(tmp_path / "m.gguf", change=change))
    assert file.tokenizer_metadata is not None
    assert not {"tokenizer.ggml.padding_token_id", "tokenizer.ggml.bos_token_id"} & set(file.tokenizer_metadata)
    assert file.generation_config == {"eos_token_id": [2]}


def test_a_file_without_tokenizer(tmp_path: Path) -> None:
    change: dict[str, Any] = {key: None for key in raw_gguf.LLAMA if key.startswith("tokenizer.")}
    file = open_checkpoint(raw_gguf.build(tmp_path / "m.gguf", change=change))
    assert file.tokenizer_metadata is None


def test_settings_that_vary_by_layer_are_refused(tmp_path: Path) -> None:
    change: dict[str, Any] = {"llama.attention.head_count": ("array", ("u32", [2, 4]))}
    refused(
        raw_gguf.build(tmp_path / "m.gguf", change=change),
        r"head_count varies from layer to layer \(\[2, 4\]",
        UnsupportedModelError,
    )
    same: dict[str, Any] = {"llama.attention.head_count": ("array", ("u32", [2, 2]))}
    assert open_checkpoint(raw_gguf.build(tmp_path / "n.gguf", change=same)).config["num_attention_heads"] == 2


@pytest.mark.parametrize("content", [b"", b"G", b"GGUF"])
def test_nearly_empty_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    refused(path, "needs 4 bytes")


def test_a_large_vocabulary_opens_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tokens = [f"token-{index}" for index in range(49_152)]
    change: dict[str, Any] = {
        "tokenizer.ggml.tokens": ("array", ("str", tokens)),
        "tokenizer.ggml.merges": ("array", ("str", [f"a {index}" for index in range(48_900)])),
        "tokenizer.ggml.scores": None,
        "tokenizer.ggml.token_type": ("array", ("i32", [1] * 49_152)),
    }
    embedding = raw_gguf.tensor("token_embd.weight", (32, 49_152))
    raw_gguf.build(path, change=change, tensors=[embedding], data=49_152 * 32 * 4)
    start = time.perf_counter()
    file = open_checkpoint(path)
    assert time.perf_counter() - start < 0.3
    assert file.tokenizer_metadata is not None
    assert file.tokenizer_metadata["tokenizer.ggml.tokens"] == tokens
