"""Decisions about the cluster and no single job: who leads, by which policy, and which nodes there are."""

from __future__ import annotations

from tidegate_events.envelope import Event
from tidegate_events.records import Reason


class LeaderElected(Event, frozen=True, kw_only=True):
    """A scheduler took the lead; frames of lower epochs can no longer be appended."""

    epoch: int
    instance: str


class PolicyChanged(Event, frozen=True, kw_only=True):
    """The policy and its parameters from here on."""

    policy: int
    parameters: dict[str, int]


class DecisionPass(Event, frozen=True, kw_only=True):
    """One scheduling pass: decided on the state after `at_seq`, at `now_ns`, whose digest was `state_digest`."""

    epoch: int
    at_seq: int
    now_ns: int
    core: str
    policy: int
    state_digest: str
    decisions: int


class NodeUnreachable(Event, frozen=True, kw_only=True):
    """The leader heard no heartbeat of the node for its bound; what runs there is not lost yet."""

    node: str
    incarnation: int


class NodeReachable(Event, frozen=True, kw_only=True):
    """The leader hears the node's heartbeats again."""

    node: str
    incarnation: int


class NodeLost(Event, frozen=True, kw_only=True):
    """The node stayed unreachable past its bound: all that ran there counts as lost."""

    node: str
    incarnation: int


class NodeCordoned(Event, frozen=True, kw_only=True):
    """Nothing new goes to the node, which keeps failing jobs, until an operator resumes it; what runs there goes on."""

    node: str
    incarnation: int
    reasons: tuple[Reason, ...]


class NodeForgotten(Event, frozen=True, kw_only=True):
    """The node was lost for so long that nothing is kept of it any more. Its agent may join again, as a new node."""

    node: str
    incarnation: int


class ImagePrefetchHinted(Event, frozen=True, kw_only=True):
    """A job that needs the image will probably come to the node next: it may be made ready there."""

    node: str
    image: str
