"""The deployment id: where it comes from, and that several processes end up with one."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider_pulsar import deployment

_CONFIGURED = "AIRFLOW__PULSAR__DEPLOYMENT_ID"


class Variables:
    """Airflow's variables, in memory; another process stores an id of its own while this one waits."""

    def __init__(self, others: str | None = None) -> None:
        self.stored: dict[str, str] = {}
        self.waited = 0.0
        # Reads that fail, and the duration of a write.
        self.failures, self.slowness = 0, 0.0
        self.now = 0.0
        self._others = others

    def get(self, name: str, default: Any = ...) -> Any:
        """Airflow's answer: a variable that cannot be read does not exist."""
        if self.failures or name not in self.stored:
            self.failures = max(0, self.failures - 1)
            if default is ...:
                raise AirflowRuntimeError(ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND))
            return default
        return self.stored[name]

    def keys(self, prefix: str) -> list[str]:
        return [name for name in self.stored if name.startswith(prefix)]

    def set(self, name: str, value: str, description: str) -> None:
        self.now += self.slowness
        self.stored[name] = value

    def sleep(self, seconds: float) -> None:
        self.waited += seconds
        if self._others is not None:
            self.stored[deployment.VARIABLE] = self._others


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the function that replaces Airflow's variables."""
    monkeypatch.delenv(_CONFIGURED)

    def use(others: str | None = None) -> Variables:
        made = Variables(others)
        monkeypatch.setattr(deployment, "Variable", made)
        monkeypatch.setattr("time.sleep", made.sleep)
        monkeypatch.setattr("time.monotonic", lambda: made.now)
        return made

    return use


def test_deployment_id_of_connection_then_configuration(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = variables()
    monkeypatch.setenv(_CONFIGURED, "staging")
    assert deployment.deployment_id("of-connection") == "of-connection"
    assert deployment.deployment_id(None) == "staging" and not made.stored
    monkeypatch.setenv(_CONFIGURED, "not valid")
    with pytest.raises(AirflowException, match="letters, digits"):
        deployment.deployment_id(None)


def test_deployment_id_made_once_is_kept(variables: Any) -> None:
    made = variables()
    first = deployment.deployment_id(None)
    assert len(first) == 16 and made.waited > 0
    made.waited = 0
    assert deployment.deployment_id(None) == first and made.waited == 0


def test_deployment_id_made_twice_is_the_last(variables: Any) -> None:
    """Two triggerers that start at the same moment must not make two names of one subscription."""
    variables("of-another-process")
    assert deployment.deployment_id(None) == "of-another-process"


def test_deployment_id_waits_longer_if_airflow_is_slow(variables: Any) -> None:
    made = variables()
    made.slowness = 5.0
    deployment.deployment_id(None)
    assert made.waited > 10


@pytest.mark.parametrize("failures", [1, 2])
def test_deployment_id_survives_a_failed_read(variables: Any, failures: int) -> None:
    """Airflow's API may be away for a moment: no other id may take the place of the stored one."""
    made = variables()
    first = deployment.deployment_id(None)
    made.failures = failures
    if failures == 1:
        assert deployment.deployment_id(None) == first
    else:
        with pytest.raises(AirflowException, match="neither read nor made"):
            deployment.deployment_id(None)
    assert made.stored == {deployment.VARIABLE: first}


def test_deployment_id_without_variables_names_the_fix(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = variables()
    monkeypatch.setattr(made, "get", lambda *_, **__: 1 / 0)
    with pytest.raises(AirflowException, match=r"give deployment_id in the connection, or \[pulsar\] deployment_id"):
        deployment.deployment_id(None)
