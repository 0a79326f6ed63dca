"""The environment of all tests, and the tier that each belongs to.

The environment is set before anything imports Airflow, so nothing of the developer's own reaches a test.

A test has one of four tiers, the first run that has it: ``check`` (no Spark, no Airflow process, no server process),
``test``, ``gate`` (what CI runs besides for each commit) and ``full`` (`make test-all` alone, each night). It follows
from the test's folder and its fixtures; a test or a module that names its tier itself has that one. Tests with Spark,
a cluster or a running Airflow are ``full`` unless they say otherwise.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

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


@pytest.fixture
def server() -> Iterator[Any]:
    """An endpoint whose answers a test chooses, also broken ones."""
    # Imported late, so that no module of the package is loaded before a test needs it.
    from tests.webhook_receiver import receiver

    with receiver() as endpoint:
        yield endpoint


@pytest.fixture
def receiver() -> Iterator[Any]:
    """The demo's endpoint, which takes everything."""
    from demo.webhook_receiver import Receiver

    with Receiver() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The machine's Chromium, without a window."""
    program = shutil.which("chromium")
    if program is None:
        reason = "Chromium is not installed (package chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import expect, sync_playwright

    from tests.soon import PATIENCE

    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        # Its sandbox needs rights that root and containers do not have; it opens pages of the tests alone.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


# So that a message that differs is shown with its difference.
pytest.register_assert_rewrite("tests.unit.messages")

TIERS = ("check", "test", "gate", "full")
FOLDERS = {"unit": "check", "checks": "test", "integration": "full", "chaos": "full", "system": "full"}
#: Fixtures that start a server process, also where they are a parameter's value.
SERVERS = frozenset({"postgres", "on_postgres"})
#: Programs that no test of the tier ``check`` may start.
HEAVY = ("java", "spark-submit", "airflow", "initdb", "postgres")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            item.add_marker("test" if FOLDERS[folder] == "check" and _needs(item) & SERVERS else FOLDERS[folder])
        # To import all other test modules takes each worker half a minute.
        if tier_of(item) == "gate" and FOLDERS[folder] != "full":
            raise pytest.UsageError(f"{item.nodeid}: mark it test or full; the gate does not collect {folder}")
    # Modules that run longest begin first, so that they don't run alone at the end; tests of a module keep their order.
    ranks: dict[Path, int] = {}
    for item in items:
        ranks[item.path] = max(ranks.get(item.path, 0), TIERS.index(tier_of(item)))
    items.sort(key=lambda item: (-ranks[item.path], not item.nodeid.startswith("tests/system/")))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep modules and collected tests out of garbage collections: a fifth of the CPU time of the unit tests."""
    gc.collect()
    gc.freeze()


def tier_of(item: pytest.Item) -> str:
    return next(tier for tier in TIERS if item.get_closest_marker(tier))


def _needs(item: pytest.Item) -> set[str]:
    """Names of its fixtures, and values of its parameters that may be such names."""
    values = getattr(item, "callspec", None)
    named = {value for value in values.params.values() if isinstance(value, str)} if values else set()
    return {*getattr(item, "fixturenames", ()), *named}


#: Modules of ``tests/system`` that start an Airflow of their own.
OWN_AIRFLOW = ("/test_airflow_builtins.py", "/test_airflow_git.py")


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Tests that share an Airflow, a cluster, a server or a Spark session run in one worker.

    By paths: pytest-xdist's own groups are lost with pytest 9.2, whose ids of tests can't be changed any more.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if module.startswith("tests/system/") and not module.endswith(OWN_AIRFLOW):
            return "tests/system"
        return module if module.startswith(("tests/integration/", "tests/system/")) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return Scheduling(config, log) if config.getvalue("dist") == "loadscope" else None


_is_light = False
_start = subprocess.Popen.__init__


def _start_unless_heavy(self: Any, args: Any, *more: Any, **options: Any) -> None:
    command = [os.fsdecode(argument) for argument in (args if isinstance(args, (list, tuple)) else [args])]
    started = Path(command[0]).name
    if _is_light and (started in HEAVY or "airflow_provider_rfr.sample_api" in command):
        raise AssertionError(f"a test of the tier 'check' starts {started}; mark it 'test'")
    _start(self, args, *more, **options)


subprocess.Popen.__init__ = _start_unless_heavy  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    global _is_light
    _is_light = tier_of(item) == "check"
    try:
        return (yield)
    finally:
        _is_light = False
