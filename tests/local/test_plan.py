"""The stack's plan: ports that no other stack takes, however close together two of them start."""

from __future__ import annotations

import subprocess
import sys

from tidegate_local import plan

ASK = "import sys; from tidegate_local import plan; print(plan.free_port(int(sys.argv[1])))"


def test_a_port_belongs_to_the_first_who_asks_before_anybody_listens() -> None:
    first = plan.free_port()
    other = subprocess.run([sys.executable, "-c", ASK, str(first)], capture_output=True, text=True, check=True)
    assert int(other.stdout) != first


def test_a_claim_ends_with_its_process() -> None:
    ended = subprocess.run([sys.executable, "-c", ASK, "0"], capture_output=True, text=True, check=True)
    assert plan.free_port(int(ended.stdout)) == int(ended.stdout)


def test_the_ports_of_a_stack_are_all_different() -> None:
    ports = plan.free_ports(bus_servers=3).by_name()
    assert len(set(ports.values())) == len(ports) == 9
