"""Circles of modules of the client, with imports that only type checkers follow."""

from __future__ import annotations

import grimp

# A helper of one class that reads its attributes; all other modules have an order.
KNOWN = [
    {"engine.producer.close", "engine.producer.producer"},
]


def test_import_circles_are_the_known_ones() -> None:
    graph = grimp.build_graph("pulsar_native", cache_dir=None)
    above = {module: graph.find_upstream_modules(module) for module in graph.modules}
    circles: list[set[str]] = []
    for module in sorted(graph.modules):
        circle = {other for other in above[module] if module in above[other]}
        if circle and not any(module in known for known in circles):
            circles.append(circle | {module})
    assert [{name.removeprefix("pulsar_native.") for name in circle} for circle in circles] == KNOWN
