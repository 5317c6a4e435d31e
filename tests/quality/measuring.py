"""How far a model's next-token distributions are from those of a reference, over the text of this folder.

Programs are driven directly, because whole distributions are needed and the engine reports a few logprobs only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mini_vllm import models
from mini_vllm.kernels.inputs import StepInputs
from mini_vllm.kernels.registry import get_device
from mini_vllm.kernels.table import Program
from mini_vllm.runner.storage import kv_format

SLICE = 256  # rows of logits at a time
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Loss:
    """What a model loses against its reference."""

    mean_kl: float  # nats
    agreement: float  # share of positions at which both prefer the same token
    perplexity: float
    reference_perplexity: float

    @property
    def perplexity_ratio(self) -> float:
        return self.perplexity / self.reference_perplexity


def read_documents() -> list[str]:
    """The parts of text.txt that are measured."""
    text = (Path(__file__).parent / "text.txt").read_text(encoding="utf-8")
    _, *documents = text.split("\n========\n")
    return documents


def compile_program(
    checkpoint, dtype: str, weight_format: str, max_len: int, *, kv: str = "auto", **device_options
) -> Program:
    """A model on the native library with K and V as the engine keeps them for this dtype, or for --kv-cache-dtype."""
    device = get_device("native", **device_options)
    loaded = models.load_model(checkpoint, device, dtype=dtype, max_model_len=max_len)
    number_format = kv_format(kv, weight_format, device.store_dtypes)
    shape = loaded.info.kv_shape(num_blocks=-(-max_len // BLOCK_SIZE), block_size=BLOCK_SIZE, dtype=number_format)
    store = device.kv_store(shape)
    return device.compile(loaded.model, store, max_tokens=max_len, max_rows=1, max_logit_rows=SLICE)


def whole_sequence(token_ids: list[int]) -> StepInputs:
    """One step that reads it all, with an output for every token."""
    length = len(token_ids)
    positions = np.arange(length, dtype=np.int32)
    return StepInputs(
        token_ids=np.array(token_ids, np.int32),
        positions=positions,
        slots=positions,
        query_starts=np.array([0, length], np.int32),
        seq_lens=np.array([length], np.int32),
        block_tables=np.arange(-(-length // BLOCK_SIZE), dtype=np.int32)[None].copy(),
        logit_rows=positions,
    )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Of each row."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def slices(length: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + SLICE, length)) for start in range(0, length, SLICE))


@dataclass(slots=True)
class _Sums:
    kl: float = 0.0
    agreeing: int = 0
    negative_log_likelihood: float = 0.0

    def add(self, reference: np.ndarray, mine: np.ndarray, targets: np.ndarray) -> None:
        self.kl += float((np.exp(reference) * (reference - mine)).sum(dtype=np.float64))
        self.agreeing += int((reference.argmax(-1) == mine.argmax(-1)).sum())
        self.negative_log_likelihood -= float(mine[np.arange(len(targets)), targets].sum(dtype=np.float64))


def measure(reference: Program, others: Mapping[str, Program], documents: list[list[int]]) -> dict[str, Loss]:
    """The loss of each program; a slice of logits of each is in memory at a time. Documents are token ids."""
    sums = {name: _Sums() for name in (*others, "reference")}
    for token_ids in documents:
        inputs = whole_sequence(token_ids)
        for program in (reference, *others.values()):
            program.run(inputs)
        for start, stop in slices(len(token_ids) - 1):
            targets = np.array(token_ids[start + 1 : stop + 1])
            expected = log_softmax(reference.logits(start, stop))
            sums["reference"].add(expected, expected, targets)
            for name, program in others.items():
                sums[name].add(expected, log_softmax(program.logits(start, stop)), targets)
    count = sum(len(token_ids) - 1 for token_ids in documents)
    perplexity = {name: float(np.exp(each.negative_log_likelihood / count)) for name, each in sums.items()}
    return {
        name: Loss(sums[name].kl / count, sums[name].agreeing / count, perplexity[name], perplexity["reference"])
        for name in others
    }
