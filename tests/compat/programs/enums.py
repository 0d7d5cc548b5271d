"""Enumerations: how their members print, compare and convert."""

from __future__ import annotations

import json
from types import ModuleType

from compat.program import Env, Observed, program

ENUMS = [
    "Result",
    "CompressionType",
    "ConsumerType",
    "InitialPosition",
    "PartitionsRoutingMode",
    "BatchingType",
    "LoggerLevel",
    "KeySharedMode",
    "ProducerAccessMode",
    "RegexSubscriptionMode",
    "ConsumerCryptoFailureAction",
]


@program(cases={name: (name,) for name in ENUMS})
def members(pulsar: ModuleType, env: Env, name: str) -> Observed:
    kind = getattr(pulsar, name)
    every = [getattr(kind, each) for each in kind.__members__]
    return {
        "names": list(kind.__members__),
        "str": [str(each) for each in every],
        "format": f"{every[0]} {every[-1]}",
        "repr": [repr(each) for each in every],
        "name": [each.name for each in every],
        "value": [each.value for each in every],
        "int": [int(each) for each in every],
        "true": [bool(each) for each in every],
        "type": all(type(each) is kind for each in every),
        "by number": kind(0) == every[0],
        "equal": [every[0] == kind(0), every[0] == every[1], every[0] != every[1]],
        "hash": len(set(every)),
        "wrong number": env.error(lambda: kind(99)),
        "is int": isinstance(every[0], int),
        "equals int": every[0] == 0,
    }


@program()
def asyncio_has_the_same(pulsar: ModuleType, env: Env) -> Observed:
    there = env.module("asyncio")
    names = [
        "InitialPosition", "CompressionType", "PartitionsRoutingMode", "BatchingType", "ProducerAccessMode",
        "RegexSubscriptionMode", "ConsumerCryptoFailureAction",
    ]  # fmt: skip
    return {each: getattr(there, each) is getattr(pulsar, each) for each in names}


@program()
def schema_type(pulsar: ModuleType, env: Env) -> Observed:
    kind = type(pulsar.schema.BytesSchema().schema_info().schema_type())
    return {
        "numbers": {each: int(getattr(kind, each)) for each in kind.__members__ if each != "AUTO_PUBLISH"},
        "str": str(kind.JSON),
        "members": list(kind.__members__),
    }


@program()
def json_of_a_member(pulsar: ModuleType, env: Env) -> Observed:
    return {"json": json.dumps(pulsar.ConsumerType.Shared, default=str)}
