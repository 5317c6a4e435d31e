"""Data sheets: what a processor can do, and what a model needs. Numbers with their sources, no formulas.

Rates of GPUs are dense 16-bit tensor rates and memory bandwidths from the makers' data sheets (H200 and H100: SXM;
A100: 80 GB SXM; RTX 4090: with float32 accumulation). Shapes are those of the published configurations. `efficiency`
is an assumption: the share of each peak that a good engine reaches.
"""

from dataclasses import dataclass

GB, TFLOP = 1e9, 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One processor. Rates per second."""

    name: str
    flops: float  # at 16 bits; a multiply-add counts two
    speedup_w8: float = 2.0  # with weights and activations of 8 bits
    speedup_w4: float = (
        1.0  # with weights of 4 bits: GPUs widen them to 16, our CPU kernels multiply by 8-bit activations
    )
    bandwidth: float  # bytes
    memory: float  # bytes
    link: float = 0.0  # bytes to the other processors of a tensor-parallel group, one way; 0: no group
    link_latency: float = 0.0  # seconds of an all-reduce beside its bytes
    overhead: float = 1e-3  # seconds of a step beside its work: host, launches
    compute_efficiency: float = 0.6
    memory_efficiency: float = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder-only transformer with gated MLPs and grouped-query attention."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    experts: int = 1
    active_experts: int = 1  # per token
    tied: bool = False

    @property
    def attention_weights(self) -> int:
        """Of one layer."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def expert_weights(self) -> int:
        """Of one expert of one layer."""
        return 3 * self.hidden * self.inner

    @property
    def head_weights(self) -> int:
        """Of the output head."""
        return self.hidden * self.vocab

    @property
    def parameters(self) -> int:
        """All weights."""
        layer = self.attention_weights + self.experts * self.expert_weights
        return self.layers * layer + self.head_weights * (1 if self.tied else 2)

    @property
    def kv_elements(self) -> int:
        """K and V of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim


SHEETS = {
    sheet.name.lower(): sheet
    for sheet in (
        Hardware(
            name="H200", flops=989 * TFLOP, bandwidth=4800 * GB, memory=141 * GB, link=450 * GB, link_latency=12e-6
        ),
        Hardware(
            name="H100", flops=989 * TFLOP, bandwidth=3350 * GB, memory=80 * GB, link=450 * GB, link_latency=12e-6
        ),
        Hardware(
            name="A100", flops=312 * TFLOP, bandwidth=2039 * GB, memory=80 * GB, link=300 * GB, link_latency=15e-6
        ),
        Hardware(name="L4", flops=121 * TFLOP, bandwidth=300 * GB, memory=24 * GB, link=32 * GB, link_latency=40e-6),
        Hardware(name="4090", flops=165 * TFLOP, bandwidth=1008 * GB, memory=24 * GB, link=32 * GB, link_latency=40e-6),
        # Two Zen 4 cores with AVX-512 VNNI, as measured: 8-bit dot products (so half of that at 16), streamed reads.
        Hardware(
            name="CPU",
            flops=0.467 * TFLOP,
            bandwidth=46 * GB,
            memory=12 * GB,
            speedup_w4=2.0,
            overhead=0.3e-3,
            compute_efficiency=0.65,
            memory_efficiency=0.9,
        ),
    )
}

SHAPES = {
    shape.name.lower(): shape
    for shape in (
        Shape(name="135M", layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, inner=1536, vocab=49152, tied=True),
        Shape(name="8B", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, inner=14336, vocab=128256),
        Shape(name="70B", layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, inner=28672, vocab=128256),
        Shape(
            name="MoE",
            layers=32,
            hidden=4096,
            heads=32,
            kv_heads=8,
            head_dim=128,
            inner=14336,
            vocab=32000,
            experts=8,
            active_experts=2,
        ),
    )
}
