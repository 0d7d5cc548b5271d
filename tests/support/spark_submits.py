"""A spark-submit that only records how it was called: no cluster is there to run on."""

from __future__ import annotations

from pathlib import Path


class RecordedSubmit:
    """Environment of Spark (`environment`) whose spark-submit records its call and ends as `then`, a line of shell."""

    def __init__(self, folder: Path, then: str = "exit 1") -> None:
        self.environment, self._seen = folder / "spark", folder / "seen"
        binaries = self.environment / "bin"
        binaries.mkdir(parents=True)
        script = binaries / "spark-submit"
        script.write_text(
            "#!/bin/sh\n"
            f'printf "%s\\n" "$@" > {self._seen}\n'
            f'printf "%s" "$PULSAR_CREDENTIALS" > {self._seen}.variable\n'
            "prev=\n"
            'for word in "$@"; do\n'
            f'  [ "$prev" = --files ] && cp -p "$word" {self._seen}.file && printf "%s" "$word" > {self._seen}.path\n'
            '  prev="$word"\n'
            "done\n"
            f"{then}\n"
        )
        script.chmod(0o755)
        (binaries / "python").symlink_to("/bin/true")

    @property
    def was_called(self) -> bool:
        """True if anything was submitted."""
        return self._seen.exists()

    @property
    def words(self) -> list[str]:
        """The words of the command line."""
        return self._seen.read_text().splitlines()

    @property
    def properties(self) -> dict[str, str]:
        """The values of --conf."""
        words = self.words
        return dict(words[index + 1].split("=", 1) for index, word in enumerate(words) if word == "--conf")

    @property
    def variable(self) -> str:
        """The variable of the process with the credentials, empty without one."""
        return Path(f"{self._seen}.variable").read_text()

    @property
    def file(self) -> tuple[Path, Path]:
        """A copy of the file handed over, and where it was."""
        return Path(f"{self._seen}.file"), Path(Path(f"{self._seen}.path").read_text())
