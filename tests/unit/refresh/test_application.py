"""The application as a process runs it, with threads in the place of Spark."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from airflow_provider_rfr.refresh import application
from airflow_provider_rfr.streams import Page, PagedStream, ReadContext
from airflow_provider_rfr.streams.tokens import AccessToken, shared_credential
from tests.soon import PATIENCE
from tests.unit.refresh.test_rounds import Threads

PACKAGE = Path(application.__file__).parents[1]
STACKS: list[list[str]] = []
"""Own frames on the way to a page: those of the driver, then those of the thread that reads."""


def own_frames(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if PACKAGE in file.parents:
            yield f"{file.stem}.{frame.f_code.co_name}"
        frame = frame.f_back


class Introspective(PagedStream):
    """One page, which notes how it is read."""

    name = "introspective"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.public_config: Mapping[str, Any] = config

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        main = threading.main_thread().ident
        assert main is not None
        driver = list(own_frames(sys._current_frames()[main]))[::-1]
        # The driver waits for its threads in a function of its own, which does not lead here.
        driver = driver[: driver.index("_round_task.run") + 1]
        STACKS.append([*driver, *list(own_frames(sys._getframe(1)))[::-1], "read_page"])
        return Page([{"id": 1}], None)


class LateSpark(Threads):
    """A cluster that is ready when the head start is over, so that the driver reads all pages."""

    context = ui_address = None
    is_local = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.ready.clear()

    def start(self) -> None: ...

    def stop(self) -> None:
        self.ready.set()


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A document whose refresh the driver does alone, in its head start."""
    monkeypatch.setattr(application, "Cluster", LateSpark)
    monkeypatch.setattr(application, "stop_on_signals", lambda stop: None)
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    document = {
        "source": {"class": f"{__name__}:Introspective"},
        "streams": ["introspective"],
        "target": "raw.pages",
        "lake": {"properties": properties},
    }
    path = tmp_path / "refresh.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_few_frames_lie_between_the_program_and_the_page(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    STACKS.clear()
    assert application.main(document, began=0.0) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == 1
    (stack,) = STACKS
    assert stack[0] == "application.main"
    assert len(stack) <= 11, stack


def test_the_process_ends_after_a_refresh_token_that_is_redeemed_is_kept(
    document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stopped, kept = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(LateSpark, "stop", lambda spark: stopped.set())

    def obtain(context: Any, refresh_token: str | None) -> AccessToken:
        begun.set()
        assert stopped.wait(PATIENCE)
        # The answer comes when nothing else is left to do.
        time.sleep(0.5)
        kept.set()
        return AccessToken("access")

    credential = shared_credential(f"{__name__} of a slow endpoint", obtain, "configured")
    threading.Thread(target=credential.token, args=(None, ReadContext()), daemon=True).start()
    assert begun.wait(PATIENCE)
    assert application.main(document, began=0.0) == 0
    assert kept.is_set()
