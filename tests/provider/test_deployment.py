"""The deployment id: where it comes from, and that several processes end up with one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider_pulsar import deployment

_BACKENDS = "airflow.sdk.execution_time.supervisor.ensure_secrets_backend_loaded"
_CONFIGURED = "AIRFLOW__PULSAR__DEPLOYMENT_ID"


class Variables:
    """Airflow's variables, in memory; other processes store ids of their own while this one waits."""

    def __init__(self, others: Mapping[float, str] | None = None) -> None:
        self.stored: dict[str, str] = {}
        self.waited = 0.0
        # Reads that fail, and the duration of a write.
        self.failures, self.slowness = 0, 0.0
        self.now = 0.0
        self.backends: list[Any] = []
        # What others store, and after how many seconds of this process's wait.
        self._others = dict(others or {})

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
        for when in [each for each in self._others if each <= self.waited]:
            self.stored[deployment.VARIABLE] = self._others.pop(when)


class Vault:
    """A secrets backend; `error` while it is away."""

    def __init__(self, value: str | None = None, error: Exception | None = None) -> None:
        self._value, self._error = value, error

    def get_variable(self, key: str) -> str | None:
        if self._error is not None:
            raise self._error
        return self._value


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the function that replaces Airflow's variables."""
    monkeypatch.delenv(_CONFIGURED)

    def use(others: Mapping[float, str] | None = None) -> Variables:
        made = Variables(others)
        monkeypatch.setattr(deployment, "Variable", made)
        monkeypatch.setattr(_BACKENDS, lambda: made.backends)
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


def test_deployment_id_made_once_is_kept(variables: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = variables()
    with caplog.at_level("INFO", deployment.__name__):
        first = deployment.deployment_id(None)
    assert len(first) == 16 and made.waited == 10
    (said,) = caplog.messages
    assert "waiting 10 s" in said and "once in the life" in said and "[pulsar] deployment_id" in said
    made.waited = 0
    assert deployment.deployment_id(None) == first and made.waited == 0


@pytest.mark.parametrize(
    ("others", "waited"),
    [
        pytest.param({1: "the-last"}, 20, id="at-once"),
        # Airflow repeats a request that was refused or timed out.
        pytest.param({9.9: "the-last"}, 20, id="late"),
        pytest.param({5: "second", 15: "third", 25: "the-last"}, 40, id="one-after-another"),
    ],
)
def test_deployment_id_made_twice_is_the_last(others: Mapping[float, str], waited: int, variables: Any) -> None:
    """Two triggerers that start at the same moment must not make two names of one subscription."""
    made = variables(others)
    assert deployment.deployment_id(None) == "the-last" and made.waited == waited


def test_deployment_id_wait_is_bounded(variables: Any) -> None:
    made = variables({10 * number: f"id-{number}" for number in range(1, 100)})
    assert deployment.deployment_id(None) == "id-6" and made.waited == 60


@pytest.mark.parametrize(("seconds", "warned"), [(9.9, False), (10.0, True), (40.0, True)])
def test_deployment_id_stored_late_warns(
    seconds: float, warned: bool, variables: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process may have created one after this one had found none, and have waited for its 10 s."""
    variables().slowness = seconds
    deployment.deployment_id(None)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == warned
    assert all(f"It took {seconds:.0f} s" in each and "Restart" in each for each in warnings)


def test_deployment_id_needs_the_secrets_backend(variables: Any) -> None:
    """`Variable.get` does not find what a backend that is away has."""
    made = variables()
    made.backends = [Vault(), Vault(error=ConnectionError("vault is down")), Vault("of-vault")]
    with pytest.raises(AirflowException, match=r"neither read nor made \(ConnectionError: vault is down\)"):
        deployment.deployment_id(None)
    assert made.stored == {} and made.waited == 0
    # It is back between the two calls.
    made.backends = [Vault(), Vault("of-vault")]
    assert deployment.deployment_id(None) == "of-vault" and made.stored == {}


def test_deployment_id_without_backends_of_airflow(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that lists them is none of Airflow's public names."""
    made = variables()
    monkeypatch.delattr(_BACKENDS)
    assert deployment.deployment_id(None) == made.stored[deployment.VARIABLE]


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
