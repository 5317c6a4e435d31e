"""The llm command line."""

import json
import os
import subprocess
from pathlib import Path

from running import BASE, KEY, MODEL, run

os.environ["LLM_USER_PATH"] = str(Path.cwd())
Path("keys.json").write_text(json.dumps({"mini": KEY}))
SERVED = {
    **{"model_id": "mini", "model_name": MODEL, "api_base": BASE, "api_key_name": "mini"},
    **{"supports_schema": True, "supports_tools": True},
}
Path("extra-openai-models.yaml").write_text(json.dumps([SERVED]))
ASK = "What is the capital of France? Answer in one word."
OPTIONS = ["-m", "mini", "-o", "temperature", "0", "-o", "max_tokens", "60"]


def llm(*arguments: str) -> str:
    done = subprocess.run(["llm", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_a_prompt_whole_and_streamed() -> None:
    whole = llm("prompt", *OPTIONS, "--no-stream", ASK)
    assert "Paris" in whole and llm("prompt", *OPTIONS, ASK) == whole


def check_usage_is_logged() -> None:
    entry = json.loads(llm("logs", "--json", "-n", "1"))[0]
    assert entry["input_tokens"] > 10 and entry["output_tokens"] > 0


def check_a_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    assert json.loads(llm("prompt", *OPTIONS, "--schema", json.dumps(schema), "Choose a number."))["n"] in (1, 2)


run(globals())
