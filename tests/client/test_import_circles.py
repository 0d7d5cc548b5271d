"""Circles of modules of the client, with imports that only type checkers follow."""

from __future__ import annotations

import grimp

# Helpers of one class that it creates and that read its attributes; all other modules have an order.
KNOWN = [
    {
        "engine.consumer.ack_grouping_tracker",
        "engine.consumer.chunk_assembler",
        "engine.consumer.close",
        "engine.consumer.consumer",
        "engine.consumer.dead_letter",
        "engine.consumer.entry_decoder",
        "engine.consumer.permits",
        "engine.consumer.receiver_queue",
        "engine.consumer.redeliver_all",
        "engine.consumer.seek",
    },
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
