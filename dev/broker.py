#!/usr/bin/env python3
"""Run a real Pulsar broker (standalone, jars of `dev/setup broker`) as a child process: a module and a command.

Standard library only; product code never imports it. Rules: everything listens on 127.0.0.1 only; ports are picked
once per folder and stay the same over restarts, and so does the data; two brokers in two folders never meet; a broker
ends with its owner, by default the process that started it (a supervisor process polls it), unless it was started
detached; every wait is bounded.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from broker_keys import Certificates, make_certificates, make_token, secret_key
from environments import jars_folder, java_path

HOST = "127.0.0.1"
ADMIN_ROLE = "admin"
_INTERCEPTORS = "org.apache.pulsar.common.intercept"
_OPEN = ("java.nio", "jdk.internal.misc", "sun.net", "jdk.internal.platform", "java.util.zip")

# Name of the thread, cut off as the kernel keeps it ("broker-client-shared-timer").
_CLIENT_TIMER = "broker-client-s"
_TIMER_SLACK_NS = 10_000_000

# Settings of every standalone: those of the file conf/standalone.conf that Pulsar ships, and what this machine needs.
_STANDALONE: Mapping[str, str] = {
    "clusterName": "standalone",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "loadBalancerEnabled": "false",
    # The data must survive kill -9 of the broker, not a power cut of the machine.
    "journalSyncData": "false",
    # The bookie uses the given port only with this setting; its default port may be taken over a restart.
    "allowEphemeralPorts": "true",
    "allowLoopback": "true",
    # The bookie's own default is the broker's maximum message size without any room for what is around a message: one
    # of just that size would close the ledger, and nothing more could be published for a while.
    "nettyMaxFrameSizeBytes": "5253120",
    "numHttpServerThreads": "8",
    "managedLedgerCacheSizeMB": "64",
}
PROFILES: Mapping[str, Mapping[str, str]] = {
    # All that Pulsar can do is on, and nothing is removed by itself.
    "testing": {
        "transactionCoordinatorEnabled": "true",
        # With more threads two topics of a namespace that are loaded together, after a transaction there was aborted,
        # share one reader of its snapshots: one of the two waits 30 s for a message the other has read, and delivers
        # nothing meanwhile.
        "numTransactionReplayThreadPoolSize": "1",
        "systemTopicEnabled": "true",
        "topicLevelPoliciesEnabled": "true",
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
        "exposingBrokerEntryMetadataToClientEnabled": "true",
        "brokerEntryMetadataInterceptors": (
            f"{_INTERCEPTORS}.AppendIndexMetadataInterceptor,{_INTERCEPTORS}.AppendBrokerTimestampMetadataInterceptor"
        ),
        # A topic without subscriptions keeps its data, over restarts too; tests of retention set their own per
        # namespace.
        "brokerDeleteInactiveTopicsEnabled": "false",
        "defaultRetentionTimeInMinutes": "-1",
        "defaultRetentionSizeInMB": "-1",
        # By default it looks every 10 ms, which is a third of what an idle broker computes; many brokers run at a time.
        "managedLedgerCacheEvictionIntervalMs": "200",
    },
    # As installed: nothing that Pulsar 4.2.4 does not do by itself. A topic without subscription and without producer
    # is deleted after 60 s, what all subscriptions have acknowledged is not retained; no transactions, no
    # deduplication, no index of messages. Acknowledging at batch index level is on since Pulsar 4.1.
    "default": {},
}

_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} [%t] %-5level %c{1} - %msg%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
logger.bookkeeper.name = org.apache.bookkeeper
logger.bookkeeper.level = warn
logger.jetty.name = org.eclipse.jetty
logger.jetty.level = warn
"""


class BrokerError(Exception):
    """Raised when the broker did not start, answer or stop; has the end of its log."""


class Standalone:
    """Standalone broker in a folder.

    Blocking; not thread-safe. With `tokens` it demands tokens (`token()` makes them, the role "admin" may do
    everything, others need grants); with `tls` it also listens on TLS ports with certificates made in the folder, and
    with `tls_client_auth` it takes the client certificate as an identity. `profile` names one of `PROFILES`: "testing"
    has all that Pulsar can do switched on, "default" is configured as Pulsar is installed. `conf` overrides single
    settings. `jvm_options`, split as a shell does, are by default those of the variable PULSAR_EXTRA_OPTS, as Pulsar's
    own start script has it.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        binary_port: int = 0,
        web_port: int = 0,
        profile: str = "testing",
        conf: Mapping[str, str] | None = None,
        deduplication: bool = False,
        tokens: bool = False,
        tls: bool = False,
        tls_client_auth: bool = False,
        heap: str = "1g",
        jvm_options: str | None = None,
    ) -> None:
        if profile not in PROFILES:
            raise BrokerError(f"profile must be one of {', '.join(PROFILES)}, not {profile!r}")
        self.folder = Path(folder).resolve()
        self.log = self.folder / "broker.log"
        self._state, self._java_pid = self.folder / "broker.json", self.folder / "java.pid"
        self._temporary = self.folder / "tmp"
        self._profile, self._conf = profile, dict(conf or {})
        self._deduplication, self._tokens, self._heap = deduplication, tokens, heap
        self._jvm_options = os.environ.get("PULSAR_EXTRA_OPTS", "") if jvm_options is None else jvm_options
        self._tls, self._tls_client_auth = tls or tls_client_auth, tls_client_auth
        self._supervisor: subprocess.Popen[bytes] | None = None
        wanted = {"binary": binary_port, "web": web_port, "bookie": 0, "binary_tls": 0, "web_tls": 0}
        self._ports = _ports_of(self.folder, wanted)

    # ---- addresses and credentials -----------------------------------------------------------------------------------

    @property
    def service_url(self) -> str:
        """Return the pulsar:// URL."""
        return f"pulsar://{HOST}:{self._ports['binary']}"

    @property
    def admin_url(self) -> str:
        """Return the http:// URL of the admin interface."""
        return f"http://{HOST}:{self._ports['web']}"

    @property
    def service_url_tls(self) -> str:
        """Return the pulsar+ssl:// URL; answers only with tls."""
        return f"pulsar+ssl://{HOST}:{self._ports['binary_tls']}"

    @property
    def admin_url_tls(self) -> str:
        """Return the https:// URL; answers only with tls."""
        return f"https://{HOST}:{self._ports['web_tls']}"

    @property
    def binary_port(self) -> int:
        """Return the port of the binary protocol."""
        return self._ports["binary"]

    @property
    def web_port(self) -> int:
        """Return the port of the admin interface."""
        return self._ports["web"]

    @property
    def certificates(self) -> Certificates:
        """Return the paths of the certificates, made on first use."""
        return make_certificates(self.folder / "tls", client_role=ADMIN_ROLE)

    def token(self, subject: str = ADMIN_ROLE, *, lifetime_seconds: float | None = None) -> str:
        """Return a token this broker accepts; a negative lifetime gives one that has expired."""
        return make_token(secret_key(self.folder / "secret.key"), subject, lifetime_seconds=lifetime_seconds)

    # ---- life --------------------------------------------------------------------------------------------------------

    def process_id(self) -> int | None:
        """Return the process id of the supervisor (leader of the broker's process group) while it runs, else None."""
        if self._supervisor is not None:
            return self._supervisor.pid if self._supervisor.poll() is None else None
        return _running(self.folder)

    def start(self, *, detached: bool = False, owner: int | None = None) -> Standalone:
        """Start the broker's process and return at once (`wait_ready` waits for it).

        It ends with the process of the id `owner`, by default this one; detached it outlives both.
        """
        if self.process_id() is not None:
            raise BrokerError(f"a broker already runs in {self.folder} (process {self.process_id()})")
        self._write_conf()
        owner = 0 if detached else owner or os.getpid()
        supervisor = [sys.executable, str(Path(__file__).resolve()), "supervisor", str(owner), str(self._java_pid)]
        self._java_pid.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._supervisor = subprocess.Popen(
                [*supervisor, *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        state = {"pid": self._supervisor.pid, "service_url": self.service_url, "admin_url": self.admin_url}
        self._state.write_text(json.dumps(state) + "\n")
        deadline = time.monotonic() + 10
        while not self._java_pid.exists() or not self._java_pid.read_text():
            if self.process_id() is None or time.monotonic() > deadline:
                raise BrokerError(f"the broker did not start:\n{self._log_tail()}")
            time.sleep(0.01)
        return self

    def wait_ready(self, timeout: float = 240) -> Standalone:
        """Wait until the broker is healthy, at most `timeout` seconds; else raise BrokerError with the log's end."""
        deadline = time.monotonic() + timeout
        while not self.healthy():
            if self.process_id() is None:
                raise BrokerError(f"the broker ended while starting:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise BrokerError(f"the broker is not ready after {timeout:.0f} s:\n{self._log_tail()}")
            time.sleep(0.1)
        self._let_timers_be_late()
        return self

    def _let_timers_be_late(self) -> None:
        """Let the timer of the broker's own client wake up to 10 ms late, where the kernel can (Linux).

        It wakes every millisecond: nine tenths of what an idle broker takes, which is 4 % of a core.
        """
        for task in Path("/proc", self._java_pid.read_text(), "task").glob("*"):
            with contextlib.suppress(OSError):
                if (task / "comm").read_text().strip() == _CLIENT_TIMER:
                    Path("/proc", task.name, "timerslack_ns").write_text(str(_TIMER_SLACK_NS))

    def healthy(self, timeout: float = 5) -> bool:
        """Return whether the broker answers its health check with 200 and serves the namespace public/default."""
        try:
            if self._get("/admin/v2/brokers/health", timeout) != b"ok":
                return False
            return b"public/default" in self._get("/admin/v2/namespaces/public", timeout)
        except (OSError, urllib.error.URLError):
            return False

    def stop(self, timeout: float = 20) -> None:
        """Stop the broker in an orderly way; kill it when that takes longer than `timeout` seconds."""
        self._end(lambda supervisor: os.kill(supervisor, signal.SIGTERM), timeout)

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as a crash does; the data stays."""
        self._end(lambda supervisor: self._signal_broker(signal.SIGKILL), 10)

    def restart(self, timeout: float = 240) -> Standalone:
        """Stop it if it runs, start it again on the same ports and data, wait until it is ready."""
        self.stop()
        return self.start().wait_ready(timeout)

    def pause(self) -> None:
        """Suspend the broker (SIGSTOP): its connections stay open and silent."""
        self._signal_broker(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a suspended broker (SIGCONT)."""
        self._signal_broker(signal.SIGCONT)

    def __enter__(self) -> Standalone:
        return self.start().wait_ready()

    def __exit__(self, *failure: object) -> None:
        self.stop()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _signal_broker(self, number: signal.Signals) -> None:
        if self.process_id() is None:
            raise BrokerError(f"no broker runs in {self.folder}")
        os.kill(int(self._java_pid.read_text()), number)

    def _end(self, end: Callable[[int], None], timeout: float) -> None:
        supervisor = self.process_id()
        if supervisor is not None:
            with contextlib.suppress(ProcessLookupError):
                self._signal_broker(signal.SIGCONT)
                end(supervisor)
            if not self._wait_gone(timeout):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(supervisor, signal.SIGKILL)
                if not self._wait_gone(10):
                    raise BrokerError(f"process group {supervisor} survived SIGKILL")
        self._supervisor = None
        self._state.unlink(missing_ok=True)

    def _wait_gone(self, timeout: float) -> bool:
        """Wait for the supervisor's end: it has waited for the broker's, so the ports are free and the files closed."""
        deadline = time.monotonic() + timeout
        while self.process_id() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _get(self, path: str, timeout: float) -> bytes:
        request = urllib.request.Request(self.admin_url + path)
        if self._tokens:
            request.add_header("Authorization", f"Bearer {self.token()}")
        if self._tls_client_auth:
            ours = self.certificates
            context = ssl.create_default_context(cafile=ours.authority)
            context.load_cert_chain(ours.client_certificate, ours.client_key)
            request.full_url = self.admin_url_tls + path
            with urllib.request.urlopen(request, timeout=timeout, context=context) as answer:
                return bytes(answer.read())
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return bytes(answer.read())

    def _log_tail(self, lines: int = 30) -> str:
        return (
            "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else "(no log)"
        )

    def _write_conf(self) -> None:
        conf = {**_STANDALONE, **PROFILES[self._profile]}
        conf.update(
            bindAddress=HOST,
            advertisedAddress=HOST,
            listeningInterface=_loopback_interface(),
            brokerServicePort=str(self._ports["binary"]),
            webServicePort=str(self._ports["web"]),
            brokerDeduplicationEnabled=str(self._deduplication).lower(),
        )
        if self._tls:
            conf.update(self._tls_conf())
        if self._tokens or self._tls_client_auth:
            conf.update(self._authentication_conf())
        conf.update(self._conf)
        self.folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{key}={value}\n" for key, value in conf.items())
        (self.folder / "standalone.conf").write_text(text)
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        # A killed broker leaves its native libraries, 13 MB, where it unpacked them.
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()

    def _tls_conf(self) -> dict[str, str]:
        ours = self.certificates
        return {
            "brokerServicePortTls": str(self._ports["binary_tls"]),
            "webServicePortTls": str(self._ports["web_tls"]),
            "tlsCertificateFilePath": str(ours.server_certificate),
            "tlsKeyFilePath": str(ours.server_key),
            "tlsTrustCertsFilePath": str(ours.authority),
            "brokerClientTrustCertsFilePath": str(ours.authority),
        }

    def _authentication_conf(self) -> dict[str, str]:
        providers = []
        conf = {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "superUserRoles": ADMIN_ROLE,
        }
        if self._tls_client_auth:
            ours = self.certificates
            providers.append("org.apache.pulsar.broker.authentication.AuthenticationProviderTls")
            conf["brokerClientTlsEnabled"] = "true"
            conf["brokerClientAuthenticationPlugin"] = "org.apache.pulsar.client.impl.auth.AuthenticationTls"
            pair = f"tlsCertFile:{ours.client_certificate},tlsKeyFile:{ours.client_key}"
            conf["brokerClientAuthenticationParameters"] = pair
        if self._tokens:
            secret_key(self.folder / "secret.key")
            providers.append("org.apache.pulsar.broker.authentication.AuthenticationProviderToken")
            conf["tokenSecretKey"] = f"file://{self.folder / 'secret.key'}"
            conf["brokerClientAuthenticationPlugin"] = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            conf["brokerClientAuthenticationParameters"] = f"token:{self.token()}"
        conf["authenticationProviders"] = ",".join(providers)
        return conf

    def _command(self) -> list[str]:
        java, jars = java_path(), jars_folder()
        if java is None or not jars.is_dir():
            raise BrokerError("Java or the broker's jars are missing: run `dev/setup broker`")
        exports = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPEN]
        drivers = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"
        return [
            java,
            f"-Xmx{self._heap}",
            f"-XX:MaxDirectMemorySize={self._heap}",
            "-XX:+ExitOnOutOfMemoryError",
            f"-Djava.io.tmpdir={self._temporary}",
            *shlex.split(self._jvm_options),
            *exports,
            "--add-opens=java.management/sun.management=ALL-UNNAMED",
            "-Dio.netty.tryReflectionSetAccessible=true",
            f"-Dbookkeeper.metadata.bookie.drivers={drivers}BookieDriver",
            f"-Dbookkeeper.metadata.client.drivers={drivers}ClientDriver",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "-cp",
            f"{jars}/*",
            "org.apache.pulsar.PulsarStandaloneStarter",
            "--config",
            str(self.folder / "standalone.conf"),
            "--no-functions-worker",
            "--no-stream-storage",
            "--metadata-dir",
            str(self.folder / "metadata"),
            "--bookkeeper-dir",
            str(self.folder / "bookkeeper"),
            "--bookkeeper-port",
            str(self._ports["bookie"]),
        ]


# ---- ports and processes ---------------------------------------------------------------------------------------------


def _ports_of(folder: Path, wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the folder's ports: those written there, else the wanted ones, else free ones, and write them down."""
    kept = folder / "ports.json"
    ports: dict[str, int] = json.loads(kept.read_text()) if kept.exists() else {}
    for name, port in wanted.items():
        if port:
            ports[name] = port
        elif name not in ports:
            ports[name] = free_port(set(ports.values()))
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(ports) + "\n")
    return ports


def free_port(taken: set[int] | None = None) -> int:
    """Return a port of 127.0.0.1 nobody listens on, below the range from which outgoing connections take theirs."""
    for _ in range(200):
        port = random.randrange(15000, 32000)
        if port in (taken or set()):
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port
    raise BrokerError("no free port between 15000 and 32000")


def _loopback_interface() -> str:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def _running(folder: Path) -> int | None:
    """Return the process id of the broker another process started in the folder, or None."""
    state = folder / "broker.json"
    if not state.exists():
        return None
    pid = int(json.loads(state.read_text())["pid"])
    return pid if str(folder) in _command_line(pid) else None


def _command_line(pid: int) -> str:
    """Return a process's command line, "" for none: a process id alone may be somebody else's by now."""
    proc = Path(f"/proc/{pid}/cmdline")
    if proc.exists():
        return proc.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    if Path("/proc/self").exists() or shutil.which("ps") is None:
        return ""
    return subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True).stdout


def _supervisor(owner: int, pid_file: Path, command: Sequence[str]) -> int:
    """Run the broker as a child until it ends, the process `owner` ends (0: none), or SIGTERM says so.

    A process of its own and not a death signal on the broker: that one fires when the *thread* that started it ends.
    """

    def die_with_supervisor() -> None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, Linux only

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    broker = subprocess.Popen(command, preexec_fn=die_with_supervisor)
    signal.signal(signal.SIGTERM, lambda number, frame: broker.terminate())
    pid_file.write_text(str(broker.pid))
    ended = threading.Event()

    def wait() -> None:
        broker.wait()
        ended.set()

    # `broker.wait(timeout)` would ask for the broker twenty times a second, and each broker has a supervisor.
    threading.Thread(target=wait, daemon=True).start()
    while not ended.wait(0.3):
        if owner not in (0, os.getppid()) and not _command_line(owner):
            broker.kill()
    return broker.wait()


# ---- command line ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    with contextlib.suppress(KeyboardInterrupt):
        yield


def _show(broker: Standalone) -> None:
    print(f"PULSAR_SERVICE_URL={broker.service_url}")
    print(f"PULSAR_ADMIN_URL={broker.admin_url}")
    print(f"log: {broker.log}", flush=True)


def _start(broker: Standalone, detach: bool) -> int:
    if broker.process_id() is not None:
        _show(broker.wait_ready())
        return 0
    broker.start(detached=detach)
    with _interruptible():
        try:
            _show(broker.wait_ready())
        except BaseException:
            broker.stop()
            raise
        if detach:
            return 0
        print("running; Ctrl-C stops it", flush=True)
        while broker.process_id() is not None:
            time.sleep(0.5)
    broker.stop()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: start, stop or status of a folder's broker."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["supervisor"]:
        return _supervisor(int(words[1]), Path(words[2]), words[3:])
    parser = argparse.ArgumentParser(prog="dev/broker.py", description="Run a real Pulsar standalone on 127.0.0.1.")
    parser.add_argument("action", choices=["start", "stop", "status"])
    parser.add_argument("--folder", default=".demo/broker", help="where its data, ports and log are kept (%(default)s)")
    parser.add_argument("--detach", action="store_true", help="start: return when it is ready and leave it running")
    parser.add_argument("--deduplication", action="store_true", help="start: broker-side deduplication on every topic")
    parser.add_argument(
        "--profile", choices=list(PROFILES), default="testing",
        help="start: testing (all features on, nothing removed by itself) or default (as installed); %(default)s",
    )  # fmt: skip
    options = parser.parse_args(words)
    folder = Path(options.folder)
    if options.action != "start" and not folder.is_dir():
        print(f"no broker in {folder}")
        return 0 if options.action == "stop" else 3
    broker = Standalone(folder, profile=options.profile, deduplication=options.deduplication)
    try:
        if options.action == "start":
            return _start(broker, options.detach)
        if options.action == "stop":
            broker.stop()
            return 0
    except BrokerError as error:
        print(f"broker: {error}", file=sys.stderr)
        return 1
    if broker.process_id() is None:
        print(f"no broker runs in {folder}")
        return 3
    _show(broker)
    print("healthy" if broker.healthy() else "not answering (yet)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
