"""Text to requests and tokens to text, on the caller's side of the engine.

`Frontend` resolves a prompt and its sampling parameters into one `Request` per choice; `ChoiceText` turns the token
deltas of one choice into text deltas. Pure: it must not know about threads, asyncio or how requests are scheduled.
"""

import itertools
import operator
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Protocol, get_args

from mini_vllm.engine.choice import ChoiceText, Vocabulary
from mini_vllm.errors import ChatTemplateError, ContextLengthError, InvalidParameterError
from mini_vllm.grammar import GrammarCompiler
from mini_vllm.sampling import derive_noise_key
from mini_vllm.text.tools import ToolFormat
from mini_vllm.types import ANYONE, Pooling, Request, SamplingParams, Standing

Prompt = str | Sequence[int] | Mapping[str, Any]  # text, token ids, {"prompt": text} or {"prompt_token_ids": ids}
PROMPT_KEYS = ("prompt", "prompt_token_ids")


class ChatRenderer(Protocol):
    """What the front end asks of a chat template; `text.ChatTemplate` has it."""

    @property
    def tool_format(self) -> ToolFormat:
        """How the model writes tool calls."""

    @property
    def thinks(self) -> bool:
        """Whether it may write thoughts between <think> tags first."""

    def explain_tools(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None]:
        """Messages and tools such that the template shows all of them."""

    def render(self, messages: Sequence[Mapping[str, Any]], /, **options: Any) -> str:
        """The conversation as one text, BOS included where the template wants it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What a front end must know of the model."""

    max_model_len: int  # longest sequence in tokens, prompt and output together
    vocab_size: int  # rows of the embedding; ids from here on do not exist
    eos_token_ids: tuple[int, ...]  # the union of all that config, generation config, tokenizer and template say


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A user's request, resolved: its prompt, and one engine request per choice."""

    request_id: str
    prompt: str | None  # None: it was given as token ids
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    requests: tuple[Request, ...]
    stop_texts: dict[int, str]  # stop token id -> the stop string that it stands for


class Frontend:
    """Resolves what users ask for. Stateless but for a counter that keeps engine ids unique."""

    def __init__(
        self,
        tokenizer: Vocabulary,
        limits: ModelLimits,
        *,
        clock: Callable[[], float],
        chat_template: ChatRenderer | None = None,
        grammars: GrammarCompiler | None = None,
        fresh_seed: Callable[[], int] = lambda: secrets.randbits(63),
    ) -> None:
        self.tokenizer = tokenizer
        self.limits = limits
        self.chat_template = chat_template
        self._grammars = grammars
        self._clock = clock
        self._fresh_seed = fresh_seed
        self._serial = itertools.count()

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        standing: Standing = ANYONE,
    ) -> PreparedRequest:
        """One engine request per choice. `InvalidParameterError` or `ContextLengthError` for what cannot run."""
        serial = next(self._serial)
        request_id = f"request-{serial}" if request_id is None else request_id
        prompt = plain_prompt(prompt)
        prompt_ids = self.tokenize(prompt)
        max_tokens = self._resolve_max_tokens(len(prompt_ids), params.max_tokens)
        self._check_params(params)
        self.check_structure(params)
        stop_texts = self._stop_tokens_of(params.stop)
        seed = self._fresh_seed() if params.seed is None else params.seed
        requests = tuple(
            Request(
                request_id=f"{request_id}/{choice}#{serial}",  # an id may be used again while its abort is under way
                parent_id=request_id,
                choice_index=choice,
                prompt_token_ids=prompt_ids,
                params=params if choice == 0 else replace(params, prompt_logprobs=None),
                max_tokens=max_tokens,
                eos_token_ids=() if params.ignore_eos else self.limits.eos_token_ids,
                stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *stop_texts))),
                noise_key=derive_noise_key(seed, choice, prompt_ids),
                priority=priority,
                arrival=self._clock(),
                key=standing.key,
                deadline=standing.deadline,
                cache_salt=cache_salt,
            )
            for choice in range(params.n)
        )
        text = prompt if isinstance(prompt, str) else None
        return PreparedRequest(request_id, text, prompt_ids, params, requests, stop_texts)

    def embedding_request(
        self,
        prompt: Prompt,
        *,
        pooling: Pooling,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Request:
        """The engine request for a prompt's vector. `InvalidParameterError` or `ContextLengthError` as for text."""
        if pooling not in get_args(Pooling):
            raise InvalidParameterError(f"pooling is {pooling!r:.100}; it must be mean or last", param="pooling")
        prompt_ids = self.tokenize(plain_prompt(prompt))
        self._resolve_max_tokens(len(prompt_ids), 0)
        serial = next(self._serial)
        request_id = f"embedding-{serial}" if request_id is None else request_id
        return Request(
            request_id=f"{request_id}/0#{serial}",
            parent_id=request_id,
            prompt_token_ids=prompt_ids,
            params=SamplingParams(max_tokens=0),
            max_tokens=0,
            priority=priority,
            arrival=self._clock(),
            cache_salt=cache_salt,
            pooling=pooling,
        )

    def choices(self, prepared: PreparedRequest) -> dict[str, ChoiceText]:
        """By engine id, the text side of every choice."""
        return {
            request.request_id: ChoiceText(request, self.tokenizer, stop_texts=prepared.stop_texts)
            for request in prepared.requests
        }

    def tokenize(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """A prompt's ids, never empty: text gets BOS exactly once where the model has one; ids are checked."""
        ids = self._encode(prompt) if isinstance(prompt, str) else self._check_ids("prompt", prompt)
        if ids:
            return ids
        if self.tokenizer.bos_token_id is None:
            raise InvalidParameterError(
                "prompt is empty and this model has no BOS token to start from; give at least one token",
                param="prompt",
            )
        return (self.tokenizer.bos_token_id,)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """A conversation as token ids. The template's text is complete: tokenising adds no BOS of its own."""
        return self.tokenizer.encode(self.render_chat_text(messages, **options), add_special_tokens=False)

    def render_chat_text(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """A conversation as the text that the model reads.

        Tools and their calls reach the model whether or not its template knows tools.
        """
        if self.chat_template is None:
            raise ChatTemplateError(
                "this model has no chat template; give one with chat_template=FILE (--chat-template), "
                "or send a plain prompt",
                param="messages",
            )
        if options.get("tools") or any(isinstance(m, Mapping) and "tool_calls" in m for m in messages):
            messages, options["tools"] = self.chat_template.explain_tools(messages, options.get("tools"))
        return self.chat_template.render(messages, **options)

    def _resolve_max_tokens(self, prompt_len: int, asked: int | None) -> int:
        """As many tokens as asked for and as fit; a prompt that leaves no room for one is refused.

        max_tokens beyond the context is not an error: generation ends there with finish_reason "length".
        """
        limit = self.limits.max_model_len
        room = limit - prompt_len
        if room < 0 or (room == 0 and asked != 0):
            raise ContextLengthError(
                f"this model's maximum context length is {limit} tokens, but the prompt has {prompt_len}"
                f"{' and leaves no room for output' if room == 0 else ''}; shorten it",
                param="prompt",
            )
        return room if asked is None else min(asked, room)

    def _check_params(self, params: SamplingParams) -> None:
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("bad_token_ids", params.bad_token_ids)
        self._check_ids("logit_bias", params.logit_bias)
        if params.allowed_token_ids is not None:
            self._check_ids("allowed_token_ids", params.allowed_token_ids)
        num_sampled = min(self.limits.vocab_size, self.tokenizer.vocab_size)  # padding beyond is never sampled
        allowed = range(num_sampled) if params.allowed_token_ids is None else params.allowed_token_ids
        if params.allowed_token_ids is None and len(params.bad_token_ids) < num_sampled:
            return
        banned = set(params.bad_token_ids)
        if all(token_id in banned or token_id >= num_sampled for token_id in allowed):
            raise InvalidParameterError(
                "bad_token_ids and allowed_token_ids leave nothing: no token could ever be sampled",
                param="bad_token_ids" if params.allowed_token_ids is None else "allowed_token_ids",
            )

    def check_structure(self, params: SamplingParams) -> None:
        """Compile the grammar, which the executor then finds ready; one that cannot be compiled is refused."""
        if not params.guided:
            return
        if self._grammars is None:
            raise InvalidParameterError("this engine has no structured outputs", param="structured_outputs")
        if params.structured_outputs is not None:
            self._grammars.compile(params.structured_outputs)

    def _encode(self, text: str) -> tuple[int, ...]:
        ids = tuple(self.tokenizer.encode(text))
        if max(ids, default=0) >= self.limits.vocab_size:
            raise InvalidParameterError(
                f"the tokenizer turns the prompt into token id {max(ids)}, but this model's ids are 0 to "
                f"{self.limits.vocab_size - 1}; load the tokenizer that belongs to the model",
                param="prompt",
            )
        return ids

    def _check_ids(self, name: str, ids: Iterable[int]) -> tuple[int, ...]:
        """The ids as plain ints; NumPy's are welcome, booleans are not."""
        limit = self.limits.vocab_size
        checked: list[int] = []
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, Integral) or not 0 <= token_id < limit:
                raise InvalidParameterError(
                    f"{name} contains {token_id!r}; this model's token ids are 0 to {limit - 1}", param=name
                )
            checked.append(operator.index(token_id))
        return tuple(checked)

    def _stop_tokens_of(self, stops: Sequence[str]) -> dict[int, str]:
        """Stop strings that are one special token: such a token has no text that could be searched."""
        found = {}
        for stop in stops:
            token_id = self.tokenizer.id_of(stop)
            if token_id is not None and token_id in self.tokenizer.special_ids:
                found[token_id] = stop
        return found


def check_params(params: Any) -> None:
    """Refuse what is no SamplingParams."""
    if not isinstance(params, SamplingParams):
        raise InvalidParameterError(
            f"sampling_params is {params!r:.100}; give a SamplingParams, or with LLM a list with one for each prompt",
            param="sampling_params",
        )


def plain_prompt(prompt: Prompt) -> str | Sequence[int]:
    """Text or token ids, out of whatever a prompt may be written as."""
    inner: Any = prompt
    if isinstance(prompt, Mapping):
        if unread := [key for key in prompt if key not in PROMPT_KEYS and prompt[key] is not None]:
            raise InvalidParameterError(
                f"prompt has {unread[0]!r}, which this engine does not read; it reads {' and '.join(PROMPT_KEYS)}, "
                "text and no images",
                param="prompt",
            )
        inner = prompt.get("prompt_token_ids")
        if inner is None:
            inner = prompt.get("prompt")
        elif isinstance(inner, str):
            inner = None
    if isinstance(inner, str) or _is_list(inner):
        return inner  # type: ignore[no-any-return]
    raise InvalidParameterError(
        f"prompt is {prompt!r:.100}; write a string, a list of token ids, {{'prompt': text}} or "
        "{'prompt_token_ids': ids}",
        param="prompt",
    )


def _is_list(value: Any) -> bool:
    """Lists, tuples and arrays; bytes are text of an unknown encoding."""
    return (
        not isinstance(value, Mapping | bytes | bytearray)
        and hasattr(value, "__len__")
        and hasattr(value, "__getitem__")
    )
