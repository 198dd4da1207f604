"""Runs cases as one of several processes: ``python -m tests.parts.worker RANK SIZE STORE RESULT NAMES``."""

from __future__ import annotations

import json
import sys
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.parts import cases


def main() -> None:
    rank, size, store, result, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(size), timeout=timedelta(seconds=60),
    )
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = cases.run(name, pipeline_group=dist.group.WORLD)
        except Exception as error:
            traceback.print_exc()
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    with open(result, "w", encoding="utf-8") as file:
        json.dump(found, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
