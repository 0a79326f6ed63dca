"""The commands of docs/sources.md print what the page says, and its Python reads the same."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_rfr.sample_api import SampleApi, Sizes
from tests.unit.cli.calls import Rfr

pytestmark = pytest.mark.test

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "sources.md").read_text()


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SampleApi]:
    """The sample API as the page starts it, and the page's smallest source in the working folder."""
    monkeypatch.chdir(tmp_path)
    [address] = re.findall(r"^base_url: (http://127.0.0.1:\d+)$", PAGE, re.MULTILINE)
    assert f"python -m airflow_provider_rfr.sample_api --port {address.rpartition(':')[2]}" in PAGE
    with SampleApi(Sizes(records=250)) as running:
        source = next(text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if address in text)
        Path("shop.yaml").write_text(source.replace(address, running.base_url))
        yield running


def is_shortened(line: str, shown: str) -> bool:
    """Tell whether the page shows this line, with ``...`` for parts of it."""
    parts = (re.escape(" ".join(part.split())) for part in shown.split("..."))
    return re.fullmatch(".*".join(parts), " ".join(line.split())) is not None


def test_the_commands_print_what_the_page_says(api: SampleApi, command: Rfr) -> None:
    [text] = re.findall(r"```console\n(\$ airflow rfr source check shop.yaml\n.*?)```", PAGE, re.DOTALL)
    runs = re.split(r"^\$ airflow rfr ", text, flags=re.MULTILINE)[1:]
    assert len(runs) == 2
    for run in runs:
        line, *shown = run.splitlines()
        printed = command(*shlex.split(line))
        lines = [*printed.out.splitlines(), *printed.err.splitlines()]
        assert len(lines) == len(shown)
        assert [pair for pair in zip(lines, shown, strict=True) if not is_shortened(*pair)] == []


def test_a_mistake_is_refused_as_the_page_says(api: SampleApi, command: Rfr) -> None:
    [shown] = re.findall(r"```text\n(.*?)\n```", PAGE, re.DOTALL)
    Path("shop.yaml").write_text(Path("shop.yaml").read_text().replace("page_size", "pagesize"))
    assert is_shortened(command("source", "check", "shop.yaml", code=1).err.strip(), shown)
    assert api.counts()["requests"] == 0


def test_the_stream_that_python_reads_is_that_of_the_command(
    api: SampleApi, capsys: pytest.CaptureFixture[str]
) -> None:
    section = (DOCS / "python_sources.md").read_text().partition("## Read any stream in Python")[2]
    [code] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(compile(code, "python_sources.md", "exec"), {})
    page, *records = capsys.readouterr().out.splitlines()
    assert page.endswith("orders?limit=100&offset=0 200 100 NextPage(token=100) 3"), page
    assert len(records) == api.truth("/orders")["count"]
