"""The rules of the house that a machine can check: imports, names, docstrings, sizes, pins."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path
    for top in ("libs", "services", "infra", "examples")
    for path in (ROOT / top).rglob("*.py")
    if "build" not in path.relative_to(ROOT).parts
)
MODULES = [path for path in SOURCES if path.name != "__init__.py"]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PROJECTS = [ROOT / "pyproject.toml", ROOT / "libs" / "sdk" / "pyproject.toml"]

FORBIDDEN_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}
MAIN_LINES_MAX = 60
FILE_LINES_MAX = 420
FUNCTION_LINES_MAX = 70
DOCSTRING_CHARS_MIN = 16
LINT_SECONDS_MAX = 120

# PEP 508 with one exact version: "name[extra]==1.2.3", a marker may follow.
PIN = re.compile(r"[A-Za-z0-9._-]+(\[[a-z0-9,]+\])?==[0-9][0-9A-Za-z.+!]*( *;.*)?\Z")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 50
    assert len({path.relative_to(ROOT).parts[:2] for path in SOURCES}) >= 7


def test_imports_keep_to_the_layers() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LINT_SECONDS_MAX, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 broken" in result.stdout


def test_every_module_says_what_it_is_for() -> None:
    silent = []
    for path in (*SOURCES, *TESTS):
        tree = ast.parse(path.read_text())
        empty_package = path.name == "__init__.py" and not tree.body
        if not empty_package and len(ast.get_docstring(tree) or "") < DOCSTRING_CHARS_MIN:
            silent.append(name_of(path))
    assert silent == []


def test_no_module_is_named_after_nothing() -> None:
    # A thing lives where its owner is, and is called what it is.
    nameless = [name_of(path) for path in SOURCES if set(path.stem.lower().split("_")) & FORBIDDEN_NAMES]
    nameless += [name_of(path) for path in SOURCES if set(path.parent.name.lower().split("_")) & FORBIDDEN_NAMES]
    assert nameless == []


def test_a_services_main_only_puts_it_together() -> None:
    mains = sorted((ROOT / "services").glob("*/*/main.py"))
    assert mains
    assert [name_of(path) for path in mains if len(path.read_text().splitlines()) >= MAIN_LINES_MAX] == []


def test_every_service_has_its_main_and_its_settings() -> None:
    for service in ("checkpoint", "executor", "gateway", "metrics", "scheduler"):
        package = ROOT / "services" / service / f"tidegate_{service}"
        for module in ("main.py", "settings.py"):
            assert (package / module).is_file(), f"{service} has no {module}"


def test_files_and_functions_stay_readable() -> None:
    long = []
    for path in MODULES:
        text = path.read_text()
        if (lines := len(text.splitlines())) > FILE_LINES_MAX:
            long.append(f"{name_of(path)}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{name_of(path)}: {node.name} has {lines} lines")
    assert long == []


def test_tasks_belong_to_a_group() -> None:
    # asyncio.create_task leaves a task that nobody waits for: what it raises is lost.
    bare = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.create_task":
                bare.append(f"{name_of(path)}:{node.lineno}")
    assert bare == []


@pytest.mark.parametrize("path", PROJECTS, ids=name_of)
def test_every_requirement_is_pinned_exactly(path: Path) -> None:
    document = tomllib.loads(path.read_text())
    project = document["project"]
    wanted = [*document["build-system"]["requires"], *project.get("dependencies", [])]
    for extra in project.get("optional-dependencies", {}).values():
        wanted += extra
    assert wanted
    assert [requirement for requirement in wanted if not PIN.match(requirement)] == []


def test_the_sdk_needs_nothing_inside_a_job() -> None:
    document = tomllib.loads((ROOT / "libs" / "sdk" / "pyproject.toml").read_text())
    assert document["project"]["dependencies"] == []


def test_nothing_is_left_for_later() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X:", "NotImplemented" + "Error")
    assert [name_of(path) for path in (*SOURCES, *TESTS) if any(mark in path.read_text() for mark in marks)] == []
