"""The command that serves the sample API. Once it listens, it prints one JSON line with its address and a source."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Sequence

from airflow_provider_rfr.sample_api import SHOP
from airflow_provider_rfr.sample_api.app import Options, SampleApp
from airflow_provider_rfr.sample_api.dataset import Sizes
from airflow_provider_rfr.sample_api.faults import Fault
from airflow_provider_rfr.sample_api.protocol import HttpProtocol


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    sizes = Sizes()
    program = "python -m airflow_provider_rfr.sample_api"
    parser = argparse.ArgumentParser(prog=program, description="A sample API with faults.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--records", type=int, default=sizes.records, help="number of /orders and of /invoices")
    parser.add_argument("--customers", type=int, default=sizes.customers)
    parser.add_argument("--partitions", type=int, default=sizes.partitions)
    parser.add_argument("--pages", type=int, default=sizes.pages, help="pages of each partition")
    parser.add_argument("--page-records", type=int, default=sizes.page_records, help="records of a partition's page")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="latency of each answer")
    parser.add_argument("--api-key", help="required in X-Api-Key or as a bearer token")
    parser.add_argument("--faults", default="[]", help="JSON list, as for POST /_admin/faults")
    parser.add_argument("--changes", default="[]", help="JSON list, each as for POST /_admin/change")
    parser.add_argument("--diary", help="file that records each served page and survives a kill")
    parser.add_argument("--warm", action="store_true", help="make the pages of the partitions before the start")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when stdin closes")
    return parser.parse_args(arguments)


def build(options: argparse.Namespace) -> SampleApp:
    sizes = Sizes(options.records, options.customers, options.partitions, options.pages, options.page_records)
    app = SampleApp(Options(sizes, options.latency_ms / 1000, options.api_key, diary=options.diary))
    app.faults.replace(json.loads(options.faults))
    for change in json.loads(options.changes):
        app.change(Fault.from_json(change))
    return app


async def run(app: SampleApp, options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), _at_end_of_stdin, stop)
    server = await loop.create_server(lambda: HttpProtocol(app), options.host, options.port, backlog=1024)
    host, port = server.sockets[0].getsockname()[:2]
    if options.warm:
        app.warm(f"{host}:{port}", options.page_records)
    gc.freeze()
    ready = {"port": port, "base_url": f"http://{host}:{port}", "pid": os.getpid(), "source": str(SHOP)}
    print(json.dumps(ready), flush=True)
    await stop.wait()
    server.close()


def _at_end_of_stdin(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        stop.set()


def main() -> None:
    options = parse()
    app = build(options)
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    try:
        asyncio.run(run(app, options))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        sys.exit(f"The sample API can't listen on {options.host}:{options.port}: {reason}; choose another --port")


if __name__ == "__main__":
    main()
