"""What the generating endpoints share: sampling fields, usage, errors. Must not know the engine."""

from typing import Annotated, Any

import msgspec


class StreamOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How a stream reports usage."""

    include_usage: bool | None = None  # one last chunk without choices that carries it
    continuous_usage_stats: bool | None = None  # with include_usage: on every chunk as well


class GenerationRequest(msgspec.Struct, kw_only=True, frozen=True):
    """Fields that completions and chat completions share. `None` is absent."""

    model: str | None = None  # a served name; absent: the served model
    n: int | None = None  # 1 to 128; only completions and chat completions take more than 1
    max_tokens: int | None = None
    temperature: float | None = None  # 0 to 2
    top_p: float | None = None
    stop: str | list[str] | None = None  # 16 at most
    seed: int | None = None
    presence_penalty: float | None = None  # -2 to 2
    frequency_penalty: float | None = None  # -2 to 2
    logit_bias: dict[int, float] | None = None  # token id to bias, -100 to 100
    stream: bool | None = None
    stream_options: StreamOptions | None = None  # include_usage, continuous_usage_stats

    # Beyond OpenAI's, named as vLLM names them.
    top_k: int | None = None  # 0: all
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None  # no end before so many
    ignore_eos: bool | None = None
    speculation: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_token_ids: list[int] | None = None
    bad_words: list[str] | None = None  # never in the text
    thinking_token_budget: int | None = None  # thoughts longer than this are ended
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None = None  # lower runs first
    cache_salt: str | None = None  # prefixes are shared only under the same one
    deadline_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None  # from arrival; past it the request is ended

    # What the output must look like; one of these. The guided_ names are older ones for the same.
    response_format: dict[str, Any] | None = None  # text, json_object, or json_schema
    structured_outputs: dict[str, Any] | None = None  # one of json, json_object, regex, choice, grammar; and strict
    json: dict[str, Any] | str | bool | None = None  # a JSON schema
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # Lark or GBNF
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def repeats_usage(self) -> bool:
        """Whether every chunk of a stream carries usage."""
        return self.includes_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Where prompt tokens came from."""

    cached_tokens: int = 0


class Usage(msgspec.Struct, kw_only=True, frozen=True):
    """Tokens read and written, over all prompts and choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class RequestReport(msgspec.Struct, kw_only=True, frozen=True):
    """What a request cost, measured on the engine's clock: `mini_vllm` in an answer and in a stream's last chunk.

    Over all prompts and choices: it waits in the queue until its first sequence is started, reads until the first
    token, and writes until the last.
    """

    latency_ms: float  # from the engine's receipt of the request to the end of its last choice
    ttft_ms: float | None  # to its first token
    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    cached_tokens: int  # prompt tokens that were not computed again
    tokens_per_second: float  # completion tokens over latency
    preemptions: int
    target_forwards: int = 0  # steps that chose tokens; fewer than tokens where guesses were right
    drafts_proposed: int = 0
    drafts_accepted: int = 0


class ErrorDetail(msgspec.Struct, kw_only=True, frozen=True):
    """What went wrong, for people (`message`) and programs (`type`, `code`, `param`)."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorDetail
