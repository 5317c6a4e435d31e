"""Text → token ids without holding up the event loop. Must not know HTTP."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from mini_vllm.errors import ContextLengthError
from mini_vllm.server.door import TextEngine
from mini_vllm.server.protocol.chat import ChatMessage
from mini_vllm.server.translate.answer import PreparedPrompt
from mini_vllm.server.translate.conversation import template_messages, text_size
from mini_vllm.server.translate.prompts import Prompt, prompt_size, split_prompt

T = TypeVar("T")

SHORT_TEXT = 2_000  # characters that take less time than handing them to a thread is worth
MUCH_TEXT = 100_000  # characters from which on a look at the length comes first


class PromptReader:
    """Tokenises and renders on two threads of its own, so that a megabyte stalls neither streams nor short prompts."""

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine
        self._longest: int | None = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="prompts")

    async def read(self, prompt: str | Sequence[Any] | None, *, n: int, name: str = "prompt") -> list[PreparedPrompt]:
        """Each prompt of the request field `name`, to be answered n times, as token ids."""
        return await self.off_loop(
            lambda: [self._read(each) for each in split_prompt(prompt, n=n, name=name)], size=prompt_size(prompt)
        )

    async def read_chat(self, messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> PreparedPrompt:
        """A conversation as token ids. Always on a thread: the first one compiles the template."""
        return await self._on_thread(lambda: self._render(messages, options))

    async def read_chat_text(self, messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> str:
        """A conversation as the text that the model reads."""
        return await self._on_thread(lambda: self._engine.render_chat_text(self._plain(messages), **options))

    async def off_loop(self, work: Callable[[], T], *, size: int) -> T:
        """The result of `work`, computed here if it is about `size` characters that take no time, else on a thread."""
        if size <= SHORT_TEXT:
            return work()
        return await self._on_thread(work)

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _read(self, prompt: Prompt) -> PreparedPrompt:
        if isinstance(prompt, str):
            self._check_size(len(prompt))
            return PreparedPrompt(tuple(self._engine.tokenizer.encode(prompt)), prompt)
        if len(prompt) > (limit := self._engine.max_model_len):
            raise ContextLengthError(
                f"this model's maximum context length is {limit} tokens, but the prompt has {len(prompt)}; shorten it",
                param="prompt",
            )
        return PreparedPrompt(prompt)

    def _render(self, messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> PreparedPrompt:
        return PreparedPrompt(tuple(self._engine.render_chat(self._plain(messages), **options)))

    def _plain(self, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
        """Messages as the template takes them; refused if they cannot fit."""
        if len(messages) > (limit := self._engine.max_model_len):  # no template makes less than a token of a message
            raise ContextLengthError(
                f"this model's maximum context length is {limit} tokens, and {len(messages)} messages have more; "
                "send fewer",
                param="messages",
            )
        plain = template_messages(messages)
        self._check_size(text_size(plain))
        return plain

    def _check_size(self, num_chars: int) -> None:
        """Refuse at once what cannot fit, however well it is tokenised."""
        limit = self._engine.max_model_len
        if num_chars > MUCH_TEXT and num_chars > limit * self._longest_token():
            raise ContextLengthError(
                f"this model's maximum context length is {limit} tokens, and the prompt of {num_chars} characters has "
                f"more; shorten it",
                param="prompt",
            )

    def _longest_token(self) -> int:
        """In bytes, so no token stands for more characters than that."""
        if self._longest is None:
            tokenizer = self._engine.tokenizer
            self._longest = max(len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocab_size))
        return self._longest
