"""`/v1/models`, `/health`, `/stats`. Must not know the engine."""

import msgspec


class KVCacheCard(msgspec.Struct, kw_only=True, frozen=True):
    """How K and V are kept."""

    backend: str  # paged, contiguous or off
    block_size: int  # tokens
    num_blocks: int
    prefix_caching: bool
    dtype: str | None = None
    num_bytes: int | None = None


class ModelCard(msgspec.Struct, kw_only=True, frozen=True):
    """A model that this server answers for."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "mini-vllm"
    max_model_len: int | None = None  # tokens, prompt and output together
    vocab_size: int | None = None
    architecture: str | None = None
    num_parameters: int | None = None
    weight_bytes: int | None = None
    device: str | None = None
    dtype: str | None = None  # number format of the weights; a block format such as q4_1 is a quantisation
    quantization: str | None = None
    kv_cache: KVCacheCard | None = None


class ModelList(msgspec.Struct, kw_only=True, frozen=True):
    """All of them."""

    object: str = "list"
    data: list[ModelCard]


class Version(msgspec.Struct, kw_only=True, frozen=True):
    """What runs here."""

    version: str


class Health(msgspec.Struct, kw_only=True, frozen=True):
    """Whether a request sent now would be answered."""

    status: str


class MetricsPage(msgspec.Struct, kw_only=True, frozen=True):
    """All metrics by name, without the prefix that they have for Prometheus: a number, a mapping from labels to
    numbers, or for a histogram its count, sum and percentiles."""


class Stats(msgspec.Struct, kw_only=True, frozen=True):
    """What the server is doing. Without a GPU the memory fields are the process's and the machine's."""

    active_requests: int  # sequences being computed
    queue_depth: int  # sequences waiting for a slot
    tokens_per_second: float  # generated, over the last seconds; 0 when idle
    batch_size: int  # sequences in the latest step; 0 when idle
    gpu_memory_used_mb: float
    gpu_memory_total_mb: float
    gpu_memory_pct: float
    total_tokens_generated: int
    uptime_seconds: float
    kv_blocks_used: int
    kv_blocks_cached: int  # free, but still holding a prefix
    kv_blocks_total: int
    preemptions: int
    requests_accepted: int
    requests_finished_stop: int
    requests_finished_length: int
    requests_finished_abort: int
    requests_finished_error: int
    prompt_tokens: int
    prefix_hit_tokens: int
    steps: int
    instruction_set: str | None = None  # of the native kernels: avx512, avx2, dotprod or portable
    threads: int | None = None  # that compute
