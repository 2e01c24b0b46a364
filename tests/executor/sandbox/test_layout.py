"""The order of what is mounted: what the sandbox has of its own must not hide what the job was given."""

from __future__ import annotations

import pytest
from tidegate_executor.sandbox.shim.layout import Layout


@pytest.mark.parametrize("prefix", ["/tmp/checkout/.venv", "/home/someone/.venv"])
def test_a_layer_below_a_private_directory_is_mounted_over_it(prefix: str) -> None:
    described = {"plan": [["layer", prefix, prefix]], "bwrap": {"binary": "/bwrap"}, "hostname": "h"}
    layout = Layout({"state_dir": "/state", "uid": None, **described})
    arguments = layout.arguments(3, {"seccomp": 4, "hosts": 5, "hold": 6})
    layer = arguments.index("--tmp-overlay")
    assert arguments[layer + 1] == prefix
    assert arguments.index("--tmpfs") < arguments.index("--dir") < layer
    assert arguments[arguments.index("--tmpfs") + 1] == "/tmp"
