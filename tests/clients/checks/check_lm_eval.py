"""lm-evaluation-harness on a task of our own: log-likelihoods over /v1/completions, and generation."""

import json
import os
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager
from running import BASE, KEY, MODEL, run

os.environ["OPENAI_API_KEY"] = KEY
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
QUESTIONS = [
    {"question": "The capital of France is", "choices": ["Paris", "the city of Oslo", "Rome"], "answer": 0},
    {"question": "Water boils at a temperature of", "choices": ["100 degrees", "ten metres", "Tuesday"], "answer": 0},
    {"question": "1, 2, 3, 4,", "choices": ["5, 6, 7", "9", "apples and pears"], "answer": 0},
]
TASK = """task: mini_{kind}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
{rest}
"""


def write_tasks() -> None:
    data = Path("questions.jsonl").absolute()
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    choices = 'doc_to_choice: "{{choices}}"\ndoc_to_target: "{{answer}}"\nmetric_list: [{metric: acc}]'
    until = 'doc_to_target: "{{choices[0]}}"\ngeneration_kwargs: {until: ["\\n"], max_gen_toks: 8, do_sample: false}\n'
    until += "metric_list: [{metric: exact_match}]"
    for kind, rest in (("multiple_choice", choices), ("generate_until", until)):
        Path(f"{kind}.yaml").write_text(TASK.format(kind=kind, data=data, rest=rest))


def check_both_kinds_of_task() -> None:
    write_tasks()
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": MODEL, "base_url": f"{BASE}/completions", "tokenizer_backend": "remote", "num_concurrent": 1,
            "tokenized_requests": True, "max_length": 2048, "auth_token": KEY,
        },
        tasks=["mini_multiple_choice", "mini_generate_until"],
        task_manager=TaskManager(include_path=str(Path.cwd())),
        batch_size=4,
        bootstrap_iters=0,
        log_samples=True,
    )  # fmt: skip
    assert found["results"]["mini_multiple_choice"]["acc,none"] == 1.0
    scores = [
        {
            "context": sample["arguments"][i][0],
            "continuation": sample["arguments"][i][1],
            "logprob": sample["filtered_resps"][i][0],
            "is_greedy": sample["filtered_resps"][i][1],
        }
        for sample in found["samples"]["mini_multiple_choice"]
        for i in range(len(sample["arguments"]))
    ]
    texts = [(sample["arguments"][0][0], sample["resps"][0][0]) for sample in found["samples"]["mini_generate_until"]]
    assert len(scores) == 9 and len(texts) == 3 and all(text for _, text in texts)
    Path("scores.json").write_text(json.dumps({"scores": scores, "texts": texts}))


run(globals())
