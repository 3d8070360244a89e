"""What the commands of schedulers answered on clusters: files with each command before its answer, and its exit code after."""

from pathlib import Path

from base.process import CommandResult

PLACE = Path(__file__).parents[2] / "captured"


def answers(scheduler: str, name: str) -> dict[str, CommandResult]:
    """By command. Standard output and error stand together there, in their order; so does each answer here."""
    found = {}
    lines: list[str] = []
    command = ""
    for line in (PLACE / scheduler / f"{name}.txt").read_bytes().decode(errors="replace").split("\n"):
        if line.startswith("$ "):
            command, lines = line.removeprefix("$ ").removeprefix("U "), []
        elif line.startswith("[exit "):
            text = "\n".join([*lines, ""])
            found[command] = CommandResult(argv=tuple(command.split()), returncode=int(line[6:-1]), stdout=text, stderr=text)
        else:
            lines.append(line)
    return found


def answer(scheduler: str, name: str) -> str:
    """Of a file with one command."""
    (result,) = answers(scheduler, name).values()
    return result.stdout
