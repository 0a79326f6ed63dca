"""One Spark worker against two, reading an API of high latency: ``python benchmarks/workers.py``.

`concurrency` limits the requests in flight of the whole application, because it protects the API. So two workers with
the concurrency of one read as fast as one. Reading scales if `concurrency` grows with the cores. Both are measured.
There is no time limit: the status is 1 only when rows are missing or doubled.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.processes import Tree, Usage
from benchmarks.product import ROOT, Product, RunFailed, last_line
from benchmarks.shapes import SHAPES, Shape


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds of one run: the whole of it, and its reading alone."""

    wall: float
    read: float


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/workers.py", description=__doc__)
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--per-core", type=int, default=4, help="requests in flight for each core; a worker has one")
    parser.add_argument("--runs", type=int, default=1, help="of each setting; figures are medians")
    return parser.parse_args(arguments)


def measure(shape: Shape, workers: int, concurrency: int, folder: Path) -> Figures:
    """Measure one refresh on a cluster of ``workers`` workers with one core each.

    :raises RunFailed: the refresh failed, or rows are missing or doubled
    """
    from tests.integration.standalone import Standalone

    with shape.api() as api, Standalone(folder / "cluster", workers=workers) as cluster:
        product = Product(replace(shape, in_flight=concurrency), api.base_url, folder / "lake")
        product.folder.mkdir(parents=True)
        document: dict[str, Any] = product.document()
        # Executors alone read, so that the two settings differ in nothing but their number.
        document["options"]["head_start"] = False
        config = product.folder / "refresh.json"
        config.write_text(json.dumps(document))
        usage = submit(cluster.url, config, folder)
        if sorted(product.published_ids()) != sorted(api.truth("/partitions/items")["ids"]):
            raise RunFailed("rows are missing or doubled")
    return Figures(usage.wall, float(last_line(usage)["seconds"]["read"]))


def submit(master: str, config: Path, folder: Path) -> Usage:
    """Run the application by spark-submit, with the package as ``--py-files``."""
    from airflow_provider_rfr.operators.submit import zip_package

    settings = {
        "spark.executor.memory": "512m",
        "spark.pyspark.python": sys.executable,
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    command = [str(Path(sys.executable).parent / "spark-submit"), "--master", master]
    command += ["--py-files", str(zip_package(folder))]
    command += [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    command += [str(ROOT / "spark_apps" / "full_refresh.py"), "--config", str(config)]
    with Tree(command, {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}) as tree:
        usage = tree.wait()
    last_line(usage)
    return usage


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    shape = replace(SHAPES["A"], latency_ms=options.latency_ms)
    print(f"{shape.title}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}", flush=True)
    per_core = options.per_core
    settings = {"one": (1, per_core), "two": (2, 2 * per_core), "two, concurrency of one": (2, per_core)}
    figures: dict[str, Figures] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="rfr-bench-") as folder:
            for name, (workers, concurrency) in settings.items():
                runs = [
                    # No comma in the path: --py-files is a list with commas.
                    measure(shape, workers, concurrency, Path(folder) / f"{workers}-{concurrency}-{number}")
                    for number in range(options.runs)
                ]
                figures[name] = Figures(median(run.wall for run in runs), median(run.read for run in runs))
                ratios = figures["one"].wall / figures[name].wall, figures["one"].read / figures[name].read
                print(
                    f"{name:26} {concurrency:3} in flight: wall {figures[name].wall:6.1f} s ({ratios[0]:.2f} x),"
                    f" reading {figures[name].read:6.1f} s ({ratios[1]:.2f} x)",
                    flush=True,
                )
    except RunFailed as error:
        print(f"a measured run failed: {error}", file=sys.stderr)
        return 1
    print(json.dumps({name: {"wall_s": setting.wall, "read_s": setting.read} for name, setting in figures.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
