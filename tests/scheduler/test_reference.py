"""The pages about reasons and parameters say what the code does: no code or parameter without its line."""

from __future__ import annotations

import re
from pathlib import Path

import tidegate_scheduler
from tidegate_scheduler.policy.codes import NODES, RUNNING, WAITING, render
from tidegate_scheduler.policy.parameters import Parameters

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
PACKAGE = Path(tidegate_scheduler.__file__).parent
UNITS = {"seconds": "seconds", "permille": "thousandths"}


def _said_in_the_code() -> set[str]:
    """Return every code that a reason or a verdict is given in the scheduler's sources; simulated nodes say others."""
    patterns = (
        r'\bcode="(\w+)"',
        r'code="\w+" if [^\n]*? else "(\w+)"',
        r'Verdict\(node\.name, "(\w+)"',
        r'_overdue\([^)]*"(\w+)"\)',
        r'code = "(\w+)" if',
        r'code = "\w+" if [^\n]*? else "(\w+)"',
        r'_clear\([^)]*"(\w+)"',
        r'_SHORT = \{True: "(\w+)"',
        r'_SHORT = \{True: "\w+", False: "(\w+)"',
        r'^    "(\w+)": "(?:drained|cordoned|away|still)',
        r'^FITS = "(\w+)"',
        r'^(?:DEFRAGMENTATION|MORE_WORK_LEFT) = "(\w+)"',
    )
    found: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name != "codes.py" and not path.is_relative_to(PACKAGE / "simulator"):
            for pattern in patterns:
                found |= set(re.findall(pattern, path.read_text(), flags=re.MULTILINE))
    return found


def test_every_code_that_is_said_has_its_line_and_no_other() -> None:
    assert _said_in_the_code() == WAITING.keys() | NODES.keys() | RUNNING.keys()
    assert not WAITING.keys() & NODES.keys()
    assert not RUNNING.keys() & (WAITING.keys() | NODES.keys())
    assert all(remedy for _, remedy in WAITING.values()), "who waits is told what to do"


def test_the_page_of_reason_codes_is_rendered_from_them() -> None:
    page = REFERENCE / "reason-codes.md"
    assert page.read_text() == render(), f"run: python -m tidegate_scheduler.policy.codes > {page}"


def test_the_page_of_parameters_names_each_with_its_default_and_unit() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\d+) \| ([^|]+) \|", (REFERENCE / "policy-parameters.md").read_text(), re.MULTILINE
    )
    assert [(name, int(default)) for name, default, _ in rows] == [
        (field, getattr(Parameters(), field)) for field in Parameters.__struct_fields__
    ]
    for name, _, unit in rows:
        for suffix, word in UNITS.items():
            assert not re.search(rf"_{suffix}(_max)?$", name) or unit.startswith(word), name
