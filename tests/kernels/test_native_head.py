"""Memory for reading a head in part is foreseen where the library reads it so, and nowhere else."""

from dataclasses import replace

import numpy as np
import pytest
from kernels.native_cases import FORMATS, RaggedStep, host
from kernels.test_native_quantized import random_blocks

from mini_vllm.kernels.native import NativeDevice
from mini_vllm.kernels.table import KVShape


class OnlyHead:
    """An embedding and a head over it."""

    def __init__(self, device, head):
        self.table = device.embedding(host(np.random.default_rng(1).standard_normal((8, head.shape[1]))))
        self.head = device.embedding(head)

    def hidden(self, ops, ctx):
        return ops.take_rows(ops.embed(ctx.token_ids, self.table), ctx.logit_rows)

    def logits(self, ops, hidden):
        return ops.logits(hidden, self.head)


def head_of(head_format, rows, cols):
    if head_format not in FORMATS:
        return random_blocks(head_format, rows, cols)[0]
    return host(np.random.default_rng(2).standard_normal((rows, cols)), head_format)


def is_copied(device, head):
    """Whether a greedy decode step of one sequence makes a copy of the head."""
    store = device.kv_store(KVShape(1, 1, 4, 8, 4, "f32"))
    program = device.compile(OnlyHead(device, head), store, max_tokens=4, max_rows=1, max_logit_rows=1)
    program.op_seconds()
    program.run(replace(RaggedStep([(0, 3)], 4).inputs([(0, 2, 3)], np.array([5])), greedy_limit=head.shape[0]))
    return "screen_make" in program.op_seconds()


@pytest.mark.parametrize("head_format", [*FORMATS, "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
@pytest.mark.parametrize(("rows", "cols"), [(63, 64), (64, 64), (200, 96), (1000, 32)])
def test_memory_is_foreseen_for_the_heads_that_are_copied(head_format, rows, cols):
    device = NativeDevice(threads=1)
    foreseen = device.greedy_head_bytes(head_format, rows, cols)
    copied = rows >= 64 and head_format in (*FORMATS, "q8_0")
    assert is_copied(device, head_of(head_format, rows, cols)) == (foreseen > 0) == copied


@pytest.mark.parametrize("head_format", FORMATS)
def test_a_head_of_other_widths_than_whole_groups_is_not_copied(head_format):
    device = NativeDevice(threads=1)
    assert device.greedy_head_bytes(head_format, 200, 40) == 0
    assert not is_copied(device, head_of(head_format, 200, 40))


def test_a_copy_has_six_and_a_half_bits_a_number():
    device = NativeDevice(threads=1)
    assert device.greedy_head_bytes("q8_0", 49152, 576) == 49152 * 576 * 13 // 16 + 12 * 49152
    assert device.greedy_head_bytes("f32", 50, 576) == device.greedy_head_bytes("q6_k", 49152, 768) == 0
