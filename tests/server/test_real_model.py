"""The default model behind the server: what is true with a parrot is true with a model."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from pydantic import BaseModel
from server.rig import Rig, serving_model

from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.kernels.native_abi import bind_library
from mini_vllm.kernels.native_threads import default_threads

NAME = "smollm2-135m"


@pytest.fixture(scope="module")
def model(default_model: Path) -> Iterator[Rig]:
    """A server with the default model and a short context."""
    llm = AsyncLLM(str(default_model), executor="native", max_model_len=256, num_blocks=256, max_num_seqs=8)
    with serving_model(llm, NAME) as rig:
        yield rig


def test_it_answers(model: Rig) -> None:
    with openai.OpenAI(base_url=model.url + "/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "What is 2+2?"}]
        answer = client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=40)
        counted = client.completions.create(model=NAME, prompt="1, 2, 3, 4, 5, 6, 7,", temperature=0, max_tokens=6)
    assert "4" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert counted.choices[0].text == " 8, 9,"


def test_stats_say_what_computes(model: Rig) -> None:
    stats, known = model.stats(), model.llm.describe()
    assert stats["instruction_set"] == known["instruction_set"]
    assert stats["instruction_set"] in bind_library().mv_isa_names().decode().split()
    assert stats["threads"] == default_threads()


def test_streamed_alone_and_in_a_batch_are_one_text(model: Rig) -> None:
    questions = [f"Say something about the number {number}." for number in range(8)]
    asked = {"temperature": 0, "max_tokens": 12}

    def stream(question: str) -> str:
        messages = [{"role": "user", "content": question}]
        events = model.events("/v1/chat/completions", {"messages": messages, **asked})
        return "".join(event["choices"][0]["delta"]["content"] for event in events)

    alone = [model.chat(question, **asked)["choices"][0]["message"]["content"] for question in questions[:3]]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(stream, questions))
    assert together[:3] == alone
    assert all(len(text) > 10 for text in together)


def test_scores_are_those_of_generation(model: Rig) -> None:
    prompt = "\n1. Carol has 20 “apples” \U0001f600"
    made = model.complete(prompt, max_tokens=6, temperature=0, logprobs=2)["choices"][0]
    scored = model.complete(prompt + made["text"], max_tokens=0, echo=True, logprobs=2)["choices"][0]
    logprobs = scored["logprobs"]
    assert "".join(logprobs["tokens"]) == scored["text"] == prompt + made["text"]
    assert logprobs["tokens"][-6:] == made["logprobs"]["tokens"]
    assert logprobs["token_logprobs"][-6:] == pytest.approx(made["logprobs"]["token_logprobs"], abs=1e-4)
    for chosen, top in zip(logprobs["token_logprobs"][-6:], logprobs["top_logprobs"][-6:], strict=True):
        assert chosen == max(top.values())


def test_a_client_that_leaves_frees_the_model(model: Rig) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 250, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", model.url + "/v1/completions", json=body) as response:
        next(response.iter_lines())
    model.wait_until(within=2.0, active_requests=0, kv_blocks_used=0)


class Person(BaseModel):
    """What the model is to fill in."""

    name: str
    age: int
    likes: list[str]


def test_it_fills_in_schemas_and_calls_tools(model: Rig) -> None:
    with openai.OpenAI(base_url=model.url + "/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "Bob is 30 and likes tea and chess. Answer in JSON."}]
        asked = {"model": NAME, "temperature": 0, "max_tokens": 80}
        parsed = client.chat.completions.parse(messages=messages, response_format=Person, **asked).choices[0]
        assert (parsed.finish_reason, parsed.message.parsed.name, parsed.message.parsed.age) == ("stop", "Bob", 30)

        schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        function = {"name": "get_weather", "description": "The weather in a city.", "parameters": schema}
        messages = [{"role": "user", "content": "What is the weather in Paris?"}]
        tools = {"tools": [{"type": "function", "function": function}], "parallel_tool_calls": False}
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            called = client.chat.completions.create(messages=messages, tool_choice=choice, **tools, **asked).choices[0]
            [call] = called.message.tool_calls
            assert (called.finish_reason, call.function.name) == ("tool_calls", "get_weather")
            assert json.loads(call.function.arguments) == {"city": "Paris"}


def test_structured_answers_are_the_same_alone_in_a_batch_and_streamed(model: Rig) -> None:
    schema = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {**schema, "required": ["word", "n"]}}}

    def ask(number: int) -> tuple[str, str]:
        held = {"response_format": wanted} if number % 2 else {}
        asked = {"temperature": 0.7, "seed": number, "max_tokens": 30, **held}
        choice = model.chat(f"Say a word and the number {number}, in JSON.", **asked)["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]

    alone = [ask(number) for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8)))[:4] == alone
    for content, finish in alone[1::2]:
        assert finish == "length" or list(json.loads(content)) == ["word", "n"]
