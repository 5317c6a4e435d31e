"""mini-vLLM through its offline door."""

import harness

import mini_vllm
from mini_vllm import LLM, SamplingParams


class Ours:
    def __init__(self, settings):
        self.version = mini_vllm.__version__
        self.llm = LLM(
            settings["model"],
            threads=settings["threads"],
            max_model_len=settings["max_model_len"],
            **settings["options"],
        )

    def op_seconds(self):
        return self.llm.engine.core.executor.op_seconds()

    def generate(self, prompts, new_tokens, temperature, top_p):
        params = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            max_tokens=new_tokens,
            ignore_eos=True,
            seed=1 if temperature else None,
        )
        return [len(output.outputs[0].token_ids) for output in self.llm.generate(prompts, params)]


harness.serve(Ours)
