"""The offline door: a list of prompts in, a list of outputs out, computed in the calling thread.

Must not know about asyncio or HTTP.
"""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeVar

from mini_vllm.config import EngineConfig
from mini_vllm.engine.assembly import Engine, load_engine
from mini_vllm.engine.batch import Batch, EmbeddingBatch, GenerationBatch
from mini_vllm.engine.choice import Vocabulary
from mini_vllm.engine.embedding import check_dimensions, fit_vector
from mini_vllm.engine.frontend import Prompt, check_params
from mini_vllm.errors import EngineDeadError, InvalidParameterError, UserError
from mini_vllm.types import Embedding, EngineStats, Pooling, RequestOutput, SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    from mini_vllm.models import ModelInfo

Message = Mapping[str, Any]
R = TypeVar("R")


class LLM:
    """A model, ready to generate. `LLM("smollm2-135m").generate("The capital of France is")`.

    Options are the fields of `EngineConfig`'s groups, such as `dtype`, `max_model_len` or `num_blocks`. Outputs do not
    depend on what else is in the batch. Calls from several threads take turns. `close()` or a `with` block frees the
    memory. Nobody reads tokens before all are there, so `itl_target_ms` is 0 here unless it is given: prompts are read
    as fast as they can be.
    """

    def __init__(self, model: str | os.PathLike[str] = "smollm2-135m", **options: Any) -> None:
        options = {"itl_target_ms": 0.0} | options
        self._open(load_engine(EngineConfig.from_options(model=model, **options)))

    @classmethod
    def from_config(cls, config: EngineConfig) -> "LLM":
        """Load what a config names."""
        return cls.from_engine(load_engine(config))

    @classmethod
    def from_engine(cls, engine: Engine) -> "LLM":
        """Drive an engine that is already in memory."""
        llm = cls.__new__(cls)
        llm._open(engine)
        return llm

    def _open(self, engine: Engine) -> None:
        self.engine = engine
        self._turn = threading.Lock()
        self._is_open = True

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Complete prompts; outputs come in their order.

        A prompt is a string, a list of token ids, `{"prompt": …}` or `{"prompt_token_ids": …}`. Parameters are one for
        all, one for each, or None for the model's own defaults. `use_tqdm` reports progress on standard error.
        Raises `InvalidParameterError` or `ContextLengthError` before anything runs, `EngineStepError` if a step fails.
        """
        listed = list_prompts(prompts)
        chosen = self._params_for(len(listed), sampling_params)
        prepared = [self.engine.frontend.prepare(prompt, params) for prompt, params in zip(listed, chosen)]
        return self._run(GenerationBatch(self.engine, prepared, report=use_tqdm))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several (lists of `{"role": …, "content": …}`), rendered by the chat template.

        Template options are those of `ChatTemplate.render`: `tools`, `add_generation_prompt`,
        `continue_final_message`, and variables of the template itself (also as a `chat_template_kwargs` dictionary).
        """
        template_options |= _template_variables(template_options.pop("chat_template_kwargs", None))
        conversations = list_conversations(messages)
        prompts = [self.engine.frontend.render_chat(conversation, **template_options) for conversation in conversations]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def score(
        self, prompts: Prompt | Sequence[Prompt], *, top: int = 0, use_tqdm: bool = False
    ) -> list[list[TokenLogprobs | None]]:
        """Log-probability of every prompt token given those before it; nothing is generated.

        One list per prompt, as long as its token ids; the first entry is None. `top` alternatives come with each.
        """
        params = SamplingParams(max_tokens=0, prompt_logprobs=top)
        return [output.prompt_logprobs or [None] for output in self.generate(prompts, params, use_tqdm=use_tqdm)]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "mean",
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> list[Embedding]:
        """Each prompt as one vector [H]: its hidden states after the final norm, their mean or the last token's.

        `dimensions` keeps the first so many numbers; `normalize` then gives the vector length 1.
        """
        frontend = self.engine.frontend
        requests = [frontend.embedding_request(prompt, pooling=pooling) for prompt in list_prompts(prompts)]
        check_dimensions(dimensions, self.engine)
        found = self._run(EmbeddingBatch(self.engine.core, requests))
        return [replace(each, vector=fit_vector(each.vector, dimensions, normalize=normalize)) for each in found]

    @property
    def tokenizer(self) -> Vocabulary:
        """The model's tokenizer."""
        return self.engine.frontend.tokenizer

    @property
    def model_info(self) -> "ModelInfo":
        """Architecture and sizes."""
        assert self.engine.info is not None, "this engine was joined without a model"
        return self.engine.info

    def default_sampling_params(self) -> SamplingParams:
        """What `generate` uses when no parameters are given: the model's generation config over our defaults."""
        return self.engine.default_sampling_params()

    def stats(self) -> EngineStats:
        """State and counters."""
        return self.engine.core.stats()

    def close(self) -> None:
        """Free the model. Idempotent."""
        with self._turn:
            if self._is_open:
                self._is_open = False
                self.engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _params_for(
        self, count: int, given: SamplingParams | Sequence[SamplingParams] | None
    ) -> Sequence[SamplingParams]:
        params: Any = self.default_sampling_params() if given is None else given
        if isinstance(params, SamplingParams):
            return [params] * count
        listed = list(params) if isinstance(params, Iterable) and not isinstance(params, Mapping) else [params]
        for entry in listed:
            check_params(entry)
        if len(listed) != count:
            raise InvalidParameterError(
                f"sampling_params has {len(listed)} entries for {count} prompts; give one for each, or one for all",
                param="sampling_params",
            )
        return listed

    def _run(self, batch: Batch[R]) -> list[R]:
        with self._turn:
            if not self._is_open:
                raise EngineDeadError("this LLM was closed; make a new one")
            try:
                batch.run()
            except UserError:
                batch.abort()
                raise
            except EngineDeadError:
                raise
            except BaseException:  # an interrupt may have cut a step in half
                self.engine.core.reset("interrupted")
                raise
            return batch.results()


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list: a list of ints is one prompt. What is neither is left to be refused as one."""
    if isinstance(prompts, str | bytes | Mapping | Set) or not isinstance(prompts, Iterable):
        return [prompts]
    listed: list[Any] = list(prompts)
    if listed and isinstance(listed[0], Number):
        return [listed]
    return listed


def list_conversations(messages: Any) -> list[Any]:
    """One conversation or several, as a list: a list of messages is one. Entries are left to the template to check."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise InvalidParameterError(
            f"messages is {messages!r:.100}; write a list of {{'role': …, 'content': …}}", param="messages"
        )
    listed = list(messages)
    return listed if listed and all(isinstance(entry, list | tuple) for entry in listed) else [listed]


def _template_variables(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping | None) or "messages" in (given or ()):
        raise InvalidParameterError(
            f"chat_template_kwargs is {given!r:.100}; it must map the template's variables, but messages, to values",
            param="chat_template_kwargs",
        )
    return dict(given or {})
