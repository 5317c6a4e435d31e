"""The HTTP server: OpenAI's API over an engine. `create_app` for an ASGI server of one's own, `run` for ours."""

from mini_vllm.server.app import create_app
from mini_vllm.server.run import run

__all__ = ["create_app", "run"]
