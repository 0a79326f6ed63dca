"""Every state in which a deploy can leave the world when its process dies: what is on disk before each effect."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.lake import migrated_table
from tests.unit.builtins.execution.places import Place
from tests.webhook_receiver import FakeClock

OF_CATALOG = ("create_table", "commit_table", "rename_table", "purge_table")
OF_ENGINE = ("create_view", "drop_view", "rename_view", "set_view_properties", "compute")


@contextmanager
def before_each_effect(place: Place, call: Callable[[str], None], *, looks: bool = False) -> Iterator[None]:
    """``call`` comes before whatever the deploy changes, in the lake or in the store, with a name of it.

    :param looks: also before it looks at a table
    """
    with pytest.MonkeyPatch.context() as patch:

        def wrap(owner: Any, name: str) -> None:
            original = getattr(owner, name)

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                if threading.current_thread() is threading.main_thread():
                    call(name)
                return original(*args, **kwargs)

            patch.setattr(owner, name, wrapped)

        for name in OF_CATALOG:
            wrap(place.catalog, name)
        for name in OF_ENGINE:
            wrap(place.engine, name)
        wrap(place.store, "run")
        wrap(migrated_table, "_rename_in_database")
        if looks:
            wrap(migrated_table, "load_table")
        yield


class Worlds:
    """Copies of a place's folder, one for each moment at which its process may have died.

    A dead process has left what is on disk, so it is enough to copy that while a living one is at work.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "place"
        self._copies = folder / "copies"
        self._clock = FakeClock()
        self.names: list[str] = []

    def open(self) -> Place:
        """The place as it is on disk; whoever held its lease is dead for long."""
        self._folder.mkdir(exist_ok=True, parents=True)
        self.wait()
        return Place(self._folder, self._clock)

    def wait(self) -> None:
        """For longer than any lease."""
        self._clock.time += 3600

    def record(self, place: Place, work: Callable[[], Any], *, looks: bool = False) -> Any:
        """Do the work, and keep a copy of the world before each of its effects, and one after the last."""

        def keep(name: str) -> None:
            shutil.copytree(self._folder, self._copies / str(len(self.names)))
            self.names.append(name)

        with before_each_effect(place, keep, looks=looks):
            done = work()
        keep("the end")
        return done

    def restore(self, number: int) -> Place:
        """The world at that moment."""
        shutil.rmtree(self._folder)
        shutil.copytree(self._copies / str(number), self._folder)
        return self.open()
