"""Engines that misbehave when asked to, loadable in a process of their own by name.

What the prompt's first byte orders happens in the step that reads it.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from engine.parts import ScriptedExecutor, counting, make_engine

from mini_vllm.config import EngineConfig
from mini_vllm.engine.assembly import Engine, Recipe
from mini_vllm.engine.frontend import Frontend, ModelLimits
from mini_vllm.errors import ModelNotFoundError
from mini_vllm.grammar import GrammarCompiler
from mini_vllm.testing import ByteTokenizer
from mini_vllm.types import StepPlan, StepResult

RECIPE = Recipe(engine="engine.apart:load", frontend="engine.apart:open_frontend")
LONG_STEP = 3.0  # seconds, in which operations go on


class Wayward(ScriptedExecutor):
    """Obeys R (raise), K (be killed), D (raise, and fail to start afresh), H (hang), S (stop), L (a long step)."""

    def __init__(self) -> None:
        super().__init__(counting)
        self.num_operations = 0
        self.is_broken = False

    def progress(self) -> int:
        """Operations so far."""
        return self.num_operations

    def run(self, plan: StepPlan) -> StepResult:
        time.sleep(0.002)
        for admission in plan.admitted:
            self._obey(chr(admission.prompt_token_ids[0]))
        return super().run(plan)

    def _obey(self, order: str) -> None:
        match order:
            case "R" | "D":
                self.is_broken = order == "D"
                raise RuntimeError("a cosmic ray")
            case "K":
                os.kill(os.getpid(), signal.SIGKILL)
            case "S":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "H":
                threading.Event().wait()
            case "L":
                for _ in range(30):
                    time.sleep(LONG_STEP / 30)
                    self.num_operations += 1

    def reset(self) -> None:
        if self.is_broken:
            raise RuntimeError("no memory")
        super().reset()


def load(config: EngineConfig) -> Engine:
    """An engine whose model name says how loading goes."""
    match config.model.model:
        case "absent":
            raise ModelNotFoundError("the model 'absent' is nowhere; try another", param="model")
        case "broken":
            raise RuntimeError("no such instruction")
        case "crash":
            os._exit(3)
        case "slow":
            time.sleep(30)
        case path if path.endswith("second-is-slow"):
            starts = Path(path).read_text() + "."
            Path(path).write_text(starts)
            time.sleep(30 if len(starts) == 2 else 0)
    engine = make_engine(
        executor=Wayward(),
        num_blocks=config.cache.num_blocks or 256,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_waiting=config.scheduler.max_waiting,
    )
    engine.frontend = _frontend(engine.frontend.limits)
    return engine


def open_frontend(config: EngineConfig) -> Callable[[ModelLimits], Frontend]:
    """Its front end."""
    return _frontend


def _frontend(limits: ModelLimits) -> Frontend:
    tokenizer = ByteTokenizer()
    grammars = GrammarCompiler(tokenizer, eos_token_ids=limits.eos_token_ids)
    return Frontend(tokenizer, limits, clock=time.monotonic, fresh_seed=lambda: 7, grammars=grammars)


def has_gone(pid: int) -> bool:
    """Whether no process has this id; one that nobody has waited for counts as gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
