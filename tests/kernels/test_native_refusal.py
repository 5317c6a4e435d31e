"""Why there is no program: the library's own refusals, in words."""

import ctypes
import errno
import resource
from pathlib import Path

import pytest
from kernels.native_cases import ISAS, host

from mini_vllm.errors import ConfigError, UnsupportedModelError
from mini_vllm.kernels import native_program
from mini_vllm.kernels.native import NativeDevice
from mini_vllm.kernels.native_program import NativeProgram
from mini_vllm.kernels.native_refusal import create_program
from mini_vllm.kernels.table import AttentionSpec, KVShape

SHAPE = KVShape(num_layers=1, num_kv_heads=1, head_dim=16, num_blocks=2, block_size=4, dtype="f32")


class Attending:
    """An embedding, and one op over K and V by the rules that are asked for."""

    def __init__(self, device, spec):
        self.spec, width = spec, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        self.table, self.head = device.embedding(host([[0.5] * width] * 4)), device.embedding(host([[0.5] * 16] * 4))

    def hidden(self, ops, ctx):
        qkv = ops.embed(ctx.token_ids, self.table)
        return ops.take_rows(ops.rope_store(qkv, None, ctx.positions, self.spec), ctx.logit_rows)

    def logits(self, ops, hidden):
        return ops.logits(hidden, self.head)


def program(device, *, layer=0, isa=None, limits=(4, 1, 1), library=None):
    model = Attending(device, AttentionSpec(layer, 1, 1, 16, 0.25))
    return NativeProgram(
        library or device._library, device.team, isa or device.isa, model, device.kv_store(SHAPE), limits
    )


@pytest.mark.parametrize("isa", ISAS)
def test_an_op_that_kernels_cannot_run_is_named(monkeypatch, isa):
    device = NativeDevice(threads=2, isa=isa)
    assert program(device).max_logit_rows == 1
    monkeypatch.setattr(native_program, "_check_specs", lambda instructions, store: None)
    with pytest.raises(UnsupportedModelError) as error:
        program(device, layer=1)
    assert str(error.value) == (
        f"cannot make a program for 4 tokens on {isa}: its kernels cannot run rope_store of layer 1 (1 query heads, "
        "1 of K and V, head_dim 16) on a KV store of 1 layers (1 heads, head_dim 16); use --executor torch"
    )


def test_an_instruction_set_that_is_not_there_is_said():
    with pytest.raises(ConfigError) as error:
        program(NativeDevice(threads=1), isa="z80")
    assert error.value.param == "isa" and str(error.value) == (
        "cannot make a program for 4 tokens on z80: this machine cannot run that instruction set; choose another isa"
    )


class Tight:
    """The library, where the system gives it no more memory while it makes a program."""

    def __init__(self, library):
        self._library = library

    def __getattr__(self, name):
        return getattr(self._library, name)

    def mv_program_create(self, *arguments):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), before[1]))
        try:
            return self._library.mv_program_create(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


def test_no_memory_is_said_with_what_to_lower():
    device = NativeDevice(threads=32)  # gigabytes of scratch: more than other tests may have left free in the heap
    spec = AttentionSpec(0, 64, 1, 1024, 0.03)
    shape = KVShape(num_layers=1, num_kv_heads=1, head_dim=1024, num_blocks=1, block_size=1, dtype="f32")

    class Wide(Attending):
        def hidden(self, ops, ctx):
            q = ops.rope_store(ops.embed(ctx.token_ids, self.table), None, ctx.positions, spec)
            return ops.take_rows(ops.attend(q, spec), ctx.logit_rows)

    model, library = Wide(device, spec), Tight(device._library)
    model.head = device.embedding(host([[0.5] * 64 * 1024] * 4))
    with pytest.raises(ConfigError) as error:
        NativeProgram(library, device.team, device.isa, model, device.kv_store(shape), (1, 1, 1))
    assert str(error.value) == (
        f"cannot make a program for 1 tokens on {device.isa}: out of memory; lower the KV cache (kv_cache_memory, "
        "num_blocks), the step (max_num_batched_tokens) or threads"
    )


def test_a_library_that_gives_no_reason_is_not_guessed_at():
    """What an errno of another call says does not count."""
    device = NativeDevice(threads=1)
    ctypes.set_errno(errno.ENOMEM)
    with pytest.raises(ConfigError, match=r"^cannot make it: the native library does not say why; reinstall mini-vllm"):
        create_program(device._library, lambda *codes: None, [(), ()], store=device.kv_store(SHAPE).struct, what="it")
