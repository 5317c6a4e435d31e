"""A client that is generated from the OpenAPI page, complete and without a warning."""

import subprocess
import sys
from pathlib import Path

import httpx
from running import KEY, MODEL, PARIS, URL, run


def check_a_client_is_generated() -> None:
    Path("page.json").write_bytes(httpx.get(f"{URL}/openapi.json", headers={"authorization": f"Bearer {KEY}"}).content)
    command = ["openapi-python-client", "generate", "--path", "page.json", "--output-path", "made", "--meta", "none"]
    subprocess.run([*command, "--fail-on-warning"], check=True)
    sys.path.insert(0, str(Path.cwd()))


def check_it_works() -> None:
    from made import AuthenticatedClient
    from made.api.default import chat_completions_v1_chat_completions_post as chat
    from made.api.default import embeddings_v1_embeddings_post as embeddings
    from made.api.default import model_v1_models_model_get as model
    from made.api.default import stats_stats_get as stats
    from made.models import ChatRequest, EmbeddingRequest

    with AuthenticatedClient(base_url=URL, token=KEY) as client:
        assert model.sync(MODEL, client=client).max_model_len == 2048
        asked = {"messages": PARIS, "max_tokens": 12}
        answer = chat.sync(client=client, body=ChatRequest.from_dict({**asked, "temperature": 0}))
        assert "Paris" in answer.choices[0].message.content and answer.usage.completion_tokens > 1
        refused = chat.sync(client=client, body=ChatRequest.from_dict({**asked, "temperature": 9}))
        assert refused.error.param == "temperature"
        found = embeddings.sync(client=client, body=EmbeddingRequest.from_dict({"input": "a cat"}))
        assert len(found.data[0].embedding) == 576
        assert stats.sync(client=client).total_tokens_generated > 1


run(globals())
