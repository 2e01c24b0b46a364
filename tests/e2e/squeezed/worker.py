"""Steps that cost CPU time, in a phase with much of it, one with little, and one with much again, until it is ended."""

import time

import tidegate

STEP_CPU_SECONDS = 0.004
FAST_SECONDS = 4.0
SLOW_SECONDS = 17.0
LAST_SECONDS_MAX = 200.0

job = tidegate.init()


def steps(step: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        spent = time.process_time() + STEP_CPU_SECONDS
        while time.process_time() < spent:
            pass
        step += 1
        job.report({}, step=step)
        if job.should_stop():
            job.exit_suspended()
    return step


with job.phase("sampling"):
    done = steps(0, FAST_SECONDS)
with job.phase("learning"):
    done = steps(done, SLOW_SECONDS)
with job.phase("sampling"):
    steps(done, LAST_SECONDS_MAX)
