"""docs/get_started.md in the built wheel's own environment: what it prints is what a newcomer's shell runs.

The environment is made by the resolver alone, as ``python -m tests.matrix`` does it. Only addresses, folders and the
name of the wheel are replaced, because other tests run at the same time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.integration.standalone import free_ports
from tests.matrix import ROOT, StepError, build_wheel
from tests.soon import PATIENCE, wait_until

PAGE = (ROOT / "docs" / "get_started.md").read_text(encoding="utf-8")
WHEEL = '"airflow-provider-rfr[spark41]"'
SAMPLE = "python -m airflow_provider_rfr.sample_api --port 8091"
FOLDER = "/tmp/rfr"
INSTALL_SECONDS = 900
COUNTS = """
import json
from pyiceberg.catalog import load_catalog

catalog = load_catalog("rfr", type="sql", uri="sqlite:////tmp/rfr/catalog.db")
ids = {name: catalog.load_table(f"raw.{name}").scan().to_arrow()["id"].to_pylist() for name in ("customers", "orders")}
print(json.dumps({name: sorted(found) == list(range(1, len(found) + 1)) and len(found) for name, found in ids.items()}))
"""


class Newcomer:
    """Somebody who types the page's commands into one shell, in a new folder.

    :param folder: the new folder
    :param wheel: taken where the page names the package
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        self._port = free_ports(1)[0]
        self._replaced = {
            # By uv, as in the set-up, and never into the environment of the tests.
            "python3 -m venv": f"{sys.executable} -m venv --without-pip",
            "pip install": f'{sys.executable} -m uv pip install -q --python "$VIRTUAL_ENV/bin/python"',
            WHEEL: f'"airflow-provider-rfr[spark41] @ {wheel.as_uri()}"',
            "8091": str(self._port),
            FOLDER: str(folder / "lake"),
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON", "RFR_"))}
        kept.pop("VIRTUAL_ENV", None)
        self._environment = {"UV_SYSTEM_CERTS": "true", **kept}
        self._setup: list[str] = []

    def run(self, *commands: str, seconds: float = PATIENCE) -> str:
        """Run commands of the page, after those that the shell keeps, and return what they print.

        :raises StepError: one of them failed
        """
        script = "\n".join(map(self._here, (*self._setup, *commands)))
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        if ended.returncode:
            raise StepError(f"{commands[-1]}: exit code {ended.returncode}: {ended.stdout[-4000:]}")
        return ended.stdout

    def keep(self, *commands: str) -> None:
        """Run these before all later commands: the shell stays in its environment."""
        self._setup += commands

    def run_program(self, text: str) -> str:
        """Run a program in Python, and return what it prints."""
        (self._folder / "read.py").write_text(self._here(text), encoding="utf-8")
        return self.run("python read.py")

    def edit(self, file: Path) -> None:
        """Let a written file lead to the sample API and the folder of this shell."""
        file.write_text(self._here(file.read_text(encoding="utf-8")), encoding="utf-8")

    @contextmanager
    def sample_api(self) -> Iterator[None]:
        """Run the sample API in another terminal."""
        script = "\n".join(map(self._here, (*self._setup, f"exec {SAMPLE}")))
        with (
            (self._folder / "api.log").open("w") as log,
            subprocess.Popen(
                ["bash", "-euc", script], cwd=self._folder, env=self._environment, stdout=log, stderr=log
            ) as process,
        ):
            try:
                wait_until(self._api_answers)
                yield
            finally:
                process.terminate()

    def _api_answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/_admin/health", timeout=5):
                return True
        except OSError:
            return False

    def _here(self, text: str) -> str:
        for printed, own in self._replaced.items():
            text = text.replace(printed, own)
        return text


def commands_of(section: str) -> list[list[str]]:
    """Return the commands of each console block of a section."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE) for block in blocks]


def programs() -> list[str]:
    """Return the programs of the page that read the table."""
    return re.findall(r"```python\n(.*?)```", PAGE.partition("\n## Read the table\n")[2], re.DOTALL)


def test_a_newcomer_comes_from_the_wheel_to_a_table_that_others_read(tmp_path: Path) -> None:
    (tmp_path / "wheel").mkdir()
    newcomer, sizes = Newcomer(tmp_path, build_wheel(tmp_path / "wheel")), Sizes()
    (make, install, export, migrate), existing = commands_of("Install")
    assert existing[0].startswith("pip install") and WHEEL in existing[0] and WHEEL in install
    newcomer.run(make)
    newcomer.keep(". rfr/bin/activate", export)
    newcomer.run(install, seconds=INSTALL_SECONDS)
    assert "airflow-provider-rfr" in newcomer.run(migrate, existing[1])

    [init], [sample], [connect, check, load] = commands_of("The first load")
    assert sample == SAMPLE
    newcomer.run(init)
    newcomer.edit(tmp_path / "airflow" / "dags" / "connections.yaml")
    with newcomer.sample_api():
        newcomer.run(connect)
        checked = newcomer.run(check)
        assert re.search(r"customers\W+ok\W+100\b", checked), checked
        loaded = newcomer.run(load, seconds=2 * PATIENCE)
    told = f"Published {sizes.customers + sizes.records} rows"
    assert told in loaded and f"`{told}`" in PAGE

    iceberg, duck = programs()
    assert "id: " in newcomer.run_program(iceberg)
    assert newcomer.run_program(COUNTS).splitlines()[-1] == (
        f'{{"customers": {sizes.customers}, "orders": {sizes.records}}}'
    )
    newcomer.run(f"pip install duckdb=={version('duckdb')}", seconds=INSTALL_SECONDS)
    assert re.search(rf"\b{sizes.customers}\b", newcomer.run_program(duck))
