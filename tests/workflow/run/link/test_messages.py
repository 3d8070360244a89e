"""Each message between supervisor and node programs is what both expect, or ends the connection with a sentence."""

import dataclasses
import json
from typing import Any, Final

import pytest
from msgspec import structs

from base.jsonfile import json_line
from cluster.types import Allocation, Grant, Node, OtherUse
from data_prep import staging
from data_prep.staging import exchange
from tests.workflow.run.cells import DOCUMENT
from workflow.run.link import commands, reports
from workflow.run.link.protocol import Decoder, ProtocolError, encode
from workflow.run.plan import Framework, Sidecar
from workflow.run.record.model import File, Interface, MachineCores
from workflow.run.record.outcome import RankEnd, RankState

GRANT: Final = Grant(node="n0", hostname="n0", address="10.0.0.1", cores=(0, 1), other_use=(OtherUse("GPU-1", "python"),))
ALLOCATION: Final = Allocation(
    scheduler="local", job_id="1", nodes=(Node(name="n0", hostname="h", address="127.0.0.1"),), device="cpu", exclusive=True
)
CORES: Final = MachineCores(sockets=1, cores=2, cpus=4)
NETWORK: Final = Interface(name="eth0", kind="Ethernet", mbit_per_s=None)
FACTS: Final = reports.Facts(
    hostname="n0",
    cpu_model=None,
    machine_cores=CORES,
    memory_bytes=1 << 30,
    network=(NETWORK,),
    kernel="6.1",
    os="Debian",  # type: ignore[arg-type]
)
RANK: Final = RankState(rank=0, host="n0", phase=None, step=3, silent_s=1.5, limit_s=60.0, state="S", last_lines="")
ENDED: Final = {"schema": "slipway.ended/1", "facts": {"run_id": "a-r1"}, "nodes": [0, 1]}
DATASET: Final = reports.StagedCopy(
    **{"root": "/c/d", "digest": "d", "lost_peers": {"1": "gone"}, "hit": False, "lease": None, "seconds": 1.0},
    **{name: 1 for name in ("bytes", "copied_bytes", "storage_bytes", "peer_bytes", "resumed_bytes", "checked_bytes")},
)  # type: ignore[arg-type]
STAGED: Final = reports.Staged(dataset=DATASET, image=None, other_use=(OtherUse("", "not known"),))
END: Final = RankEnd(ranks=(0,), host="n0", exit_code=0, time=1.0)
SAID: Final[tuple[reports.Report, ...]] = (
    reports.Ready(facts=FACTS, grant=GRANT, pid=7),
    reports.Ready(facts=structs.replace(FACTS, network=None, machine_cores=None), grant=None, pid=7),
    reports.Reached(reached=(None, (0.001, None), (None, "no answer"))),
    reports.Measured(attempt=0, rates=(None, (1, 0.1, 0.0))),
    structs.replace(STAGED, image=reports.LoadedImage(image_id="sha256:0", seconds=1.0, storage_bytes=2, peer_bytes=0)),
    reports.Overdue(ranks=(RANK,)),
    reports.Exited(end=END, now=2.0),
    reports.Pushed(files=(File(path="out/a", bytes=0, blake3="0" * 64),)),
)
"""Examples of reports that are more than words and numbers; ORDERED: of commands."""
PLAN: Final = commands.Plan(
    allocation=ALLOCATION,
    tag="t",
    run_id="r",
    run_dir="/r",
    group=False,
    source="/s",
    cache="/c",
    cache_max_bytes=None,
    bytes_per_s=None,
    ranks=None,
)
FRAMEWORK: Final = Framework(
    name="f", folder="/f", launcher="ranks", command=("{python}", "program.py"), sidecars=(Sidecar(name="a", where="head", command=("b",)),)
)
IMAGE: Final = commands.Image(archive="/a", cache="/c")
RANKS: Final = commands.RanksPlan(framework=FRAMEWORK, cell=DOCUMENT, engine="bare", image=None, beat_s=60.0, init_s=300.0)
ORDERED: Final[tuple[commands.Command, ...]] = (
    PLAN,
    structs.replace(PLAN, ranks=structs.replace(RANKS, image=IMAGE)),
    commands.Reach(peers=(("127.0.0.1", 4000),)),
    commands.MeetPeers(
        what="image", others=commands.Others(peers=(None, ("127.0.0.1", 4000, "all")), readers=(0,), most_readers=None, late=False)
    ),
    commands.Start(ports=((61001,), ()), left_s=-1.0),
    commands.End(pending=commands.Pending(target="/t", reason="storage is gone", record={}, ended=ENDED)),
)


def plain(message: reports.Message | commands.Message) -> dict[str, Any]:
    """As it comes out of a connection."""
    value: dict[str, Any] = json.loads(encode(message))
    return value


READY: Final = plain(SAID[0])


@pytest.mark.parametrize("message", [*SAID, *ORDERED], ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was_sent(message: reports.Report | commands.Command) -> None:
    (found,) = Decoder[Any](reports.Report if isinstance(message, reports.Message) else commands.Command).feed(encode(message))
    assert found == message
    assert type(found) is type(message)
    hash(type(found))
    with pytest.raises(AttributeError):
        found.seconds = 1.0


def test_a_long_message_in_pieces_comes_back() -> None:
    message = reports.Failed(during="stage", error="StagingError", message='"\\é' * 100_000)
    data, decoder = encode(message) + encode(reports.Released()), Decoder[reports.Report](reports.Report)
    found = [message for start in range(0, len(data), 1000) for message in decoder.feed(data[start : start + 1000])]
    assert found == [message, reports.Released()]


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\n",
        b"\xff\xfe\n",
        b"[" * 30000 + b"\n",
    ],
)
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Decoder[reports.Report](reports.Report).feed(data)


def test_what_the_staging_tells_and_takes_is_what_the_messages_hold() -> None:
    """Its process is a child of the node program: its values are typed in data_prep, and go on from there."""
    assert reports.StagedCopy.__struct_fields__ == tuple(field.name for field in dataclasses.fields(staging.StagedFiles))
    assert commands.Others.__struct_fields__ == tuple(field.name for field in dataclasses.fields(exchange.Others))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({}, "Object missing required field `say`"),
        ({"say": "hello"}, "Invalid value 'hello' - at `.*say`"),
        ({"say": "ready"}, r'none of ours .{"say":"ready"}.: Object missing required field `facts`'),
        ({**READY, "another": 1}, "Object contains unknown field `another`"),
        ({**READY, "grant": {**dataclasses.asdict(GRANT), "cores": ["x"]}}, r"Expected `int`, got `str` - at `\$.grant.cores\[0\]`"),
    ],
)
def test_what_is_none_of_ours_is_told(message: dict[str, Any], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        Decoder[reports.Report](reports.Report).feed(json_line(message))
