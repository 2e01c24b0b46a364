"""A recall is told once to each who is to answer it, whenever it comes."""

from __future__ import annotations

import threading
import time

from tidegate.recall import Recall

HOUR_NS = 3600 * 10**9


def test_who_comes_when_a_recall_waits_is_called_once_also_if_an_earlier_one_may_have_been() -> None:
    for _ in range(300):
        recall, calls, called = Recall(), list[float](), threading.Event()
        try:
            recall.call(lambda _seconds: None)
            recall.on_hand_back(time.time_ns() + HOUR_NS)

            def answers(seconds: float, calls: list[float] = calls, called: threading.Event = called) -> None:
                calls.append(seconds)
                called.set()

            recall.call(answers, tell_again=True)
            assert called.wait(10)
            recall.on_hand_back(0)
        finally:
            recall.close()
        assert len(calls) == 1
