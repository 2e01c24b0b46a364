"""The agent's start as the cluster sees it: a real process on a real bus."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from nats.aio.msg import Msg
from tidegate_events import bus, orders, subjects
from tidegate_events.journal.nats import NatsJournal
from tidegate_local import streams

from tests.support.nats import NatsServer

AGENT = Path(sys.executable).with_name("tidegate-executor")
NODE = "slow"
HEARD_SECONDS_MAX = 60


async def test_a_node_is_heard_before_its_images_are_measured(tmp_path: Path) -> None:
    """Measuring can take longer than a node may be silent; its jobs, which run on, must not be placed again."""
    server = NatsServer(tmp_path)
    await server.start()
    client = await bus.connect(bus.BusSettings(url=server.url))
    await streams.create(client, journal_bytes=16 * 1024**2, replicas=1)
    heard: asyncio.Future[orders.Heartbeat] = asyncio.get_running_loop().create_future()

    async def on_beat(message: Msg) -> None:
        if not heard.done():
            heard.set_result(orders.decode_heartbeat(message.data))

    await client.subscribe(subjects.live(NODE), cb=on_beat)
    settings = {
        "node": NODE,
        "data_dir": str(tmp_path / NODE),
        "hot_dir": str(tmp_path / "hot"),
        "secrets_dir": str(tmp_path / "secrets"),
        "image_cache_dir": str(tmp_path / "nothing-measured-yet"),
        "offer_trusted": False,
        "offer_unisolated": True,
        "offer_host_image": True,
    }
    file = tmp_path / "agent.json"
    file.write_text(json.dumps(settings))
    agent = subprocess.Popen(  # noqa: ASYNC220 - a fork of milliseconds
        [AGENT, "--config", file],
        env={"PATH": os.environ["PATH"], "TIDEGATE_BUS_URL": server.url},
    )
    try:
        async with asyncio.timeout(HEARD_SECONDS_MAX):
            beat = await heard
        assert beat.node == NODE
        assert await NatsJournal(client).last(subjects.fact("node", NODE)) is None
    finally:
        agent.kill()
        agent.wait()
        sweep = [AGENT, "sweep", "--data-dir", tmp_path / NODE]
        subprocess.run(sweep, check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221 - nothing else is to be done
        await client.close()
        server.stop()
