"""What things take in the model of a cluster: the same for every policy that is compared, and stated with every result.

Seconds and milliseconds are of the simulated time.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

SECONDS_MAX, MILLIS_MAX = 30 * 24 * 3600, 3_600_000
Seconds = Annotated[int, msgspec.Meta(ge=0, le=SECONDS_MAX)]
Millis = Annotated[int, msgspec.Meta(ge=0, le=MILLIS_MAX)]
Interval = Annotated[int, msgspec.Meta(ge=1, le=MILLIS_MAX)]
FailuresPerDay = Annotated[int, msgspec.Meta(ge=0, le=24_000)]


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the model of the nodes counts for what they do, and how often the scheduler looks.

    `start_ms` is from a placement until the sandbox runs; `image_pull_seconds` come first if the image is missing.
    `checkpoint_seconds` is what saving takes when a job is asked to leave, `restart_seconds` what a resumed job needs
    until it works again, `phase_change_ms` what one that asks for its phases needs to enter or to leave one.

    Each node fails `node_failures_per_day_millis` thousandths of a time a day: it is silent, which is noticed after
    `node_silence_seconds`, and is back, empty, after `node_repair_seconds`. Rounds of passes begin at least
    `pass_interval_ms` apart.
    """

    start_ms: Millis = 1000
    image_pull_seconds: Seconds = 60
    checkpoint_seconds: Seconds = 10
    restart_seconds: Seconds = 20
    phase_change_ms: Millis = 500
    node_failures_per_day_millis: FailuresPerDay = 0
    node_silence_seconds: Seconds = 6
    node_repair_seconds: Seconds = 600
    pass_interval_ms: Interval = 1000
