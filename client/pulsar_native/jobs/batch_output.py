"""Output path of a batch and its owner, recorded in a manifest beside it, which outlives the caller's state.

The manifest of `folder/name` is `folder/_name.manifest.json`; readers of whole folders skip names that begin with an
underscore. Its `state` is receiving (a claim, no output yet), written (the output is there, nothing is acknowledged),
consumed (acknowledging has begun: the output is the only copy), acknowledged. Rules: the claim is made before anything
is received, and one of several runs gets it. Output of another run is never replaced unless asked for, that of another
mapped task of the same run never. A run that lost the claim fails before the output is replaced and before anything is
acknowledged.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

from pulsar_native.jobs.failures import JobFailed, JobRefused
from pulsar_native.jobs.output import (
    NotJson,
    PathFactory,
    create_json,
    is_there,
    local_path,
    numbered_path,
    read_json,
    remove,
    temporary_of,
    write_json,
)
from pulsar_native.jobs.part_files import part_path, remove_parts

IF_EXISTS = ("fail", "overwrite", "append_part")
RECEIVING, WRITTEN, CONSUMED, ACKNOWLEDGED = "receiving", "written", "consumed", "acknowledged"
_MOST_PARTS = 99_999
# Part of a run's identity that differs between its mapped tasks.
_MAP_INDEX = "map_index"
Note = dict[str, Any]


class OutputExists(JobRefused):
    """Raised when the output belongs to another run or batch and must not be replaced."""


class OutputTaken(JobFailed):
    """Raised when another try or run has claimed the output meanwhile."""


def manifest_path(path: str) -> str:
    """Return the path of an output's manifest."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}_{name}.manifest.json"


class BatchOutput:
    """Output of one batch of a run, in one try. Blocking; not thread-safe."""

    def __init__(
        self,
        path: str,
        run: Mapping[str, Any],
        *,
        if_exists: str = "fail",
        open_path: PathFactory = local_path,
        in_parts: bool = False,
    ) -> None:
        """Set the requested path; `run` identifies the run in all of its tries, `in_parts` is for several files."""
        self._in_parts = in_parts
        self.path = path
        self.token = uuid.uuid4().hex
        self._asked = path
        self._run = dict(run)
        self._if_exists = if_exists
        self._open_path = open_path

    # ---- finding -----------------------------------------------------------------------------------------------------

    def find(self, known_path: str | None = None) -> Note | None:
        """Return this run's manifest of a consumed batch, None if there is none.

        Sets `path` to its output. `known_path` is the run's output path if known.
        """
        for path in self._candidates(known_path):
            note = self._read(path)
            if note is not None and note.get("run") == self._run:
                self.path = path
                return note if note["state"] in (CONSUMED, ACKNOWLEDGED) else None
        return None

    def _candidates(self, known_path: str | None) -> list[str]:
        if self._if_exists != "append_part":
            return [self._asked]
        parts = [self._part(number) for number in reversed(self._numbers())]
        return parts if known_path not in parts else [known_path, *parts]

    def _part(self, number: int) -> str:
        return numbered_path(self._asked, f"-{number:05}")

    def _numbers(self) -> list[int]:
        """Return the numbers of existing parts, those being written included."""
        folder, slash, asked = self._asked.rpartition("/")
        # No name has a slash.
        name = re.escape(numbered_path(asked, "-/")).replace("/", r"(\d{5})")
        pattern = re.compile(rf"(?:{name}|_{name}\.manifest\.json)")
        try:
            names = [each.name for each in self._open_path(folder + slash or ".").iterdir()]
        except FileNotFoundError:
            return []
        found = {match.group(1) or match.group(2) for each in names if (match := pattern.fullmatch(each))}
        return sorted(int(number) for number in found)

    def _read(self, path: str) -> Note | None:
        try:
            return read_json(manifest_path(path), self._open_path)
        except NotJson as error:
            raise OutputExists(
                f"{manifest_path(path)} cannot be used as the manifest of a batch ({error}): remove it, or choose "
                "another path"
            ) from error

    # ---- claiming ----------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Claim the path for this try; raises `OutputExists` if output would be replaced that must not be."""
        if self._if_exists == "append_part":
            self._claim_part()
            return
        self.path = self._asked
        note = self._read(self.path)
        if (self._if_exists == "overwrite" and not self._is_of_mapped_task(note)) or self._is_own_claim(note):
            self._take_over(note)
            return
        if note is None and not self._exists() and self._create():
            return
        raise OutputExists(self._refusal(self._read(self.path)))

    def _claim_part(self) -> None:
        numbers = self._numbers()
        for number in numbers:
            self.path = self._part(number)
            note = self._read(self.path)
            if self._is_own_claim(note):
                self._take_over(note)
                return
        number = numbers[-1] + 1 if numbers else 1
        while number <= _MOST_PARTS:
            self.path = self._part(number)
            if not self._exists() and self._create():
                return
            number += 1
        raise OutputExists(f"{self._asked} has {_MOST_PARTS} parts: choose another path")

    def _is_own_claim(self, note: Note | None) -> bool:
        """Return True if an earlier try of this run has the claim and has not acknowledged anything."""
        if note is None or note.get("run") != self._run:
            return False
        # With a claim only, this run has no output: a file there is another's.
        return note["state"] == WRITTEN or (note["state"] == RECEIVING and not self._exists())

    def _is_of_mapped_task(self, note: Note | None) -> bool:
        """Return True for the output of another mapped task of this run: neither must replace the other's messages."""
        run = None if note is None else note.get("run")
        if not isinstance(run, Mapping) or run == self._run:
            return False
        return {**run, _MAP_INDEX: None} == {**self._run, _MAP_INDEX: None}

    def _exists(self) -> bool:
        names = [self.path, part_path(self.path, 0)] if self._in_parts else [self.path]
        return any(is_there(name, self._open_path) for name in names)

    def _create(self) -> bool:
        return create_json(manifest_path(self.path), self._note(RECEIVING), self._open_path)

    def _take_over(self, note: Note | None) -> None:
        """Replace an earlier claim; output of this run's earlier tries without acknowledgements is removed."""
        target = self._open_path(self.path)
        if note is not None and note.get("run") == self._run:
            remove(str(temporary_of(target, str(note.get("token", "")))), self._open_path)
            if note["state"] == WRITTEN:
                remove(self.path, self._open_path)
            if self._in_parts:
                remove_parts(self.path, self._open_path, tag=str(note.get("token", "")))
        write_json(manifest_path(self.path), self._note(RECEIVING), self._open_path)

    def _refusal(self, note: Note | None) -> str:
        help_ = "choose another path, or if_exists='append_part' or 'overwrite'"
        if note is None:
            return f"there is a file {self.path} already, not of this run: {help_}"
        run = note.get("run")
        if run == self._run:
            return f"{self.path} is the output of another batch of this run, of other topics or subscription: {help_}"
        if isinstance(run, Mapping) and self._is_of_mapped_task(note):
            return (
                f"{self.path} is the output of another mapped task of this run (map_index {run[_MAP_INDEX]}): put "
                "{{ ti.map_index }} or the topic into the path, or set if_exists='append_part'"
            )
        whose = ", ".join(f"{name} {value}" for name, value in run.items()) if isinstance(run, Mapping) else "another"
        if note["state"] in (RECEIVING, WRITTEN):
            return (
                f"{self.path} is being written by another run ({whose}), or was left by it before anything was "
                f"acknowledged: {help_}; if that run is over, remove {self.path} and {manifest_path(self.path)}"
            )
        return f"{self.path} holds messages that another run ({whose}) has acknowledged: {help_}"

    # ---- keeping -----------------------------------------------------------------------------------------------------

    def _note(self, state: str, more: Mapping[str, Any] | None = None) -> Note:
        return {"version": 1, "state": state, "run": self._run, "token": self.token, **(more or {})}

    def check(self) -> None:
        """Raise `OutputTaken` if another try or run has the claim."""
        note = self._read(self.path)
        if note is None or note.get("token") != self.token:
            raise OutputTaken(f"another try or run has taken over {self.path}: this one ends, and acknowledges nothing")

    def keep(self, state: str, more: Mapping[str, Any]) -> None:
        """Replace the manifest after checking that this try has the claim."""
        self.check()
        write_json(manifest_path(self.path), self._note(state, more), self._open_path)

    def require_restorable(self) -> None:
        """Raise `OutputExists` if another run has the path of an output that is to be written again."""
        note = self._read(self.path)
        if note is None or note.get("run") == self._run:
            return
        if self._if_exists != "overwrite" or self._is_of_mapped_task(note):
            raise OutputExists(self._refusal(note))

    def take_back(self, state: str, more: Mapping[str, Any]) -> None:
        """Write the manifest of a batch that was consumed before, and claim the path."""
        write_json(manifest_path(self.path), self._note(state, more), self._open_path)

    def release(self) -> None:
        """Release a claim under which nothing was written."""
        note = self._read(self.path)
        if note is not None and note.get("token") == self.token and note["state"] == RECEIVING:
            remove(manifest_path(self.path), self._open_path)
