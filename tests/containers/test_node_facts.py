"""What a container takes over from the node it runs on."""

import os
from pathlib import Path

import pytest

from containers.node_facts import limits_here, memory_limit, user_here, with_facts
from tests.containers.specs import spec


def test_facts_of_this_node_fit_into_a_specification(tmp_path: Path) -> None:
    made = with_facts(spec(tmp_path))
    assert made.user == user_here()
    assert made.user is not None
    assert (made.user.uid, made.user.gid) == (os.geteuid(), os.getegid())
    assert made.limits == limits_here()
    assert [name for name, _ in made.limits] == ["memlock", "nofile", "stack", "nproc"]
    assert os.umask(made.umask) == made.umask
    hash(made)


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        ("0::/job/step\n", {"memory.max": "max", "job/memory.max": "5000", "job/step/memory.max": "9000"}, 5000),
        ("0::/job\n", {"job/memory.max": "max"}, None),
        (
            "4:memory:/job\n1:cpu:/x\n",
            {"memory/job/memory.limit_in_bytes": "7000", "memory/memory.limit_in_bytes": "9223372036854771712"},
            7000,
        ),
    ],
)
def test_the_memory_of_the_job_is_the_least_limit_above(tmp_path: Path, membership: str, files: dict[str, str], limit: int | None) -> None:
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text + "\n")
    (tmp_path / "self").write_text(membership)
    assert memory_limit(tmp_path / "self", tmp_path / "cgroup") == limit
