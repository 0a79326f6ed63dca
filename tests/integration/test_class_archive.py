"""The class archive: the first refresh of a machine has it written, the next one uses it, and a switch turns it off."""

from __future__ import annotations

from pathlib import Path

from demo.sample_api.client import SampleApi
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
    runner.run(config, environment={"XDG_CACHE_HOME": str(cache)})
    wait_until(lambda: bool(archives()), 120)
    [archive] = archives()
    assert archive.stat().st_size > 10_000_000
    written = archive.stat().st_mtime_ns
    with_it = runner.run(config, environment={"XDG_CACHE_HOME": str(cache)})
    assert with_it.figures["rows"] == 500
    assert archive.stat().st_mtime_ns == written
    assert [path.suffix for path in archive.parent.iterdir() if path.suffix == ".draft"] == []
