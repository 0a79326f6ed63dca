"""``python -m tests.chaos --kills 1000 --seed 7``: a line for each scenario, the figures, and one JSON object."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.battle import Battle
from tests.chaos.campaign import Campaign, figures
from tests.chaos.incremental import SyncBattle, sync_scenarios
from tests.chaos.lakes import CATALOGS, STORES, Lakes
from tests.chaos.plan import scenarios

SHOWN = ("seed", "kills", "rows_lost", "rows_doubled", "half_tables", "pages_refetched")
MODES = {"full": (scenarios, Battle), "incremental": (sync_scenarios, SyncBattle)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument(
        "--mode", choices=MODES, default="full", help="refresh in full (default), or sync incrementally"
    )
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--seconds", type=float, default=None, help="stop after the scenario at hand then")
    parser.add_argument("--keep", type=Path, default=None, help="a folder that is kept, with the logs of what failed")
    parser.add_argument("--catalog", choices=CATALOGS, default=CATALOGS[0])
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    options = parser.parse_args()
    if (options.catalog, options.store) == ("rest", "s3"):
        parser.error("--store: the REST server has no S3 client; choose --catalog sqlite")
    if options.keep is not None and options.keep.is_dir() and any(options.keep.iterdir()):
        parser.error(f"--keep: {options.keep} is not empty")
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rfr-chaos-") as folder:
        place = options.keep or Path(folder)
        with Lakes(place, options.catalog, options.store) as lakes:
            plan, battle = MODES[options.mode]
            campaign = Campaign(seed, place, lambda line: print(line, flush=True), plan, lakes, battle)
            campaign.run(options.kills, seconds=options.seconds)
    result = {**figures(campaign), "seconds": round(time.monotonic() - began)}
    for name in SHOWN:
        print(f"  {name.replace('_', ' '):20} {result[name]:>12,}")
    print(json.dumps(result))
    return 0 if campaign.report.clean else 1


if __name__ == "__main__":
    sys.exit(main())
