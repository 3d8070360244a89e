"""Read a text list with one image per line: its path (relative to the list) and its label, a word or a number.

The label is the last field: after the last tab where there is one, else after the last blank, so that paths may hold blanks.
"""

import os
from collections.abc import Iterator

from base.errors import DatasetError
from data_prep.sources.files import FileReader, Inside, file_reason
from data_prep.sources.naming import class_name, to_text
from data_prep.sources.types import MAX_MEMBERS, ListedSample, Prepared, Refused, Root

MAX_LINE = 8192


def prepare(root: Root) -> Prepared:
    """Check that the list is a file."""
    if not root.path.is_file():
        what = "is not a file" if root.path.exists() else "does not exist"
        raise DatasetError(f"{root.path} {what}: source: list wants a text file with a path and a label per line")
    return Prepared(files=(root.path,))


def scan(root: Root, _prepared: Prepared) -> Iterator[ListedSample | Refused]:
    """List one entry per line that is not blank."""
    inside = Inside(root.path.parent)
    with root.path.open("rb") as lines:
        number = 0
        while line := lines.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE or b"\0" in line:
                raise DatasetError(
                    f"{root.path}, line {number}: longer than {MAX_LINE} bytes, or no text: this is no list of paths and labels"
                )
            if number > MAX_MEMBERS:
                raise DatasetError(f"{root.path} has more than {MAX_MEMBERS} lines")
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if line.strip():
                yield _entry(inside, line.rstrip(b"\r\n"), number, root.whole)


def open_reader(root: Root, _prepared: Prepared) -> FileReader:
    """Open a reader, which reads files in place below the list's folder."""
    return FileReader(root.path.parent)


def _entry(inside: Inside, line: bytes, number: int, split: str | None) -> ListedSample | Refused:
    path, label = _fields(line)
    name = to_text(path)
    if not path or not label:
        wanted = "a path and a label are needed, with a tab or a blank between them"
        return Refused(f"line {number}: {to_text(line)}", f"{wanted}, no comma" if b"," in line else wanted)
    resolved = inside.resolve(path)
    if resolved is None:
        return Refused(name, "leaves the folder of the list; put the list above its images")
    name = to_text(resolved) if path.startswith(b"/") else name  # names say nothing about the place
    try:
        absolute = os.path.join(inside.root, resolved)
        status = os.lstat(absolute)
        reason = file_reason(absolute, name, status)
    except OSError as error:
        return Refused(name, f"not readable: {error.strerror}")
    at = () if resolved == path else (to_text(resolved),)
    return (
        Refused(name, reason) if reason else ListedSample(name, class_name(to_text(label)), status.st_size, status.st_mtime_ns, at, split)
    )


def _fields(line: bytes) -> tuple[bytes, bytes]:
    if b"\t" in line:
        path, _, label = line.rstrip(b"\t ").rpartition(b"\t")
        return path.strip(b"\t"), label.strip()
    fields = line.rsplit(None, 1)
    return (fields[0].strip(), fields[1]) if len(fields) == 2 else (line.strip(), b"")
