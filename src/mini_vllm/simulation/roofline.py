"""What a step costs on hardware that nobody here owns: the larger of its arithmetic and its memory traffic.

The roofline model (Williams et al., 2009) over one step: weights are read once, K and V of every sequence once, and
every token costs two operations per active weight. Tensor parallelism divides all of it and adds two all-reduces of the
activations per layer, as rings: 2 (n − 1)/n of the bytes over each link. This module must not know traffic.
"""

from dataclasses import dataclass

from mini_vllm.errors import ConfigError
from mini_vllm.scheduling import StepLoad
from mini_vllm.simulation.hardware import SHAPES, SHEETS, Hardware, Shape

MEMORY_SHARE = 0.9  # of a processor's memory that weights and KV cache may fill
_ACTIVATION_BYTES = 2
_KV_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A cost model: so many processors of a kind, one model, weights of so many bits."""

    hardware: Hardware
    shape: Shape
    parallel: int = 1
    weight_bits: int = 16

    def __post_init__(self) -> None:
        if self.parallel > 1 and not self.hardware.link:
            raise ConfigError(f"{self.hardware.name} has no link for tensor parallelism; use tp1", param="cost_model")
        if self.weight_bits not in (4, 8, 16):
            raise ConfigError(f"weights of {self.weight_bits} bits are unknown; use w4, w8 or w16", param="cost_model")

    def seconds(self, load: StepLoad) -> float:
        """The roofline, the communication and the overhead."""
        shape, hardware = self.shape, self.hardware
        tokens = load.num_tokens
        layer = shape.attention_weights + shape.active_experts * shape.expert_weights
        operations = 2.0 * (shape.layers * layer * tokens + shape.head_weights * load.num_samples)
        operations += 4.0 * shape.layers * shape.heads * shape.head_dim * load.attended
        speedup = {16: 1.0, 8: hardware.speedup_w8, 4: hardware.speedup_w4}[self.weight_bits]
        rate = hardware.flops * hardware.compute_efficiency * speedup
        bytes_moved = self._weights_read(tokens) * self.weight_bits / 8
        bytes_moved += (load.context + tokens) * shape.kv_elements * _KV_BYTES
        bandwidth = hardware.bandwidth * hardware.memory_efficiency
        work = max(operations / rate, bytes_moved / bandwidth) / self.parallel
        return work + self._communication(tokens) + hardware.overhead

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learns nothing."""

    @property
    def num_kv_tokens(self) -> int:
        """Tokens whose K and V fit beside the weights (`ConfigError` if not even the weights do)."""
        weights = self.shape.parameters * self.weight_bits / 8
        free = self.parallel * self.hardware.memory * MEMORY_SHARE - weights
        tokens = int(free / (self.shape.kv_elements * _KV_BYTES))
        if tokens < 1024:
            raise ConfigError(
                f"{self.shape.name} at {self.weight_bits} bits needs {weights / 1e9:.0f} GB, which {self.parallel} × "
                f"{self.hardware.name} of {self.hardware.memory / 1e9:.0f} GB do not hold; raise tpN or use w8 or w4",
                param="cost_model",
            )
        return tokens

    def _weights_read(self, tokens: int) -> float:
        """Weights that a step touches: of the experts, those that any of its tokens is sent to."""
        shape = self.shape
        share = shape.active_experts / shape.experts
        touched = shape.experts * (1.0 - (1.0 - share) ** tokens)
        return shape.layers * (shape.attention_weights + touched * shape.expert_weights) + shape.head_weights

    def _communication(self, tokens: int) -> float:
        if self.parallel == 1:
            return 0.0
        payload = tokens * self.shape.hidden * _ACTIVATION_BYTES
        ring = 2.0 * (self.parallel - 1) / self.parallel * payload / self.hardware.link
        return 2 * self.shape.layers * (self.hardware.link_latency + ring)


def parse(spec: str) -> Roofline:
    """`HARDWARE:SHAPE[:tpN][:wBITS]`, such as `H100:70B:tp4:w8`."""
    parts = [part.strip().lower() for part in spec.split(":")]
    if parts[0] not in SHEETS or len(parts) < 2 or parts[1] not in SHAPES:
        raise ConfigError(
            f"cost model {spec!r} is unknown; write a file of `mini-vllm bench cost-model`, or HARDWARE:SHAPE[:tpN]"
            f"[:wBITS] with {', '.join(sheet.name for sheet in SHEETS.values())} and "
            f"{', '.join(shape.name for shape in SHAPES.values())}",
            param="cost_model",
        )
    parallel, bits = 1, 4 if parts[0] == "cpu" else 16
    for part in parts[2:]:
        kind, digits = (part[:2], part[2:]) if part.startswith("tp") else (part[:1], part[1:])
        if kind not in ("tp", "w") or not digits.isdigit() or not int(digits):
            raise ConfigError(f"cost model {spec!r}: {part!r} is neither tpN nor wBITS", param="cost_model")
        parallel, bits = (int(digits), bits) if kind == "tp" else (parallel, int(digits))
    return Roofline(hardware=SHEETS[parts[0]], shape=SHAPES[parts[1]], parallel=parallel, weight_bits=bits)
