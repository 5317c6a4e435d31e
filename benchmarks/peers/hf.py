"""transformers' own generate() with a static batch and its default KV cache."""

import harness
import torch
import transformers


class Transformers:
    def __init__(self, settings):
        self.version = transformers.__version__
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(settings["threads"])
        model = transformers.AutoModelForCausalLM.from_pretrained(settings["model"], dtype="auto").eval()
        model.generation_config.eos_token_id = None  # never stop early
        model.generation_config.pad_token_id = 0
        self.model = model

    @torch.inference_mode()
    def generate(self, prompts, new_tokens, temperature, top_p):
        harness.refuse_sampling(temperature)
        ids = torch.tensor(prompts)
        found = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
        )
        return [found.shape[1] - ids.shape[1]] * len(prompts)


harness.serve(Transformers)
