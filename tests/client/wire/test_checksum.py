"""CRC32C with the package and with the table."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.wire import checksum
from pulsar_native.wire.checksum import crc32c


@pytest.mark.parametrize("function", [crc32c, checksum._table_crc32c])
def test_crc32c_check_value(function: object) -> None:
    assert callable(function)
    assert function(b"123456789") == 0xE3069283
    assert function(b"") == 0
    assert function(memoryview(b"56789"), function(b"1234")) == 0xE3069283


@given(st.binary(max_size=300), st.integers(0, 300))
def test_crc32c_table_equals_package_in_parts(data: bytes, cut: int) -> None:
    whole = crc32c(data)
    assert checksum._table_crc32c(data) == whole
    assert crc32c(memoryview(data)[cut:], crc32c(data[:cut])) == whole
    assert checksum._table_crc32c(data[cut:], checksum._table_crc32c(data[:cut])) == whole


def test_crc32c_table_warns_for_large_data() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checksum._table_crc32c(bytes(1000))
    with pytest.warns(RuntimeWarning, match="crc32c"):
        checksum._table_crc32c(bytes(100_000))


def test_crc32c_without_package_warns_once() -> None:
    program = """
import sys, warnings
sys.modules["crc32c"] = None
from pulsar_native.wire.checksum import crc32c
assert crc32c(b"123456789") == 0xE3069283
for _ in range(3):
    crc32c(bytes(20_000))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == 1


def test_crc32c_extension_is_that_of_the_package() -> None:
    program = """
import sys
{first}
from pulsar_native.wire.checksum import crc32c
print("crc32c" in sys.modules)
import crc32c as package
assert package.crc32c is crc32c and package.CRC32CHash(b"123456789").hexdigest() == "e3069283"
"""
    for first, loaded in (("", "False"), ("import crc32c", "True")):
        command = [sys.executable, "-c", program.format(first=first)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, loaded), done.stderr
