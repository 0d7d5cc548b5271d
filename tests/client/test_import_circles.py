"""No circles of modules in the client, with imports that only type checkers follow."""

from __future__ import annotations

import grimp


def test_modules_have_no_import_circles() -> None:
    graph = grimp.build_graph("pulsar_native", cache_dir=None)
    above = {module: graph.find_upstream_modules(module) for module in graph.modules}
    circles: list[set[str]] = []
    for module in sorted(graph.modules):
        circle = {other for other in above[module] if module in above[other]}
        if circle and not any(module in known for known in circles):
            circles.append(circle | {module})
    assert not circles
