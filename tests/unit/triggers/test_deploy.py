"""A deploy is announced once for each content that is not deployed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.hooks.builtins import BuiltinsHook
from airflow_provider_rfr.triggers import DeployTrigger
from tests.unit.triggers.lake import Lake
from tests.unit.triggers.test_commit import AssetState

TABLE = "kind: table\nname: ops.runs\ncolumns: [{name: id, type: %s}]\n"


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "ops.yaml").write_text(TABLE % "int")
    return folder


def watcher(objects: Path, memory: AssetState) -> DeployTrigger:
    trigger = DeployTrigger("deploys", [str(objects)], "acme", "1.0", "lake", poll_interval=0.05)
    trigger.asset_state_store = memory  # type: ignore[assignment]
    return trigger


def deploy(objects: Path) -> None:
    hook = BuiltinsHook([str(objects)], project="acme", version="1.0", lake_conn_id="lake")
    hook.apply(hook.plan())


async def next_event(stream: AsyncIterator[Any], seconds: float = 30.0) -> dict[str, Any]:
    payload: dict[str, Any] = (await asyncio.wait_for(anext(stream), seconds)).payload
    return payload


async def nothing(stream: AsyncIterator[Any], memory: AssetState, until: str | None) -> None:
    """The trigger looks at the content, remembers it, and has nothing to tell."""
    waiting = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
    for _ in range(600):
        if memory.kept.get("rfr_deploy_announced") != until:
            break
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    assert not waiting.done()
    waiting.cancel()


def test_each_content_that_is_not_deployed_is_announced_once(lake: Lake, objects: Path) -> None:
    memory = AssetState()

    async def story() -> tuple[dict[str, Any], dict[str, Any]]:
        stream = watcher(objects, memory).run()
        first = await next_event(stream)
        waiting = asyncio.create_task(next_event(stream))
        await asyncio.sleep(0.5)
        assert not waiting.done(), "the same content is announced once"
        await asyncio.to_thread(deploy, objects)
        (objects / "ops.yaml").write_text(TABLE % "bigint")
        second = await waiting
        await stream.aclose()  # type: ignore[attr-defined]
        return first, second

    first, second = asyncio.run(story())
    assert (first["version"], first["steps"], second["steps"]) == ("1.0", 1, 1)
    assert first["digest"] != second["digest"]
    assert first["plan_hash"] != second["plan_hash"]


@pytest.mark.parametrize("comment", ["", "# why\n"])
def test_what_is_deployed_is_not_announced_after_a_triggerer_s_restart(lake: Lake, objects: Path, comment: str) -> None:
    deploy(objects)
    (objects / "ops.yaml").write_text(comment + TABLE % "int")
    memory = AssetState()
    asyncio.run(nothing(watcher(objects, memory).run(), memory, None))
    assert memory.kept["rfr_deploy_announced"]


def test_a_mistake_in_a_declaration_is_announced_with_what_is_wrong(lake: Lake, objects: Path) -> None:
    (objects / "ops.yaml").write_text(TABLE % "nonsense")
    event = asyncio.run(next_event(watcher(objects, AssetState()).run()))
    assert "nonsense" in event["problem"]


def test_a_store_that_is_away_is_waited_for_with_one_warning(
    lake: Lake, objects: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = {"conn_type": "sqlite", "host": f"{tmp_path}/control.db"}
    away = {"conn_type": "sqlite", "host": f"{tmp_path}/nowhere/control.db"}
    monkeypatch.setenv("AIRFLOW_CONN_RFR_CONTROL_STORE", json.dumps(away))

    async def story() -> dict[str, Any]:
        stream = watcher(objects, AssetState()).run()
        waiting = asyncio.create_task(next_event(stream, 60.0))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        while "The plan can't be made; checked again every 0.05 s" not in caplog.text:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        assert caplog.text.count("The plan can't be made") == 1
        monkeypatch.setenv("AIRFLOW_CONN_RFR_CONTROL_STORE", json.dumps(there))
        return await waiting

    assert asyncio.run(asyncio.wait_for(story(), 60.0))["steps"] == 1


def test_files_that_are_being_replaced_are_looked_at_again(
    lake: Lake, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, away = Path.read_bytes, [objects / "ops.yaml"]

    def vanished(path: Path) -> bytes:
        if path in away:
            away.remove(path)
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", vanished)
    assert asyncio.run(next_event(watcher(objects, AssetState()).run()))["steps"] == 1
    assert not away


def test_a_new_version_of_a_package_that_declares_is_another_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    for version in ("1.0", "1.1"):
        info = tmp_path / version / f"acme_objects-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-objects\nVersion: {version}\n")
        (info / "entry_points.txt").write_text("[airflow_provider_rfr.builtins]\nacme = acme_objects\n")
        monkeypatch.syspath_prepend(str(tmp_path / version))
        found = [DeployTrigger("deploys", project=project)._digest() for project in ("rfr", "acme")]
        digests.append(found)
    (ours, others), (ours_later, others_later) = digests
    assert ours != ours_later
    assert others == others_later, "entry points are taken in the project rfr alone"


def test_its_arguments_hold_no_secret_and_make_the_same_trigger(objects: Path) -> None:
    path, arguments = watcher(objects, AssetState()).serialize()
    assert path == "airflow_provider_rfr.triggers.DeployTrigger"
    assert DeployTrigger(**arguments).serialize() == (path, arguments)
