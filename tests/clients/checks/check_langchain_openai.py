"""LangChain."""

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from running import BASE, KEY, MODEL, WEATHER, run

ASK = "What is the capital of France? Answer in one word."
chat = ChatOpenAI(
    model=MODEL, base_url=BASE, api_key=KEY, temperature=0, max_tokens=60, stream_usage=True, max_retries=0
)


class Answer(BaseModel):
    is_city: bool


def check_a_chat_whole_and_streamed() -> None:
    whole = chat.invoke(ASK)
    assert "Paris" in whole.content and whole.usage_metadata["output_tokens"] > 0
    chunks = list(chat.stream(ASK))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0


def check_logprobs() -> None:
    found = chat.bind(logprobs=True, top_logprobs=2).invoke(ASK).response_metadata["logprobs"]["content"]
    assert len(found) > 0 and len(found[0]["top_logprobs"]) == 2


def check_structured_output_both_ways() -> None:
    for method in ("json_schema", "function_calling"):
        found = chat.with_structured_output(Answer, method=method).invoke(ASK)
        assert isinstance(found, Answer)


def check_a_tool_and_its_result() -> None:
    bound = chat.bind_tools([WEATHER], tool_choice="get_weather")
    called = bound.invoke(ASK)
    [call] = called.tool_calls
    assert call["name"] == "get_weather" and call["args"]["city"] in ("Paris", "Oslo")
    told = [HumanMessage(ASK), called, ToolMessage("Sunny.", tool_call_id=call["id"])]
    assert isinstance(chat.bind_tools([WEATHER]).invoke(told).content, str)


def check_embeddings_and_completions() -> None:
    vectors = OpenAIEmbeddings(
        model=MODEL, base_url=BASE, api_key=KEY, check_embedding_ctx_length=False
    ).embed_documents(["a cat", "a dog"])
    assert [len(vector) for vector in vectors] == [576, 576]
    text = OpenAI(model=MODEL, base_url=BASE, api_key=KEY, temperature=0, max_tokens=4).invoke(
        "The capital of France is"
    )
    assert text.startswith(" Paris")


async def check_async() -> None:
    assert "Paris" in (await chat.ainvoke(ASK)).content


run(globals())
