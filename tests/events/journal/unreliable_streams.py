"""Streams in memory that store as JetStream's do: guards, duplicates, sealing, and first sequences."""

from __future__ import annotations

from typing import Any

from tidegate_events.journal.base import Raw

GUARD = "Nats-Expected-Last-Subject-Sequence"
STREAM_GUARD = "Nats-Expected-Last-Sequence"


def refusal(status: int, code: int, description: str) -> dict[str, Any]:
    """Return an error as the API gives it."""
    return {"error": {"code": status, "err_code": code, "description": description}}


def _covers(pattern: str, subject: str) -> bool:
    return subject.startswith(pattern[:-1]) if pattern.endswith(">") else subject == pattern


class Stream:
    """One stream."""

    def __init__(self, config: dict[str, Any], *, remembers_ids: bool) -> None:
        self.config = config
        self._remembers_ids = remembers_ids
        self.messages: list[Raw] = []
        self._seq_by_id: dict[str, int] = {}

    @property
    def first_seq(self) -> int:
        """Return the sequence that the first message has or will have."""
        return int(self.config.get("first_seq", 1))

    def info(self) -> dict[str, Any]:
        """Return configuration and state."""
        last_seq = self.first_seq + len(self.messages) - 1
        return {"config": dict(self.config), "state": {"last_seq": last_seq, "bytes": 0}}

    def find(self, which: dict[str, Any]) -> Raw | None:
        """Return the subject's last message, or its next one from a sequence on."""
        if (subject := which.get("last_by_subj")) is not None:
            return next((raw for raw in reversed(self.messages) if raw.subject == subject), None)
        subject, start = which["next_by_subj"], which["seq"]
        return next((raw for raw in self.messages if raw.subject == subject and raw.seq >= start), None)

    def store(self, subject: str, data: bytes, headers: dict[str, str]) -> dict[str, Any]:
        """Store a message, or refuse it, in the real server's order of checks."""
        if self.config.get("sealed"):
            return refusal(400, 10109, "invalid operation on sealed stream")
        if headers.get("Nats-Expected-Stream", self.config["name"]) != self.config["name"]:
            return refusal(400, 10060, "expected stream does not match")
        if (seen := self._seq_by_id.get(headers.get("Nats-Msg-Id", ""))) is not None:
            return {"stream": self.config["name"], "seq": seen, "duplicate": True}
        if STREAM_GUARD in headers and int(headers[STREAM_GUARD]) != (
            last_seq := self.first_seq + len(self.messages) - 1
        ):
            return refusal(400, 10071, f"wrong last sequence: {last_seq}")
        if GUARD in headers:
            last = self.find({"last_by_subj": subject})
            if int(headers[GUARD]) != (last.seq if last else 0):
                return refusal(400, 10071, "wrong last sequence")
        seq = self.first_seq + len(self.messages)
        self.messages.append(Raw(seq, subject, data))
        if self._remembers_ids and "Nats-Msg-Id" in headers:
            self._seq_by_id[headers["Nats-Msg-Id"]] = seq
        return {"stream": self.config["name"], "seq": seq}


class Streams:
    """All streams of an account, none of which listens to what another one does."""

    def __init__(self, *, remember_ids: bool) -> None:
        self.by_name: dict[str, Stream] = {}
        self._remember_ids = remember_ids

    def listening(self, subject: str) -> Stream | None:
        """Return the stream that takes messages on `subject`."""
        for stream in self.by_name.values():
            if any(_covers(pattern, subject) for pattern in stream.config["subjects"]):
                return stream
        return None

    def create(self, config: dict[str, Any]) -> dict[str, Any]:
        """Create a stream; one of the same name and configuration is left as it is."""
        if (there := self.by_name.get(config["name"])) is not None:
            return there.info() if there.config == config else refusal(400, 10058, "other configuration")
        if self._overlaps(config):
            return refusal(400, 10065, "subjects overlap with an existing stream")
        self.by_name[config["name"]] = Stream(config, remembers_ids=self._remember_ids)
        return self.by_name[config["name"]].info()

    def update(self, config: dict[str, Any]) -> dict[str, Any]:
        """Give a stream another configuration; a sealed one stays sealed."""
        stream = self.by_name[config["name"]]
        if stream.config.get("sealed") and not config.get("sealed"):
            return refusal(500, 10052, "can not unseal a sealed stream")
        if self._overlaps(config):
            return refusal(400, 10065, "subjects overlap with an existing stream")
        stream.config = config
        return stream.info()

    def _overlaps(self, config: dict[str, Any]) -> bool:
        others = [other.config for name, other in self.by_name.items() if name != config["name"]]
        return any(set(config["subjects"]) & set(other["subjects"]) for other in others)

    def all_messages(self) -> list[Raw]:
        """Return the messages of all streams, in the streams' order."""
        return [raw for stream in self.by_name.values() for raw in stream.messages]
