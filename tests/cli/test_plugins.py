"""Commands from entry points: listed without being imported, loaded when called, named with a remedy when missing."""

from __future__ import annotations

import sys
import types
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import typer
from tidegate.cli import plugins
from tidegate.cli.exits import CommandError

from tests.cli.conftest import Cli


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Entry points of a test; a module that is imported before it is needed is noticed."""
    module = types.ModuleType("tidegate_test_plugin")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points: dict[str, EntryPoint] = {}
    monkeypatch.setattr(plugins, "found", lambda: points)

    def install(name: str, loads: Any, attribute: str = "command") -> None:
        if loads is not None:
            setattr(module, attribute, loads)
        points[name] = EntryPoint(name, f"{module.__name__}:{attribute}", plugins.GROUP)

    return {"install": install}


def test_the_commands_of_the_server_are_listed_and_say_how_to_get_them(installed: dict[str, Any], offline: Cli) -> None:
    listed = offline("--help").out
    for name in plugins.SERVER_COMMANDS:
        assert name in listed
    for arguments in (("up",), ("up", "--workers", "3"), ("history", "verify")):
        ran = offline(*arguments)
        assert (ran.code, ran.out) == (3, "")
        assert "pip install tidegate-server" in ran.err


def test_a_function_is_a_command_with_its_own_options(installed: dict[str, Any], offline: Cli) -> None:
    def greet(name: str, loud: bool = False) -> None:
        """Greet somebody."""
        print(name.upper() if loud else name)

    installed["install"]("up", greet)
    assert offline("up", "ada", "--loud").out == "ADA\n"
    assert "Greet somebody" in offline("up", "--help").out
    assert offline("up").code == 2


def test_an_app_is_a_command_with_sub_commands_even_if_it_has_only_one(installed: dict[str, Any], offline: Cli) -> None:
    app = typer.Typer()
    app.command("verify")(lambda: print("verified"))
    installed["install"]("history", app)
    assert offline("history", "verify").out == "verified\n"
    assert offline("history").code == 2


def test_help_imports_no_plugin(installed: dict[str, Any], offline: Cli) -> None:
    installed["install"]("extra", None, attribute="would-fail")
    ran = offline("--help")
    assert ran.code == 0
    assert "extra" in ran.out


def test_a_plugin_that_cannot_be_loaded_says_so(installed: dict[str, Any], offline: Cli) -> None:
    installed["install"]("extra", None, attribute="missing")
    ran = offline("extra")
    assert (ran.code, ran.out) == (3, "")
    assert "cannot be loaded" in ran.err


def test_a_plugin_of_another_kind_is_refused(installed: dict[str, Any], offline: Cli) -> None:
    installed["install"]("extra", 5)
    ran = offline("extra")
    assert ran.code == 3
    assert "typer.Typer and a function" in ran.err


def test_a_plugin_ends_with_its_own_exit_code_and_remedy(installed: dict[str, Any], offline: Cli) -> None:
    def fail() -> None:
        raise CommandError("It did not verify.", "Look at pass 7.", exit_code=1)

    def leave() -> None:
        raise typer.Exit(7)

    installed["install"]("history", fail)
    ran = offline("history")
    assert (ran.code, ran.err) == (1, "tidegate: It did not verify.\n  Look at pass 7.\n")
    installed["install"]("down", leave, attribute="other")
    assert offline("down").code == 7
