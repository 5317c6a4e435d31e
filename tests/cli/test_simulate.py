"""`mini-vllm simulate`, on a tiny model and without one."""

import json
from pathlib import Path

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "traffic.json")


def outputs(folder: Path) -> set[str]:
    return {path.name.split("traffic")[-1] for path in folder.iterdir()}


def test_the_example_runs_as_written(run, model, tmp_path) -> None:
    ran = run("simulate", EXAMPLE, "--model", model, "--out-dir", tmp_path / "o")
    assert ran.code == 0, ran.err
    for word in ("request", "tick", "makespan", "throughput", "average batch", "pool peak", "prefix hits"):
        assert word in ran.out
    assert "8 of 8 finished" in ran.out
    assert outputs(tmp_path / "o") == {".json", "-ticks.jsonl", "-trace.jsonl", "-perfetto.trace"}


def test_cache_and_policy_flags(run, model, tmp_path) -> None:
    flags = ["--cache-backend", "paged", "--block-size", 16, "--pool-blocks", 48, "--prefill-chunk-size", 32]
    ran = run("simulate", EXAMPLE, "--model", model, *flags, "--out-dir", tmp_path, "--ticks", 5)
    assert ran.code == 0 and "/48" in ran.out and "prefill_chunk_size  32" in ran.out
    for flags in (["--no-kv-cache"], ["--cache-backend", "contiguous"], ["--no-prefix-caching", "--max-batch-size", 2]):
        ran = run("simulate", EXAMPLE, "--model", model, *flags, "--out-dir", tmp_path, "--ticks", 0)
        assert ran.code == 0 and "8 of 8 finished" in ran.out, flags


def test_every_cache_mode_writes_the_same_texts(run, model, tmp_path) -> None:
    found = []
    for number, flags in enumerate(([], ["--no-kv-cache"], ["--scheduling-policy", "static", "--pool-blocks", 20])):
        folder = tmp_path / str(number)
        assert run("simulate", EXAMPLE, "--model", model, *flags, "--out-dir", folder).code == 0
        (path,) = folder.glob("*traffic.json")
        requests = json.loads(path.read_text())["requests"]
        found.append([(r["name"], r["text"], r["num_output"]) for r in requests if r["name"] != "r5"])  # r5 draws
    assert found[0] == found[1] == found[2] and any(text for _, text, _ in found[0])


def test_a_trace_explains_a_request(run, tmp_path) -> None:
    spec = "poisson:rate=50,requests=30,prompt=300,output=20"
    ran = run("simulate", spec, "--virtual", "--cost-model", "L4:8B:w8", "--out-dir", tmp_path)
    assert ran.code == 0 and "roofline of L4, 8B at 8 bits" in ran.out
    (trace,) = tmp_path.glob("*-trace.jsonl")
    told = run("explain", "r20", "--trace", trace)
    assert told.code == 0 and "r20#21: 300 prompt tokens" in told.out and "It waited" in told.out


def test_texts_are_tokenised_for_a_virtual_run(run, model, tmp_path) -> None:
    ran = run("simulate", EXAMPLE, "--virtual", "--model", model, "--json", "--out-dir", tmp_path)
    figures = json.loads(ran.out)["summary"]
    assert ran.code == 0 and figures["output_tokens"] == 296 and figures["prefix_hit_tokens"] > 0


def test_replicas_failures_and_comparisons(run, tmp_path) -> None:
    common = ["--virtual", "--cost-model", "H100:8B", "--out-dir", tmp_path]
    spec = "shared_prefix:rate=40,requests=60,output=20"
    ran = run("simulate", spec, *common, "--replicas", 3, "--router", "prefix_aware", "--fail", "0@0.3+1", "--json")
    assert ran.code == 0 and json.loads(ran.out)["summary"]["retries"] > 0
    ran = run("simulate", spec, *common, "--compare", "policies", "--compare", "cache=paged,no-prefix")
    assert ran.code == 0 and ran.out.count("paged") == 6 * 4 and "SLO met" in ran.out


def test_what_does_not_go_together_is_refused(run, tmp_path) -> None:
    for flags, message in (
        (["--replicas", 2], "replicas is 2, which needs --virtual"),
        (["--cost-model", "H100:8B"], "cost_model needs --virtual"),
        (["--charts", "x.svg"], "charts shows a comparison"),
        (["--virtual", "--router", "random"], "router is 'random'; choose one of"),
        (["--virtual", "--cost-model", "X:Y"], "cost model 'X:Y' is unknown"),
        (["--virtual", "--slo-ttft-ms", 0], "slo_ttft_ms is 0"),
        (["--virtual", "--ticks", -1], "ticks is -1; it must be 0 or more"),
        (["--virtual", "--speculative", "ngram"], "speculative ngram guesses words, of which a virtual run has none"),
    ):
        ran = run("simulate", "poisson:requests=2", *flags, "--out-dir", tmp_path)
        assert ran.code == 2 and message in ran.err, ran.err
    assert run("simulate", tmp_path / "none.json").code == 2


def test_a_failed_request_makes_the_exit_code_2(run, model, tmp_path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"prompt": "fine", "max_new_tokens": 3}, {"prompt": "x" * 4000, "max_new_tokens": 3}]))
    ran = run("simulate", path, "--model", model, "--out-dir", tmp_path / "o")
    assert ran.code == 2 and "r1 failed: " in ran.err and "1 of 2 finished, 1 failed" in ran.out


def test_a_comparison_says_which_variants_fail(run, tmp_path) -> None:
    common = ["--virtual", "--cost-model", "H100:8B", "--out-dir", tmp_path]
    ran = run("simulate", "poisson:requests=3,prompt=50,output=5", *common, "--compare", "num_blocks=1,100")
    assert ran.code == 2 and "num_blocks 1: " in ran.err
    assert "3 of 3 requests failed: the prompt has 50 tokens" in ran.err and ran.err.count("failed") == 1
