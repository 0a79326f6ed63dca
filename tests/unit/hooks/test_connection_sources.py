"""Where a connection really comes from, when one of the places has something wrong."""

from __future__ import annotations

from airflow_provider_rfr.connections.airflow.lookup import origin_of
from airflow_provider_rfr.exceptions import ConfigurationError
from tests.unit.messages import raises


class Vault:
    """A secrets backend that is away."""

    def get_connection(self, conn_id: str) -> None:
        raise TimeoutError(f"canary asked for {conn_id}")


class Empty:
    """One that has nothing."""

    def get_connection(self, conn_id: str) -> None:
        return None


def test_a_backend_that_cant_be_asked_leaves_it_open_which_connection_counts() -> None:
    assert origin_of("shop", [Empty()]) is None
    with raises(ConfigurationError) as caught:
        origin_of("shop", [Empty(), Vault(), Empty()])
    assert "canary" not in str(caught.value)
