"""What lm-eval found over HTTP against `LLM.score` and `LLM.generate`, in our own environment."""

import json
from pathlib import Path

from mini_vllm import LLM, SamplingParams

found = json.loads(Path("scores.json").read_text())
with LLM("smollm2-135m", max_model_len=2048) as llm:
    for case in found["scores"]:
        context = case["context"].rstrip()
        moved = case["context"][len(context) :]  # white space goes with the continuation
        whole = llm.tokenizer.encode(case["context"] + case["continuation"])
        start = len(llm.tokenizer.encode(context))
        [scores] = llm.score([whole], top=1)
        expected = sum(entry.logprob for entry in scores[start:])
        assert abs(case["logprob"] - expected) < 1e-5, (case, expected, moved)
        assert case["is_greedy"] == all(entry.rank == 1 for entry in scores[start:]), case
    for prompt, text in found["texts"]:
        [output] = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=8, stop=["\n"]))
        assert text == output.outputs[0].text, (prompt, text, output.outputs[0].text)
print(f"{len(found['scores'])} scores and {len(found['texts'])} texts are the same")
