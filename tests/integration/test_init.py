"""``airflow rfr init``: its printed steps, in an Airflow home of their own, end with tables in the lake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from pyiceberg.catalog import load_catalog

from airflow_provider_rfr.sample_api import SampleApi, Sizes
from tests.airflow_versions import rfr_command
from tests.integration.conftest import PYTHON_PATH

SIZES = Sizes(records=450, customers=230)
AIRFLOW = (sys.executable, "-m", "airflow")


def test_the_steps_that_it_prints_load_the_sample_api(tmp_path: Path) -> None:
    environment = {**os.environ, **PYTHON_PATH, "AIRFLOW_HOME": str(tmp_path)}
    environment |= {"AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags")}
    environment |= {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db"}

    def run(*words: str) -> str:
        ended = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
        return ended.stdout

    run(*AIRFLOW, "db", "migrate")
    connect, check, load = json.loads(run(*rfr_command("init", "--json")))["next"]
    connections = tmp_path / "dags" / "connections.yaml"
    with SampleApi(SIZES, api_key="any-key") as api:
        # Another test may have the usual port and folder.
        text = connections.read_text().replace("http://127.0.0.1:8091", api.base_url)
        connections.write_text(text.replace("/tmp/rfr", str(tmp_path / "lake")))
        (tmp_path / "lake").mkdir()
        run(*AIRFLOW, *connect.partition(" && ")[2].split()[1:])
        run(*rfr_command(*check.split()[2:]))
        run(*AIRFLOW, *load.split()[1:])
        assert api.counts()["refetched"] <= 2, "the pages that the check read"
    catalog = load_catalog("rfr", type="sql", uri=f"sqlite:///{tmp_path}/lake/catalog.db")
    for stream, rows in (("customers", SIZES.customers), ("orders", SIZES.records)):
        ids = catalog.load_table(f"raw.{stream}").scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
        assert sorted(ids) == list(range(1, rows + 1))
