"""`/tokenize`, `/detokenize` and `/apply-template`, in vLLM's and llama.cpp's shapes. Must not know the engine."""

from typing import Any

import msgspec

from mini_vllm.server.protocol.chat import ChatMessage


class TokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A text, or a conversation as the chat template writes it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None  # of a text; a template writes its own
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Any] | None = None
    return_token_strs: bool | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True, frozen=True):
    """Token ids, and on request the vocabulary's writing of each."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: list[int]


class DetokenizeResponse(msgspec.Struct, kw_only=True, frozen=True):
    """Their text, special tokens included."""

    prompt: str


class ApplyTemplateRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A conversation to write as the model reads it."""

    model: str | None = None
    messages: list[ChatMessage]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Any] | None = None


class ApplyTemplateResponse(msgspec.Struct, kw_only=True, frozen=True):
    """The text that the model would read."""

    prompt: str


class TokenizerInfo(msgspec.Struct, kw_only=True, frozen=True):
    """What a client must know that uses `/tokenize` in place of a tokenizer of its own."""

    vocab_size: int
    max_model_len: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
