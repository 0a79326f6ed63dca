"""The demo's S3-compatible store: what it holds is there again after a kill."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.airflow_stack import free_port
from demo.probe import main as probe
from tests.soon import wait_until

pytestmark = pytest.mark.test

ROOT = Path(__file__).resolve().parents[2]
KEY_ID = "the-key"
Start = Callable[[], Any]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[bytes], Any]]]:
    """Start the store on its folder; returns the process and a client."""
    started: list[subprocess.Popen[bytes]] = []
    port = free_port()

    def begin() -> tuple[subprocess.Popen[bytes], Any]:
        import boto3

        command = ["-m", "demo.s3_store", "--port", str(port), "--folder", str(tmp_path / "s3"), "--bucket", "lake"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "S3_ACCESS_KEY_ID": KEY_ID}
        process = subprocess.Popen([sys.executable, *command], env=environment, stderr=subprocess.DEVNULL)
        started.append(process)

        def answers() -> bool:
            assert process.poll() is None
            return not probe([f"http://127.0.0.1:{port}/_health"])

        wait_until(answers)
        return process, boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id=KEY_ID,
            aws_secret_access_key="any",
        )

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_objects_outlive_a_kill(start: Start) -> None:
    process, client = start()
    client.put_object(Bucket="lake", Key="a/b c=1/ü.parquet", Body=b"first")
    client.put_object(Bucket="lake", Key="a/b c=1/ü.parquet", Body=b"second")
    client.put_object(Bucket="lake", Key="gone", Body=b"x")
    client.put_object(Bucket="lake", Key="gone too", Body=b"x")
    client.delete_object(Bucket="lake", Key="gone")
    client.delete_objects(Bucket="lake", Delete={"Objects": [{"Key": "gone too"}]})
    client.copy_object(Bucket="lake", Key="copy", CopySource={"Bucket": "lake", "Key": "a/b c=1/ü.parquet"})
    part = b"p" * (5 << 20)
    upload = client.create_multipart_upload(Bucket="lake", Key="large")["UploadId"]
    named = {"Bucket": "lake", "Key": "large", "UploadId": upload}
    tags = [client.upload_part(**named, PartNumber=number, Body=part)["ETag"] for number in (1, 2)]
    parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
    client.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})
    client.create_bucket(Bucket="other")
    long = "folder/" * 120 + "file"
    client.put_object(Bucket="other", Key=long, Body=b"line\nline\n")
    client.create_bucket(Bucket="passing")
    client.delete_bucket(Bucket="passing")
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, client = start()
    sizes = {item["Key"]: item["Size"] for item in client.list_objects_v2(Bucket="lake")["Contents"]}
    assert sizes == {"a/b c=1/ü.parquet": 6, "copy": 6, "large": 10 << 20}
    assert client.get_object(Bucket="lake", Key="copy")["Body"].read() == b"second"
    assert client.get_object(Bucket="other", Key=long)["Body"].read() == b"line\nline\n"
    assert {bucket["Name"] for bucket in client.list_buckets()["Buckets"]} == {"lake", "other"}


def test_it_is_reached_by_its_services_name_and_refuses_a_foreign_key(start: Start) -> None:
    _, client = start()
    client.put_object(Bucket="lake", Key="k", Body=b"v")
    address = client.meta.endpoint_url.removeprefix("http://")

    def get(key_id: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(address, timeout=10)
        scope = f"AWS4-HMAC-SHA256 Credential={key_id}/20260101/us-east-1/s3/aws4_request, Signature=x"
        connection.request("GET", "/lake/k", headers={"Host": "s3:9000", "Authorization": scope})
        answer = connection.getresponse()
        return answer.status, answer.read()

    assert get(KEY_ID) == (200, b"v")
    assert get("foreign")[0] == 403


def test_the_probe_says_what_is_not_well(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe([f"http://127.0.0.1:{free_port()}/"]) == 1
    _, client = start()
    assert probe([f"{client.meta.endpoint_url}/lake/nothing"]) == 1
    assert probe([f"{client.meta.endpoint_url}/_health", "status=ALIVE"]) == 1
    assert "http://127.0.0.1" in capsys.readouterr().out
