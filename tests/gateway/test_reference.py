"""The jobs that the reference shows are accepted as they stand, and so is what it says of defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidegate_gateway.http.app import ROUTES

DOCS = Path(__file__).parents[2] / "docs" / "reference"
SHOWN = re.findall(r"```json\n(.*?)```", (DOCS / "job-spec.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("text", SHOWN)
async def test_a_job_of_the_reference_is_accepted(bench: Any, text: str) -> None:
    answer = await bench.client.post("/v1/jobs", content=text)
    assert answer.status_code == 201, answer.text


def test_the_reference_shows_jobs() -> None:
    assert len(SHOWN) >= 2
    assert all(msgspec.json.decode(text) for text in SHOWN)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_path_is_in_the_reference(route: Any) -> None:
    page = (DOCS / "http-api.md").read_text()
    named = route.path.replace("{job_id}", "{id}").replace("{digest}", "{sha256}")
    assert named in page
