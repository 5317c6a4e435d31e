"""Frozen messages between rooms. No logic beyond validation, no tensors, no I/O.

Requests go down (`Request`), plans go to the executor (`StepPlan`), results come back (`StepResult`),
tokens come up (`TokenDelta`), text comes out (`TextDelta`). All are msgspec-encodable; those that are made for every
sequence in every step are msgspec structs, which cost a tenth of a frozen dataclass to make.
"""

from mini_vllm.types.params import SamplingParams
from mini_vllm.types.plan import Admission, Chunk, Outputs, StepPlan
from mini_vllm.types.requests import ANYONE, FinishReason, Pooling, Request, Standing
from mini_vllm.types.results import (
    CompletionOutput,
    Embedding,
    RequestMetrics,
    RequestOutput,
    SequenceOutput,
    StepResult,
    TextDelta,
    TokenDelta,
    TokenLogprobs,
    join_deltas,
)
from mini_vllm.types.stats import EngineStats, StepStats
from mini_vllm.types.structured import CallableTool, CallsGrammar, StructuredOutputsParams

__all__ = [
    "ANYONE",
    "Admission",
    "CallableTool",
    "CallsGrammar",
    "Chunk",
    "CompletionOutput",
    "Embedding",
    "EngineStats",
    "FinishReason",
    "Outputs",
    "Pooling",
    "Request",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "SequenceOutput",
    "Standing",
    "StepPlan",
    "StepResult",
    "StepStats",
    "StructuredOutputsParams",
    "TextDelta",
    "TokenDelta",
    "TokenLogprobs",
    "join_deltas",
]
