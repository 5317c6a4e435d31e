"""Every setting, once. Command line flags, environment variables and the reference table are derived from here.

Each field carries its documentation in `doc(...)`; `option_names(field)` gives its flags and `env_name(field)` its
variable. This module must not know any other room.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any, get_args

from mini_vllm.errors import ConfigError

POLICIES = ("fcfs", "priority", "fair", "srf", "static", "deadline")
DRAFTERS = ("off", "ngram", "suffix", "draft", "self")
ENGINE_FORMS = ("thread", "process")
MAX_GAMMA = 32
MAX_THREADS = 1024  # more only wait for each other, for minutes
_KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "None"}


def doc(default: Any, help: str, *, aliases: tuple[str, ...] = (), choices: tuple[str, ...] = ()) -> Any:
    """A dataclass field with its help text, extra flag names and permitted values."""
    return field(default=default, metadata={"help": help, "aliases": aliases, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What to load and how to hold it."""

    model: str = doc("smollm2-135m", "local folder, .gguf file, Hugging Face repository id, or alias", aliases=("-m",))
    tokenizer: str | None = doc(None, "take the tokenizer from this folder or repository instead of the model's")
    revision: str | None = doc(None, "branch, tag or commit of a hub repository")
    chat_template: str | None = doc(None, "file with a Jinja chat template that overrides the model's own")
    tool_call_parser: str = doc(
        "auto",
        "how the model writes tool calls; auto: as its chat template says, else hermes",
        choices=("auto", "hermes", "llama3_json", "mistral", "pythonic", "json"),
    )
    dtype: str = doc(
        "auto",
        "number format of the weights; auto keeps what the file has",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    device: str = doc("auto", "where to run; cuda and mps need the torch extra", choices=("auto", "cpu", "cuda", "mps"))
    max_model_len: int | None = doc(None, "longest sequence in tokens; default: the model's context length")
    served_model_name: str | None = doc(
        None, "names accepted by the API, separated by commas; it shows the first; default: the model"
    )
    generation_config: bool = doc(True, "take sampling defaults from the model's generation_config.json")
    executor: str = doc(
        "auto",
        "which op table computes: native (our library), torch, or hf (transformers' own modules)",
        choices=("auto", "native", "torch", "hf"),
        aliases=("--engine",),
    )
    threads: int | None = doc(None, "compute threads; default: physical cores allowed to this process", aliases=("-t",))
    isa: str | None = doc(
        None, "instruction set of our library: avx512, avx2, dotprod or portable; default: the best that runs here"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = doc(16, "tokens per block")
    num_blocks: int | None = doc(
        None, "blocks in the pool; default: from the memory budget", aliases=("--pool-blocks",)
    )
    kv_cache_memory: str | None = doc(None, "memory for the KV cache, such as 2GiB; default: a share of what is free")
    kv_cache_memory_share: float = doc(0.5, "share of free memory for the KV cache when no size is given")
    kv_cache_dtype: str = doc(
        "auto",
        "number format of K and V; auto: float32 for float32 weights, float16 for float16, else bfloat16; "
        "int8 has a scale per token and head",
        choices=("auto", "float32", "bfloat16", "float16", "int8"),
    )
    enable_prefix_caching: bool = doc(True, "share full blocks between equal prefixes", aliases=("--prefix-caching",))
    kv_cache: bool = doc(True, "off: recompute the whole sequence at every step (to measure what the cache buys)")
    cache_backend: str = doc(
        "paged", "contiguous reserves each request's maximum in one piece", choices=("paged", "contiguous")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Iteration-level scheduling."""

    max_num_seqs: int = doc(64, "sequences computed in one step", aliases=("--max-batch-size",))
    max_num_batched_tokens: int = doc(2048, "tokens computed in one step")
    prefill_chunk_size: int | None = doc(None, "most prompt tokens of one sequence per step; default: the token budget")
    itl_target_ms: float = doc(
        50.0, "prefill beside decoding sequences is cut so that a step takes no longer, in milliseconds; 0: no limit"
    )
    max_waiting: int = doc(4096, "requests that may wait; beyond it new ones are refused")
    scheduling_policy: str = doc("fcfs", "order of admission", choices=POLICIES)
    ageing_seconds: float = doc(
        10.0, "waiting so long makes up for one class of priority, 256 tokens of srf, or a missed deadline"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """Replaying traffic."""

    virtual: bool = doc(False, "a virtual clock and a cost model instead of real time and a model")
    cost_model: str | None = doc(
        None,
        "what steps cost: a file of `mini-vllm bench cost-model`, or HARDWARE:SHAPE[:tpN][:wBITS], as H100:70B:tp4; "
        "default: this machine's file, else CPU:135M",
    )
    replicas: int = doc(1, "engines behind a router; needs --virtual")
    router: str = doc("round_robin", "who gets a request", choices=("round_robin", "least_loaded", "prefix_aware"))
    fail: tuple[str, ...] | None = doc(
        None, "REPLICA@BEGIN+SECONDS: it dies for so long; with xFACTOR behind it, it slows down; several times"
    )
    compare: tuple[str, ...] | None = doc(
        None, "run every value of a setting, such as policies=fcfs,srf or cache; several times: every combination"
    )
    charts: str | None = doc(None, "draw a comparison into this .svg, .png or .pdf file (needs mini-vllm[charts])")
    slo_ttft_ms: float = doc(1000.0, "a good request gives its first token within this")
    slo_itl_ms: float = doc(100.0, "a good request takes no longer between its tokens, on average")
    ticks: int = doc(40, "lines of the tick table; 0: none")
    out_dir: str = doc("logs/simulations", "folder for the JSON, ticks and traces of a run")

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_positive(self, "replicas")
        if self.ticks < 0:
            raise ConfigError(f"ticks is {self.ticks}; it must be 0 or more", param="ticks")
        for name in ("slo_ttft_ms", "slo_itl_ms"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be more than 0", param=name)
        if not self.virtual and self.replicas > 1:
            raise ConfigError(f"replicas is {self.replicas}, which needs --virtual", param="replicas")
        if not self.virtual and (self.fail or self.cost_model):
            name = "fail" if self.fail else "cost_model"
            raise ConfigError(f"{name} needs --virtual", param=name)
        if self.charts is not None and not self.compare:
            raise ConfigError("charts shows a comparison; give --compare too", param="charts")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Guessing tokens ahead; what comes out is the same with and without."""

    speculative: str = doc(
        "off",
        "who guesses: ngram (what followed the same words before), suffix (the same over earlier outputs too), draft "
        "(a second model), self (the model's own first layers)",
        choices=DRAFTERS,
    )
    draft_model: str | None = doc(None, "the second model of --speculative draft; it must share the tokenizer")
    draft_layers: int | None = doc(None, "layers that guess with --speculative self; default: half of them")
    gamma: int = doc(6, "most guesses for one sequence in a step; measured cost and acceptance lower it, down to none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP server."""

    engine_form: str = doc(
        "thread",
        "where the engine computes: on a thread of the server, or in a process of its own, restarted when it fails",
        choices=ENGINE_FORMS,
    )
    host: str = doc("127.0.0.1", "address to listen on")
    port: int = doc(8000, "port to listen on; 0 picks a free one")
    max_body_bytes: int = doc(8 * 2**20, "largest request body")
    body_timeout: float = doc(60.0, "seconds that a request body may take to arrive")
    request_timeout: float | None = doc(None, "seconds after which a request is ended; default: no limit")
    stall_timeout: float | None = doc(
        None, "seconds without progress in a step that are a hang; default: 5 where operations are counted, else 120"
    )
    shutdown_timeout: float = doc(10.0, "seconds that running requests get to finish at shutdown")
    api_key: str | None = doc(
        None, "keys that clients must send, separated by commas; other users see flags, so use the variable or a file"
    )
    api_key_file: str | None = doc(None, "file with keys that clients must send, one on each line")
    requests_per_minute: int | None = doc(None, "requests of one key (without keys: of one address) in a minute")
    tokens_per_minute: int | None = doc(None, "tokens of one key, read and written, in a minute")
    cors_origins: str | None = doc(
        None, "pages of these origins may call the server, separated by commas; * is all; default: its own only"
    )
    allowed_hosts: str | None = doc(
        None, "host names that the server answers to, separated by commas; default: on a loopback address, its names"
    )
    out_dir: str = doc(
        "logs/simulations", "folder whose newest simulations GET /simulations/latest shows; of `mini-vllm simulate`"
    )
    ssl_certfile: str | None = doc(None, "file with the certificate chain for https (PEM)")
    ssl_keyfile: str | None = doc(None, "file with the certificate's private key, if the first has none (PEM)")

    def __post_init__(self) -> None:
        _check_types(self)
        _check_choices(self)
        _check_positive(self, "max_body_bytes", "requests_per_minute", "tokens_per_minute")
        for name in ("body_timeout", "request_timeout", "stall_timeout"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; it must be more than 0", param=name)
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("ssl_keyfile is given without ssl_certfile; give both", param="ssl_certfile")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that an engine needs to start."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)

    @classmethod
    def from_options(cls, **options: Any) -> "EngineConfig":
        """Build from flat names (`model=…, block_size=…`); an unknown one is a `ConfigError` naming the nearest."""
        groups: dict[str, dict[str, Any]] = {name: {} for name in _GROUPS}
        for name, value in options.items():
            groups[_group_of(name)][name] = os.fspath(value) if isinstance(value, os.PathLike) else value
        return cls(
            model=ModelConfig(**groups["model"]),
            cache=CacheConfig(**groups["cache"]),
            scheduler=SchedulerConfig(**groups["scheduler"]),
            speculative=SpeculativeConfig(**groups["speculative"]),
        )

    def __post_init__(self) -> None:
        for group in (self.model, self.cache, self.scheduler, self.speculative):
            _check_types(group)
            _check_choices(group)
        _check_positive(self.cache, "block_size", "num_blocks")
        _check_positive(self.scheduler, "max_num_seqs", "max_num_batched_tokens", "prefill_chunk_size", "max_waiting")
        _check_positive(self.model, "max_model_len", "threads")
        _check_speculative(self)
        if self.model.threads is not None and self.model.threads > MAX_THREADS:
            raise ConfigError(f"threads is {self.model.threads}; at most {MAX_THREADS} make sense", param="threads")
        if not 0.0 < self.cache.kv_cache_memory_share <= 1.0:
            raise ConfigError(
                f"kv_cache_memory_share is {self.cache.kv_cache_memory_share}; it must lie in (0, 1]",
                param="kv_cache_memory_share",
            )
        if self.cache.num_blocks is not None and self.cache.kv_cache_memory is not None:
            raise ConfigError(
                "num_blocks and kv_cache_memory both set the size of the KV cache; give one of them",
                param="num_blocks",
            )
        if not self.cache.kv_cache and self.cache.cache_backend == "contiguous":
            raise ConfigError(
                "cache_backend contiguous contradicts no-kv-cache: there is nothing to reserve; drop one of them",
                param="cache_backend",
            )
        _check_scheduler(self.scheduler)
        if self.scheduler.max_num_batched_tokens < self.scheduler.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.scheduler.max_num_batched_tokens} but max_num_seqs is "
                f"{self.scheduler.max_num_seqs}: every running sequence needs a token per step; raise the first",
                param="max_num_batched_tokens",
            )


_GROUPS: dict[str, Any] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "speculative": SpeculativeConfig,
}


def _check_speculative(config: EngineConfig) -> None:
    group = config.speculative
    _check_positive(group, "gamma", "draft_layers")
    if group.gamma > MAX_GAMMA:
        raise ConfigError(f"gamma is {group.gamma}; at most {MAX_GAMMA} guesses a step make sense", param="gamma")
    if (group.speculative == "draft") != (group.draft_model is not None):
        raise ConfigError(
            f"speculative is {group.speculative} and draft_model is {group.draft_model}; "
            "--speculative draft and --draft-model go together",
            param="draft_model",
        )
    if group.draft_layers is not None and group.speculative != "self":
        raise ConfigError("draft_layers is for --speculative self; leave it out", param="draft_layers")
    if group.speculative in ("draft", "self") and not config.cache.kv_cache:
        raise ConfigError(
            f"speculative {group.speculative} needs the KV cache that no-kv-cache turns off; use ngram or suffix",
            param="speculative",
        )


def _check_scheduler(group: SchedulerConfig) -> None:
    if not 0.0 <= group.itl_target_ms < 1e9:
        raise ConfigError(
            f"itl_target_ms is {group.itl_target_ms}; it must be a number of milliseconds, or 0 for no limit",
            param="itl_target_ms",
        )
    if not 0.0 < group.ageing_seconds < 1e9:
        raise ConfigError(
            f"ageing_seconds is {group.ageing_seconds}; it must be more than 0 and finite", param="ageing_seconds"
        )


def option_names(option: "dataclasses.Field[Any]") -> tuple[str, ...]:
    """The flags of a field, main one first: `("--num-blocks", "--pool-blocks")`."""
    return ("--" + option.name.replace("_", "-"), *option.metadata.get("aliases", ()))


def env_name(option: "dataclasses.Field[Any]") -> str:
    """The environment variable of a field: `MINI_VLLM_NUM_BLOCKS`."""
    return "MINI_VLLM_" + option.name.upper()


def parse_bytes(text: str, *, param: str = "kv_cache_memory") -> int:
    """Bytes in a size such as `512MiB`, `2GB`, `1.5 GiB` or a plain number."""
    units = {unit: 1000**power for power, unit in enumerate(("", "k", "m", "g", "t"))}
    units |= {f"{unit}i": 1024**power for power, unit in enumerate("kmgt", 1)}
    cleaned = text.strip().lower().replace(" ", "").removesuffix("b")
    number = cleaned.rstrip("kmgti")
    try:
        size = float(number) * units[cleaned[len(number) :]]
    except (ValueError, KeyError):
        raise ConfigError(f"{param} is {text!r}; write a size such as 512MiB or 2GiB", param=param) from None
    if not 0 < size < 2**60:
        raise ConfigError(f"{param} is {text!r}; it must be positive and below 2^60 bytes", param=param)
    return int(size)


def cache_folder() -> str:
    """Where downloaded models are kept: $MINI_VLLM_CACHE, else $XDG_CACHE_HOME/mini-vllm, else ~/.cache/mini-vllm."""
    if explicit := os.environ.get("MINI_VLLM_CACHE"):
        return explicit
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "mini-vllm")


def _group_of(name: str) -> str:
    for group, cls in _GROUPS.items():
        if any(option.name == name for option in dataclasses.fields(cls)):
            return group
    import difflib

    known = [option.name for cls in _GROUPS.values() for option in dataclasses.fields(cls)]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"known settings: {', '.join(known)}"
    raise ConfigError(f"unknown setting {name!r}; {hint}", param=name)


def _check_types(group: Any) -> None:
    """Values of the kind that the field's annotation says; an int where a float is expected."""
    for option in dataclasses.fields(group):
        value, kinds = getattr(group, option.name), get_args(option.type) or (option.type,)
        if type(value) in kinds or (float in kinds and type(value) is int):
            continue
        wanted = " or ".join(_KINDS[kind] for kind in kinds)
        raise ConfigError(f"{option.name} is {value!r:.100}; it must be {wanted}", param=option.name)


def _check_choices(group: Any) -> None:
    for option in dataclasses.fields(group):
        value, choices = getattr(group, option.name), option.metadata.get("choices", ())
        if choices and value not in choices:
            raise ConfigError(f"{option.name} is {value!r}; choose one of {', '.join(choices)}", param=option.name)


def _check_positive(group: Any, *names: str) -> None:
    for name in names:
        value = getattr(group, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1", param=name)
