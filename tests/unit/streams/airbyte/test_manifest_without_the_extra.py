"""Without airbyte-cdk a manifest says what to install, and all else is as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from airflow_provider_rfr.operators.arguments import shipped_source

WITHOUT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "airbyte_cdk":
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Blocker())
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.loader import inline_source, load_stream

own = {"base_url": "https://api.example.com", "streams": {"orders": {"request": {"path": "orders"}}}}
assert load_stream({"definition": own}, "orders").name == "orders"
source = {"manifest": {"type": "DeclarativeSource", "streams": []}}
assert inline_source(source) == source
try:
    load_stream(source, "orders")
except ConfigurationError as error:
    print(error)
"""


def test_a_manifest_without_the_extra_says_in_one_sentence_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "source.manifest: needs airbyte-cdk, which can't be imported (airbyte_cdk is not installed here); "
        "write pip install 'airflow-provider-rfr[airbyte]', on the executors too"
    )


def test_an_operator_ships_the_text_of_a_manifest_beside_its_dag(tmp_path: Path) -> None:
    (tmp_path / "manifest.yaml").write_text("type: DeclarativeSource\nversion: 2024-01-01\nstreams: []\n")
    (tmp_path / "components.py").write_text("VALUE = 1\n")
    shipped = shipped_source({"manifest": "manifest.yaml", "components": "components.py"}, [tmp_path])
    assert shipped == {
        "manifest": {"type": "DeclarativeSource", "version": "2024-01-01", "streams": []},
        "components": "VALUE = 1\n\n",
    }
    assert shipped_source(shipped, [tmp_path]) == shipped
