"""Run a job file on this machine without Tidegate: the same processes, seeds and arguments, no sandbox, no quotas.

python laptop.py job.json [argument for the learner ...]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tidegate import seeds

HERE = Path(__file__).resolve().parent
STOP_SECONDS = 10.0


def main(arguments: list[str]) -> int:
    """Start every replica of every component; return the exit code of the last component, the learner."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    spec = json.loads(Path(arguments[0]).read_text())
    with tempfile.TemporaryDirectory(prefix="cartpole-") as runtime:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for component in spec["components"]:
                extra = arguments[1:] if component is spec["components"][-1] else []
                for replica in range(component["replicas"]):
                    processes.append(_start(spec, component, replica, extra, runtime))
            return processes[-1].wait()
        finally:
            for process in processes:
                process.terminate()  # the simulators end by themselves; this is for a failed start and Ctrl-C
            for process in processes:
                process.wait(STOP_SECONDS)


def _start(
    spec: dict[str, Any], component: dict[str, Any], replica: int, extra: list[str], runtime: str
) -> subprocess.Popen[bytes]:
    environment = {
        "TIDEGATE_LOCAL_DIR": str(Path("tidegate-local") / spec["name"]),
        **os.environ,
        "CARTPOLE_RUNTIME_DIR": runtime,
        "OMP_NUM_THREADS": "1",
        "TIDEGATE_COMPONENT": component["name"],
        "TIDEGATE_REPLICA": str(replica),
        "TIDEGATE_REPLICAS": str(component["replicas"]),
        "TIDEGATE_JOB_SEED": str(spec["seed"]),
        "TIDEGATE_SEED": str(seeds.derive(spec["seed"], component["name"], 0, replica)),
    }
    program, *rest = component["command"]
    command = [sys.executable if program == "python" else program, str(HERE / rest[0]), *rest[1:], *extra]
    return subprocess.Popen(command, env=environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
