"""Pydantic AI."""

from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from running import BASE, KEY, MODEL, run

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key=KEY))
SETTINGS = {"temperature": 0.0, "max_tokens": 200}
ASK = "What is the capital of France? Answer in one word."


class City(BaseModel):
    name: Literal["Paris", "Oslo"]


def check_a_text() -> None:
    done = Agent(model, model_settings=SETTINGS).run_sync(ASK)
    assert "Paris" in done.output and done.usage.output_tokens > 0


def check_outputs_of_a_type() -> None:
    for kind in (ToolOutput(City), NativeOutput(City)):
        done = Agent(model, output_type=kind, model_settings={**SETTINGS, "parallel_tool_calls": False}).run_sync(ASK)
        assert done.output.name in ("Paris", "Oslo")


async def check_a_stream() -> None:
    async with Agent(model, model_settings=SETTINGS).run_stream(ASK) as stream:
        texts = [text async for text in stream.stream_text(delta=True, debounce_by=None)]
    assert "Paris" in "".join(texts)


run(globals())
