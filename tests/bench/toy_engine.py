"""An engine for the harness that misbehaves on demand: toy_engine.py SETTINGS, with "fault" among the settings."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "peers"))

import harness


class Toy:
    def __init__(self, settings):
        print("libraries print whatever they like")
        self.version, self.fault = "7", settings.get("fault")
        if self.fault == "load":
            raise ImportError("no such\nlibrary")

    def generate(self, prompts, new_tokens, temperature, top_p):
        if self.fault == "exit":
            sys.exit(3)
        if self.fault == "slow":
            time.sleep(60)
        time.sleep(0.001 * new_tokens)
        return [new_tokens - (self.fault == "short")] * len(prompts)


class Meter(Toy):
    def measure(self, work):
        return 1000.0 * work["batch"]


harness.serve(Meter if harness.settings().get("measures") else Toy)
