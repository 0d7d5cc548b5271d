"""Every source file of the client has a test file of its name: `a/_b.py` has `tests/client/a/test_b.py`."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SOURCES, TESTS = REPOSITORY / "client/pulsar_native", REPOSITORY / "tests/client"

# Nothing to test by itself: names of another module by the official client's path (tests/compat compares them), types
# for the type checker, generated code, the version.
WITHOUT_BEHAVIOUR = frozenset(
    {
        "__about__.py",
        "_type_vars.py",
        "_version.py",
        "admin/stats.py",
        "engine/client_context.py",
        "engine/consumer/consumer_context.py",
        "engine/metrics/meter.py",
        "jobs/interfaces.py",
        "schema/schema.py",
        "schema/schema_avro.py",
        "schema/schema_protobuf.py",
        "tableview.py",
        "wire/pulsar_api_pb2.py",
    }
)


def _without_test() -> set[str]:
    found = set()
    for source in SOURCES.rglob("*.py"):
        name = source.relative_to(SOURCES)
        test = TESTS / name.parent / f"test_{name.name.lstrip('_')}"
        if name.name != "__init__.py" and not test.is_file():
            found.add(name.as_posix())
    return found


def test_each_source_has_a_test_file() -> None:
    missing = _without_test() - WITHOUT_BEHAVIOUR
    assert not missing, f"these sources have no test file of their name in tests/client: {sorted(missing)}"


def test_sources_with_a_test_file_leave_the_list() -> None:
    done = WITHOUT_BEHAVIOUR - _without_test()
    assert not done, f"remove from the list, since they have a test file or are gone: {sorted(done)}"
