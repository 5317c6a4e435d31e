"""ONNX Runtime GenAI: its generator with a static batch and one buffer for past and present keys and values."""

import json

import harness
import numpy as np
import onnxruntime_genai as genai


class OnnxRuntime:
    def __init__(self, settings):
        self.version = genai.__version__
        config = genai.Config(settings["model"])
        session = {"intra_op_num_threads": settings["threads"], "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self.model = genai.Model(config)

    def generate(self, prompts, new_tokens, temperature, top_p):
        harness.refuse_sampling(temperature)
        length = len(prompts[0]) + new_tokens
        params = genai.GeneratorParams(self.model)
        params.set_search_options(
            do_sample=False,
            max_length=length,
            min_length=length,
            batch_size=len(prompts),
            past_present_share_buffer=True,
        )
        generator = genai.Generator(self.model, params)
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        count = 0
        while not generator.is_done():
            generator.generate_next_token()
            count += 1
        return [count] * len(prompts)


harness.serve(OnnxRuntime)
