"""Instructor."""

from typing import Literal

import instructor
import openai
from pydantic import BaseModel
from running import BASE, KEY, MODEL, run

ASK = [{"role": "user", "content": "Bob is 30 years old and lives in Oslo."}]


class Person(BaseModel):
    age: Literal[20, 30]
    city: Literal["Oslo", "Paris"]


def check_both_ways_to_a_model() -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(base_url=BASE, api_key=KEY), mode=mode)
        person = client.chat.completions.create(
            model=MODEL, response_model=Person, messages=ASK, temperature=0, max_tokens=200, max_retries=0
        )
        assert person.age in (20, 30) and person.city in ("Oslo", "Paris")


def check_a_partial_stream() -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=BASE, api_key=KEY), mode=instructor.Mode.TOOLS)
    parts = list(
        client.chat.completions.create_partial(
            model=MODEL, response_model=Person, messages=ASK, temperature=0, max_tokens=200, max_retries=0
        )
    )
    assert parts[-1].city in ("Oslo", "Paris") and len(parts) > 1


run(globals())
