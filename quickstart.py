"""Generate 60 tokens with the default model, without a server: `.venv/bin/python quickstart.py`."""

from mini_vllm import LLM, SamplingParams

if __name__ == "__main__":
    with LLM("smollm2-135m") as llm:
        params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
        [output] = llm.generate("Once upon a time", params)
        print(output.prompt + output.outputs[0].text)
