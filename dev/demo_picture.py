"""Draw delays by carrier from the demo's Parquet; run in Spark's environment by demo.py."""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import pyarrow.compute as pc
import pyarrow.parquet as pq


def main(parquet: str, picture: str) -> None:
    """Read the Parquet and write the picture (PNG)."""
    table = pq.read_table(parquet.removeprefix("file://"), columns=["carrier", "arr_delay"])
    by_carrier = table.group_by("carrier").aggregate([("arr_delay", "mean"), ("arr_delay", "count")])
    by_carrier = by_carrier.take(pc.sort_indices(by_carrier["arr_delay_mean"]))
    carriers, means = by_carrier["carrier"].to_pylist(), by_carrier["arr_delay_mean"].to_pylist()
    counts = by_carrier["arr_delay_count"].to_pylist()
    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    bars = axes.barh(carriers, means, color=["#c0504d" if mean > 0 else "#4f81bd" for mean in means])
    axes.bar_label(bars, [f" {mean:+.0f} min, {count:,} flight(s) " for mean, count in zip(means, counts, strict=True)])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.35)
    axes.set(title="Mean arrival delay by carrier", xlabel="minutes (negative = early)", ylabel="carrier")
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
