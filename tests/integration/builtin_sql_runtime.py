"""Opens a session on a catalog where Maven can't be reached, and prints what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from airflow_provider_rfr.builtins.spark_sql import open_session
from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.lake.catalog import open_catalog
from tests.integration.builtin_sql_deploy import SPARK
from tests.integration.conftest import Lake

NO_REPOSITORIES = """<ivysettings><settings defaultResolver="none"/>
<resolvers><chain name="none"/></resolvers></ivysettings>"""


def main(folder: Path, jars: list[str]) -> None:
    ivy = folder / "ivysettings.xml"
    ivy.write_text(NO_REPOSITORIES)
    settings = {**SPARK, "spark.jars.ivySettings": str(ivy), "spark.jars.ivy": str(folder / "ivy")}
    lake = Lake(folder).settings
    open_catalog(lake).create_namespace("ops")
    try:
        session = open_session(lake, settings, jars)
        print(json.dumps({"namespaces": [row[0] for row in session.sql("SHOW NAMESPACES IN rfr").collect()]}))
    except RfrError as error:
        print(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
