"""What the engine has done, as numbers: `Metrics` to read, `LatencyRecorder` to feed with token deltas.

Must not know tensors, text, HTTP or who reads.
"""

from mini_vllm.telemetry.latency import LatencyRecorder
from mini_vllm.telemetry.metrics import Labels, Metrics, Reading

__all__ = ["Labels", "LatencyRecorder", "Metrics", "Reading"]
