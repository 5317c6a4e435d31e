"""Records a model: the op table that writes down what it is asked, instead of computing.

`RecordingOps` turns a model's calls into a list of `Instruction`s over numbered activations. `native_fuse` then joins
some of them, and `assign_buffers` gives activations that are never alive together the same memory. Must not know how
instructions are run.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mini_vllm.kernels.native_abi import OpKind, RowKind
from mini_vllm.kernels.native_memory import LinearWeight, PackedMatrix, RopeTables
from mini_vllm.kernels.table import AttentionSpec, ForwardContext

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Activation:
    """A float32 matrix that exists only when a step runs: T rows, or as many as need an output."""

    index: int
    rows: RowKind
    width: int


@dataclass(frozen=True, slots=True)
class StepArray:
    """One of the step's integer arrays, which ops that need it read by themselves."""

    name: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """One op. Which fields count depends on the kind, as listed in csrc/mini_vllm.h."""

    kind: OpKind
    out: Activation
    column: int = 0  # where in out's rows a product begins
    x: Activation | None = None
    y: Activation | None = None
    weight: PackedMatrix | None = None
    vectors: tuple[Vector, ...] = ()
    spec: AttentionSpec | None = None
    rope_dims: int = 0
    eps: float = 0.0
    scale: float = 1.0
    softcap: float = 0.0
    rounds: str = ""  # the format of the weights that out is rounded for; "" = float32


def step_context() -> ForwardContext:
    """Handles for the arrays of a step that is not known yet."""
    return ForwardContext(
        token_ids=StepArray("token_ids"), positions=StepArray("positions"), logit_rows=StepArray("logit_rows")
    )


class RecordingOps:
    """An `OpTable` (see kernels.table for what each op means) that appends to `instructions`."""

    def __init__(self, first_index: int = 0) -> None:
        self.instructions: list[Instruction] = []
        self._rounded: dict[tuple[int, str], Activation] = {}
        self.next_index = first_index

    def _new(self, rows: RowKind, width: int) -> Activation:
        self.next_index += 1
        return Activation(self.next_index - 1, rows, width)

    def _emit(self, instruction: Instruction) -> Activation:
        self.instructions.append(instruction)
        return instruction.out

    def embed(self, token_ids: StepArray, weight: PackedMatrix, *, scale: float = 1.0) -> Activation:
        """See `OpTable.embed`."""
        _expect(token_ids, "token_ids")
        out = self._new(RowKind.TOKENS, weight.num_cols)
        return self._emit(Instruction(OpKind.EMBED, out, weight=weight, scale=weight.round_scale(scale)))

    def embed_positions(self, positions: StepArray, weight: PackedMatrix) -> Activation:
        """See `OpTable.embed_positions`."""
        _expect(positions, "positions")
        out = self._new(RowKind.TOKENS, weight.num_cols)
        return self._emit(Instruction(OpKind.EMBED_POSITIONS, out, weight=weight))

    def add(self, x: Activation, y: Activation) -> Activation:
        """See `OpTable.add`."""
        assert x.rows == y.rows and x.width == y.width, f"cannot add {y} to {x}"
        return self._emit(Instruction(OpKind.ADD, self._new(x.rows, x.width), x=x, y=y))

    def rms_norm(self, x: Activation, weight: Vector, eps: float) -> Activation:
        """See `OpTable.rms_norm`."""
        assert weight.shape == (x.width,), f"norm weight {weight.shape} for {x}"
        return self._emit(Instruction(OpKind.RMS_NORM, self._new(x.rows, x.width), x=x, vectors=(weight,), eps=eps))

    def layer_norm(self, x: Activation, weight: Vector, bias: Vector, eps: float) -> Activation:
        """See `OpTable.layer_norm`."""
        assert weight.shape == bias.shape == (x.width,), f"norm weight {weight.shape}, bias {bias.shape} for {x}"
        out = self._new(x.rows, x.width)
        return self._emit(Instruction(OpKind.LAYER_NORM, out, x=x, vectors=(weight, bias), eps=eps))

    def qk_norm(
        self, qkv: Activation, q_weight: Vector, k_weight: Vector, eps: float, spec: AttentionSpec
    ) -> Activation:
        """See `OpTable.qk_norm`."""
        assert q_weight.shape == k_weight.shape == (spec.head_dim,), "q and k norm weights are one head wide"
        out = self._new(qkv.rows, qkv.width)
        vectors = (q_weight, k_weight)
        return self._emit(Instruction(OpKind.QK_NORM, out, x=qkv, vectors=vectors, eps=eps, spec=spec))

    def linear(self, x: Activation, weight: LinearWeight) -> Activation:
        """See `OpTable.linear`."""
        return self._products(x, weight.matrices, 0.0)

    def rope_store(
        self, qkv: Activation, rope: RopeTables | None, positions: StepArray, spec: AttentionSpec
    ) -> Activation:
        """See `OpTable.rope_store`."""
        _expect(positions, "positions")
        assert qkv.width == (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim, f"{qkv} for {spec}"
        vectors = () if rope is None else (rope.cos, rope.sin)
        dims = 0 if rope is None else 2 * rope.cos.shape[1]
        assert dims <= spec.head_dim, f"{dims} rotated dimensions of {spec.head_dim}"
        out = self._new(qkv.rows, spec.num_heads * spec.head_dim)
        return self._emit(Instruction(OpKind.ROPE_STORE, out, x=qkv, vectors=vectors, rope_dims=dims, spec=spec))

    def attend(self, q: Activation, spec: AttentionSpec) -> Activation:
        """See `OpTable.attend`."""
        return self._emit(Instruction(OpKind.ATTEND, self._new(q.rows, q.width), x=q, spec=spec))

    def silu_mul(self, gate_up: Activation) -> Activation:
        """See `OpTable.silu_mul`."""
        return self._emit(Instruction(OpKind.SILU_MUL, self._new(gate_up.rows, gate_up.width // 2), x=gate_up))

    def gelu_mul(self, gate_up: Activation) -> Activation:
        """See `OpTable.gelu_mul`."""
        return self._emit(Instruction(OpKind.GELU_MUL, self._new(gate_up.rows, gate_up.width // 2), x=gate_up))

    def gelu(self, x: Activation) -> Activation:
        """See `OpTable.gelu`."""
        return self._emit(Instruction(OpKind.GELU, self._new(x.rows, x.width), x=x))

    def take_rows(self, x: Activation, rows: StepArray) -> Activation:
        """See `OpTable.take_rows`."""
        _expect(rows, "logit_rows")
        return self._emit(Instruction(OpKind.TAKE_ROWS, self._new(RowKind.OUTPUT, x.width), x=x))

    def logits(self, x: Activation, weight: LinearWeight | PackedMatrix, softcap: float = 0.0) -> Activation:
        """See `OpTable.logits`."""
        return self._products(x, weight.matrices if isinstance(weight, LinearWeight) else (weight,), softcap)

    def _products(self, x: Activation, matrices: tuple[PackedMatrix, ...], softcap: float) -> Activation:
        """One product per matrix, side by side in one activation."""
        out = self._new(x.rows, sum(matrix.num_rows for matrix in matrices))
        column = 0
        for matrix in matrices:
            assert x.width == matrix.num_cols, f"{x} times a weight [{matrix.num_rows}, {matrix.num_cols}]"
            factor = self._round(x, matrix) if matrix.input_words else x
            self._emit(Instruction(OpKind.LINEAR, out, column, x=factor, weight=matrix, softcap=softcap))
            column += matrix.num_rows
        return out

    def _round(self, x: Activation, matrix: PackedMatrix) -> Activation:
        """x in int8 or bfloat16, as products with this format take it."""
        key = (x.index, matrix.format)
        if key not in self._rounded:
            out = self._new(x.rows, matrix.input_words)
            self._rounded[key] = self._emit(Instruction(OpKind.QUANTIZE, out, x=x, weight=matrix))
        return self._rounded[key]


def _expect(array: StepArray, name: str) -> None:
    assert array == StepArray(name), f"this op reads the step's {name}, not {array}"


def inputs_of(instruction: Instruction) -> tuple[Activation, ...]:
    """The activations that an instruction reads."""
    return tuple(a for a in (instruction.x, instruction.y) if a is not None)


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """Which buffer each activation uses, and each buffer's row stride in elements and kind of rows."""

    buffer_of: dict[int, int]
    strides: list[int]
    rows: list[RowKind]


def row_stride(width: int) -> int:
    """Elements from row to row: whole cache lines, and not a multiple of 256 bytes, so that rows of a tile do not all
    compete for the same few sets of the cache."""
    stride = (width + 15) // 16 * 16
    return stride + 16 if stride % 64 == 0 else stride


def assign_buffers(instructions: list[Instruction], external: frozenset[int]) -> BufferPlan:
    """Buffers for all outputs but the `external` ones, reused as soon as the last reader has run."""
    last_use = {a.index: position for position, i in enumerate(instructions) for a in inputs_of(i)}
    plan = BufferPlan({}, [], [])
    free: list[int] = []
    for position, instruction in enumerate(instructions):
        out = instruction.out
        if out.index not in external and out.index not in plan.buffer_of:
            plan.buffer_of[out.index] = _take_buffer(plan, free, out)
        for index in {a.index for a in (*inputs_of(instruction), out)} - external:
            if last_use.get(index, position) <= position:
                free.append(plan.buffer_of[index])
    return plan


def _take_buffer(plan: BufferPlan, free: list[int], out: Activation) -> int:
    """The free buffer that fits best, else a new one."""
    stride = row_stride(out.width)
    fitting = [b for b in free if plan.rows[b] == out.rows and plan.strides[b] >= stride]
    if fitting:
        best = min(fitting, key=lambda b: plan.strides[b])
        free.remove(best)
        return best
    plan.strides.append(stride)
    plan.rows.append(out.rows)
    return len(plan.strides) - 1
