"""A model as a flat program: recorded once, replayed by the native library with one call per step."""

import ctypes
import weakref
from functools import partial

import numpy as np
import numpy.typing as npt

from mini_vllm.errors import ConfigError
from mini_vllm.kernels.inputs import Int32Array, StepInputs, Succession
from mini_vllm.kernels.native_abi import FORMATS, OP_NAMES, STATUS_TEXT, Follow, Limits, Op, OpKind, RowKind, Step
from mini_vllm.kernels.native_fuse import fuse
from mini_vllm.kernels.native_memory import Memory, NativeStore
from mini_vllm.kernels.native_record import Activation, Instruction, RecordingOps, assign_buffers, step_context
from mini_vllm.kernels.native_refusal import create_program
from mini_vllm.kernels.table import Model

_NO_LIMIT = 2**31 - 1
PASS_TOKENS = (
    512  # of a step that go through the ops together: the widest activations of a small model stay in the caches
)


class Team:
    """The compute threads of a device, shared by its programs. Ends with this object."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self.threads = threads
        self._library = library
        self._times: npt.NDArray[np.int64] | None = None
        self.handle: int = library.mv_team_create(threads)
        if not self.handle:
            raise ConfigError(f"cannot start {threads} threads: the system refuses them; ask for fewer with --threads")
        weakref.finalize(self, library.mv_team_destroy, self.handle).atexit = False

    def profile(self) -> None:
        """Add up the wall time of each kind of op from now on. Costs some tens of nanoseconds an op."""
        self._times = np.zeros(len(OP_NAMES), np.int64)
        self._library.mv_team_profile(self.handle, self._times.ctypes.data)

    def times(self) -> dict[str, float]:
        """Seconds by kind of op, such as "linear" and "attend", since `profile` or the last call of this."""
        if self._times is None:
            return {}
        seconds = {name: ns * 1e-9 for name, ns in zip(OP_NAMES, self._times.tolist(), strict=True) if ns}
        self._times[:] = 0
        return seconds


class NativeProgram:
    """A model bound to weights, a KV store and a team. See `kernels.table.Program`.

    Memory: activations for PASS_TOKENS rows, hidden states for max_tokens, logits for max_logit_rows. Raises ValueError
    for a step that does not fit the program or points outside the KV store.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        team: Team,
        isa: str,
        model: Model,
        store: NativeStore,
        limits: tuple[int, int, int],
    ) -> None:
        max_tokens, max_seqs, self._max_logit_rows = limits
        pass_tokens = max_tokens
        self._library = library
        self._team = team
        recording = RecordingOps()
        hidden = model.hidden(recording, step_context())
        head = RecordingOps(first_index=recording.next_index)
        logits = model.logits(head, hidden)
        hidden_ops = fuse(recording.instructions)
        assert hidden_ops[-1].out == hidden, "a model's hidden states come from its last op"
        if [i.out for i in hidden_ops].count(hidden) == 1:  # else the library would move one of several ops along
            pass_tokens = min(max_tokens, PASS_TOKENS)
        _check_specs(hidden_ops, store)
        self._hidden = _output(library, max_tokens, hidden)
        self._logits = _output(library, self._max_logit_rows, logits)
        outputs = {hidden.index: self._hidden.address, logits.index: self._logits.address}
        self._keep = (team, store, recording, head)  # what the library's ops point to
        code = [
            _assemble(library, part, outputs, {RowKind.TOKENS: rows, RowKind.OUTPUT: rows})
            for part, rows in ((hidden_ops, pass_tokens), (head.instructions, self._max_logit_rows))
        ]
        self._buffers = [memory for _, buffers in code for memory in buffers]
        bounds = Limits(max_tokens, max_seqs, self._max_logit_rows, *_id_bounds(hidden_ops), pass_tokens)
        given = (team.handle, isa.encode(), ctypes.byref(store.struct), ctypes.byref(bounds))
        self._handle = create_program(
            library,
            partial(library.mv_program_create, *given),
            [ops for ops, _ in code],
            store=store.struct,
            what=f"a program for {max_tokens} tokens on {isa}",
        )
        # The library's threads look at the team and the store until the program has ended.
        weakref.finalize(self, _destroy, library, self._handle, (team, store)).atexit = False
        self._hidden_rows = self._hidden.floats(max_tokens, hidden.width, hidden.width)
        self._logit_rows = self._logits.floats(self._max_logit_rows, logits.width, logits.width)
        self._run, self._begin, self._end = library.mv_program_run, library.mv_program_begin, library.mv_program_end
        self._run_on = library.mv_program_follow
        self._following: _Following | None = None
        self._is_begun = False
        self._inputs: StepInputs | None = None  # of the last run, and what the library was told of them
        self._step = ctypes.byref(Step())
        self._is_timed = False
        self._rows = 0  # hidden rows of the last run
        self._logits_ready = False  # the last run computed all of their logits
        self._hidden_view, self._logits_view = self._hidden_rows[:0], self._logit_rows[:0]

    @property
    def max_logit_rows(self) -> int:
        """See `Program.max_logit_rows`."""
        return self._max_logit_rows

    def run(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        """See `Program.run`. Logits are computed in the same call when they fit max_logit_rows."""
        if self._is_begun:
            self._is_begun = False
            if self._end(self._handle, inputs is self._inputs):
                return self._hidden_view
        if inputs is not self._inputs:
            self._take(inputs)
        if status := self._run(self._handle, self._step):
            raise ValueError(f"the step cannot run: {STATUS_TEXT[status]}")
        return self._hidden_view

    def begin(self, inputs: StepInputs) -> bool:
        """See `EagerProgram.begin`. Nothing begins on one thread, nor while ops are timed, which all threads share."""
        self.drop()
        if self._team.threads < 2 or self._is_timed:
            return False
        if inputs is not self._inputs:
            self._take(inputs)
        self._is_begun = not self._begin(self._handle, self._step)
        return self._is_begun

    def follow(self, inputs: StepInputs, succession: Succession) -> tuple[list[int], bool]:
        """See `EagerProgram.follow`. Nothing begins on one thread, nor while ops are timed."""
        if inputs is not self._inputs:
            self.drop()
            self._take(inputs)
            assert inputs is self._inputs, "arrays that move on must be contiguous int32"
        following = self._following
        if following is None or not following.fits(inputs, succession):
            following = self._following = _Following(inputs, succession, self._logit_rows)
        told = following.told
        told.is_begun, told.may_begin = self._is_begun, self._team.threads > 1 and not self._is_timed
        self._is_begun = False
        if status := self._run_on(self._handle, self._step, told):
            raise ValueError(f"the step cannot run: {STATUS_TEXT[status]}")
        self._is_begun = bool(told.next_begun)
        tokens: list[int] = following.chosen.tolist()
        return tokens, self._is_begun

    def drop(self) -> None:
        """See `EagerProgram.drop`."""
        if self._is_begun:
            self._is_begun = False
            self._end(self._handle, 0)

    def logits(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """See `Program.logits`."""
        if not 0 <= start <= stop <= self._rows:
            raise ValueError(f"logits of rows {start} to {stop}, but the last step has {self._rows}")
        if self._logits_ready:
            return self._logits_view if stop - start == self._rows else self._logit_rows[start:stop]
        if status := self._library.mv_program_logits(self._handle, start, stop - start):
            raise ValueError(f"the logits cannot be computed: {STATUS_TEXT[status]}")
        return self._logit_rows[: stop - start]

    def progress(self) -> int:
        """See `Program.progress`."""
        return int(self._library.mv_team_progress(self._team.handle))

    def op_seconds(self) -> dict[str, float]:
        """Wall time by kind of op, such as "attend", since the last call; {} at the first, which begins to measure."""
        if not self._is_timed:
            self._is_timed = True
            self._team.profile()
        return self._team.times()

    def _take(self, inputs: StepInputs) -> None:
        """Note where the arrays lie. The same `StepInputs` again means the same arrays, whatever is in them by then."""
        arrays = [_int32(array) for array in _arrays(inputs)]
        step = Step(
            arrays[0].shape[0],
            arrays[4].shape[0],
            arrays[6].shape[0],
            inputs.block_tables.shape[1],
            *(array.ctypes.data for array in arrays),
            inputs.greedy_limit,
        )
        is_as_given = all(array is given for array, given in zip(arrays, _arrays(inputs), strict=True))
        self._inputs = inputs if is_as_given else None
        self._step, self._step_arrays = ctypes.byref(step), arrays
        self._rows = step.num_logit_rows
        self._logits_ready = self._rows <= self._max_logit_rows
        self._hidden_view = self._hidden_rows[: self._rows]
        self._logits_view = self._logit_rows[: min(self._rows, self._max_logit_rows)]


class _Following:
    """What the library is told of steps that follow each other, kept while they move the same arrays on."""

    def __init__(self, inputs: StepInputs, succession: Succession, logits: npt.NDArray[np.float32]) -> None:
        self._inputs, self._succession = inputs, succession
        self.chosen = np.empty(len(inputs.seq_lens), np.int32)
        self.told = Follow(
            logits=logits.ctypes.data,
            vocab=logits.shape[1],
            block_size=succession.block_size,
            chosen=self.chosen.ctypes.data,
        )
        for name in ("max_lens", "end_ids", "end_starts"):
            setattr(self.told, name, getattr(succession, name).ctypes.data)
        for name in ("token_ids", "positions", "slots", "seq_lens"):
            setattr(self.told, name, getattr(inputs, name).ctypes.data)

    def fits(self, inputs: StepInputs, succession: Succession) -> bool:
        """Whether it was made for these very arrays."""
        return inputs is self._inputs and succession is self._succession


def _destroy(library: ctypes.CDLL, handle: int, keep: tuple[Team, NativeStore]) -> None:
    library.mv_program_destroy(handle)


def _arrays(inputs: StepInputs) -> tuple[Int32Array, ...]:
    """In the order of struct mv_step."""
    return (
        inputs.token_ids,
        inputs.positions,
        inputs.slots,
        inputs.query_starts,
        inputs.seq_lens,
        inputs.block_tables,
        inputs.logit_rows,
    )


def _int32(array: Int32Array) -> Int32Array:
    return np.ascontiguousarray(array, dtype=np.int32)


def _output(library: ctypes.CDLL, rows: int, activation: Activation) -> Memory:
    return Memory(library, 4 * rows * activation.width)


def _check_specs(instructions: list[Instruction], store: NativeStore) -> None:
    shape = store.shape
    for spec in (i.spec for i in instructions if i.spec is not None):
        assert (spec.num_kv_heads, spec.head_dim) == (shape.num_kv_heads, shape.head_dim), f"{spec} in a {shape}"
        assert 0 <= spec.layer < shape.num_layers and spec.num_heads % spec.num_kv_heads == 0, f"{spec} in a {shape}"
        assert spec.head_dim <= 1024, f"head_dim is {spec.head_dim}; the native library holds 1024"


def _id_bounds(instructions: list[Instruction]) -> tuple[int, int]:
    """Token ids and positions must stay below these."""
    vocabulary, positions = [_NO_LIMIT], [_NO_LIMIT]
    for i in instructions:
        if i.kind == OpKind.EMBED and i.weight is not None:
            vocabulary.append(i.weight.num_rows)
        if i.kind == OpKind.EMBED_POSITIONS and i.weight is not None:
            positions.append(i.weight.num_rows)
        if i.kind == OpKind.ROPE_STORE and i.vectors:
            positions.append(i.vectors[0].shape[0])
    return min(vocabulary), min(positions)


def _assemble(
    library: ctypes.CDLL, instructions: list[Instruction], outputs: dict[int, int], max_rows: dict[RowKind, int]
) -> tuple[ctypes.Array[Op], list[Memory]]:
    """Instructions as structs with the addresses of freshly made buffers. `outputs`: addresses of activations that
    outlive the part, rows as wide as they are."""
    plan = assign_buffers(instructions, frozenset(outputs))
    buffers = [
        Memory(library, 4 * stride * max_rows[rows]) for stride, rows in zip(plan.strides, plan.rows, strict=True)
    ]

    def place(activation: Activation | None) -> tuple[int | None, int]:
        """Address and row stride."""
        if activation is None:
            return None, 0
        if activation.index in outputs:
            return outputs[activation.index], activation.width
        buffer = plan.buffer_of[activation.index]
        return buffers[buffer].address, plan.strides[buffer]

    ops = (Op * len(instructions))()
    for op, instruction in zip(ops, instructions, strict=True):
        op.x, op.x_stride = place(instruction.x)
        op.y, op.y_stride = place(instruction.y)
        op.out, op.out_stride = place(instruction.out)
        _fill(op, instruction)
    return ops, buffers


def _fill(op: Op, instruction: Instruction) -> None:
    op.kind, op.row_kind, op.width = instruction.kind, instruction.out.rows, instruction.out.width
    if instruction.rounds:
        op.out_format = FORMATS[instruction.rounds]
        op.width = 2 * op.width if instruction.rounds == "bf16" else op.width // 10 * 32  # from words to numbers
    if instruction.kind == OpKind.LINEAR and instruction.weight is not None:
        op.width = instruction.weight.num_rows
        op.out += 4 * instruction.column
    op.eps, op.scale, op.softcap = instruction.eps, instruction.scale, instruction.softcap
    op.rope_dims = instruction.rope_dims
    if instruction.weight is not None:
        op.weight = instruction.weight.address
    if instruction.vectors:
        op.vector0 = instruction.vectors[0].ctypes.data
        op.vector1 = instruction.vectors[-1].ctypes.data
    spec = instruction.spec
    if spec is not None:
        op.layer, op.num_heads, op.num_kv_heads, op.head_dim = (
            spec.layer,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
        )
        op.window = spec.window
        if instruction.kind == OpKind.ATTEND:
            op.scale, op.softcap = spec.scale, spec.softcap
