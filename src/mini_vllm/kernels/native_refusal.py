"""Why the native library made no program, and what to do. Must not know models or how programs are recorded."""

import ctypes
import errno
from collections.abc import Callable, Sequence

from mini_vllm.errors import ConfigError, UnsupportedModelError, UserError
from mini_vllm.kernels.native_abi import FORMATS, OP_NAMES, Matrix, Op, Store

Create = Callable[["ctypes.Array[Op]", int, "ctypes.Array[Op] | None", int], int | None]
"""mv_program_create with team, instruction set, store and limits filled in: hidden ops, head ops and their numbers."""

_FORMAT_NAMES = {code: name for name, code in FORMATS.items()}


def create_program(
    library: ctypes.CDLL, create: Create, codes: Sequence["ctypes.Array[Op]"], *, store: Store, what: str
) -> int:
    """The program of hidden ops and head ops. `what`: words for it. An op that kernels cannot run is an
    `UnsupportedModelError` that names it; memory or an instruction set that the system lacks is a `ConfigError`.
    """
    hidden, head = codes
    ctypes.set_errno(0)
    handle = create(hidden, len(hidden), head, len(head))
    if handle:
        return handle
    reason = ctypes.get_errno()
    op = _first_refused(library, create, codes) if reason == errno.EINVAL else None
    raise _refusal(reason, f"cannot make {what}", op, store)


def _refusal(reason: int, failure: str, op: Op | None, store: Store) -> UserError:
    if reason == errno.ENOMEM:
        return ConfigError(
            f"{failure}: out of memory; lower the KV cache (kv_cache_memory, num_blocks), the step "
            "(max_num_batched_tokens) or threads"
        )
    if reason == errno.ENOSYS:
        return ConfigError(f"{failure}: this machine cannot run that instruction set; choose another isa", param="isa")
    if reason == errno.EINVAL and op is not None:
        return UnsupportedModelError(f"{failure}: its kernels cannot run {_words(op, store)}; use --executor torch")
    return ConfigError(f"{failure}: the native library does not say why; reinstall mini-vllm, or use --executor torch")


def _first_refused(library: ctypes.CDLL, create: Create, codes: Sequence["ctypes.Array[Op]"]) -> Op | None:
    """The first op that is refused also in a program of its own."""
    for op in (op for code in codes for op in code):
        alone = (Op * 1)(op)
        ctypes.set_errno(0)
        handle = create(alone, 1, None, 0)
        if handle:
            library.mv_program_destroy(handle)
        elif ctypes.get_errno() == errno.EINVAL:
            return op
    return None


def _words(op: Op, store: Store) -> str:
    """An op and what kernels look at before they run it."""
    words = OP_NAMES[op.kind] if 0 <= op.kind < len(OP_NAMES) else f"op {op.kind}"
    if op.num_heads:
        words += (
            f" of layer {op.layer} ({op.num_heads} query heads, {op.num_kv_heads} of K and V, head_dim {op.head_dim}) "
            f"on a KV store of {store.num_layers} layers ({store.num_kv_heads} heads, head_dim {store.head_dim})"
        )
    if op.weight:
        weight = Matrix.from_address(op.weight)
        words += f" with {_FORMAT_NAMES.get(weight.format, weight.format)} weights [{weight.rows}, {weight.cols}]"
    if op.out_format:
        words += f" whose {op.width} results are rounded for {_FORMAT_NAMES.get(op.out_format, op.out_format)} weights"
    return words
