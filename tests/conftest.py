"""The environment of all tests, set before anything imports Airflow: nothing of the developer's own reaches them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = tempfile.TemporaryDirectory(prefix="rfr-tests-airflow-")

for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
    del os.environ[name]
os.environ.update(
    {
        "AIRFLOW_HOME": HOME.name,
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "tests" / "integration" / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME.name}/airflow.db",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
)

# The set-up chose a Java that Spark runs on; `make test` exports it, a bare `pytest` may not.
_chosen = ROOT / ".venv" / "java_home"
if "JAVA_HOME" not in os.environ and _chosen.is_file():
    os.environ["JAVA_HOME"] = _chosen.read_text().strip()
