"""Where the gateway is: argument, environment, local stack, in this order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidegate.client import NoGatewayError
from tidegate.client.endpoint import gateway_url, stack_home


def _stack(home: Path, content: str) -> dict[str, str]:
    (home / "stack.json").write_text(content)
    return {"TIDEGATE_HOME": str(home)}


def test_the_argument_wins_over_the_environment_and_that_over_the_stack(tmp_path: Path) -> None:
    environ = _stack(tmp_path, json.dumps({"gateway_url": "http://127.0.0.1:3"}))
    assert gateway_url(None, environ) == "http://127.0.0.1:3"
    environ["TIDEGATE_URL"] = "http://127.0.0.1:2/"
    assert gateway_url(None, environ) == "http://127.0.0.1:2"
    assert gateway_url("https://tidegate.example/cell-1/", environ) == "https://tidegate.example/cell-1"


def test_without_any_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoGatewayError, match="tidegate up"):
        gateway_url(None, {"TIDEGATE_HOME": str(tmp_path)})


@pytest.mark.parametrize("content", ["", "[]", "{}", "{", '{"gateway_url": 5}', '{"gateway_url": null}'])
def test_a_broken_stack_file_is_said_to_be_one(tmp_path: Path, content: str) -> None:
    with pytest.raises(NoGatewayError, match=r"stack\.json"):
        gateway_url(None, _stack(tmp_path, content))


@pytest.mark.parametrize(
    "url", ["127.0.0.1:80", "ftp://host", "http://", "http://host:port", "http://host:0", "//host"]
)
def test_what_is_no_url_of_a_gateway_is_refused(url: str) -> None:
    with pytest.raises(NoGatewayError, match="http://HOST:PORT"):
        gateway_url(url, {})


def test_the_home_of_the_stack_is_below_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert stack_home({}) == Path("/home/ada/.local/share/tidegate/local")
