"""POST /tokenize, /detokenize and /apply-template: what the model reads, without running it."""

from typing import Any

from fastapi import APIRouter, Request, Response

from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.protocol.text import (
    ApplyTemplateRequest,
    ApplyTemplateResponse,
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfo,
)
from mini_vllm.server.service import Service, json_response, read_json

TOKENIZE = BodyReader(TokenizeRequest, ignored={}, rejected={})
DETOKENIZE = BodyReader(DetokenizeRequest, ignored={}, rejected={})
APPLY = BodyReader(ApplyTemplateRequest, ignored={}, rejected={})


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.post("/tokenize", **describe(TokenizeRequest, TokenizeResponse))
    async def tokenize(request: Request) -> Response:
        """Token ids of a text or a conversation."""
        body = await read_json(request, TOKENIZE)
        service.check_model(body.model)
        ids = await _encode(service, body)
        tokenizer = service.engine.tokenizer
        response = TokenizeResponse(
            count=len(ids),
            max_model_len=service.engine.max_model_len,
            tokens=ids,
            token_strs=[tokenizer.piece(token_id) for token_id in ids] if body.return_token_strs else None,
        )
        return json_response(response)

    @routes.get("/tokenizer_info", **describe(None, TokenizerInfo))
    async def tokenizer_info() -> Response:
        """The special tokens by name, for clients without a tokenizer of their own."""
        return json_response(_info(service))

    @routes.post("/detokenize", **describe(DetokenizeRequest, DetokenizeResponse))
    async def detokenize(request: Request) -> Response:
        """Text of token ids."""
        body = await read_json(request, DETOKENIZE)
        service.check_model(body.model)
        limit = service.engine.tokenizer.vocab_size
        if wrong := [token_id for token_id in body.tokens if not 0 <= token_id < limit]:
            raise InvalidParameterError(
                f"tokens contains {wrong[0]}; this model's token ids are 0 to {limit - 1}", param="tokens"
            )
        decode = service.engine.tokenizer.decode
        text = await service.reader.off_loop(
            lambda: decode(body.tokens, skip_special_tokens=False), size=len(body.tokens)
        )
        return json_response(DetokenizeResponse(prompt=text))

    @routes.post("/apply-template", **describe(ApplyTemplateRequest, ApplyTemplateResponse))
    async def apply_template(request: Request) -> Response:
        """The text that the model would read of a conversation."""
        body = await read_json(request, APPLY)
        service.check_model(body.model)
        text = await service.reader.read_chat_text(body.messages, _options(body))
        return json_response(ApplyTemplateResponse(prompt=text))

    return routes


def _info(service: Service) -> TokenizerInfo:
    tokenizer = service.engine.tokenizer
    bos, ends = tokenizer.bos_token_id, list(tokenizer.eos_token_ids)
    eos = tokenizer.piece(ends[0]) if ends else None
    return TokenizerInfo(
        vocab_size=tokenizer.vocab_size,
        max_model_len=service.engine.max_model_len,
        bos_token=None if bos is None else tokenizer.piece(bos),
        eos_token=eos,
        pad_token=eos,
    )


async def _encode(service: Service, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidParameterError("send either prompt or messages", param="prompt")
    if body.messages is not None:
        return list((await service.reader.read_chat(body.messages, _options(body))).token_ids)
    text, special = body.prompt or "", body.add_special_tokens is not False
    encode = service.engine.tokenizer.encode
    return await service.reader.off_loop(lambda: encode(text, add_special_tokens=special), size=len(text))


def _options(body: TokenizeRequest | ApplyTemplateRequest) -> dict[str, Any]:
    """As chat completions would render it."""
    given = {name: getattr(body, name) for name in ("add_generation_prompt", "continue_final_message", "tools")}
    options = dict(body.chat_template_kwargs or {})
    if taken := [name for name in ("messages", "documents", *given) if name in options]:
        raise InvalidParameterError(
            f"chat_template_kwargs sets {taken[0]}, which is a field of the request itself",
            param="chat_template_kwargs",
        )
    return options | {name: value for name, value in given.items() if value is not None}
