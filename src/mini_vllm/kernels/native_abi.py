"""The native library's structs and signatures, as in csrc/mini_vllm.h. Declarations only.

Must not know models or the op table's meaning; `native` and `native_record` use these names.
"""

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_uint32, c_void_p
from enum import IntEnum

from mini_vllm.errors import MissingDependencyError
from mini_vllm.kernels.native_library import load_library

_NAMES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
FORMATS = {name: code for code, name in enumerate(_NAMES)}  # enum mv_format
STORE_FORMATS = {"f32": 0, "f16": 1, "bf16": 2, "q8": 64}  # of K and V
SCREEN_FORMAT = 32  # the library's own, in 6 bits: MV_SCREEN of csrc/kernels/panels.h
QUANTIZED = frozenset(_NAMES[3:])


class OpKind(IntEnum):
    """enum mv_op_kind, but for those that the library adds by itself."""

    EMBED = 0
    EMBED_POSITIONS = 1
    ADD = 2
    RMS_NORM = 3
    LAYER_NORM = 4
    QK_NORM = 5
    LINEAR = 6
    ROPE_STORE = 7
    ATTEND = 8
    SILU_MUL = 10
    GELU_MUL = 11
    GELU = 12
    TAKE_ROWS = 13
    QUANTIZE = 14
    LINEAR_SILU_MUL = 15


_ADDED = {9: "attend_combine", 16: "screen_make", 17: "screen_lead", 18: "screen_pick", 19: "screen_rest"}
OP_NAMES = tuple(_ADDED.get(kind) or OpKind(kind).name.lower() for kind in range(20))


class RowKind(IntEnum):
    """enum mv_rows."""

    TOKENS = 0
    OUTPUT = 1


STATUS_TEXT = {
    1: "more tokens, sequences or rows than the program was made for",
    2: "a token id lies outside the embedding",
    3: "positions of a sequence are not consecutive, or lie beyond the position tables",
    4: "a slot lies outside the KV store",
    5: "query_starts do not ascend from 0 to the number of tokens",
    6: "seq_lens is not the last position + 1, or exceeds the block table",
    7: "a block id lies outside the KV store",
    8: "logit_rows are not ascending rows of the step",
    9: "out of memory",
}


class Matrix(ctypes.Structure):
    """struct mv_matrix: a packed weight."""

    _fields_ = (
        ("format", c_int32),
        ("rows", c_int32),
        ("cols", c_int32),
        ("unused", c_int32),
        ("data", c_void_p),
        ("bias", c_void_p),
    )


class Store(ctypes.Structure):
    """struct mv_store: K and V of every layer."""

    _fields_ = (
        ("format", c_int32),
        ("num_layers", c_int32),
        ("num_blocks", c_int32),
        ("block_size", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("data", c_void_p),
    )


class Op(ctypes.Structure):
    """struct mv_op: one instruction of a program."""

    _fields_ = (
        ("kind", c_int32),
        ("row_kind", c_int32),
        ("width", c_int32),
        ("layer", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("window", c_int32),
        ("rope_dims", c_int32),
        ("out_format", c_int32),
        ("eps", c_float),
        ("scale", c_float),
        ("softcap", c_float),
        ("x", c_void_p),
        ("y", c_void_p),
        ("out", c_void_p),
        ("x_stride", c_int64),
        ("y_stride", c_int64),
        ("out_stride", c_int64),
        ("weight", c_void_p),
        ("vector0", c_void_p),
        ("vector1", c_void_p),
    )


class Step(ctypes.Structure):
    """struct mv_step: one ragged batch."""

    _fields_ = (
        ("num_tokens", c_int32),
        ("num_seqs", c_int32),
        ("num_logit_rows", c_int32),
        ("table_width", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("query_starts", c_void_p),
        ("seq_lens", c_void_p),
        ("block_tables", c_void_p),
        ("logit_rows", c_void_p),
        ("greedy_limit", c_int32),
        ("unused", c_int32),
    )


class Limits(ctypes.Structure):
    """struct mv_limits: what a program must be able to hold."""

    _fields_ = (
        ("max_tokens", c_int32),
        ("max_seqs", c_int32),
        ("max_logit_rows", c_int32),
        ("vocab_size", c_int32),
        ("max_positions", c_int32),
        ("pass_tokens", c_int32),
    )


class Follow(ctypes.Structure):
    """struct mv_follow: how a greedy decode step is followed by the next one."""

    _fields_ = (
        ("logits", c_void_p),
        ("vocab", c_int32),
        ("block_size", c_int32),
        ("is_begun", c_int32),
        ("may_begin", c_int32),
        ("next_begun", c_int32),
        ("unused", c_int32),
        ("max_lens", c_void_p),
        ("end_ids", c_void_p),
        ("end_starts", c_void_p),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("seq_lens", c_void_p),
        ("chosen", c_void_p),
    )


_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "mv_struct_bytes": (c_int32, (c_int32,)),
    "mv_isa_names": (c_char_p, ()),
    "mv_isa_supported": (c_int32, (c_char_p,)),
    "mv_alloc": (c_void_p, (c_int64,)),
    "mv_free": (None, (c_void_p, c_int64)),
    "mv_matrix_bytes": (c_int64, (c_int32, c_int32, c_int32)),
    "mv_pack_rows": (None, (POINTER(Matrix), c_int32, c_int32, c_void_p)),
    "mv_store_bytes": (c_int64, (POINTER(Store),)),
    "mv_team_create": (c_void_p, (c_int32,)),
    "mv_team_destroy": (None, (c_void_p,)),
    "mv_team_progress": (c_uint32, (c_void_p,)),
    "mv_team_profile": (None, (c_void_p, c_void_p)),
    "mv_program_create": (
        c_void_p,
        (
            c_void_p,
            c_char_p,
            POINTER(Store),
            POINTER(Limits),
            POINTER(Op),
            c_int32,
            POINTER(Op),
            c_int32,
        ),
    ),
    "mv_program_destroy": (None, (c_void_p,)),
    "mv_program_run": (c_int32, (c_void_p, POINTER(Step))),
    "mv_program_begin": (c_int32, (c_void_p, POINTER(Step))),
    "mv_program_end": (c_int32, (c_void_p, c_int32)),
    "mv_program_follow": (c_int32, (c_void_p, POINTER(Step), POINTER(Follow))),
    "mv_program_logits": (c_int32, (c_void_p, c_int32, c_int32)),
}


def bind_library() -> ctypes.CDLL:
    """The library with the signatures above declared, its structs checked against ours."""
    library = load_library()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    for index, struct in enumerate((Matrix, Store, Op, Step, Limits, Follow)):
        theirs, ours = library.mv_struct_bytes(index), ctypes.sizeof(struct)
        if theirs != ours:
            raise MissingDependencyError(
                f"the native library's {struct.__name__} has {theirs} bytes, this package expects {ours}; "
                "reinstall mini-vllm to rebuild it"
            )
    return library
