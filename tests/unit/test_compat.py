"""What differs between the versions of Airflow."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import CommsDecoder
from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms

from airflow_provider_rfr import compat


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("comms", [CommsDecoder, InProcessSupervisorComms])
def test_each_thread_of_a_task_gets_its_own_answer(monkeypatch: pytest.MonkeyPatch, comms: Any, times: int) -> None:
    """Also where Airflow has no lock: Airflow 3.1, and ``airflow dags test``."""
    socket = SimpleNamespace(answer=None)

    def send(self: Any, question: int) -> int:
        socket.answer = question
        time.sleep(0.001)
        return socket.answer

    monkeypatch.setattr(compat, "AIRFLOW_V_3_2_PLUS", False)
    monkeypatch.setattr(comms, "send", send)
    for _ in range(times):
        compat.lock_requests()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda number: comms.send(None, number), range(50))) == list(range(50))
