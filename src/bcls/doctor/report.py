"""What was found, in sections of lines; as text and as JSON."""

from dataclasses import dataclass
from typing import Any

from bcls.doctor.private import without_places


@dataclass(frozen=True)
class Line:
    """One thing that was looked at."""

    name: str
    """What it is."""
    value: str
    """What was found."""
    problem: str = ""
    """What is wrong and what to do; empty where nothing is."""


@dataclass(frozen=True)
class Section:
    """Lines that belong together."""

    title: str
    """What they are about."""
    lines: tuple[Line, ...]
    """The lines."""


@dataclass(frozen=True)
class Report:
    """Everything that was found; names of people, machines and folders are left out."""

    sections: tuple[Section, ...]
    """The sections, in the order in which they are shown."""

    @property
    def problems(self) -> list[str]:
        """What is wrong, in one line each."""
        return [
            without_places(f"{section.title}, {line.name}: {line.problem}")
            for section in self.sections
            for line in section.lines
            if line.problem
        ]

    def as_json(self) -> dict[str, Any]:
        """Plain values: the sections, and ``problems``."""
        sections = {
            section.title: {line.name: without_places(line.value) for line in section.lines}
            for section in self.sections
        }
        return {**sections, "problems": self.problems}

    def as_text(self) -> str:
        """Markdown that can be pasted into a bug report.

        Example:
            >>> print(Report((Section("disk", (Line("temporary folder", "2 GB free"),)),)).as_text())
            ## disk
            - temporary folder: 2 GB free
            <BLANKLINE>
            No problems found.
        """
        blocks = [
            "\n".join(
                [f"## {section.title}", *(f"- {line.name}: {without_places(line.value)}" for line in section.lines)]
            )
            for section in self.sections
        ]
        count = len(self.problems)
        found = [f"{count} problem{'s' * (count != 1)} found:", *(f"- {problem}" for problem in self.problems)]
        return "\n\n".join([*blocks, "\n".join(found) if count else "No problems found."])
