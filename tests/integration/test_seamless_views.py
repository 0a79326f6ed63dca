"""Views over a table that changes: readers never see an error, whenever the deploy dies. Real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.builtins import Policies
from airflow_provider_rfr.builtins.deploy import apply
from airflow_provider_rfr.builtins.maintenance import observe
from airflow_provider_rfr.builtins.model import BuiltinObject, CatalogSpec
from airflow_provider_rfr.builtins.planner import plan
from airflow_provider_rfr.lake import migrated_table
from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.store.engine import open_store
from tests.integration.builtin_sql_deploy import Deploy
from tests.unit.builtins.catalogs import PROJECT, spec, table, view

VIEWS = (
    view("ops.star", "SELECT * FROM ops.orders"),
    view("ops.big", "SELECT id, amount FROM ops.orders WHERE amount > 1", comment="Large ones"),
    view("ops.total", "SELECT city, sum(amount) AS amount, max(rate) AS rate FROM ops.big_cities GROUP BY city"),
    view("ops.big_cities", "SELECT amount, rate, city FROM ops.star WHERE city <> 'x'"),
)
BEFORE = spec("1.0", table("ops.orders", "id int", "amount int", "rate float", "city string"), *VIEWS)
SAFE = spec(
    "1.1",
    table(
        "ops.orders",
        "id bigint",
        "amount bigint",
        "note string",
        "rate double",
        "city string",
        comment="One row an order",
        properties={"team": "shop"},
    ),
    *VIEWS,
)
USERS = {
    "bob.everything": "SELECT * FROM ops.orders",
    "bob.sums": "SELECT sum(amount) AS total FROM ops.orders",
    "bob.over": "SELECT o.amount + 1 AS more, b.city FROM ops.big o JOIN ops.orders b ON o.id = b.id",
}
READ = [*(view.name for view in VIEWS), *USERS]


class _Death(BaseException):
    """No handler may keep a dead process alive."""


class Lake:
    """A lake with a control store, and readers of its views."""

    def __init__(self, folder: Path) -> None:
        self.deploy = Deploy(folder)
        self.store = open_store(f"sqlite:///{folder}/control.db")
        self.catalog = open_catalog(self.deploy.lake)
        self.reader = self.deploy.session.newSession()
        for name, value in _catalog_settings(self.deploy):
            self.reader.conf.set(name, value)

    def release(self, wanted: CatalogSpec, **policies: Any) -> None:
        recorded, live = observe(self.catalog, self.store, project=PROJECT)
        migration = plan(wanted, recorded, live, policies=Policies(**policies))
        assert migration.applicable, (migration.blocked, migration.drift)
        apply(
            migration,
            catalog=self.catalog,
            store=self.store,
            spec=wanted,
            sql=self.deploy.engine,
            lease_seconds=0.5,
            patience=30,
        )

    def contents(self) -> dict[str, Any]:
        answers = {}
        for name in READ:
            rows = self.reader.sql(f"SELECT * FROM rfr.{name}")
            answers[name] = (rows.columns, sorted(map(str, rows.collect())))
        return answers


def _catalog_settings(deploy: Deploy) -> Iterator[tuple[str, str]]:
    settings = deploy.session.sql("SET").collect()
    yield from ((row[0], row[1]) for row in settings if row[0].startswith("spark.sql.catalog."))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    lake.release(BEFORE)
    lake.deploy.sql("INSERT INTO ops.orders VALUES (1, 5, 1.5, 'a'), (2, 7, 2.5, 'b'), (3, 0, 0.5, 'x')")
    for name, query in USERS.items():
        lake.deploy.view(name, query, properties={})
    return lake


def _after_each_effect(lake: Lake, patch: pytest.MonkeyPatch, do: Callable[[str], None]) -> None:
    """Call ``do`` before and after every write of the deploy to the catalog."""

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            do(f"before {name}")
            result = original(*args, **kwargs)
            do(f"after {name}")
            return result

        patch.setattr(owner, name, wrapped)

    for name in ("create_view", "rename_view", "drop_view", "set_view_properties"):
        wrap(lake.deploy.engine, name)
    for name in ("alter", "rename", "replace_rows"):
        wrap(migrated_table.MigratedTable, name)


def test_a_safe_release_is_never_felt_by_a_reader(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = lake.contents(), []
    with monkeypatch.context() as patch:
        _after_each_effect(lake, patch, lambda where: seen.append((where, lake.contents() == before)))
        lake.release(SAFE)
    assert len(seen) > 10
    assert [where for where, same in seen if not same] == []
    assert lake.contents() == before
    recorded, live = observe(lake.catalog, lake.store, project=PROJECT)
    again = plan(SAFE, recorded, live)
    assert (again.steps, again.drift, again.warnings) == ((), (), ())
    types = {row[0]: row[1] for row in lake.reader.sql("DESCRIBE rfr.ops.big").collect()}
    assert types == {"id": "bigint", "amount": "bigint"}


def test_views_stay_readable_wherever_the_deploy_dies(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    before, deaths = lake.contents(), 0
    for dies_at in range(1, 60):
        left = dies_at

        def die(where: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise _Death(where)

        with monkeypatch.context() as patch:
            _after_each_effect(lake, patch, die)
            try:
                lake.release(SAFE)
                break
            except _Death:
                deaths += 1
        assert lake.contents() == before
    assert deaths > 5
    assert lake.contents() == before
    lake.release(SAFE)
    recorded, live = observe(lake.catalog, lake.store, project=PROJECT)
    assert all(not view.bridged for view in live.user_views)
    assert plan(SAFE, recorded, live).steps == ()


def test_an_error_in_a_new_text_is_met_before_anything_is_touched(lake: Lake) -> None:
    before = {name: table.metadata_location for name, table in _tables(lake).items()}
    broken: list[BuiltinObject] = [
        *SAFE.objects,
        view("ops.bad", "SELECT id, no_such_function(amount) AS n FROM ops.orders"),
    ]
    with pytest.raises(Exception, match=r"no_such_function.*nothing was done"):
        lake.release(spec("1.2", *broken))
    assert {name: table.metadata_location for name, table in _tables(lake).items()} == before
    assert lake.contents()["ops.big"][0] == ["id", "amount"]


def _tables(lake: Lake) -> dict[str, Any]:
    return {"ops.orders": lake.catalog.load_table("ops.orders")}
