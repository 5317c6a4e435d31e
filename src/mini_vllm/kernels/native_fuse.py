"""Joins recorded instructions: what one op can do on the way saves a pass over memory, and a wait for all threads.

Every fused op rounds where the separate ones did, so the bits stay the same. Must not know how instructions are run.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from mini_vllm.kernels.native_abi import OpKind
from mini_vllm.kernels.native_record import Activation, Instruction, inputs_of

_ROUNDING_TO_BF16 = (OpKind.RMS_NORM, OpKind.ATTEND, OpKind.LINEAR_SILU_MUL)  # by themselves
_ROUNDING_TO_INT8 = (OpKind.RMS_NORM, OpKind.ATTEND, OpKind.SILU_MUL)
_GATED_FORMATS = ("f32", "f16", "bf16")
_PANEL = 16  # rows of a packed matrix that lie together
_GROUP = 32  # numbers that share a scale in int8


def fuse(instructions: list[Instruction]) -> list[Instruction]:
    """All of the fusions below."""
    return fuse_roundings(fuse_gates(fuse_residuals(instructions)))


def fuse_residuals(instructions: list[Instruction]) -> list[Instruction]:
    """`add(x, linear(…))` becomes one product that adds x, where nothing else reads the product.

    The sum is rounded as before, so the bits are the same.
    """
    reads = Counter(activation.index for instruction in instructions for activation in inputs_of(instruction))
    producer = {instruction.out.index: position for position, instruction in enumerate(instructions)}
    fused: list[Instruction | None] = list(instructions)
    for position, instruction in enumerate(instructions):
        if instruction.kind != OpKind.ADD or instruction.x is None or instruction.y is None:
            continue
        for product, other in ((instruction.y, instruction.x), (instruction.x, instruction.y)):
            made = producer[product.index]
            linear = fused[made]
            if linear and reads[product.index] == 1 and producer[other.index] < made and _takes_residual(linear):
                fused[made] = replace(linear, y=other, out=instruction.out)
                producer[instruction.out.index] = made
                fused[position] = None
                break
    return [instruction for instruction in fused if instruction is not None]


def _takes_residual(linear: Instruction) -> bool:
    """A product that nothing is added to yet, and that fills its output alone."""
    alone = linear.weight is not None and linear.weight.num_rows == linear.out.width
    return linear.kind == OpKind.LINEAR and linear.y is None and alone


def fuse_gates(instructions: list[Instruction]) -> list[Instruction]:
    """`silu_mul(linear(…))` becomes one product where its weight is one plain matrix and nothing else reads it."""
    fused: list[Instruction | None] = list(instructions)
    for made, position in _only_readers(instructions, OpKind.SILU_MUL):
        linear, weight = instructions[made], instructions[made].weight
        if weight is None or not _takes_residual(linear) or linear.softcap or weight.struct.bias:
            continue
        if weight.format in _GATED_FORMATS and weight.num_rows % (2 * _PANEL) == 0:
            fused[made] = replace(linear, kind=OpKind.LINEAR_SILU_MUL, out=instructions[position].out)
            fused[position] = None
    return [instruction for instruction in fused if instruction is not None]


def fuse_roundings(instructions: list[Instruction]) -> list[Instruction]:
    """What only a rounding reads is written as that rounds it, to bfloat16 or int8, where its op can."""
    fused: list[Instruction | None] = list(instructions)
    for made, position in _only_readers(instructions, OpKind.QUANTIZE):
        producer, rounding = instructions[made], instructions[position]
        assert rounding.weight is not None
        if _can_round(producer, rounding.weight.format):
            fused[made] = replace(producer, out=rounding.out, rounds=rounding.weight.format)
            fused[position] = None
    return [instruction for instruction in fused if instruction is not None]


def _can_round(producer: Instruction, weight_format: str) -> bool:
    """Whether the op rounds for weights in this format, and makes whole pairs, or groups within one head."""
    if weight_format == "bf16":
        return producer.kind in _ROUNDING_TO_BF16 and producer.out.width % 2 == 0
    head_dim = producer.spec.head_dim if producer.kind == OpKind.ATTEND and producer.spec is not None else _GROUP
    return producer.kind in _ROUNDING_TO_INT8 and head_dim % _GROUP == 0 and producer.out.width % _GROUP == 0


def _only_readers(instructions: list[Instruction], kind: OpKind) -> Iterator[tuple[int, int]]:
    """Where an activation is made and where it is read, for those that one op of this kind reads and nothing else."""
    reads = Counter(activation.index for instruction in instructions for activation in inputs_of(instruction))
    makers: dict[int, list[int]] = {}
    for position, instruction in enumerate(instructions):
        makers.setdefault(instruction.out.index, []).append(position)
    for position, instruction in enumerate(instructions):
        x: Activation | None = instruction.x
        if instruction.kind == kind and x is not None and reads[x.index] == 1 and len(makers.get(x.index, [])) == 1:
            yield makers[x.index][0], position
