"""Attack the codec: any file of n bytes is refused by one error or read, at a cost that n bounds."""

import time
from pathlib import Path
from typing import Any

from campaigns.child import in_children
from campaigns.codec_files import (
    MEMORY,
    MEMORY_PER_BYTE,
    SECONDS,
    SECONDS_PER_BYTE,
    cases,
    load,
    real_files,
    within,
)
from campaigns.command import run_command, until


def campaign(
    seed: int, count: int, *, minutes: float = 1e6, keep: Path | None = None
) -> dict[str, Any]:
    """Load damaged and made-up files in children with limits.

    Args:
        seed: Of the files.
        count: How many.
        minutes: After which it ends early.
        keep: Folder for the files that broke a promise.

    Returns:
        Counts of outcomes, the largest costs, and the failures.
    """
    outcomes: dict[str, int] = {}
    failures: list[dict[str, Any]] = []
    worst = {"milliseconds": 0.0, "megabytes": 0.0, "share_of_time": 0.0, "share_of_memory": 0.0}
    warm_up = [("real", i, data) for i, data in enumerate(real_files())]
    begin = time.time()
    for (kind, number, data), cost in in_children(
        load, until(cases(seed, count), minutes), warm_up=warm_up
    ):
        word = f"{kind}: {cost.outcome if cost.survived else 'failed'}"
        outcomes[word] = outcomes.get(word, 0) + 1
        n = len(data)
        worst = {
            "milliseconds": max(worst["milliseconds"], 1e3 * cost.seconds),
            "megabytes": max(worst["megabytes"], 1e-6 * cost.memory),
            "share_of_time": max(
                worst["share_of_time"], cost.seconds / (SECONDS + SECONDS_PER_BYTE * n)
            ),
            "share_of_memory": max(
                worst["share_of_memory"], cost.memory / (MEMORY + MEMORY_PER_BYTE * n)
            ),
        }
        if cost.survived and within(n, cost.seconds, cost.memory):
            continue
        failures.append(
            {"kind": kind, "number": number, "bytes": n, "outcome": cost.outcome,
             "milliseconds": 1e3 * cost.seconds, "megabytes": 1e-6 * cost.memory}
        )  # fmt: skip
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{seed}-{number}.bmr").write_bytes(data)
    return {
        "campaign": "codec", "seed": seed, "files": sum(outcomes.values()),
        "minutes": (time.time() - begin) / 60,
        "outcomes": dict(sorted(outcomes.items())), "worst": worst, "failures": failures,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(campaign, __doc__, files=100_000)
