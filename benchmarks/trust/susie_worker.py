"""Credible sets of SuSiE, by sushie, for data sets in a file; a process of its own, without bmrjax.

python susie_worker.py DATA.npz SETS.json
"""

import json
import sys

import numpy as np
from sushie.infer import infer_sushie, make_cs


def main() -> None:
    """Read columns, targets and levels, and write the members of each set by data set and level."""
    given = np.load(sys.argv[1])
    found = []
    for x, y in zip(given["x"], given["y"], strict=True):
        result = infer_sushie([x], [y], L=int(given["effects"]), min_snps=x.shape[1])
        by_level = {}
        for level in given["levels"].tolist():
            sets, *_ = make_cs(
                alpha=result.posteriors.alpha,
                log_bf=result.posteriors.log_bf,
                ns=np.array([len(x)]),
                Xs=[(x - x.mean(0)) / x.std(0)],
                threshold=level,
                purity=0.5,
            )
            members: dict[int, list[int]] = {}
            claimed: dict[int, float] = {}
            for row in sets.iter_rows(named=True):
                members.setdefault(row["CSIndex"], []).append(int(row["SNPIndex"]))
                claimed[row["CSIndex"]] = float(row["c_alpha"])
            by_level[str(level)] = [[members[i], claimed[i]] for i in members]
        found.append(by_level)
    with open(sys.argv[2], "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
