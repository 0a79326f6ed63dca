"""The class archive: the first refresh of a machine has it written, the next one uses it, and a switch turns it off."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_rfr.sample_api import SampleApi
from tests.integration.conftest import Lake, Runner, shop
from tests.soon import wait_until


def test_the_first_refresh_has_the_archive_written_and_the_switch_forbids_it(
    lake: Lake, runner: Runner, api: SampleApi, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    config = runner.config(source=shop(api, partitions=1, page_size=25), streams=["items"])

    def archives() -> list[Path]:
        return list((cache / "airflow-provider-rfr").glob("*.jsa"))

    runner.run(config, environment={"XDG_CACHE_HOME": str(cache), "RFR_CLASS_ARCHIVE": "off"})
    assert not cache.exists()
    # The archive is written at the lowest priority, which on a busy machine may take for ever.
    nice = tmp_path / "bin" / "nice"
    nice.parent.mkdir()
    nice.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    nice.chmod(0o755)
    path = os.pathsep.join([str(nice.parent), os.environ["PATH"]])
    runner.run(config, environment={"XDG_CACHE_HOME": str(cache), "PATH": path})
    wait_until(lambda: bool(archives()))
    [archive] = archives()
    assert archive.stat().st_size > 10_000_000
    written = archive.stat().st_mtime_ns
    with_it = runner.run(config, environment={"XDG_CACHE_HOME": str(cache)})
    assert with_it.figures["rows"] == 500
    assert archive.stat().st_mtime_ns == written
    assert [path.suffix for path in archive.parent.iterdir() if path.suffix == ".draft"] == []


def test_the_archive_is_written_where_the_machines_own_name_does_not_resolve(tmp_path: Path) -> None:
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname nowhere.invalid && exec "$@"', "sh"]
    if subprocess.run([*renamed, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a machine's name can be changed by root alone")
    command = [sys.executable, "-m", "airflow_provider_rfr.refresh.process"]
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    done = subprocess.run(
        [*renamed, *command],
        env={**environment, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert [path.suffix for path in tmp_path.rglob("*.jsa")] == [".jsa"]
