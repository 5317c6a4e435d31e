"""LiteLLM."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is asked of the network

import litellm
from running import BASE, KEY, MODEL, PARIS, WEATHER, run

SERVER = {"api_base": BASE, "api_key": KEY, "num_retries": 0, "max_retries": 0}


def check_a_chat_whole_and_streamed() -> None:
    asked = {"model": f"openai/{MODEL}", "messages": PARIS, "temperature": 0, "max_tokens": 12, **SERVER}
    whole = litellm.completion(**asked)
    assert "Paris" in whole.choices[0].message.content and whole.usage.total_tokens > 12
    chunks = list(litellm.completion(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content


def check_completions_and_embeddings() -> None:
    done = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}",
        prompt="The capital of France is",
        max_tokens=2,
        temperature=0,
        **SERVER,
    )
    assert done.choices[0].text.startswith(" Paris")
    found = litellm.embedding(model=f"openai/{MODEL}", input=["a cat"], **SERVER)
    assert len(found.data[0]["embedding"]) == 576


def check_a_forced_tool() -> None:
    done = litellm.completion(
        model=f"openai/{MODEL}", messages=PARIS, tools=[WEATHER], tool_choice="required", max_tokens=200,
        parallel_tool_calls=False, **SERVER,
    )  # fmt: skip
    assert done.choices[0].message.tool_calls[0].function.name == "get_weather"


def check_errors_have_their_classes() -> None:
    long = [{"role": "user", "content": "word " * 4000}]
    cases = [
        (litellm.ContextWindowExceededError, {"messages": long}),
        (litellm.NotFoundError, {"model": "openai/nobody"}),
        (litellm.AuthenticationError, {"api_key": "wrong"}),
        (litellm.BadRequestError, {"temperature": 9}),
    ]
    for kind, fields in cases:
        try:
            litellm.completion(**{"model": f"openai/{MODEL}", "messages": PARIS, **SERVER, **fields})
        except kind:
            continue
        raise AssertionError(f"{kind.__name__} was expected")


run(globals())
