"""CTranslate2: its generator over the whole batch at once."""

import json
from pathlib import Path

import ctranslate2
import harness


class CTranslate2:
    def __init__(self, settings):
        self.version = ctranslate2.__version__
        kind = {"int8": "int8", "f32": "float32"}[settings["form"]]
        self.pieces = json.loads((Path(settings["model"]) / "vocabulary.json").read_text())
        self.generator = ctranslate2.Generator(
            settings["model"], device="cpu", compute_type=kind, inter_threads=1, intra_threads=settings["threads"]
        )

    def generate(self, prompts, new_tokens, temperature, top_p):
        harness.refuse_sampling(temperature)
        found = self.generator.generate_batch(
            [[self.pieces[token_id] for token_id in prompt] for prompt in prompts],
            max_length=new_tokens,
            min_length=new_tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
            max_batch_size=0,
        )
        return [len(entry.sequences_ids[0]) for entry in found]


harness.serve(CTranslate2)
