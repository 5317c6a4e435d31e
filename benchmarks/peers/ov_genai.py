"""OpenVINO GenAI: its continuous batching pipeline, one thread a core, prefix caching off.

int4 and int8 weights quantise activations to 8 bits at run time; the KV cache has the pipeline's default precision.
"""

import harness
import numpy as np
import openvino as ov
import openvino_genai as genai

ACTIVATIONS = {"f32": "f32", "bf16": "bf16", "int8": "f32", "int4": "f32"}


class OpenVINO:
    def __init__(self, settings):
        self.version = genai.__version__
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        scheduler.max_num_batched_tokens = settings["max_model_len"]
        scheduler.max_num_seqs = 64
        scheduler.enable_prefix_caching = False
        properties = {
            "INFERENCE_NUM_THREADS": settings["threads"],
            "INFERENCE_PRECISION_HINT": ACTIVATIONS[settings["form"]],
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": True,
        }
        self.pipeline = genai.ContinuousBatchingPipeline(settings["model"], scheduler, "CPU", properties)

    def generate(self, prompts, new_tokens, temperature, top_p):
        harness.refuse_sampling(temperature)
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new_tokens
        config.ignore_eos, config.do_sample, config.eos_token_id = True, False, -1
        inputs = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        found = self.pipeline.generate(inputs, [config] * len(prompts))
        return [len(entry.m_generation_ids[0]) for entry in found]


harness.serve(OpenVINO)
