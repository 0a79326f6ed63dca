"""Five kills of deploys, as the campaign of migrations deals them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.migrations_chaos import MigrationCampaign

KILLS, SEED = 5, 1


@pytest.mark.full
def test_after_five_kills_releases_are_as_if_created_fresh(tmp_path: Path) -> None:
    report = MigrationCampaign(SEED, tmp_path).run(KILLS)
    assert report.kills >= KILLS and report.reads > report.releases, "the reader looked on"
    assert report.clean, report.notes
