"""Addresses of Azure's storage, and what they say of the account."""

from __future__ import annotations

import pytest

from airflow_provider_rfr.lake.file_io import LakeFileIO, _of_account

FULL = "abfss://lake@account.dfs.core.windows.net/raw/orders"


@pytest.mark.parametrize(
    ("location", "path"),
    [
        (FULL, "lake/raw/orders"),
        ("wasbs://lake@account.blob.core.windows.net/raw", "lake/raw"),
        ("abfss://lake/raw", "lake/raw"),
        ("s3://lake@home/raw", "lake@home/raw"),
        ("gs://lake/raw", "lake/raw"),
    ],
)
def test_the_account_is_no_part_of_the_path(location: str, path: str) -> None:
    assert LakeFileIO.parse_location(location)[2] == path


@pytest.mark.parametrize(
    ("host", "blob"),
    [
        ("account.dfs.core.windows.net", ".blob.core.windows.net"),
        ("account.blob.core.chinacloudapi.cn", ".blob.core.chinacloudapi.cn"),
        ("onelake.dfs.fabric.microsoft.com", ".blob.fabric.microsoft.com"),
    ],
)
def test_the_host_names_the_account_and_the_cloud(host: str, blob: str) -> None:
    found = _of_account(host, {})
    assert found["adls.account-name"] == host.partition(".")[0]
    assert found["adls.blob-storage-authority"] == blob
    assert found["adls.dfs-storage-authority"] == blob.replace(".blob.", ".dfs.")


def test_properties_take_precedence_and_a_token_of_the_account_is_used() -> None:
    host = "account.dfs.core.windows.net"
    assert (
        _of_account(host, {"adls.blob-storage-authority": "127.0.0.1:1"})["adls.blob-storage-authority"]
        == "127.0.0.1:1"
    )
    vended = {f"adls.sas-token.{host}": "sig=a", "adls.sas-token.other.dfs.core.windows.net": "sig=b"}
    assert _of_account(host, vended)["adls.sas-token"] == "sig=a"


def test_one_client_is_kept_for_each_account() -> None:
    io = LakeFileIO({"adls.account-key": "a2V5"})
    assert io.fs_by_scheme("abfss", "lake@one.dfs.core.windows.net") is io.fs_by_scheme(
        "abfss", "lake@one.dfs.core.windows.net"
    )


def test_googles_client_begins_no_try_after_a_minute_and_keeps_its_other_settings() -> None:
    token = {"gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": "4102444800000"}
    filesystem = LakeFileIO({**token, "gcs.service.host": "http://127.0.0.1:1"}).fs_by_scheme("gs", "lake")
    _, (options,) = filesystem.__reduce__()
    assert options["retry_time_limit"].total_seconds() == 60
    assert (options["access_token"], options["endpoint_override"]) == ("t", "127.0.0.1:1")
