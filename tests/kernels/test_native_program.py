"""Recording, buffers, checks of a step, logits in slices, and equality with the torch op table on a whole model."""

from dataclasses import replace

import numpy as np
import pytest
from kernels.native_cases import FORMATS, ISAS, OneOp, RaggedStep, host, ids

from mini_vllm.errors import ConfigError, MissingDependencyError, UnsupportedModelError
from mini_vllm.kernels.native import NativeDevice
from mini_vllm.kernels.native_abi import OpKind
from mini_vllm.kernels.native_fuse import fuse, fuse_residuals
from mini_vllm.kernels.native_record import RecordingOps, assign_buffers, row_stride, step_context
from mini_vllm.kernels.registry import device_names, get_device
from mini_vllm.kernels.table import AttentionSpec, KVShape
from mini_vllm.kernels.tensors import HostTensor
from mini_vllm.kernels.torch_ops import TorchDevice


class SmallLlama:
    """Two layers with every matrix of odd sizes, biases on q, k, v, and a tied head."""

    H, V, HEADS, KV_HEADS, D, F, LAYERS = 40, 50, 4, 2, 12, 52, 2

    def __init__(self, device, number_format="f32", *, window=0):
        rng = np.random.default_rng(0)

        def weight(*shape):
            return host(rng.standard_normal(shape) * 0.2, number_format)

        angles = np.arange(512)[:, None] / 1000.0 ** (np.arange(self.D // 2) / (self.D // 2))[None]
        self.rope = device.rope(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
        self.embedding = device.embedding(weight(self.V, self.H))
        width, kv_width = self.HEADS * self.D, self.KV_HEADS * self.D
        self.layers = [
            {
                "norm1": device.vector(weight(self.H), offset=1.0),
                "qkv": device.linear(
                    [weight(width, self.H), weight(kv_width, self.H), weight(kv_width, self.H)],
                    [weight(width), None, weight(kv_width)],
                ),
                "o": device.linear([weight(self.H, width)]),
                "norm2": device.vector(weight(self.H), offset=1.0),
                "gate_up": device.linear([weight(self.F, self.H), weight(self.F, self.H)]),
                "down": device.linear([weight(self.H, self.F)]),
            }
            for _ in range(self.LAYERS)
        ]
        self.norm = device.vector(weight(self.H), offset=1.0)
        self.window = window

    def hidden(self, ops, ctx):
        x = ops.embed(ctx.token_ids, self.embedding)
        for index, layer in enumerate(self.layers):
            spec = AttentionSpec(index, self.HEADS, self.KV_HEADS, self.D, self.D**-0.5, self.window)
            qkv = ops.linear(ops.rms_norm(x, layer["norm1"], 1e-5), layer["qkv"])
            q = ops.rope_store(qkv, self.rope, ctx.positions, spec)
            x = ops.add(x, ops.linear(ops.attend(q, spec), layer["o"]))
            gate_up = ops.linear(ops.rms_norm(x, layer["norm2"], 1e-5), layer["gate_up"])
            x = ops.add(x, ops.linear(ops.silu_mul(gate_up), layer["down"]))
        return ops.rms_norm(ops.take_rows(x, ctx.logit_rows), self.norm, 1e-5)

    def logits(self, ops, hidden):
        return ops.logits(hidden, self.embedding)


def compiled(device, *, number_format="f32", kv="f32", window=0, blocks=40, block_size=7, max_logit_rows=16):
    shape = KVShape(2, SmallLlama.KV_HEADS, SmallLlama.D, blocks, block_size, kv)
    model = SmallLlama(device, number_format, window=window)
    return device.compile(model, device.kv_store(shape), max_tokens=128, max_rows=8, max_logit_rows=max_logit_rows)


def two_steps(program, step, tokens):
    """A ragged prefill, then a mixed step: decode of one sequence beside the rest of another. Logits of both."""
    first = program.run(step.inputs([(0, 0, 20), (1, 0, 13), (2, 0, 8)], tokens[:41])).copy()
    first_logits = np.concatenate([program.logits(i, min(i + 16, 41)).copy() for i in range(0, 41, 16)])
    second = program.run(step.inputs([(0, 20, 21), (1, 13, 30), (2, 8, 10)], tokens[41:61])).copy()
    second_logits = np.concatenate([program.logits(i, min(i + 16, 20)).copy() for i in range(0, 20, 16)])
    return first, first_logits, second, second_logits


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("number_format", "kv"), [*zip(FORMATS, FORMATS, strict=True), ("bf16", "f32"), ("f32", "q8")])
@pytest.mark.parametrize("window", (0, 9))
def test_a_model_equals_the_reference_op_table(isa, number_format, kv, window):
    step = RaggedStep([(0, 21), (0, 30), (0, 10)], 7)
    tokens = np.random.default_rng(1).integers(0, 50, 61)
    arguments = {"number_format": number_format, "kv": kv, "window": window, "blocks": step.num_blocks}
    ours = two_steps(compiled(NativeDevice(threads=2, isa=isa), **arguments), step, tokens)
    reference = two_steps(compiled(TorchDevice(), **arguments), step, tokens)
    # a sum that falls on the other side of a rounding edge moves a stored K or V, or an input of a bfloat16 product,
    # by its last bit
    coarsest = "bf16" if number_format == "bf16" else kv
    tolerance = {"f32": 2e-5, "f16": 2e-3, "bf16": 2e-2, "q8": 2e-2}[coarsest]
    for mine, theirs in zip(ours, reference, strict=True):
        assert mine.shape == theirs.shape and np.abs(theirs).max() > 1.0
        assert np.abs(mine - theirs).max() < tolerance * np.abs(theirs).max()
        if coarsest != "f32":
            # where it is bf16, so are the queries and weights of native attention
            assert np.abs(mine - theirs).mean() < tolerance / 2


def test_a_long_step_goes_through_the_ops_in_parts(monkeypatch):
    """Cut within sequences and between them, with outputs in some parts and none in others: the same bits."""
    step = RaggedStep([(0, 21), (0, 30), (0, 10), (0, 37)], 7)
    tokens = np.random.default_rng(1).integers(0, 50, 98)
    chunks, rest = [(0, 0, 20), (1, 0, 13), (2, 0, 10), (3, 0, 30)], [(0, 20, 21), (1, 13, 30), (3, 30, 37)]
    results = []
    for most in (512, 50, 16, 1):
        monkeypatch.setattr("mini_vllm.kernels.native_program.PASS_TOKENS", most)
        program = compiled(NativeDevice(threads=2), max_logit_rows=100)
        found = []
        for part, first in ((chunks, 0), (rest, 73)):
            inputs = step.inputs(part, tokens[first : first + sum(b - a for _, a, b in part)])
            ends = np.cumsum([b - a for _, a, b in part]).astype(np.int32) - 1
            for rows in (inputs.logit_rows, ends):
                hidden = program.run(replace(inputs, logit_rows=rows)).copy()
                found += [hidden, program.logits(0, len(rows)).copy()]
        results.append(found)
    for found in results[1:]:
        for mine, whole in zip(found, results[0], strict=True):
            assert mine.shape == whole.shape and np.array_equal(mine, whole)


def test_logits_do_not_depend_on_the_slice_they_are_asked_in():
    step = RaggedStep([(0, 40)], 7)
    tokens = np.arange(40)
    sliced, whole = (compiled(NativeDevice(threads=2), max_logit_rows=rows) for rows in (8, 64))
    inputs = step.inputs([(0, 0, 40)], tokens)
    assert np.array_equal(sliced.run(inputs), whole.run(inputs))
    complete = whole.logits(0, 40)
    for start, stop in ((0, 8), (5, 13), (39, 40), (32, 40)):
        part = sliced.logits(start, stop)
        assert part.flags.c_contiguous and np.array_equal(part, complete[start:stop])


def test_no_logit_rows_is_a_step_too():
    program = compiled(NativeDevice(threads=2))
    step = RaggedStep([(0, 9)], 7)
    inputs = replace(step.inputs([(0, 0, 8)], np.arange(8)), logit_rows=ids([]))
    assert program.run(inputs).shape == (0, SmallLlama.H)
    assert program.logits(0, 0).shape == (0, SmallLlama.V)
    assert program.run(step.inputs([(0, 8, 9)], ids([3]))).shape == (1, SmallLlama.H)


@pytest.mark.parametrize("isa", ISAS)
def test_a_step_begun_ahead_gives_the_same_bits(isa):
    device = NativeDevice(threads=2, isa=isa)
    plain, eager = (
        compiled(device),
        compiled(device),
    )  # on the same threads: a run of one displaces what the other began
    step, tokens = RaggedStep([(0, 60)], 7), np.random.default_rng(2).integers(0, 50, 60)
    for program in (plain, eager):
        program.run(step.inputs([(0, 0, 20)], tokens[:20]))
    for position in range(20, 60):
        inputs = step.inputs([(0, position, position + 1)], tokens[position : position + 1])
        expected = plain.run(inputs).copy(), plain.logits(0, 1).copy()
        assert eager.begin(inputs)
        asked = inputs
        if position % 4 == 1:  # something else is asked for after all
            asked = replace(inputs, token_ids=inputs.token_ids.copy())
        elif position % 4 == 2:
            eager.drop()
        elif position % 4 == 3:
            plain.run(inputs)
        assert np.array_equal(eager.run(asked), expected[0]) and np.array_equal(eager.logits(0, 1), expected[1])


def test_nothing_begins_on_one_thread_or_while_ops_are_timed_or_where_a_run_would_fail():
    step = RaggedStep([(0, 9)], 7)
    good = step.inputs([(0, 0, 8)], np.arange(8))
    assert not compiled(NativeDevice(threads=1)).begin(good)
    program = compiled(NativeDevice(threads=2))
    assert not program.begin(replace(good, slots=np.full(8, 10000, np.int32)))
    assert program.begin(good)
    program.drop()
    program.op_seconds()
    assert not program.begin(good)
    assert program.run(good).shape == (8, SmallLlama.H)


BAD_STEPS = {
    "a token id": {"token_ids": ids([1, 2, 50])},
    "token id": {"token_ids": ids([-1, 2, 3])},
    "positions": {"positions": ids([0, 1, 3])},
    "a slot": {"slots": ids([0, 1, 10000])},
    "query_starts": {"query_starts": ids([0, 2])},
    "query_starts do": {"query_starts": ids([1, 3])},
    "seq_lens": {"seq_lens": ids([4])},
    "a block id": {"block_tables": ids([[77]])},
    "logit_rows": {"logit_rows": ids([2, 1])},
    "logit_rows are": {"logit_rows": ids([3])},
}


@pytest.mark.parametrize("message", BAD_STEPS)
def test_a_step_outside_the_program_is_refused_before_it_touches_memory(message):
    program = compiled(NativeDevice(threads=2))
    good = RaggedStep([(0, 3)], 7).inputs([(0, 0, 3)], ids([1, 2, 3]))
    with pytest.raises(ValueError, match=message):
        program.run(replace(good, **BAD_STEPS[message]))
    assert np.isfinite(program.run(good)).all()
    with pytest.raises(ValueError, match="rows 0 to 4"):
        program.logits(0, 4)


def test_too_many_tokens_or_positions_are_refused():
    program = compiled(NativeDevice(threads=1))
    step = RaggedStep([(0, 600)], 7)
    with pytest.raises(ValueError, match="more tokens"):
        program.run(step.inputs([(0, 0, 129)], np.zeros(129)))
    wide = compiled(NativeDevice(threads=1), blocks=step.num_blocks)
    with pytest.raises(ValueError, match="position tables"):
        wide.run(step.inputs([(0, 512, 513)], np.zeros(1)))


def test_a_recorder_reads_a_forward():
    device = NativeDevice(threads=1)
    ops = RecordingOps()
    SmallLlama(device).hidden(ops, step_context())
    layer = ["RMS_NORM", "LINEAR", "ROPE_STORE", "ATTEND", "LINEAR", "ADD", "RMS_NORM", "LINEAR", "SILU_MUL", "LINEAR"]
    assert [i.kind.name for i in ops.instructions] == ["EMBED", *([*layer, "ADD"] * 2), "TAKE_ROWS", "RMS_NORM"]
    fused = [i.kind.name for i in fuse_residuals(ops.instructions)]
    assert fused.count("ADD") == 0 and len(fused) == len(ops.instructions) - 4


def test_a_product_read_twice_is_not_fused():
    device = NativeDevice(threads=1)
    weight, embedding = device.linear([host(np.eye(8))]), device.embedding(host(np.eye(8)))
    ops = RecordingOps()
    x = ops.embed(step_context().token_ids, embedding)
    product = ops.linear(x, weight)
    ops.add(product, ops.add(x, product))
    assert [i.kind for i in fuse_residuals(ops.instructions)].count(OpKind.ADD) == 2


def test_silu_and_roundings_join_the_ops_before_them():
    device = NativeDevice(threads=1)
    plain = host(np.ones((32, 16)))
    halves = (plain.data.view(np.uint32) >> 16).astype(np.uint16)
    rounded = HostTensor("w", "bf16", plain.shape, halves.reshape(-1).view(np.uint8))
    for tensor in (plain, rounded):
        ops = RecordingOps()
        x = ops.embed(step_context().token_ids, device.embedding(tensor))
        inner = ops.silu_mul(ops.linear(ops.rms_norm(x, np.ones(16, np.float32), 1e-5), device.linear([tensor])))
        ops.linear(inner, device.linear([tensor]))
        fused = fuse(ops.instructions)
        assert [i.kind.name for i in fused] == ["EMBED", "RMS_NORM", "LINEAR_SILU_MUL", "LINEAR"]
        rounds = "bf16" if tensor is rounded else ""
        assert [i.rounds for i in fused] == ["", rounds, rounds, ""]


def test_buffers_are_reused_but_never_while_alive():
    device = NativeDevice(threads=1)
    ops = RecordingOps()
    hidden = SmallLlama(device).hidden(ops, step_context())
    instructions = fuse_residuals(ops.instructions)
    plan = assign_buffers(instructions, frozenset({hidden.index}))
    assert len(plan.strides) <= 5  # residual, its successor, and three in flight
    holder = {}
    for instruction in instructions:
        for read in (a for a in (instruction.x, instruction.y) if a is not None):
            assert holder[plan.buffer_of[read.index]] == read.index, "overwritten before it was read"
            assert plan.strides[plan.buffer_of[read.index]] >= read.width
        if instruction.out.index != hidden.index:
            holder[plan.buffer_of[instruction.out.index]] = instruction.out.index


def test_row_strides_avoid_one_cache_set():
    assert [row_stride(width) for width in (1, 576, 2048, 50)] == [16, 592, 2064, 80]


def test_devices_by_name(monkeypatch):
    assert device_names() == ("native", "torch")
    assert get_device("native", threads=3).describe()["threads"] == "3"
    assert get_device("torch").name == "torch"
    with pytest.raises(ConfigError, match="unknown device 'triton'; choose one of native, torch"):
        get_device("triton")
    monkeypatch.setenv("MINI_VLLM_ISA", "portable")
    assert get_device("native", threads=1).describe()["instruction_set"] == "portable"
    monkeypatch.setenv("MINI_VLLM_ISA", "mmx")
    with pytest.raises(ConfigError, match=r"isa is 'mmx', which cannot run here; choose one of .*portable"):
        get_device("native", threads=1)
    assert get_device("native", threads=1, isa="portable").describe()["instruction_set"] == "portable"


def test_what_the_kernels_cannot_hold_is_refused_with_a_remedy():
    device = NativeDevice(threads=1)
    assert device.kv_store(KVShape(1, 1, 1024, 1, 1, "f32")).shape.head_dim == 1024
    with pytest.raises(UnsupportedModelError, match=r"head_dim is 1025; .* at most 1024; use --executor torch"):
        device.kv_store(KVShape(1, 1, 1025, 1, 1, "f32"))
    for threads in (0, -1, 1025):
        with pytest.raises(ConfigError, match=f"threads is {threads}; it must be from 1 to 1024"):
            NativeDevice(threads=threads)


def test_set_none_computes_nothing():
    """For timing all that is not kernels: a program runs to its end, and its buffers keep their zeros."""
    step, tokens = RaggedStep([(0, 41), (0, 43), (0, 18)], 7), np.arange(61) % SmallLlama.V
    done = two_steps(compiled(NativeDevice(threads=2, isa="portable")), step, tokens)
    nothing = two_steps(compiled(NativeDevice(threads=2, isa="none")), step, tokens)
    for computed, left in zip(done, nothing, strict=True):
        assert computed.shape == left.shape and computed.any() and not left.any()


def test_absent_library_says_what_to_do(monkeypatch, tmp_path):
    from mini_vllm.kernels import native_library

    native_library.load_library.cache_clear()
    try:
        monkeypatch.setenv("MINI_VLLM_LIBRARY", str(tmp_path / "none.so"))
        with pytest.raises(MissingDependencyError, match=r"none\.so.*mini-vllm\[torch\]"):
            native_library.load_library()
        monkeypatch.delenv("MINI_VLLM_LIBRARY")
        monkeypatch.setattr(native_library, "LIBRARY_NAME", "libabsent.so")
        with pytest.raises(MissingDependencyError, match=r"is not built; install a C\+\+ compiler"):
            native_library.load_library()
    finally:
        native_library.load_library.cache_clear()


def test_a_device_keeps_what_its_programs_need_alive():
    """Weights, store and threads are reached only through the program once the device is gone."""
    import gc

    program = compiled(NativeDevice(threads=2))
    gc.collect()
    inputs = RaggedStep([(0, 20)], 7).inputs([(0, 0, 20)], np.arange(20))
    expected = compiled(NativeDevice(threads=1)).run(inputs).copy()
    assert np.array_equal(program.run(inputs), expected)


def test_many_threads_and_programs_agree():
    values = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    weight = host(np.random.default_rng(1).standard_normal((160, 96)))
    outputs = []
    for threads in (1, 2, 5, 9):
        device = NativeDevice(threads=threads)
        packed = device.linear([weight])
        op = OneOp(device, values, lambda ops, ctx, x, w=packed: ops.linear(x, w))
        outputs += [op.rows(range(64)) for _ in range(20)]
    assert all(np.array_equal(out, outputs[0]) for out in outputs)
