from __future__ import annotations

from functools import partial
from typing import Any

import pyrage

from airflow_provider_rfr.hooks.webhooks import check_triggers
from airflow_provider_rfr.webhooks.sealing import open_sealed, seal

BLOCK: dict[str, Any] = {
    "config": {
        "tell": {"preset": "slack", "url": "https://hooks.slack.com/services/T/B/canary-c01d"},
        "start": {
            "preset": "airflow-dag-run",
            "url": "https://airflow.example.com",
            "with": {"dag_id": "after", "username": "hooks", "password": "canary-c01d"},
        },
        "call": {
            "url": "https://hooks.example.com/",
            "headers": {"Authorization": "Bearer canary-c01d"},
            "payload": {"run": "{{run_id}}"},
            "success": {"status": [200, "2xx", 409], "pointer": "/ok", "equals": True},
            "signing": {"secrets": ["whsec_" + "Y2FuYXJ5" * 5]},
        },
    }
}


def test_a_sealed_block_is_checked_while_it_is_sealed_and_is_the_same_once_opened() -> None:
    identity = pyrage.x25519.Identity.generate()
    sealed = check_triggers(seal(BLOCK, [str(identity.to_public())]))
    assert sealed.is_sealed
    assert "canary-c01d" not in str(sealed.dump())
    opened = sealed.opened(partial(open_sealed, environment={"SOPS_AGE_KEY": str(identity)}))
    assert opened.dump() == check_triggers(BLOCK).dump()
    assert "canary-c01d" not in repr(opened)
