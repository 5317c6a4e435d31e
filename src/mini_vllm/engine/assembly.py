"""Joins the rooms: a configuration in, an engine ready to step out.

The only place that knows every room below. Heavy ones are imported when a model is loaded.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mini_vllm.config import EngineConfig
from mini_vllm.engine.core import EngineCore, Executor, Scheduler
from mini_vllm.engine.frontend import Frontend, ModelLimits, PreparedRequest
from mini_vllm.engine.outputs import OutputCollector
from mini_vllm.scheduling import Trace
from mini_vllm.types import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.grammar import GrammarCompiler
    from mini_vllm.models import ModelInfo
    from mini_vllm.text import ChatTemplate, Tokenizer
    from mini_vllm.weights import Checkpoint

# Fields of generation_config.json that are sampling defaults; their names are ours too.
SAMPLING_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(slots=True, kw_only=True)
class EngineFront:
    """What turns prompts into requests and tokens into text, and what is known of the engine between them."""

    config: EngineConfig
    frontend: Frontend
    info: "ModelInfo | None" = None  # None: a fake executor, which has no model
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)  # what the model's generation config sets
    description: Mapping[str, Any] = field(default_factory=dict)  # what computes, for people
    clock: Callable[[], float] = time.monotonic
    read_trace: Callable[[], str] = lambda: ""  # what the scheduler did in its last steps, as JSON lines; may block
    on_close: Callable[[], object] = lambda: None

    def default_sampling_params(self) -> SamplingParams:
        """Used when a request gives no parameters: the model's own defaults over ours."""
        return SamplingParams(**self.sampling_defaults)

    def collector(self, prepared: PreparedRequest) -> OutputCollector:
        """An empty output for a request."""
        return OutputCollector(
            prepared.request_id,
            prepared.params,
            prompt=prepared.prompt,
            prompt_token_ids=list(prepared.prompt_token_ids),
        )

    def close(self) -> None:
        """Free what it holds. Idempotent."""
        self.on_close()


@dataclass(slots=True, kw_only=True)
class Engine(EngineFront):
    """One loaded model and all that turns prompts into steps and steps into text."""

    core: EngineCore
    trace: Trace = field(default_factory=Trace)  # of the scheduler's last steps

    def close(self) -> None:
        """Free what the model holds. Idempotent."""
        self.core.close()
        self.on_close()


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an engine comes about, here or in a process of its own: functions by name (`module:function`)."""

    engine: str = "mini_vllm.engine.assembly:load_engine"  # configuration in, `Engine` out
    frontend: str = "mini_vllm.engine.assembly:open_frontend"  # its front end alone, for an engine that is elsewhere

    def load(self, config: EngineConfig) -> Engine:
        """The engine, in this process."""
        engine: Engine = find_function(self.engine)(config)
        return engine

    def open_frontend(self, config: EngineConfig) -> Callable[[ModelLimits], Frontend]:
        """The front end, once the limits are known."""
        opened: Callable[[ModelLimits], Frontend] = find_function(self.frontend)(config)
        return opened


def find_function(path: str) -> Callable[..., Any]:
    """What `module:name` names."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def load_engine(config: EngineConfig) -> Engine:
    """Find, open and load the model that a configuration names. Every problem with it is a `UserError`."""
    from mini_vllm import runner, weights

    checkpoint = weights.open_checkpoint(weights.resolve(config.model.model, revision=config.model.revision))
    try:
        words = load_words(config, checkpoint)
        with open_draft(config, words.tokenizer) as draft:
            executor = runner.load_executor(
                config, checkpoint, vocab_size=words.tokenizer.vocab_size, grammars=words.grammars, draft=draft
            )
    except BaseException:
        checkpoint.close()
        raise
    limits = ModelLimits(
        max_model_len=executor.max_model_len,
        vocab_size=executor.info.vocab_size,
        eos_token_ids=words.eos_token_ids,
    )
    engine = join(config, executor, num_blocks=executor.num_blocks, frontend=words.frontend(limits))
    engine.info = executor.info
    engine.description = executor.description
    engine.sampling_defaults = sampling_defaults(checkpoint.generation_config) if config.model.generation_config else {}
    engine.on_close = checkpoint.close
    return engine


@contextmanager
def open_draft(config: EngineConfig, tokenizer: "Tokenizer") -> "Iterator[Checkpoint | None]":
    """The draft model's checkpoint, if one is asked for and its tokens mean what the target's mean."""
    from mini_vllm import text, weights

    name = config.speculative.draft_model
    if name is None:
        yield None
        return
    with closing(weights.open_checkpoint(weights.resolve(name))) as checkpoint:
        other = text.Tokenizer.from_checkpoint(checkpoint.path, checkpoint.tokenizer_metadata)
        text.check_same_tokens(tokenizer, other, name=name)
        yield checkpoint


def open_frontend(config: EngineConfig) -> Callable[[ModelLimits], Frontend]:
    """The front end of an engine that is loaded elsewhere: everything but the weights, then the limits of the model."""
    from mini_vllm import weights

    checkpoint = weights.open_checkpoint(weights.resolve(config.model.model, revision=config.model.revision))
    try:
        return load_words(config, checkpoint).frontend
    finally:
        checkpoint.close()


def join(
    config: EngineConfig,
    executor: Executor,
    *,
    num_blocks: int,
    frontend: Frontend,
    clock: Callable[[], float] = time.monotonic,
) -> Engine:
    """An executor and a front end with a scheduler and a cache of `num_blocks` blocks between them."""
    from mini_vllm.kvcache import KVCache
    from mini_vllm.scheduling import MeasuredCosts, export
    from mini_vllm.scheduling import Scheduler as BlockScheduler

    trace, costs = Trace(), MeasuredCosts()  # both outlive a scheduler that is dropped after a failure

    def make_scheduler() -> Scheduler:
        cache = KVCache.from_config(config.cache, num_blocks=num_blocks)
        limit = frontend.limits.max_model_len
        return BlockScheduler(config.scheduler, cache, max_model_len=limit, clock=clock, costs=costs, trace=trace)

    core = EngineCore(make_scheduler, executor)
    read_trace = partial(export.dump, trace)
    return Engine(config=config, core=core, frontend=frontend, clock=clock, trace=trace, read_trace=read_trace)


@dataclass(frozen=True, slots=True)
class Words:
    """What of a model is about text."""

    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate"
    eos_token_ids: tuple[int, ...]
    grammars: "GrammarCompiler"

    def frontend(self, limits: ModelLimits) -> Frontend:
        """The front end of an engine with these limits."""
        return Frontend(
            self.tokenizer, limits, chat_template=self.chat_template, grammars=self.grammars, clock=time.monotonic
        )


def load_words(config: EngineConfig, checkpoint: "Checkpoint") -> Words:
    """Tokenizer, template and grammars of an open checkpoint."""
    from mini_vllm import text
    from mini_vllm.grammar import GrammarCompiler

    tokenizer, chat_template = load_text(config, checkpoint)
    eos_token_ids = text.eos_token_ids(checkpoint.config, checkpoint.generation_config, tokenizer, chat_template)
    return Words(tokenizer, chat_template, eos_token_ids, GrammarCompiler(tokenizer, eos_token_ids=eos_token_ids))


def load_text(config: EngineConfig, checkpoint: "Checkpoint") -> "tuple[Tokenizer, ChatTemplate]":
    """The tokenizer and chat template of a model, or of what the configuration puts in their places.

    The template is false in a boolean context if the model has none.
    """
    from mini_vllm import text, weights

    path, metadata = checkpoint.path, checkpoint.tokenizer_metadata
    if config.model.tokenizer is not None:
        path, metadata = weights.resolve_tokenizer(config.model.tokenizer), None
        if path.is_file():
            other = weights.open_checkpoint(path)
            metadata = other.tokenizer_metadata
            other.close()
    tokenizer = text.Tokenizer.from_checkpoint(path, metadata)
    return tokenizer, text.load_chat_template(
        tokenizer, file=config.model.chat_template, tool_format=config.model.tool_call_parser
    )


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters that a model's generation config sets; checked, so that a bad file fails at load."""
    found = {name: generation_config[name] for name in SAMPLING_DEFAULTS if generation_config.get(name) is not None}
    SamplingParams(**found)
    return found
