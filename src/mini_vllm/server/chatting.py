"""A chat request in the engine, whatever shape it came in and its answer will have. Must not know HTTP."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from mini_vllm.server.generation import Numbered
from mini_vllm.server.limits import Terms
from mini_vllm.server.protocol.chat import ChatRequest
from mini_vllm.server.service import Service
from mini_vllm.server.translate.chat import ChatAnswer
from mini_vllm.server.translate.conversation import (
    make_router,
    refuse_unsupported,
    show_markers,
    template_options,
)
from mini_vllm.server.translate.sampling import chat_params
from mini_vllm.server.translate.tools import read_tools

END_TOKENS = 16  # of a prompt, in which a thought may have been opened


@dataclass(frozen=True, slots=True)
class Chat:
    """An answer, and the deltas that it is made of; nothing runs before the first is asked for."""

    answer: ChatAnswer
    deltas: AsyncGenerator[Numbered, None]

    async def read(self) -> None:
        """Add all deltas to the answer."""
        async with aclosing(self.deltas):
            async for number, delta in self.deltas:
                self.answer.add(number, delta)


async def start_chat(service: Service, body: ChatRequest, terms: Terms, *, prefix: str) -> Chat:
    """What a conversation is to be answered with. `prefix`: of the answer's id."""
    refuse_unsupported(body)
    engine = service.engine
    tools = read_tools(body, engine.tool_format)
    params = tools.constrain(chat_params(body, engine.default_sampling_params()))
    params = show_markers(params, tools, engine.tokenizer, thinks=engine.thinks)
    prompt = await service.reader.read_chat(body.messages, template_options(body, tools))
    end = prompt.token_ids[-END_TOKENS:] if engine.thinks else ()
    prompt_end = engine.tokenizer.decode(end, skip_special_tokens=False) if engine.thinks else None
    router = partial(make_router, body, tools, params=params, prompt_end=prompt_end)
    head = service.head(prefix)
    answer = ChatAnswer(head, prompt, params, texts=service.texts(params), make_router=router)
    return Chat(answer, service.generate([service.job(head.id, prompt.token_ids, params, body)], terms))
