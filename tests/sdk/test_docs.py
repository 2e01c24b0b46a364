"""The reference says what there is: every call, error, message and variable has its place in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import tidegate
from tidegate import errors, protocol
from tidegate.job import Job
from tidegate.member import Member
from tidegate.phasing import Phasing
from tidegate_executor.channel import messages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "reference"
CHANNEL = ROOT / "services" / "executor" / "tidegate_executor" / "channel"


def words(page: str) -> set[str]:
    """Return what stands between backquotes, word by word."""
    quoted = re.findall(r"`([^`\n]+)`", (DOCS / page).read_text())
    return {word for text in quoted for word in re.findall(r"[A-Za-z_]+", text)}


def test_the_page_of_the_sdk_names_every_call_and_property() -> None:
    public = {name for kind in (Member, Phasing, Job) for name in vars(kind) if not name.startswith("_")}
    assert public - words("sdk.md") == {"acknowledge_suspension"}


def test_the_page_of_the_sdk_names_every_error() -> None:
    raised = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert raised - words("sdk.md") == set()
    assert {name for name in raised if not hasattr(tidegate, name)} == set()


def test_the_page_of_the_protocol_names_every_message_and_its_fields() -> None:
    page = (DOCS / "sdk-protocol.md").read_text()
    heard = {str(kind.__struct_config__.tag): kind for kind in get_args(messages.Incoming)}
    assert {kind for kind in heard if f"`{kind}`" not in page} == set()
    fields = {field for kind in heard.values() for field in kind.__struct_fields__}
    assert fields - words("sdk-protocol.md") == set()
    sent = {kind for path in CHANNEL.glob("*.py") for kind in re.findall(r'"kind": "([a-z_]+)"', path.read_text())}
    assert {"welcome", "granted", "hand_back", "stop"} <= sent
    assert {kind for kind in sent if f"`{kind}`" not in page} == set()


def test_the_page_of_the_protocol_names_its_version_and_rates() -> None:
    page = (DOCS / "sdk-protocol.md").read_text()
    assert f"Version {protocol.PROTOCOL_MAX}." in page
    asks = next(line for line in page.splitlines() if line.startswith("| `ask` |"))
    assert asks.endswith(f"| {protocol.ASKS_PER_SECOND}, {protocol.ASKS_BURST} |")


def test_the_page_of_the_environment_names_every_variable_the_agent_sets() -> None:
    source = (ROOT / "services" / "executor" / "tidegate_executor" / "environment.py").read_text()
    set_there = set(re.findall(r'"((?:TIDEGATE|CUDA)_[A-Z_]+)"', source))
    assert "TIDEGATE_PHASE_ENTRY" in set_there
    assert set_there - words("job-environment.md") == set()
