"""A real server on a real port, over the real engine with a scripted executor in the model's place.

The executor answers a prompt that ends in `say:TEXT` with TEXT and EOS, and any other with lower-case letters for
ever. `|` in TEXT stands for nothing: it only ends a token, so that bytes can be grouped at will.
"""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from mini_vllm.config import EngineConfig, ServerConfig
from mini_vllm.engine.assembly import join
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.frontend import Frontend, ModelLimits
from mini_vllm.server.app import create_app
from mini_vllm.testing import ByteTokenizer
from mini_vllm.text.chat import ChatTemplate
from mini_vllm.types import Admission, Outputs, SequenceOutput, StepPlan, StepResult, TokenLogprobs

MODEL = "parrot"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Parrot:
    """An executor that says what it is told. `delay` is a step's time; the step in which `fail_in` reaches 0 raises."""

    def __init__(self, tokenizer: ByteTokenizer, *, delay: float = 0.0) -> None:
        self.tokenizer = tokenizer
        self.delay = delay
        self.fail_in: int | None = None  # steps until one fails
        self.largest_batch = 0
        self.num_steps = 0
        self.hang: threading.Event | None = None  # a step waits for it
        self._known: dict[int, list[int]] = {}
        self._admissions: dict[int, Admission] = {}

    def run(self, plan: StepPlan) -> StepResult:
        """One step."""
        time.sleep(self.delay)
        self.num_steps += 1
        self._fail_if_due()
        if self.hang is not None:
            self.hang.wait()
        for seq_id in plan.released:
            del self._known[seq_id], self._admissions[seq_id]
        for admission in plan.admitted:
            self._known[admission.seq_id] = list(admission.prompt_token_ids)
            self._admissions[admission.seq_id] = admission
        self.largest_batch = max(self.largest_batch, len(plan.chunks))
        outputs = []
        for chunk in plan.chunks:
            admission, known = self._admissions[chunk.seq_id], self._known[chunk.seq_id]
            params = admission.params
            prompt = ()
            if chunk.outputs is Outputs.ALL:
                end = chunk.start + len(chunk.token_ids)
                targets = admission.prompt_token_ids[chunk.start + 1 : end + 1]
                prompt = tuple(self._score(token_id, params.prompt_logprobs) for token_id in targets)
            vector = ()
            if chunk.outputs is Outputs.HIDDEN and chunk.start + len(chunk.token_ids) == len(known):
                vector = tuple(float(i) for i in (*known[:1], *known[-1:], len(known)))
            sampled = (self._next(admission, known),) if chunk.samples else ()
            known.extend(sampled)
            wanted = () if params.logprobs is None else tuple(self._score(i, params.logprobs) for i in sampled)
            if sampled or prompt or vector:
                outputs.append(SequenceOutput(chunk.seq_id, sampled, wanted, prompt, hidden=vector))
        return StepResult(plan.step_id, tuple(outputs))

    def reset(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._admissions.clear()

    def _fail_if_due(self) -> None:
        if self.fail_in is not None:
            self.fail_in -= 1
            if self.fail_in <= 0:
                self.fail_in = None
                raise RuntimeError("a cosmic ray")

    def _next(self, admission: Admission, known: Sequence[int]) -> int:
        num_output = len(known) - len(admission.prompt_token_ids)
        said = bytes(i for i in admission.prompt_token_ids if i < 256).decode().partition("say:")[2]
        if not said:
            return ord("a") + (num_output + admission.noise_key) % 26
        said = said.partition("\nassistant")[0].rstrip("\n")
        ids = [i for group in said.split("|") for i in self._ids(group)]
        return ids[num_output] if num_output < len(ids) else self.tokenizer.eos_token_ids[0]

    def _ids(self, group: str) -> list[int]:
        whole = self.tokenizer.id_of(group)
        return [whole] if whole is not None else list(group.encode())

    def _score(self, token_id: int, num_top: int | None) -> TokenLogprobs:
        rivals = [(token_id + 1) % 256, (token_id + 2) % 256]
        top = [(token_id, -0.25), (rivals[0], -2.0), (rivals[1], float("-inf"))]
        return TokenLogprobs(token_id, -0.25, 1, tuple(top[: num_top or 0]))


class Rig:
    """A running server and what is behind it."""

    def __init__(self, url: str, executor: Any, llm: AsyncLLM, app: Any) -> None:
        self.url = url
        self.executor = executor
        self.llm = llm
        self.app = app
        self.http = httpx.Client(base_url=url, timeout=30)

    def complete(self, prompt: Any = "say:hello", **fields: Any) -> dict[str, Any]:
        """The answer of /v1/completions; fails unless it is a 200."""
        return answer(self.http.post("/v1/completions", json={"prompt": prompt, **fields}))

    def chat(self, text: str = "say:hello", **fields: Any) -> dict[str, Any]:
        """The answer of /v1/chat/completions; fails unless it is a 200."""
        messages = [{"role": "user", "content": text}]
        return answer(self.http.post("/v1/chat/completions", json={"messages": messages, **fields}))

    def events(self, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream, which must end in [DONE]."""
        response = self.http.post(path, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        return parse_events(response.text)

    def stats(self) -> dict[str, Any]:
        """GET /stats."""
        return answer(self.http.get("/stats"))

    def wait_until(self, *, within: float = 5.0, **wanted: float) -> dict[str, Any]:
        """The stats, as soon as they show the wanted values."""
        deadline = time.monotonic() + within
        while True:
            stats = self.stats()
            if all(stats[name] == value for name, value in wanted.items()):
                return stats
            assert time.monotonic() < deadline, f"wanted {wanted}, got {stats}"
            time.sleep(0.01)


def answer(response: httpx.Response) -> dict[str, Any]:
    """The JSON of a 200."""
    assert response.status_code == 200, response.text
    return json.loads(response.content, parse_constant=_refuse_constant)


def error(response: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which must have OpenAI's shape."""
    assert response.headers["content-type"] == "application/json", response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


def parse_events(text: str) -> list[dict[str, Any]]:
    """The JSON of every event but the last, which must be [DONE]."""
    assert text.endswith("\n\n")
    events = text[:-2].split("\n\n")
    assert events.pop() == "data: [DONE]"
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    return [json.loads(event[6:], parse_constant=_refuse_constant) for event in events]


def make_llm(
    *,
    delay: float = 0.0,
    tokenizer: ByteTokenizer | None = None,
    max_model_len: int = 512,
    num_blocks: int = 512,
    **options: Any,
) -> tuple[Parrot, AsyncLLM]:
    """An engine whose model is a parrot; `options` are engine settings such as `max_num_seqs`."""
    tokenizer = tokenizer or ByteTokenizer(merges=[b"\xf0\x9f", b"\x98\x80", b" \xe2\x80", b"\x9c"])
    executor = Parrot(tokenizer, delay=delay)
    limits = ModelLimits(
        max_model_len=max_model_len, vocab_size=tokenizer.vocab_size, eos_token_ids=tokenizer.eos_token_ids
    )
    frontend = Frontend(tokenizer, limits, clock=time.monotonic, chat_template=ChatTemplate(TEMPLATE))
    engine = join(EngineConfig.from_options(**options), executor, num_blocks=num_blocks, frontend=frontend)
    return executor, AsyncLLM.from_engine(engine)


@contextmanager
def serving(
    *,
    delay: float = 0.0,
    tokenizer: ByteTokenizer | None = None,
    max_model_len: int = 512,
    num_blocks: int = 512,
    server: ServerConfig | None = None,
    **options: Any,
) -> Iterator[Rig]:
    """A server for the length of a `with`; `options` are engine settings such as `max_num_seqs`."""
    executor, llm = make_llm(
        delay=delay, tokenizer=tokenizer, max_model_len=max_model_len, num_blocks=num_blocks, **options
    )
    app = create_app(llm, server, model_names=(MODEL, "folder/parrot"))
    with listening(app) as url:
        rig = Rig(url, executor, llm, app)
        try:
            yield rig
        finally:
            rig.http.close()


@contextmanager
def serving_model(llm: AsyncLLM, name: str) -> Iterator[Rig]:
    """A server over an engine that computes (nothing of a parrot in it), for the length of a `with`."""
    with listening(create_app(llm, model_names=(name,))) as url:
        rig = Rig(url, None, llm, None)
        try:
            yield rig
        finally:
            rig.http.close()


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """The URL of an application that runs on a thread for the length of a `with`."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    config = uvicorn.Config(app, lifespan="on", log_config=None, access_log=False, timeout_graceful_shutdown=5)
    uvicorn_server = uvicorn.Server(config)
    thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not uvicorn_server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        uvicorn_server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
