"""The directory of an unfinished copy: made or found again, allocated, published, or removed."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

from base.publish import publish_directory, remove_tree
from data_prep.cache.holder import this_process
from data_prep.cache.layout import Cache, part_of
from data_prep.file_set import JOURNAL_NAME
from data_prep.hashing import ChunkedFile
from data_prep.manifest import FILE_NAME
from data_prep.staging.files import BLOCK, allocate, open_file
from data_prep.staging.journal import Chunk, Journal
from data_prep.staging.readback import ReadBack
from data_prep.staging.source import Source

logger = logging.getLogger(__name__)


class Part:
    """Where one stager copies to. With the dataset's lock the resumable one; without (the lock's holder is frozen) one of its own."""

    def __init__(self, cache: Cache, source: Source, locked: bool) -> None:
        self.source = source
        common = part_of(cache, source.name)
        me = this_process()
        own = common.parent / f"{common.name}-{me['pid']}-{me['start_time']}"
        self.path = common if locked and _is_free(common) else own
        self.path.mkdir(exist_ok=True)
        self.path.chmod(0o2750 if cache.shared else 0o700)
        self.journal = Journal(self.path, source.file_set.digest)
        struck = {number for number, file in enumerate(source.file_set.files) if not self._is_whole(file)}
        self.journal.strike({chunk for chunk in self.journal.done if chunk[0] in struck})

    def close(self) -> None:
        self.journal.close()

    def trusted_bytes(self) -> int:
        """Bytes that need not be copied again."""
        files = self.source.file_set.files
        return sum(
            min(files[number].chunk_bytes, files[number].bytes - chunk * files[number].chunk_bytes) for number, chunk in self.journal.done
        )

    def missing_bytes(self) -> int:
        """Bytes that the disk must still give; what is allocated already counts as given."""
        taken = 0
        for file in self.source.file_set.files:
            try:
                taken += min((self.path / file.path).lstat().st_blocks * 512, file.bytes)
            except FileNotFoundError:
                continue
        return self.source.file_set.bytes - taken + len(self.source.file_set.content) + len(self.source.file_set.files) * 2 * BLOCK

    def allocate(self) -> None:
        """Create every file in its full size. Raises OSError without room."""
        mode = stat.S_IMODE(self.path.stat().st_mode)
        for folder in sorted({folder for file in self.source.file_set.files for folder in Path(file.path).parents[:-1]}):
            (self.path / folder).mkdir(exist_ok=True)
            (self.path / folder).chmod(mode)
        for file in self.source.file_set.files:
            path = self.path / file.path
            if path.is_file():
                path.chmod(0o600)  # killed just before it was published
            descriptor = open_file(path, os.O_RDWR | os.O_CREAT, direct=False)
            try:
                allocate(descriptor, file.bytes)
            finally:
                os.close(descriptor)

    def rehash(self, on_bytes: Callable[[int], None]) -> set[Chunk]:
        """Read what the journal lists and strike out what is not as promised: it was right once, and a disk does not keep all that it was
        given. Returns what was struck; `on_bytes(n)` as it goes. Raises OSError."""
        if not self.journal.done:
            return set()
        with contextlib.closing(ReadBack(self.path, self.source.file_set.files, past_cache=True)) as read_back:
            wrong = set(read_back.wrong(sorted(self.journal.done), on_bytes=on_bytes))
        if wrong:
            logger.warning("%d chunks that an interrupted copy of %s left are not what they were: copied again", len(wrong), self.path)
        self.journal.strike(wrong)
        return wrong

    def publish(self, target: Path) -> bool:
        """Add the manifest, make everything read-only and durable, and rename to `target`. False if that is there already."""
        (self.path / FILE_NAME).unlink(missing_ok=True)
        descriptor = os.open(self.path / FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self.source.file_set.content)
        for name in [FILE_NAME, *(file.path for file in self.source.file_set.files)]:
            (self.path / name).chmod(0o444)
        published = publish_directory(self.path, target)
        if published:
            (target / JOURNAL_NAME).unlink(missing_ok=True)
        return published

    def remove(self) -> None:
        """Give the room back: after an error of the node's disk nothing in it is trusted, and what was not synced is never synced again."""
        remove_tree(self.path)

    def _is_whole(self, file: ChunkedFile) -> bool:
        """The journal counts only inside a file of the right size."""
        try:
            status = (self.path / file.path).lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == file.bytes


def _is_free(path: Path) -> bool:
    """Whether `path` is ours to use: not there, or a directory of ours and no link."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
