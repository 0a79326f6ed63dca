"""Sealing against the real ``sops`` program, both ways. It is built once, where there is Go."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyrage  # type: ignore[import-untyped]
import pytest
import yaml

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.block import parse_triggers
from airflow_provider_rfr.webhooks.sealing import check_sealed, open_sealed, reseal, seal_file

# The first test waits for the program to be built.
VERSION = "v3.13.3"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-provider-rfr" / f"sops-{VERSION}"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "webhooks_sealing.md"
KINDS = ("yaml", "json")
HEADER = '["config"]["startDownstream"]["headers"]["Authorization"]'
MAC_MISMATCH = 51

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def program() -> Path:
    """The program, from the cache or built by Go from its pinned source: some minutes of one core, once."""
    program = CACHE / "sops"
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if program.is_file():
        return program
    if go is None:
        pytest.skip("there is no Go to build sops with")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.is_file():
            _build(go, program)
    return program


def _build(go: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        settings = {**os.environ, "GOBIN": folder, "GOFLAGS": "-p=1", "CGO_ENABLED": "0"}
        # Its clouds' SDKs are most of the work, and nobody calls them here: compiled without optimisation.
        command = [go, "install", "-gcflags=all=-N -l", "-ldflags=-s -w"]
        command.append(f"github.com/getsops/sops/v3/cmd/sops@{VERSION}")
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"Go could not build sops: {done.stderr.strip().splitlines()[-1]}")
        (Path(folder) / "sops").replace(target)


class Key:
    """An age key."""

    def __init__(self) -> None:
        identity = pyrage.x25519.Identity.generate()
        self.secret, self.public = str(identity), str(identity.to_public())


@pytest.fixture(scope="module")
def keys() -> tuple[Key, Key]:
    return Key(), Key()


@pytest.fixture
def environment(program: Path, keys: tuple[Key, Key], tmp_path: Path) -> dict[str, str]:
    """Of a worker that has both keys, and the program in its PATH."""
    secrets = "\n".join(key.secret for key in keys)
    return {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "SOPS_AGE_KEY": secrets}


@pytest.fixture
def sops(program: Path, environment: dict[str, str], tmp_path: Path) -> Run:
    def run(*arguments: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [program, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode != 0) is fails, done.stderr
        return done

    return run


@pytest.fixture
def document() -> dict[str, Any]:
    return {
        "interval": "5m",
        "config": {
            "startDownstream": {
                "url": "https://hooks.example.com/canary-url",
                "method": "PUT",
                "headers": {"Authorization": "Bearer canary-ü", "X-Team": "canary two"},
                "payload": {"run": "{{run_id}}", "n": [1, 2.5, None, True]},
                "timeout": "30s",
                "success": {"status": ["2xx", 409], "pointer": "/ok", "equals": True},
                "signing": {"secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]},
                "exposeHeaders": ["X-Team"],
            },
            "other": {"connection": "hooks", "preset": "databricks", "with": {"jobId": 17, "token": "canary-token"}},
        },
    }


def read(text: str, kind: str) -> Any:
    return json.loads(text) if kind == "json" else yaml.safe_load(text)


def written(document: Mapping[str, Any], kind: str) -> str:
    return json.dumps(document) if kind == "json" else yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ours(document: dict[str, Any], keys: tuple[Key, Key], kind: str, tmp_path: Path) -> Path:
    """A file that was sealed here."""
    plain, sealed = tmp_path / f"triggers.{kind}", tmp_path / f"sealed.{kind}"
    plain.write_text(written(document, kind))
    sealed.write_text(seal_file(plain, [keys[0].public]))
    return sealed


@pytest.fixture
def theirs(document: dict[str, Any], kind: str, sops: Run, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A document that the program sealed by a rule of ``.sops.yaml``: the documented one, changed as given."""

    def encrypted(**changes: Any) -> dict[str, Any]:
        rule = documented_rule() | changes
        rule.pop("kms")
        rule["path_regex"] = rf"triggers\.{kind}$"
        (tmp_path / ".sops.yaml").write_text(yaml.safe_dump({"creation_rules": [rule]}))
        (tmp_path / f"triggers.{kind}").write_text(written(document, kind))
        return dict(read(sops("encrypt", f"triggers.{kind}").stdout, kind))

    return encrypted


def documented_rule() -> dict[str, Any]:
    page = DOCS.read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(creation_rules:.*?)```", page, re.DOTALL)
    [rule] = yaml.safe_load(blocks[0])["creation_rules"]
    return dict(rule)


def test_what_is_sealed_here_the_program_opens_and_its_code_fits(
    ours: Path, sops: Run, document: dict[str, Any], kind: str
) -> None:
    opened = read(sops("decrypt", ours.name).stdout, kind)
    assert parse_triggers(opened).dump() == parse_triggers(document).dump()


def test_what_may_be_edited_here_may_be_edited_for_the_program(ours: Path, sops: Run, kind: str) -> None:
    sealed = read(ours.read_text(), kind)
    sealed["config"]["startDownstream"]["timeout"] = "45s"
    ours.write_text(written(sealed, kind))
    assert read(sops("decrypt", ours.name).stdout, kind)["config"]["startDownstream"]["timeout"] == "45s"


def test_what_is_refused_here_the_program_refuses_too(
    ours: Path, sops: Run, environment: dict[str, str], kind: str
) -> None:
    sealed = read(ours.read_text(), kind)
    del sealed["config"]["startDownstream"]["headers"]["X-Team"]
    ours.write_text(written(sealed, kind))
    assert sops("decrypt", ours.name, fails=True).returncode == MAC_MISMATCH
    with pytest.raises(SealError, match="does not match its content"):
        open_sealed(sealed, environment=environment)


def test_a_value_that_the_program_set_and_a_key_that_it_rotated_are_opened_here(
    ours: Path, sops: Run, environment: dict[str, str], document: dict[str, Any], kind: str
) -> None:
    before = read(ours.read_text(), kind)["sops"]["age"][0]["enc"]
    sops("set", ours.name, HEADER, '"Bearer new"')
    sops("rotate", "--in-place", ours.name)
    sealed = read(ours.read_text(), kind)
    assert sealed["sops"]["age"][0]["enc"] != before
    check_sealed(sealed)
    document["config"]["startDownstream"]["headers"]["Authorization"] = "Bearer new"
    opened = parse_triggers(open_sealed(sealed, environment=environment))
    assert opened.dump() == parse_triggers(document).dump()


@pytest.mark.parametrize("mac_only", [True, False])
def test_what_the_program_sealed_by_the_documented_rule_is_opened_here(
    theirs: Callable[..., dict[str, Any]],
    keys: tuple[Key, Key],
    environment: dict[str, str],
    document: dict[str, Any],
    mac_only: bool,
) -> None:
    sealed = theirs(age=keys[0].public, mac_only_encrypted=mac_only)
    check_sealed(sealed)
    assert "canary" not in json.dumps(sealed)
    assert open_sealed(sealed, environment={**environment, "PATH": ""}) == document
    again = reseal(sealed, recipients=[keys[1].public], environment=environment)
    assert open_sealed(again, environment={"SOPS_AGE_KEY": keys[1].secret}) == document
    sealed["config"]["startDownstream"]["timeout"] = "45s"
    if mac_only:
        assert open_sealed(sealed, environment=environment)["config"]["startDownstream"]["timeout"] == "45s"
    else:
        with pytest.raises(SealError, match="does not match its content"):
            open_sealed(sealed, environment=environment)


def test_a_key_that_is_shared_between_groups_is_put_together_by_the_program(
    theirs: Callable[..., dict[str, Any]], keys: tuple[Key, Key], environment: dict[str, str], document: dict[str, Any]
) -> None:
    sealed = theirs(shamir_threshold=2, key_groups=[{"age": [key.public]} for key in keys])
    assert open_sealed(sealed, environment=environment) == document
    with pytest.raises(SealError, match="keys shared between groups the sops program"):
        open_sealed(sealed, environment={**environment, "PATH": "/nowhere"})
    with pytest.raises(SealError, match="none of its key sources gave the data key"):
        open_sealed(sealed, environment={**environment, "SOPS_AGE_KEY": keys[0].secret})
