"""A scene for each test: a sink that has sent nothing yet, a row, or a part of a commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sinks.exporting import Scene, numbers


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene.of(tmp_path)
    yield scene
    scene.store.close()


@pytest.fixture
def begun(scene: Scene) -> Scene:
    """A sink without columns that has sent a row."""
    return scene.begin((1, "a"))


@pytest.fixture
def half_sent(scene: Scene) -> Scene:
    """A sink that has sent two of the five rows of a commit."""
    scene.redeclare(settings={"batch_size": 2})
    scene.create().add(*numbers(range(5)))
    scene.run(batches=1)
    return scene
