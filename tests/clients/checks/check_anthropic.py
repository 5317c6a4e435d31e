"""Anthropic's SDK, over /v1/messages."""

import anthropic
from running import KEY, MODEL, PARIS, URL, WEATHER, run

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
TOOL = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": WEATHER["function"]["parameters"],
}


def check_a_message_whole_and_streamed() -> None:
    whole = client.messages.create(model=MODEL, max_tokens=12, messages=PARIS, extra_body={"temperature": 0})
    assert "Paris" in whole.content[0].text and whole.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(model=MODEL, max_tokens=12, messages=PARIS, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text and final.usage.output_tokens == whole.usage.output_tokens


def check_a_tool() -> None:
    with client.messages.stream(
        model=MODEL, max_tokens=100, messages=PARIS, tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}
    ) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use" and final.content[0].input["city"] in ("Paris", "Oslo")


def check_counting() -> None:
    assert client.messages.count_tokens(model=MODEL, messages=PARIS).input_tokens > 10


def check_errors() -> None:
    for kind, fields in (
        (anthropic.NotFoundError, {"model": "nobody"}),
        (anthropic.BadRequestError, {"max_tokens": 0}),
    ):
        try:
            client.messages.create(**{"model": MODEL, "max_tokens": 5, "messages": PARIS, **fields})
        except kind as error:
            assert error.body["type"] == "error"
        else:
            raise AssertionError(kind)


run(globals())
