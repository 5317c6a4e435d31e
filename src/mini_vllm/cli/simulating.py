"""What `mini-vllm simulate` does, step by step. Must not know Typer."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mini_vllm.cli.options import Options
from mini_vllm.cli.render import note, progress, table, write, write_json
from mini_vllm.cli.session import fetch
from mini_vllm.config import EngineConfig
from mini_vllm.errors import ConfigError
from mini_vllm.scheduling import Trace
from mini_vllm.simulation import charts, cluster, compare, costs, failures, files, realtime, report, traffic
from mini_vllm.simulation.arrivals import Arrival
from mini_vllm.simulation.records import Run, Slo, summarise

TRACED_REQUESTS = 2000  # a virtual run of more keeps no trace
UNLIMITED = 10**9  # requests that may wait in a virtual run, unless it is told otherwise


class Simulation:
    """One invocation."""

    def __init__(self, source: str, options: Options, *, as_json: bool) -> None:
        self._source = source
        self._options = options
        self._as_json = as_json
        self._config = options.simulation_config()
        options.engine_config()  # a bad value is found before anything is loaded
        config = self._config
        self._slo = Slo(ttft=config.slo_ttft_ms / 1e3, itl=config.slo_itl_ms / 1e3)
        self._variants = compare.variants(config.compare) if config.compare else []
        if config.charts is not None:
            charts.check(Path(config.charts))
        self._arrivals = traffic.load(source)
        if config.virtual:
            self._check_virtual()
            self._costs = costs.load_costs(config.cost_model)
            self._arrivals = self._tokenized()

    def _check_virtual(self) -> None:
        guesser = self._options.engine_config().speculative.speculative
        if guesser != "off":
            raise ConfigError(
                f"speculative {guesser} guesses words, of which a virtual run has none; leave out --virtual or that",
                param="speculative",
            )

    def run(self) -> int:
        """Run and show everything; the exit code."""
        return self._compare() if self._variants else self._single()

    def _single(self) -> int:
        run, trace = self._replay({}, {})
        figures = summarise(run, self._slo)
        paths = files.write_all(
            Path(self._config.out_dir), files.stem(self._source, datetime.now()), run, figures, trace
        )
        if self._as_json:
            write_json({"about": run.about, "summary": figures, "files": {name: str(p) for name, p in paths.items()}})
        else:
            self._show(run, figures, trace)
            note("".join(f"{name}: {path}\n" for name, path in paths.items()).rstrip())
        for request in run.requests:
            if request.error is not None:
                note(f"{request.name} failed: {request.error}")
        return 2 if figures["failed"] else 0

    def _show(self, run: Run, figures: Mapping[str, Any], trace: Trace | None) -> None:
        write("\n".join(report.timeline(run.requests)) + "\n\n")
        if trace is not None and self._config.ticks:
            lines = report.ticks(trace.steps(), trace.requests(), most=self._config.ticks)
            write("\n".join(lines) + "\n\n")
        shown = {name: str(value) for name, value in run.about.items()} | report.summary(figures)
        table(shown)

    def _compare(self) -> int:
        results = []
        for variant in self._variants:
            began = time.perf_counter()
            run, _ = self._replay(dict(variant.engine), dict(variant.cluster))
            results.append((variant.name, summarise(run, self._slo)))
            note(f"{variant.name}: {time.perf_counter() - began:.1f} s{_failed(run)}")
        if self._as_json:
            write_json([{"variant": name, "summary": figures} for name, figures in results])
        else:
            slo = f"SLO: TTFT {report.seconds(self._slo.ttft)}, ITL {report.seconds(self._slo.itl)}"
            write(f"{len(self._arrivals)} requests of {self._source}; {slo}\n\n")
            write("\n".join([*compare.table(results), *compare.bars(results)]) + "\n")
        if self._config.charts is not None:
            charts.draw(results, Path(self._config.charts), title=f"{self._source}")
            note(f"charts: {self._config.charts}")
        return 2 if any(figures["failed"] for _, figures in results) else 0

    def _replay(self, engine: Mapping[str, Any], group: Mapping[str, Any]) -> tuple[Run, Trace | None]:
        """Once, with these settings over the user's."""
        if self._config.virtual:
            return self._virtually(engine, group)
        return self._really(self._options.engine_config(**engine))

    def _virtually(self, engine: Mapping[str, Any], group: Mapping[str, Any]) -> tuple[Run, Trace | None]:
        waiting = {} if "max_waiting" in self._options.engine else {"max_waiting": UNLIMITED}
        config = self._options.engine_config(**waiting, **engine)
        num_replicas = group.get("replicas", self._config.replicas)
        setup = cluster.Setup(
            config=config,
            costs=self._costs,
            num_blocks=config.cache.num_blocks or costs.num_blocks(self._costs, config.cache.block_size),
            max_model_len=config.model.max_model_len or costs.max_model_len(self._costs),
            num_replicas=num_replicas,
            router=group.get("router", self._config.router),
            failures=failures.parse(self._config.fail or (), num_replicas=num_replicas),
            traced=not self._variants and num_replicas == 1 and len(self._arrivals) <= TRACED_REQUESTS,
        )
        began = time.perf_counter()
        run, trace = cluster.simulate(setup, self._arrivals)
        run.seconds = time.perf_counter() - began
        run.about = {"traffic": self._source, "cost model": costs.describe(self._costs), **cluster.about(setup)}
        run.about["simulated in"] = f"{run.seconds:.2f} s"
        return run, trace

    def _really(self, config: EngineConfig) -> tuple[Run, Trace | None]:
        from mini_vllm.engine.assembly import load_engine

        fetch(config)
        engine = load_engine(config)
        try:
            with progress("simulating") as bar:
                run = realtime.Replay(engine, on_step=bar.update).run(self._arrivals)
            scheduler = config.scheduler
            run.about = {
                "traffic": self._source,
                "model": config.model.model,
                "policy": scheduler.scheduling_policy,
                "max_num_seqs": scheduler.max_num_seqs,
                "prefill_chunk_size": scheduler.prefill_chunk_size,
                "itl_target_ms": scheduler.itl_target_ms,
                "block_size": config.cache.block_size,
                "cache": config.cache.cache_backend if config.cache.kv_cache else "off",
            }
            return run, engine.trace
        finally:
            engine.close()

    def _tokenized(self) -> list[Arrival]:
        """Texts as the model's token ids; traffic without text needs no tokenizer."""
        if all(arrival.text is None and arrival.messages is None for arrival in self._arrivals):
            return self._arrivals
        from mini_vllm import weights
        from mini_vllm.engine.assembly import load_text

        config = self._options.engine_config()
        fetch(config)
        checkpoint: Any = weights.open_checkpoint(weights.resolve(config.model.model, revision=config.model.revision))
        try:
            tokenizer, template = load_text(config, checkpoint)
        finally:
            checkpoint.close()

        def tokenize(arrival: Arrival) -> Sequence[int]:
            if arrival.messages is None:
                return tokenizer.encode(arrival.text or "") or [0]
            text = template.render(list(arrival.messages), add_generation_prompt=True)
            return tokenizer.encode(text, add_special_tokens=False)

        return realtime.as_segments(self._arrivals, tokenize)


def _failed(run: Run) -> str:
    """How many requests failed, and why the first did."""
    errors = [request.error for request in run.requests if request.error is not None]
    return f"; {len(errors)} of {len(run.requests)} requests failed: {errors[0]}" if errors else ""
