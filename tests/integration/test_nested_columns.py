"""Fields of structs that come, go, move and get other types: each value stays in its own field. Real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_rfr.builtins import load_objects
from airflow_provider_rfr.builtins.maintenance import observe
from airflow_provider_rfr.builtins.plan import Plan, summary
from airflow_provider_rfr.builtins.planner import plan
from airflow_provider_rfr.exceptions import DeployError
from airflow_provider_rfr.store.engine import open_store
from tests.integration.builtin_platform import Platform
from tests.integration.builtin_sql_deploy import Deploy

STRUCT = "named_struct('a', 5, 'b', 7)"
INSERT = f"""INSERT INTO ops.s VALUES (1, 0, '1', {STRUCT}, array({STRUCT}, NULL), map('k', {STRUCT})),
(2, 0, '2', NULL, NULL, NULL)"""
LOST = "".join(f"---\n{{kind: removed, name: ops.s.{name}.a}}\n" for name in "slm")


class Nested(Platform):
    """Versions of the table ``ops.s``, which is called as one of its structs, with a column as one of its fields."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lake = Deploy(folder)

    def write(self, fields: str, more: str = "", *, n: Any = "string", was: Any = None) -> None:
        nested = {"s": f"struct<{fields}>", "l": f"array<struct<{fields}>>", "m": f"map<string,struct<{fields}>>"}
        types = {"id": "bigint", "b": "int", "n": n, **nested}
        columns = [{"name": name, "type": kind} for name, kind in types.items()]
        for column in columns:
            column |= (was or {}).get(column["name"], {})
        text = yaml.safe_dump({"kind": "table", "name": "ops.s", "columns": columns})
        (self.objects / "s.yaml").write_text(text + more)

    def plan(self) -> Plan:
        spec = load_objects(self.objects, version="1.0")
        return plan(spec, *observe(self.lake.catalog, open_store(self.store), project="rfr", spec=spec))

    def release(self) -> list[str]:
        return [step.how.value for step in self.deploy(self.lake, self.lake.engine, "1.0").steps]

    def nested(self) -> list[list[Any]]:
        """The nested values of both rows; PyIceberg reads the first one as Spark does."""
        rows = [_plain(row) for row in self.lake.sql("SELECT s, l, m FROM ops.s ORDER BY id")]
        # It takes a list that is NULL for an empty one.
        assert rows[0] == [self.read()[0][name] for name in "slm"]
        return rows

    def read(self) -> list[dict[str, Any]]:
        rows = self.lake.rows("ops.s")
        return [{**row, "m": None if row["m"] is None else dict(row["m"])} for row in rows]


def _plain(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def in_all(struct: dict[str, Any]) -> list[list[Any]]:
    return [[struct, [struct, None], {"k": struct}], [None, None, None]]


@pytest.mark.gate
def test_each_value_stays_in_its_own_field_whatever_becomes_of_the_struct(tmp_path: Path) -> None:
    nested = Nested(tmp_path)
    nested.write("a:int,b:int")
    nested.release()
    nested.lake.sql(INSERT)

    nested.write("b:int,c:int")
    assert summary(nested.plan())["data_loss"] == 3
    assert [str(problem).partition(" would")[0] for problem in nested.plan().blocked[0].problems] == [
        *(f"field {name}.a" for name in "slm"),
        *(f"if {name}.c is {name}.a under a new name, write was: {{fields: {{c: a}}}}" for name in "slm"),
    ]
    nested.write("b:int,c:int", LOST)
    assert nested.release() == ["evolve"]
    assert nested.nested() == in_all({"b": 7, "c": None})

    # The rewrite of another column takes them along, also under a new name.
    called = {name: {"was": {"fields": {"e": "b"}}} for name in "slm"}
    was = {"n": {"was": {"type": "string", "using": "CAST(n AS int)"}}, **called}
    nested.write("c:int,e:bigint", n="int", was=was)
    assert nested.release() == ["rewrite"]
    assert nested.nested() == in_all({"c": None, "e": 7})
    assert [row["n"] for row in nested.read()] == [1, 2]

    nested.write("d:int,e:string", n="int")
    pasted = [yaml.safe_load(line)[0] for line in nested.plan().blocked[0].paste]
    nested.write(
        "d:int,e:string", LOST.replace(".a}", ".c}"), n="int", was={column["name"]: column for column in pasted}
    )
    assert nested.release() == ["rewrite"]
    assert nested.nested() == in_all({"d": None, "e": "7"})
    assert nested.plan().steps == ()

    was = {"type": "struct<d:int,e:string>", "using": "if(s IS NULL, NULL, named_struct('e', 1, 'd', s.d))"}
    nested.write("d:int,e:string", n="int", was={"s": {"type": "struct<d:int,e:int>", "was": was}})
    with pytest.raises(DeployError, match=r"using` of s gives struct<e:int,d:int>.*nothing was done"):
        nested.release()
    assert nested.nested() == in_all({"d": None, "e": "7"})
