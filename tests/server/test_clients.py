"""The official SDK reads every answer, strictly."""

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from server.rig import MODEL, Rig, serving

MESSAGES = [{"role": "user", "content": "say:hello"}]


@pytest.fixture
def client(rig: Rig) -> Iterator[openai.OpenAI]:
    """The SDK, without retries."""
    with openai.OpenAI(base_url=rig.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def strict(kind, answer) -> None:
    """The answer has every field that the SDK's type demands, of the right type."""
    kind.model_validate(answer.model_dump(), strict=True)


def test_srv_04_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    strict(Model, client.models.retrieve(MODEL))
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


def test_srv_04_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2, n=2)
    strict(ChatCompletion, answer)
    assert [choice.message.content for choice in answer.choices] == ["hello", "hello"]
    assert answer.choices[0].logprobs.content[0].top_logprobs[1].token == "i"
    assert answer._request_id.startswith("req_")


def test_srv_04_chat_stream(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, logprobs=True, top_logprobs=1, stream_options=options
        )
    )
    for chunk in chunks:
        strict(ChatCompletionChunk, chunk)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks[:-1]) == "hello"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 6)


def test_srv_04_the_sdks_own_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == "hello"
    assert completion.choices[0].finish_reason == "stop"


def test_srv_04_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["say:a", "say:b"], logprobs=2)
    strict(Completion, answer)
    assert [choice.text for choice in answer.choices] == ["a", "b"]
    echoed = client.completions.create(model=MODEL, prompt="say:a", logprobs=2, echo=True).choices[0]
    assert echoed.text == "say:aa"
    assert echoed.logprobs.token_logprobs == [None, -0.25, -0.25, -0.25, -0.25, -0.25, -0.25]
    chunks = list(client.completions.create(model=MODEL, prompt="say:abc", logprobs=0, stream=True))
    strict(Completion, chunks[-1])  # the earlier ones have finish_reason null, which the type does not know
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abc"


def test_srv_04_ids_are_unique(client: openai.OpenAI) -> None:
    ids = {client.completions.create(model=MODEL, prompt="say:x").id for _ in range(20)}
    assert len(ids) == 20


def test_errors_become_the_sdks_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=MODEL, prompt="x", temperature=5)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4", prompt="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 1000}], stream=True)
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length" in caught.value.message


def test_srv_15_the_sdk_raises_when_a_stream_fails_in_the_middle() -> None:
    texts: list[str] = []
    with serving(delay=0.02) as rig, openai.OpenAI(base_url=rig.url + "/v1", api_key="none", max_retries=0) as client:
        rig.executor.fail_in = 5
        with pytest.raises(openai.APIError, match="cosmic ray"):
            for chunk in client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
                texts.append(chunk.choices[0].delta.content)
        assert client.completions.create(model=MODEL, prompt="say:x").choices[0].text == "x"
    assert "".join(texts) == "hell"


def test_the_async_sdk_leaving_a_stream_frees_it() -> None:
    async def leave(url: str) -> None:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none") as client:
            messages = [{"role": "user", "content": "hm"}]
            stream = await client.chat.completions.create(model=MODEL, messages=messages, stream=True)
            async for _ in stream:
                break
            await stream.close()

    with serving(delay=0.01, max_model_len=4096, num_blocks=512) as rig:
        asyncio.run(leave(rig.url))
        rig.wait_until(within=1.0, active_requests=0, kv_blocks_used=0, requests_finished_abort=1)
