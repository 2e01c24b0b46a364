"""The component `learner`: trains CartPole-v1 to a target return, phase by phase, under Tidegate or on a laptop.

This file is the part to read first: it holds all that a training job has to do with Tidegate.
"""

import argparse
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import tidegate
import torch
from ppo import Settings
from simulators import SimulatorError, Simulators
from training import Training
from wire import WireError

EVALUATION_EPISODES = 100
EXIT_OK = 0
EXIT_TARGET_MISSED = 1
EXIT_SIMULATORS_FAILED = 3


def main() -> int:
    """Train, and return the exit code of the process."""
    options = _options()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # whatever the quota is right now
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms(), but without loading torch's compiler
    job = tidegate.init()
    job.seeds.apply()  # Python, numpy and torch, all from the job's one seed
    try:
        with Simulators(options.simulators, options.connect_seconds) as simulators:
            return run(job, Training(simulators, Settings()), options)
    except tidegate.PhaseRefusedError:
        # Asked to leave while it waited for a phase: what it has sampled since its newest checkpoint is sampled again.
        job.exit_suspended()
    except (SimulatorError, WireError) as error:
        print(f"learner: {error}", file=sys.stderr)
        return EXIT_SIMULATORS_FAILED


def run(job: tidegate.Job, training: Training, options: argparse.Namespace) -> int:
    """Alternate sampling and learning until the target is reached, a stop is asked for, or the budget is used up."""
    if checkpoint := job.latest_checkpoint():
        training.restore(checkpoint.load("model", "optimizer", "experience", "state"))
    else:
        training.begin([options.environments] * options.simulators)
    # The goal is looked at before each update and not after it, so that a run resumed from a checkpoint that
    # was saved just before the end takes the same decision again.
    while (mean_return := _goal_reached(job, training, options)) is None:
        if training.updates >= options.max_updates:
            print(f"learner: target {options.target} missed in {training.updates} updates", file=sys.stderr)
            return EXIT_TARGET_MISSED
        began = time.monotonic()
        with job.phase("sampling"):
            rollout = training.sample(options.steps)
        sampled = time.monotonic()
        with job.phase("learning"):
            loss = training.learn(rollout)
        metrics = {
            "loss": loss,
            "recent_return": training.recent_return(),
            "steps_per_second": rollout.rewards.size / (sampled - began),
        }
        job.report(metrics, step=training.updates, progress=_progress(training, options))

        stop = job.should_stop()
        if stop or training.updates % options.checkpoint_every == 0:
            job.save(**training.layers(), step=training.updates, wait=bool(stop))
        if stop:
            job.exit_suspended()
    job.finish(result=_result(training, mean_return, options))
    return EXIT_OK


def _goal_reached(job: tidegate.Job, training: Training, options: argparse.Namespace) -> float | None:
    """Return the evaluated mean return where the run may end, else None."""
    if _progress(training, options) < 1.0:
        return None
    with job.phase("sampling"):
        mean_return = training.evaluate(_shares(EVALUATION_EPISODES, options.simulators))
    job.publish("EvaluationFinished", mean_return=mean_return, episodes=EVALUATION_EPISODES, step=training.updates)
    return mean_return if options.quick or mean_return >= options.target else None


def _progress(training: Training, options: argparse.Namespace) -> float:
    if options.quick:
        return float(training.updates / options.max_updates)
    return min(1.0, training.recent_return() / float(options.target))


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (index < total % parts) for index in range(parts)]


def _result(training: Training, mean_return: float, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "mean_return": mean_return,
        "episodes": EVALUATION_EPISODES,
        "weights_digest": training.weights_digest(),
        "steps": training.environment_steps,
        "updates": training.updates,
        "quick": options.quick,
        "cpu_model": _cpu_model(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def _cpu_model() -> str:
    """Bits are only promised to repeat on the same CPU model and instruction set, so both are recorded."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=float, default=195.0, help="mean return that ends the run")
    parser.add_argument("--max-updates", type=int, default=40, help="budget; exit code 1 if it is used up")
    parser.add_argument("--steps", type=int, default=512, help="steps per environment in one sampling phase")
    parser.add_argument("--simulators", type=int, default=4, help="as many as the job has simulator replicas")
    parser.add_argument("--environments", type=int, default=8, help="environments in each simulator")
    parser.add_argument("--checkpoint-every", type=int, default=5, help="updates between two checkpoints")
    parser.add_argument("--connect-seconds", type=float, default=60.0, help="how long to wait for simulators")
    parser.add_argument("--quick", action="store_true", help="end after --max-updates, whatever the return is")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
