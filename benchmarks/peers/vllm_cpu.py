"""vLLM's CPU build through its offline door, the engine in this process, prefix caching off."""

import os

import harness

FORMATS = {"bf16": "bfloat16", "f32": "float32"}


def set_environment(threads):
    """What vLLM and OpenMP read when they are imported."""
    values = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": str(threads),
    }
    for name, value in values.items():
        os.environ.setdefault(name, value)


class VLLM:
    def __init__(self, settings):
        set_environment(settings["threads"])
        import vllm

        self.version = vllm.__version__
        self.params = vllm.SamplingParams
        self.llm = vllm.LLM(
            model=settings["model"],
            dtype=FORMATS[settings["form"]],
            max_model_len=settings["max_model_len"],
            max_num_seqs=64,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )

    def generate(self, prompts, new_tokens, temperature, top_p):
        harness.refuse_sampling(temperature)
        params = self.params(
            temperature=0, max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        found = self.llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [len(entry.outputs[0].token_ids) for entry in found]


if __name__ == "__main__":
    harness.serve(VLLM)
