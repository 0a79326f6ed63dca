"""Where age keys are looked for, and what is said when none fits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyrage  # type: ignore[import-untyped]
import pytest

from airflow_provider_rfr.webhooks._sops import _MAX_ENVELOPE
from airflow_provider_rfr.webhooks.sealing import check_sealed, open_sealed, reseal, seal
from tests.soon import soon


def test_a_wrong_key_is_told_with_recipients_and_places(
    document: Any, key: Any, other_key: Any, tmp_path: Path, refusal: Any
) -> None:
    sealed = seal(document, [key.public])
    file = tmp_path / "keys.txt"
    file.write_text(f"{other_key.secret}\n")
    environment = {"SOPS_AGE_KEY_FILE": str(file), "HOME": str(tmp_path)}
    message = refusal(open_sealed, sealed, environment=environment, secrets=(key.secret, other_key.secret))
    assert f"It was sealed for: age {key.public}." in message
    assert "SOPS_AGE_KEY: not set" in message
    assert f"SOPS_AGE_KEY_FILE {file}: 1 key(s) {other_key.public}" in message
    assert f"{tmp_path}/.config/sops/age/keys.txt: can't be read (No such file or directory)" in message
    assert "SOPS_AGE_SSH_PRIVATE_KEY_FILE: not set" in message
    assert "SOPS_AGE_KEY_CMD: not set" in message
    assert "sops program" not in message


def test_without_any_place_all_are_named(sealed: Any, refusal: Any) -> None:
    assert "~/.config/sops/age/keys.txt: HOME is not set" in refusal(open_sealed, sealed, environment={})


@pytest.mark.parametrize(
    "content",
    [
        "# created: 2026\r\n\r\n   {secret}\t\r\n",
        "\ufeff{secret}\n",
        "{other}\n{secret}\n",
        "\x00\x01\nAGE-PLUGIN-YUBIKEY-1QQPQQQQQQ\n{secret}",
    ],
)
def test_key_files_are_read_as_age_reads_them(
    content: str, sealed: Any, document: Any, key: Any, other_key: Any, tmp_path: Path
) -> None:
    text = content.format(secret=key.secret, other=other_key.secret)
    file = tmp_path / "keys.txt"
    file.write_bytes(text.encode())
    assert open_sealed(sealed, environment={"SOPS_AGE_KEY_FILE": str(file)}) == document
    assert open_sealed(sealed, environment={"SOPS_AGE_KEY": text}) == document


def test_a_key_is_found_in_the_folder_of_sops(sealed: Any, document: Any, key: Any, tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".config" / "sops" / "age"
    folder.mkdir(parents=True)
    (folder / "keys.txt").write_text(key.secret)
    assert open_sealed(sealed, environment={"HOME": str(tmp_path / "home")}) == document
    configured = {"XDG_CONFIG_HOME": str(tmp_path / "home" / ".config"), "HOME": "/nowhere"}
    assert open_sealed(sealed, environment=configured) == document


def test_the_key_may_come_from_a_command_that_no_shell_sees(
    sealed: Any, document: Any, key: Any, tmp_path: Path, refusal: Any
) -> None:
    script = tmp_path / "give key"
    script.write_text('#!/bin/sh\ntest "$1" = "; echo" || exit 3\necho "$VAULTED"\necho noise >&2\n')
    script.chmod(0o755)
    environment = {"SOPS_AGE_KEY_CMD": f"'{script}' '; echo'", "VAULTED": key.secret, "PATH": os.environ["PATH"]}
    assert open_sealed(sealed, environment=environment) == document
    # It is not run where a key was found before.
    open_sealed(sealed, environment={**key.environment, "SOPS_AGE_KEY_CMD": f"touch {tmp_path / 'ran'}"})
    assert not (tmp_path / "ran").exists()
    environment["SOPS_AGE_KEY_CMD"] = f"'{script}' 'token-in-argument'"
    message = refusal(open_sealed, sealed, environment=environment, secrets=("token-in-argument", "noise"))
    assert "SOPS_AGE_KEY_CMD: the command ended with 3" in message
    for broken in ("/no/such/program", "'unclosed", " "):
        environment["SOPS_AGE_KEY_CMD"] = broken
        assert "could not be run" in refusal(open_sealed, sealed, environment=environment)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_an_ssh_key_seals_and_opens(kind: str, document: Any, tmp_path: Path, refusal: Any) -> None:
    file = tmp_path / "id"
    make = ["ssh-keygen", "-q", "-t", kind, "-f", str(file), "-C", "who@where", "-N", ""]
    subprocess.run(make, check=True, timeout=60, stdin=subprocess.DEVNULL)
    sealed = seal(document, [(tmp_path / "id.pub").read_text()])
    environment = {"SOPS_AGE_SSH_PRIVATE_KEY_FILE": str(file)}
    assert open_sealed(sealed, environment=environment) == document
    assert open_sealed(reseal(sealed, environment=environment), environment=environment) == document
    subprocess.run(["ssh-keygen", "-q", "-p", "-f", str(file), "-N", "pass phrase"], check=True, timeout=60)
    assert "one with a passphrase" in refusal(open_sealed, sealed, environment=environment)
    file.unlink()
    assert f"{file}: can't be read (No such file" in refusal(open_sealed, sealed, environment=environment)


def test_what_is_no_readable_key_file_is_told_and_the_next_place_is_tried(
    sealed: Any, document: Any, key: Any, tmp_path: Path, refusal: Any
) -> None:
    huge = tmp_path / "huge"
    huge.write_bytes(b"#\n" * 2**20)
    wrong = tmp_path / "wrong"
    wrong.write_text(f"AGE-SECRET-KEY-1CANARYCANARY\n{key.secret[:-1]}\n\n{key.secret} {key.secret}\n")
    for place, said in {
        str(tmp_path): "can't be read (Is a directory)",
        str(tmp_path / "missing\nline"): "No such file",
        f"{tmp_path}/\0": "can't be read (invalid path)",
        str(huge): "too large for a key file",
        str(wrong): "no key; not read as a key: line 1, 2, 4",
    }.items():
        message = refusal(
            open_sealed, sealed, environment={"SOPS_AGE_KEY_FILE": place}, secrets=("CANARYCANARY", key.secret[20:-1])
        )
        assert said in message
        assert "\n" not in message
        home = tmp_path / ".config" / "sops" / "age"
        home.mkdir(parents=True, exist_ok=True)
        (home / "keys.txt").write_text(key.secret)
        assert open_sealed(sealed, environment={"SOPS_AGE_KEY_FILE": place, "HOME": str(tmp_path)}) == document
        (home / "keys.txt").unlink()


def test_a_key_file_of_somebody_else_is_told(sealed: Any, key: Any, tmp_path: Path, refusal: Any) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(key.secret)
    file.chmod(0)
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)
    try:
        message = refusal(open_sealed, sealed, environment={"SOPS_AGE_KEY_FILE": str(file)})
    finally:
        os.seteuid(user)
    assert "can't be read (Permission denied)" in message


@pytest.mark.parametrize(
    "wrong", ["", "age1qqqq", "AGE-SECRET", "ssh-ed25519 AAAA", "age1pq1qqqq", "\ud800", "x" * 10**6]
)
def test_a_wrong_recipient_is_told_by_its_number_alone(wrong: str, document: Any, key: Any, refusal: Any) -> None:
    message = refusal(seal, document, [key.public, wrong])
    assert message.startswith("recipient 2 is not a public key")
    assert len(message) < 300


def test_recipients_are_a_list_with_one_public_key_at_least(document: Any, key: Any, refusal: Any) -> None:
    assert "age-keygen -y" in refusal(seal, document, [key.secret], secrets=(key.secret,))
    assert "at least one recipient" in refusal(seal, document, [])
    for wrong in (key.public, None, {key.public}):
        assert "must be a list" in refusal(seal, document, wrong)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_data_key_of_another_size_is_none(size: int, sealed: Any, key: Any, opens: Any, refusal: Any) -> None:
    recipient = pyrage.x25519.Recipient.from_str(key.public)
    sealed["sops"]["age"][0]["enc"] = pyrage.encrypt(bytes(size), [recipient], armored=True).decode()
    assert "no key of this machine" in refusal(opens, sealed)


@pytest.mark.parametrize("envelope", ["", "age-encryption.org/v1\n-> X25519 x\n--- a\n", "ü" * 100, 5, None])
def test_a_broken_envelope_opens_nothing(envelope: Any, sealed: Any, opens: Any, refusal: Any) -> None:
    sealed["sops"]["age"][0]["enc"] = envelope
    refusal(opens, sealed)


def test_an_endless_envelope_takes_no_time(sealed: Any, opens: Any, refusal: Any) -> None:
    sealed["sops"]["age"][0]["enc"] = "age-encryption.org/v1\n" + "-> X25519 a\n" * 100_000
    with soon(time.thread_time):
        refusal(opens, sealed)


def test_our_envelopes_are_well_below_the_longest(sealed: Any) -> None:
    assert len(sealed["sops"]["age"][0]["enc"]) < _MAX_ENVELOPE / 2


def test_a_document_with_many_recipients_is_refused_before_any_is_tried(sealed: Any, opens: Any, refusal: Any) -> None:
    sealed["sops"]["age"] *= 51
    assert "more than 50 key sources" in refusal(opens, sealed)


@pytest.mark.parametrize("module", ["pyrage", "cryptography"])
def test_without_the_extra_the_error_says_how_to_install_it(
    module: str, document: Any, key: Any, opens: Any, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = seal(document, [key.public])
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    check_sealed(sealed)
    wanted = f"{module}, which is not installed: pip install airflow-provider-rfr[sops]"
    assert wanted in refusal(seal, document, [key.public])
    assert wanted in refusal(opens, sealed)


def test_sealing_is_imported_without_the_extra() -> None:
    program = (
        "import sys; sys.modules.update(pyrage=None, cryptography=None)\n"
        "import airflow_provider_rfr.webhooks.sealing as sealing\n"
        "assert sealing.seal and not {'pyrage', 'airflow', 'pyspark'} & {k for k, v in sys.modules.items() if v}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
