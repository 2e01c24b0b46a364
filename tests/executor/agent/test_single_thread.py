"""An agent begins with one thread: with more, the kernel gives it no mount namespace, and it could not restart."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_agent_starts_no_thread() -> None:
    code = "import os, tidegate_executor.main; print(len(os.listdir('/proc/self/task')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1\n"
