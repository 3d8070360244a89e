"""What OpenPBS 23.06 answered on a cluster of two nodes: files with the command in the first line and its exit code in the last."""

from pathlib import Path

from base.process import CommandResult

PLACE = Path(__file__).parents[3] / "captured" / "openpbs"


def answers(name: str) -> dict[str, CommandResult]:
    """By command. Standard output and error stand together there, in their order; so does each answer here."""
    found = {}
    lines: list[str] = []
    command = ""
    for line in (PLACE / f"{name}.txt").read_bytes().decode(errors="replace").split("\n"):
        if line.startswith("$ "):
            command, lines = line.removeprefix("$ ").removeprefix("U "), []
        elif line.startswith("[exit "):
            text = "\n".join([*lines, ""])
            found[command] = CommandResult(argv=tuple(command.split()), returncode=int(line[6:-1]), stdout=text, stderr=text)
        else:
            lines.append(line)
    return found


def answer(name: str) -> str:
    """Of a file with one command."""
    (result,) = answers(name).values()
    return result.stdout
