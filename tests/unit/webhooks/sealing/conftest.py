"""Age keys, a document with secrets in all its sealed fields, and a look into all that an error tells."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyrage  # type: ignore[import-untyped]
import pytest

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks._sops import encrypt, envelope, rule_of, seal_tree
from airflow_provider_rfr.webhooks.sealing import open_sealed, plain_copy, seal

SECRETS = (
    "canary-url-7Qz",
    "canary-header-ü-9Rk",
    "canary-second-4Tm",
    "canary-with-2Wp",
    "whsec_canary1sign",
    "whsec_canary2sign",
    "canary-connection-5",
    "canary.host.internal",
)


@dataclass(frozen=True)
class AgeKey:
    secret: str
    public: str

    @property
    def environment(self) -> dict[str, str]:
        return {"SOPS_AGE_KEY": self.secret}


def new_key() -> AgeKey:
    identity = pyrage.x25519.Identity.generate()
    return AgeKey(str(identity), str(identity.to_public()))


@pytest.fixture(scope="session")
def key() -> AgeKey:
    return new_key()


@pytest.fixture(scope="session")
def other_key() -> AgeKey:
    return new_key()


@pytest.fixture(scope="session")
def recipients(key: AgeKey) -> list[str]:
    return [key.public]


@pytest.fixture
def document() -> dict[str, Any]:
    return {
        "interval": "5m",
        "config": {
            "startDownstream": {
                "url": f"https://hooks.example.com/{SECRETS[0]}",
                "method": "PUT",
                "headers": {"Authorization": f"Bearer {SECRETS[1]}", "X-Team": SECRETS[2]},
                "payloadTemplate": '{"run": "{{run_id}}"}',
                "timeout": "30s",
                "maxAttempts": 3,
                "success": {"status": ["2xx", 409], "pointer": "/ok", "equals": True},
                "signing": {"secrets": [SECRETS[4], SECRETS[5]]},
                "exposeHeaders": ["X-Team"],
                "allowedHosts": [SECRETS[7], "10.0.0.0/8"],
                "when": {"collections": ["acme/*"], "minDocuments": 1},
            },
            "other": {
                "connection": SECRETS[6],
                "preset": "databricks",
                "with": {"jobId": 17, "token": SECRETS[3]},
                "payload": {"a": ["{{run_id}}", 1, 2.5, None, "", True]},
                "retry": {"schedule": "standard", "maxElapsed": "1d"},
                "onFailure": "block",
                "ordering": "strict",
                "enabled": False,
            },
        },
    }


@pytest.fixture
def sealed(document: dict[str, Any], recipients: list[str]) -> dict[str, Any]:
    return seal(document, recipients)


@pytest.fixture
def opens(key: AgeKey) -> Callable[[Any], Any]:
    return lambda document: open_sealed(document, environment=key.environment)


@pytest.fixture
def changed(sealed: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """The sealed document with one place changed: ``changed("config", "other", "preset", value)``."""

    def change(*where: Any) -> dict[str, Any]:
        *way, last, value = where
        result = copy.deepcopy(sealed)
        node: Any = result
        for part in way:
            node = node[part]
        node[last] = value
        return result

    return change


Refusal = Callable[..., str]


@pytest.fixture
def refusal(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Refusal:
    """What a call's :class:`SealError` says; and that neither it, its context, nor any log holds a secret."""
    caplog.set_level(logging.DEBUG)

    def refused(call: Callable[..., Any], *arguments: Any, secrets: tuple[str, ...] = (), **named: Any) -> str:
        with pytest.raises(SealError) as caught:
            call(*arguments, **named)
        error = caught.value
        again = pickle.loads(pickle.dumps(error))
        printed = capfd.readouterr()
        texts = "\n".join(
            [
                *(str(link) + repr(link) + repr(link.args) for link in (*chain(error), again)),
                *traceback.format_exception(error, chain=True),
                caplog.text,
                printed.out,
                printed.err,
            ]
        )
        for secret in (*SECRETS, *secrets):
            assert secret not in texts
        assert "AGE-SECRET-KEY-1" not in texts
        assert error.__context__ is None
        return str(error)

    return refused


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.fixture
def like_sops() -> Callable[..., dict[str, Any]]:
    """Seals any document by any rule of SOPS, as its program would."""
    return sealed_like_sops


def sealed_like_sops(document: Mapping[str, Any], public: str, **rule: Any) -> dict[str, Any]:
    data_key = os.urandom(32)
    tree, code = seal_tree(plain_copy(document), data_key, rule_of(rule))
    stamp = "2026-01-02T03:04:05Z"
    age = [{"recipient": public, "enc": envelope(data_key, public)}]
    mac = encrypt(code, data_key, stamp.encode())
    return {**tree, "sops": {"age": age, "lastmodified": stamp, "mac": mac, **rule, "version": "3.11.0"}}
