"""A manifest of Airbyte as the source of an operator, and of a declared source; without airbyte-cdk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.operators.arguments import shipped_source
from airflow_provider_rfr.operators.builtins import declared_sources
from tests.unit.messages import raises

MANIFEST = """type: DeclarativeSource
version: 7.20.0
streams:
  - {type: DeclarativeStream, name: Ad Sets, url: "{{ config['url'] }}"}
spec:
# Comments may begin anywhere.
  type: Spec
  connection_specification:
    type: object
    properties:
      start_date: {type: string}
      api_key: {type: string, airbyte_secret: true}
      credentials:
        oneOf:
          - properties: {kind: {const: key}, pin: {type: string, airbyte_secret: true}}
          - properties: {kind: {const: login}, user: {type: string}}
metadata: {a: b}
"""
REFERRING = MANIFEST.replace("{type: string, airbyte_secret: true}\n", '{$ref: "#/definitions/key"}\n') + (
    "definitions: {key: {type: string, airbyte_secret: true}}\n"
)
SECRET = "the manifest calls it secret, and what a DAG holds is shown to its readers; put it into the connection "

PARSE = """
import sys
from pathlib import Path
from airflow_provider_rfr.operators.arguments import check_arguments
source = {"manifest": "manifest.yaml", "config": {"start_date": "2024-01-01"}}
before = len([name for name in sys.modules if name.startswith("airflow_provider_rfr")])
check_arguments(source, ["Ad Sets"], "raw.{stream}", None, [Path(sys.argv[1])])
heavy = {"airbyte_cdk", "requests_cache", "jsonschema", "airflow_provider_rfr.streams.loader"} & sys.modules.keys()
print(sorted(heavy), len([name for name in sys.modules if name.startswith("airflow_provider_rfr")]) - before)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "manifest.yaml").write_text(MANIFEST)
    return tmp_path


def operator(folder: Path, manifest: Any = "manifest.yaml", **config: Any) -> ResumableFullRefreshOperator:
    with DAG("d") as dag:
        dag.fileloc = str(folder / "dag.py")
        return ResumableFullRefreshOperator(
            task_id="refresh",
            source={"manifest": manifest, "config": config},
            streams=["Ad Sets"],
            target="raw.{stream}",
            api_conn_id="ads",
        )


@pytest.mark.parametrize(
    ("config", "place", "field"),
    [
        ({"api_key": "canary"}, "api_key", "password"),
        ({"api_key": "{{ conn.ads.password }}"}, "api_key", "password"),
        ({"credentials": {"kind": "key", "pin": "canary"}}, "credentials.pin", "extra.secrets.credentials.pin"),
    ],
)
def test_a_secret_of_the_manifests_is_refused_while_the_dag_is_parsed(
    folder: Path, config: dict[str, Any], place: str, field: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        operator(folder, **config)
    assert str(caught.value) == f"source.config.{place}: {SECRET}that api_conn_id names, as {field}"


def test_the_same_holds_for_an_inline_manifest_and_for_one_as_json(folder: Path) -> None:
    inline = shipped_source({"manifest": "manifest.yaml"}, [folder])["manifest"]
    with raises(ConfigurationError):
        operator(folder, inline, api_key="canary")
    (folder / "manifest.json").write_text(json.dumps(inline))
    with raises(ConfigurationError):
        operator(folder, "manifest.json", api_key="canary")


def test_a_secret_that_only_the_whole_manifest_shows_is_refused_in_the_task(folder: Path) -> None:
    (folder / "manifest.yaml").write_text(REFERRING)
    made = operator(folder, api_key="canary")
    with raises(ConfigurationError):
        shipped_source(made.source, [folder])


def test_other_fields_and_manifests_that_only_workers_have_are_accepted(folder: Path) -> None:
    operator(folder, start_date="2024-01-01", credentials={"kind": "login", "user": "me"}, more=1)
    operator(folder, "/mnt/workers/manifest.yaml", api_key="known only there")
    operator(folder, "{{ params.manifest }}", api_key="known only there")


def test_a_streams_table_has_a_name_that_a_table_can_have(folder: Path) -> None:
    assert [outlet.uri for outlet in operator(folder).outlets] == ["rfr://rfr_lake_default/raw/ad_sets"]


def test_templates_of_an_inline_manifest_are_left_for_the_refresh_and_those_of_a_path_are_not(folder: Path) -> None:
    inline = shipped_source({"manifest": "manifest.yaml"}, [folder])["manifest"]
    made = operator(folder, inline, start_date="{{ ds }}")
    made.render_template_fields({"ds": "2026-01-02", "params": {}})  # type: ignore[typeddict-item]
    assert made.source == {"manifest": inline, "config": {"start_date": "2026-01-02"}}
    assert "{{ config['url'] }}" in str(made.source)
    made = operator(folder, "{{ params.folder }}/manifest.yaml")
    made.render_template_fields({"params": {"folder": "/x"}})  # type: ignore[typeddict-item]
    assert made.source["manifest"] == "/x/manifest.yaml"


def test_the_parse_of_a_dag_loads_neither_the_cdk_nor_what_reads_sources(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PARSE, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    heavy, count = done.stdout.splitlines()[-1].rsplit(" ", 1)
    assert heavy == "[]"
    assert int(count) <= 8


def test_a_declared_source_has_its_manifest_beside_the_declaration(folder: Path) -> None:
    (folder / "components.py").write_text("VALUE = 1\n")
    objects = folder / "objects"
    objects.mkdir()
    declaration = objects / "ads.yaml"
    declaration.write_text(
        "kind: source\nname: raw.ads\ncolumns: [{name: id, type: bigint}]\nsource:\n"
        "  source:\n    manifest: ../manifest.yaml\n    components: ../components.py\n"
        "    config: {start_date: '2024-01-01'}\n  streams: [Ad Sets]\n  api_conn_id: ads\n"
    )

    def refresh() -> ResumableFullRefreshOperator:
        (found,) = declared_sources([str(objects)], project="acme", declared_version="1.0")
        with DAG("d", schedule=None):
            return found.refresh()

    task = refresh()
    assert (task.streams, task.target) == (["Ad Sets"], "raw.ads")
    assert task.source["manifest"] == str(folder / "manifest.yaml")
    shipped = shipped_source(task.source, ())
    assert shipped["components"] == "VALUE = 1\n\n"
    assert shipped["manifest"]["streams"][0]["name"] == "Ad Sets"
    text = declaration.read_text()
    for right, wrong in (("../components.py", "nope.py"), ("start_date", "api_key")):
        declaration.write_text(text.replace(right, wrong))
        with raises(ConfigurationError):
            refresh()
