"""The OpenAI SDK."""

import openai
from pydantic import BaseModel
from running import BASE, KEY, MODEL, PARIS, WEATHER, run

client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0)


def check_models() -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def check_a_chat_whole_and_streamed() -> None:
    whole = client.chat.completions.create(model=MODEL, messages=PARIS, temperature=0, max_tokens=12)
    assert "Paris" in (whole.choices[0].message.content or "") and whole.usage and whole._request_id
    stream = client.chat.completions.create(
        model=MODEL, messages=PARIS, temperature=0, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def check_completions() -> None:
    done = client.completions.create(
        model=MODEL, prompt=["The capital of France is", "1, 2, 3,"], max_tokens=1, temperature=0, logprobs=1, echo=True
    )
    assert [choice.index for choice in done.choices] == [0, 1]
    assert done.choices[0].text == "The capital of France is Paris"
    found = done.choices[0].logprobs
    assert found and found.token_logprobs and found.token_logprobs[0] is None and len(found.tokens or ()) == 6


def check_a_parsed_answer() -> None:
    class Answer(BaseModel):
        is_city: bool

    parsed = client.chat.completions.parse(
        model=MODEL, messages=PARIS, response_format=Answer, temperature=0, max_tokens=100
    )
    assert parsed.choices[0].message.parsed is not None and isinstance(parsed.choices[0].message.parsed.is_city, bool)


def check_a_forced_tool() -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=PARIS, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=100
    ) as stream:
        for _ in stream:
            pass
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    assert choice.message.tool_calls[0].function.name == "get_weather"


def check_embeddings() -> None:
    found = client.embeddings.create(model=MODEL, input=["a cat", "a dog"])
    assert [len(each.embedding) for each in found.data] == [576, 576] and found.usage.prompt_tokens == 4
    assert len(client.embeddings.create(model=MODEL, input="a", dimensions=8).data[0].embedding) == 8


def check_responses() -> None:
    first = client.responses.create(model=MODEL, input=PARIS, temperature=0, max_output_tokens=12)
    assert "Paris" in first.output_text
    with client.responses.stream(
        model=MODEL, input="Say it again.", previous_response_id=first.id, temperature=0, max_output_tokens=12
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    assert final.previous_response_id == first.id and final.usage and final.usage.input_tokens > 30


def check_errors_have_their_classes() -> None:
    def refused(kind: type[openai.APIStatusError], client: openai.OpenAI = client, **fields: object) -> str:
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": PARIS, **fields})  # type: ignore[call-overload]
        except kind as error:
            return str(error.code)
        raise AssertionError(f"{kind.__name__} was expected")

    refused(openai.BadRequestError, temperature=9)
    assert refused(openai.NotFoundError, model="nobody") == "model_not_found"
    assert refused(openai.AuthenticationError, client.with_options(api_key="wrong")) == "invalid_api_key"
    long = [{"role": "user", "content": "word " * 4000}]
    assert refused(openai.BadRequestError, messages=long) == "context_length_exceeded"


async def check_async_and_leaving_early() -> None:
    async with openai.AsyncOpenAI(base_url=BASE, api_key=KEY) as many:
        stream = await many.chat.completions.create(model=MODEL, messages=PARIS, stream=True, max_tokens=1500)
        async for chunk in stream:
            assert chunk.model == MODEL
            break
        await stream.close()


run(globals())
