"""Parser, streams and exit codes of the command line."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import errno
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_native import __version__, jobs
from pulsar_native.cli import main as module
from pulsar_native.cli.errors import ConditionNotMet, ExitCode, UsageError
from pulsar_native.cli.main import COMMANDS, main, parser
from pulsar_native.exceptions import AuthenticationError, ConnectError, SubscriptionNotFound, TopicNotFound
from pulsar_native.jobs import topic_setup
from pulsar_native.jobs.consume_settings import ConsumeSettings
from pulsar_native.jobs.deduplication import Deduplication
from pulsar_native.jobs.publishing import PublishIncomplete, PublishOptions
from support.cli import run


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_has_examples_exit_codes_and_variables(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([command, "--help"])
    told = capsys.readouterr().out
    assert raised.value.code == 0
    assert f"python -m pulsar_native {command} " in told and "exit codes:" in told and "PULSAR_SERVICE_URL" in told
    assert "--token " not in told and "--auth-params " not in told


def test_examples_of_the_help_can_be_parsed() -> None:
    import shlex
    from importlib import import_module

    count = 0
    for entry in COMMANDS.values():
        text = getattr(import_module(f"pulsar_native.cli.{entry.module}"), entry.examples)
        for line in text.splitlines():
            if "python -m pulsar_native " in line:
                words = shlex.split(line.partition("python -m pulsar_native ")[2], comments=True)
                end = next((at for at, word in enumerate(words) if word in ("|", "||")), len(words))
                parser().parse_args(words[:end])
                count += 1
    assert count >= 14


def test_unknown_argument_with_a_secret_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["tail", "t", "--tokn", "eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl"])
    told = capsys.readouterr().err
    assert raised.value.code == ExitCode.USAGE
    assert "unrecognized arguments: --tokn ***\nsee python -m pulsar_native tail --help\n" in told


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("publish t --key-field id day.csv -q", ["day.csv"]),
        ("publish t a -q b --key k - -v c", ["a", "b", "-", "c"]),
        ("publish -q t --key k a -- -b --key", ["a", "-b", "--key"]),
        ("publish t -m text -q", []),
        ("tail a -n 1 b", ["a", "b"]),
        ("tail -n 1 a b -- -c", ["a", "b", "-c"]),
        ("peek a -s s b c", ["a", "b", "c"]),
        ("lag a -s s b", ["a", "b"]),
        ("consume -s s a -n 1 b --wait c", ["a", "b", "c"]),
    ],
)
def test_words_between_options_belong_to_the_list(line: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command, *arguments = line.split()
    called: list[argparse.Namespace] = []
    entry = COMMANDS[command]
    monkeypatch.setattr(f"pulsar_native.cli.{entry.module}.{entry.run}", lambda given: called.append(given.options))
    assert main([command, *arguments], environment={}) == ExitCode.DONE
    (options,) = called
    assert getattr(options, entry.words or "") == words
    assert getattr(options, "topic", "t") == "t"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tail a -n 1 b --bogus c", "b --bogus c"),
        ("tail a -n 1 b --bogus -- c", "b --bogus -- c"),
        ("publish t -q day.csv --bogus", "day.csv --bogus"),
        ("check topic", "topic"),
    ],
)
def test_unknown_argument_is_refused(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(line.split())
    command = line.partition(" ")[0]
    assert raised.value.code == ExitCode.USAGE
    printed = f"error: unrecognized arguments: {words}\nsee python -m pulsar_native {command} --help\n"
    assert capsys.readouterr().err == printed


def test_missing_topic_of_publish_is_named_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["publish"])
    assert "required: TOPIC\nsee python -m pulsar_native publish --help\n" in capsys.readouterr().err


def test_version_needs_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--version"])
    assert (raised.value.code, capsys.readouterr().out) == (0, f"pulsar-native {__version__}\n")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UsageError("give one"), ExitCode.USAGE, "error: give one"),
        (ValueError("no number"), ExitCode.USAGE, "error: no number"),
        (ConditionNotMet("none"), ExitCode.NOT_MET, "none"),
        (ConnectError("refused"), ExitCode.FAILED, "error: ConnectError: refused"),
        (FileNotFoundError(2, "No such file", "x"), ExitCode.FAILED, "FileNotFoundError"),
        (AuthenticationError("refused"), ExitCode.PERMANENT, "AuthenticationError"),
        (TopicNotFound("t"), ExitCode.PERMANENT, "TopicNotFound"),
        (SubscriptionNotFound("s"), ExitCode.PERMANENT, "SubscriptionNotFound"),
        (PublishIncomplete("two failed", {}, can_retry=True), ExitCode.FAILED, "error: two failed"),
        (PublishIncomplete("two failed", {}, can_retry=False), ExitCode.PERMANENT, "error: two failed"),
        (ImportError("No module named 'pyarrow'"), ExitCode.PERMANENT, r"install pulsar-native"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted"),
        (BrokenPipeError(), ExitCode.BROKEN_PIPE, ""),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, BaseException) else None,
)
def test_exit_code_of_an_error(
    error: BaseException, code: ExitCode, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: module.Command) -> None:
        raise error

    monkeypatch.setattr("pulsar_native.cli.check.run", fail)
    found = run("check")
    assert found.code == code
    assert words in found.err and found.out == b""


def test_error_of_a_bug_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: module.Command) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("pulsar_native.cli.check.run", fail)
    with pytest.raises(AssertionError, match="a bug"):
        run("check")


def test_secret_in_an_error_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: module.Command) -> None:
        raise ConnectError("refused the.very.secret")

    monkeypatch.setattr("pulsar_native.cli.check.run", fail)
    monkeypatch.setenv("PULSAR_TOKEN", "the.very.secret")
    assert "the.very.secret" not in run("check", PULSAR_TOKEN="the.very.secret").err


def test_warning_of_a_job_names_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(command: module.Command) -> None:
        admin: Any = SimpleNamespace(stats=lambda topic: {}, get_retention=lambda topic, applied: None)
        topic_setup.warn_if_not_kept(admin, "t", 0, command.console)

    monkeypatch.setattr("pulsar_native.cli.check.run", warn)
    text = "Give --create-subscription NAME for a consumer that comes later, or set the retention of the namespace\n"
    assert run("check").err.endswith(text)


def _texts_of_jobs() -> str:
    """Return the texts in the source of the jobs, a line each, with {} for what is put into them."""

    def text_of(node: ast.AST) -> str:
        if isinstance(node, ast.JoinedStr):
            return "".join(map(text_of, node.values))
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "{}"

    folder = Path(jobs.__file__).parent
    return "\n".join(
        text_of(node)
        for file in sorted(folder.glob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.JoinedStr | ast.Constant)
    )


def test_spellings_are_of_texts_of_jobs() -> None:
    texts = _texts_of_jobs()
    assert [theirs for theirs in module._SPELLINGS if theirs not in texts] == []


def test_checked_options_are_arguments_of_jobs() -> None:
    fields = {each.name for kind in (ConsumeSettings, PublishOptions) for each in dataclasses.fields(kind)}
    limits = {"max_messages", "max_bytes", "max_seconds", "max_messages_per_file", "max_bytes_per_file"}
    assert set(module._CHECKED) <= fields | limits
    options = {option for one in _subparsers() for action in one._actions for option in action.option_strings}
    assert set(module._CHECKED.values()) <= options


def _subparsers() -> list[argparse.ArgumentParser]:
    made = next(each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    return list(made.choices.values())


def test_lost_state_of_an_identity_names_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: module.Command) -> None:
        Deduplication("t", True, command.console).check_first("cli/day", 3)

    monkeypatch.setattr("pulsar_native.cli.check.run", fail)
    told = run("check").err
    assert "the broker knows the producer 'cli/day' of t up to message 3" in told
    assert told.endswith(
        "Either the messages were published before, and the file of --state was removed since: if they are to stay as "
        "they are, nothing is left to do. Or another program publishes under the same --identity: give each its own\n"
    )
    assert not re.search("task|Airflow|state_store|deployment_id", told)


def test_wrong_connection_fails_before_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr("pulsar_native.cli.check.run", lambda command: called.append(1))
    assert run("check", "--url", "kafka://a:1").code == ExitCode.USAGE
    assert called == []


def test_import_of_the_package_leaves_the_command_line_out() -> None:
    program = (
        "import sys, pulsar_native; "
        "print([m for m in sys.modules if m.startswith(('pulsar_native.cli', 'pulsar_native.jobs'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("name", "words"), [("stdin", "standard input is closed"), ("stdout", "standard output is")])
def test_closed_stream_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    # As the interpreter leaves it where the shell has closed the descriptor.
    monkeypatch.setattr(sys, name, None)
    with pytest.raises(SystemExit) as raised:
        main(["check"], stdin=None if name == "stdin" else io.BytesIO(), stdout=None)
    assert raised.value.code == ExitCode.USAGE and words in capsys.readouterr().err


def test_closed_error_output_leaves_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    code = main(["check", "--url", "kafka://a:1"], stdin=io.BytesIO(), stdout=io.BytesIO(), environment={})
    assert code == ExitCode.USAGE


def test_streams_default_to_the_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def write(command: module.Command) -> None:
        command.stdout.write(b"out")
        command.console.summary("err")

    monkeypatch.setattr("pulsar_native.cli.check.run", write)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    assert main(["check"], environment={}) == ExitCode.DONE
    buffer = sys.stdout.buffer
    assert isinstance(buffer, io.BytesIO) and buffer.getvalue() == b"out"
    assert capsys.readouterr().err == "err\n"


class FullDevice(io.FileIO):
    """A file without space, as /dev/full is on Linux, until its descriptor is another file's."""

    def write(self, data: Any) -> int:
        if os.path.samestat(os.fstat(self.fileno()), os.stat(str(self.name))):
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("error", [None, ConditionNotMet("none")])
def test_output_that_fails_leaves_nothing_for_the_exit(
    error: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(command: module.Command) -> None:
        command.stdout.write(b"out")
        if error is not None:
            raise error

    monkeypatch.setattr("pulsar_native.cli.check.run", write)
    with io.BufferedWriter(FullDevice(tmp_path / "output", "wb")) as full:
        code = main(["check"], stdout=full, environment={})
        # As the interpreter does at its exit, which ends with 120 if it fails.
        full.flush()
    assert code == (ExitCode.FAILED if error is None else ExitCode.NOT_MET)
    assert ("No space left" in capsys.readouterr().err) is (error is None)
