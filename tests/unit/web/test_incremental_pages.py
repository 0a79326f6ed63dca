"""An incremental sync on the pages and at the shell: real syncs of a stream whose records change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import RefreshFailedError
from airflow_provider_rfr.lake.catalog import LakeSettings
from airflow_provider_rfr.lake.sync_state import SyncState, read_state, write_state
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh.inspection import read_target, status_of
from tests.headers import read_status
from tests.kill_points import intercept
from tests.unit.cli import calls
from tests.unit.refresh.changing_source import RECORDS, Orders
from tests.unit.refresh.in_driver import TABLE
from tests.unit.refresh.test_incremental import Shop
from tests.unit.web.conftest import Login

PAGE = f"/rfr/refresh?lake=rfr_lake_default&ledger={TABLE}__rfr_ledger"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A shop whose lake is that of the default connection."""
    RECORDS.clear()
    made = Shop(tmp_path)
    extra = {"warehouse": made.properties["warehouse"]}
    connection = {"conn_type": "rfr_lake", "host": made.properties["uri"], "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_RFR_LAKE_DEFAULT", json.dumps(connection))
    monkeypatch.setenv(
        "AIRFLOW_CONN_RFR_CONTROL_STORE", json.dumps({"conn_type": "sqlite", "host": f"{tmp_path}/control.db"})
    )
    yield made
    RECORDS.clear()


def cell(text: str, label: str) -> str:
    """The text of the first cell with that label."""
    [found, *_] = re.findall(f'<td data-label="{label}"[^>]*>(.*?)</td>', text, re.DOTALL)
    return str(found)


def fact(text: str, name: str) -> str:
    [found] = re.findall(f"<dt>(?:<span[^>]*>)?{name}(?:</span>)?</dt><dd>(.*?)</dd>", text, re.DOTALL)
    return str(found)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert calls.rfr("refresh", *words) == 0
    return capsys.readouterr().out


def synced(shop: Shop) -> None:
    """A first sync, and one with a row that is new, one that is changed and one that is as it was."""
    for number in range(3):
        shop.change(number, number)
    shop.sync()
    shop.change(1, 10, "changed")
    shop.change(7, 11, "new")
    shop.sync()


def test_a_sync_is_shown_with_its_mode_its_counts_and_its_state(
    shop: Shop, login: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    synced(shop)
    listed, page = login("owner").get("/rfr/").text, login("owner").get(PAGE).text
    result = "1 inserted, 1 updated, 1 unchanged"
    assert (cell(listed, "Sync"), cell(listed, "Last result")) == ("incremental, merge", result)
    assert (fact(page, "Sync"), fact(page, "Last result")) == ("incremental, merge", result)
    names = ("Inserted", "Updated", "Unchanged", "Stale", "Deleted", "Unknown deletions", "Older versions")
    assert [cell(page, name) for name in (*names, "Doubled keys")] == ["1", "1", "1", "0", "0", "0", "0", "0"]
    assert "updated_at is known up to 2024-01-01T00:00:11.000000Z; changed " in page
    assert "full refresh" in page, "the first sync is among the generations"
    printed = shown(capsys, "show", TABLE)
    for line in ("Sync: incremental, merge", f"Last result: {result}"):
        assert line in printed.splitlines()
    assert "State: updated_at is known up to 2024-01-01T00:00:11.000000Z; changed " in printed
    assert result in shown(capsys, "list")
    content = json.loads(shown(capsys, "show", TABLE, "--json"))
    assert content["changes"]["updated"] == 1
    assert content["cursor"]["greatest"] == "2024-01-01T00:00:11.000000Z"
    newest, first = json.loads(shown(capsys, "history", TABLE, "--json"))["generations"]
    assert (newest["sync"], newest["changes"]["inserted"]) == ("incremental, merge", 1)
    assert (first["sync"], first["rows"], "changes" in first) == ("full refresh", 3, False)


def test_a_shell_shows_the_page_s_facts_under_its_terms_in_its_order(
    shop: Shop, login: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    synced(shop)
    page = login("owner").get(PAGE).text
    parts = re.findall(r"<(?:dt|h2)\b[^>]*>(.*?)</(?:dt|h2)>", page.partition('id="live"')[2].partition("<dialog")[0])
    terms = [unescape(re.sub(r"<[^>]*>", "", part)) for part in parts]
    printed = [line.partition(":")[0] for line in shown(capsys, "show", TABLE).splitlines()]
    # A chart, which a shell has not, and code to copy.
    terms = [term for term in terms if term not in ("Pages over time", "Read the table")]
    assert [line for line in printed if line in terms] == terms


def test_a_sync_without_changes_says_so_and_keeps_the_rows_of_its_table(
    shop: Shop, login: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    synced(shop)
    before = shop.table.current_snapshot().snapshot_id
    shop.sync()
    assert shop.table.current_snapshot().snapshot_id == before
    listed, page = login("owner").get("/rfr/").text, login("owner").get(PAGE).text
    assert cell(listed, "Last result") == fact(page, "Last result") == "no changes (1 unchanged)"
    assert "No changes (1 unchanged); the table has 4 rows" in page
    assert "No row changed, so no webhook is due." in page
    assert "no changes (1 unchanged)" in shown(capsys, "list")
    RECORDS.clear()
    shop.sync()
    row = shown(capsys, "list").splitlines()[1]
    assert "no changes" in row
    assert "unchanged" not in row


def test_rows_that_had_one_key_are_counted_where_the_sync_replaced_them(shop: Shop, login: Login) -> None:
    shop.change(1, 0)
    shop.sync("append")
    shop.change(1, 5, "later")
    shop.sync("append")
    shop.change(1, 10, "last")
    shop.sync()
    assert shop.rows() == [(1, "last")]
    page = login("owner").get(PAGE).text
    assert cell(page, "Doubled keys") == "1"
    assert "incremental, append" in page, "the sync before is among the generations"


def test_the_state_of_several_partitions_is_shown_by_their_number_and_its_span(shop: Shop) -> None:
    shop.config = {"shops": ["a", "b", "c"]}
    shop.change(1, 5, shop="a")
    shop.change(2, 9, shop="b")
    shop.sync()
    status = status_of(shop.catalog, TABLE)
    assert status is not None
    _, sync, _ = read_target(shop.catalog, status)
    assert sync is not None
    assert sync.partitions == 2
    span = "between 2024-01-01T00:00:05.000000Z and 2024-01-01T00:00:09.000000Z"
    assert sync.sentence == f"updated_at is known up to {span}, in 2 partitions"


def test_the_state_changed_when_a_commit_last_brought_another_one(shop: Shop) -> None:
    synced(shop)
    moved = shop.table.current_snapshot().timestamp_ms
    # A late record below the state's value changes a row, and leaves the value as it is.
    shop.change(2, 11, "late")
    shop.sync()
    assert shop.table.current_snapshot().timestamp_ms > moved
    status = status_of(shop.catalog, TABLE)
    assert status is not None
    _, sync, _ = read_target(shop.catalog, status)
    assert sync is not None
    assert sync.changed_at == datetime.fromtimestamp(moved / 1000, timezone.utc)


def test_a_state_that_can_not_be_read_is_told_and_hides_nothing(
    shop: Shop, login: Login, capsys: pytest.CaptureFixture[str]
) -> None:
    synced(shop)
    state = read_state(shop.table)
    assert state is not None
    write_state(shop.catalog, TABLE, SyncState({"cursor": {"field": "updated_at", "type": "moment"}}, {"{}": "x"}))
    page = login("owner").get(PAGE).text
    assert "State</span>: can&#39;t be read" in page
    assert cell(page, "Inserted") == "1"
    assert "State: can't be read" in shown(capsys, "show", TABLE)
    write_state(shop.catalog, TABLE, SyncState({"cursor": {}}, {"{}": "x"}))
    assert "State: can't be read: its rules name no cursor" in shown(capsys, "show", TABLE)


def fail(*args: Any, **kwargs: Any) -> None:
    raise OSError("the driver ends here")


def test_a_sync_that_reads_promises_no_share_of_the_table(
    shop: Shop, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced(shop)
    shop.change(8, 20)
    intercept(Orders, "read_page", before=fail, put=monkeypatch.setattr)
    with pytest.raises(RefreshFailedError):
        shop.sync()
    status = status_of(shop.catalog, TABLE)
    assert status is not None
    assert status.percent is None
    assert status.last_result == "1 inserted, 1 updated, 1 unchanged"
    assert "before, the table had 4 rows" in login("owner").get(PAGE).text


def test_a_merge_that_died_before_its_ledger_knew_is_shown_with_its_counts(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced(shop)
    shop.change(8, 20)
    shop.change(9, 20)
    intercept(TargetTable, "merge", after=fail, put=monkeypatch.setattr)
    with pytest.raises(OSError, match="the driver ends here"):
        shop.sync()
    header = read_status(LakeSettings("rfr", shop.properties), TABLE)
    assert header is not None
    assert header.published_rows is None
    status = status_of(shop.catalog, TABLE)
    assert status is not None
    document: dict[str, Any] = status.to_json()
    assert (document["state"], document["published_rows"], document["changes"]["inserted"]) == ("published", 6, 2)


def test_a_backfill_is_shown_as_incremental(shop: Shop, login: Login) -> None:
    synced(shop)
    shop.sync(window="2024-01-01T00:00:00Z/2024-01-01T00:00:05Z")
    assert fact(login("owner").get(PAGE).text, "Sync") == "incremental, merge"


def test_a_state_in_the_form_of_its_source_is_not_taken_for_none(shop: Shop, login: Login) -> None:
    synced(shop)
    state = read_state(shop.table)
    assert state is not None
    write_state(shop.catalog, TABLE, SyncState(state.rules, {}, of_source={"cursor": "x"}))
    assert "updated_at: the source keeps the state in a form of its own" in login("owner").get(PAGE).text
