"""Sources can be written and tested where neither Airflow nor Spark is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import airflow_provider_rfr

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"airflow", "pyspark", "pyiceberg", "pyarrow", "pandas"}:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocker())

import importlib, pkgutil
import airflow_provider_rfr.streams as streams
for found in pkgutil.walk_packages(streams.__path__, streams.__name__ + "."):
    importlib.import_module(found.name)
for name in streams.__all__:
    getattr(streams, name)
print("imported")
"""

LAZY = """
import sys
import airflow_provider_rfr.streams
heavy = {"requests", "tenacity", "airflow", "pyspark", "pyarrow", "pandas"} & sys.modules.keys()
assert not heavy, heavy
try:
    airflow_provider_rfr.streams.Nonsense
except AttributeError as error:
    print("imported")
"""


def run(program: str) -> str:
    root = str(Path(airflow_provider_rfr.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_module_of_streams_imports_without_airflow_and_spark() -> None:
    assert run(BLOCKED) == "imported"


def test_importing_streams_loads_neither_an_http_client_nor_anything_heavy() -> None:
    assert run(LAZY) == "imported"
