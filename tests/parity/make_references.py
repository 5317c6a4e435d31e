"""Compute the committed references: transformers' greedy continuations of 20 prompts by the default model in float32.

usage: python tests/parity/make_references.py MODEL.gguf   (writes references/smollm2_greedy.json; needs accelerate)

`gap` is the smallest distance between the two largest logits over a continuation: how far the nearest tie was.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a lower temperature on a mountain because",
    "Dear Ms. Alvarez,\n\nThank you for your letter of",
    "The three laws of thermodynamics are",
    "SELECT name, price FROM products WHERE",
    "1, 1, 2, 3, 5, 8,",
    "In 1969, two astronauts",
    "Ingredients: flour, sugar, butter, eggs.\nMethod:",
    "Q: Why is the sky blue?\nA:",
    "Die Hauptstadt von Österreich ist",
    "El sol brilla sobre la ciudad y",
    "The committee met on Tuesday to discuss the budget. The chair opened by saying that",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):",
    "<|im_start|>user\nName three primary colours.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are a pirate.<|im_end|>\n<|im_start|>user\nHello! 👋<|im_end|>\n<|im_start|>assistant\n",
    "Photosynthesis is the process by which",
    "To be, or not to be, that is the question:",
    "A list of animals: cat, dog, horse, cow, sheep, goat, pig, duck, hen,",
]
NEW_TOKENS = 128


def continue_greedily(model: torch.nn.Module, prompt_ids: list[int]) -> tuple[list[int], float]:
    """Greedy ids (EOS does not stop) and the smallest gap between the two largest logits."""
    ids, past, gap = torch.tensor([prompt_ids]), None, float("inf")
    output = []
    for _ in range(NEW_TOKENS):
        result = model(input_ids=ids, cache=past, use_cache=True)
        past = result.past_key_values
        top = result.logits[0, -1].float().topk(2)
        gap = min(gap, float(top.values[0] - top.values[1]))
        output.append(int(top.indices[0]))
        ids = top.indices[:1].view(1, 1)
    return output, gap


def main() -> None:
    """Write the file."""
    torch.set_num_threads(2)
    path = Path(sys.argv[1])
    load = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
    model = transformers.AutoModelForCausalLM.from_pretrained(**load, dtype=torch.float32).eval()
    rows = []
    with torch.inference_mode():
        for prompt in PROMPTS:
            prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
            output, gap = continue_greedily(model, prompt_ids)
            rows.append({"prompt": prompt, "prompt_ids": prompt_ids, "output_ids": output, "gap": round(gap, 6)})
            print(repr(prompt), round(gap, 6), repr(tokenizer.decode(output))[:100], flush=True)
    header = {"model": path.name, "transformers": transformers.__version__, "torch": torch.__version__}
    target = Path(__file__).parent / "references" / "smollm2_greedy.json"
    target.write_text(json.dumps({**header, "rows": rows}, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
