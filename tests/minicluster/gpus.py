"""GPUs of a node that has none: device files, and stand-ins for NVIDIA's nvidia-smi, container hooks and CDI file that go by them.

The device files have NVIDIA's major number and no driver: opening one says "No such device" where the device cgroup lets it through, and
"Operation not permitted" where it does not, which is how the stand-in of nvidia-smi tells what is visible, as the driver does.
"""

import json
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from tests.minicluster.spec import Spec

TOOLS = ("nvidia-smi", "nvidia-container-runtime-hook", "nvidia-container-cli")
STAND_INS = Path(__file__).with_name("stand_ins")
ON_NODE = "/run/minicluster"  # where a node finds them
NAMESPACE = uuid.UUID("0b3aa0b0-51fe-4b0a-9f6e-3f3b8c0f6d11")
BUSES = (0x06, 0x07, 0x0A, 0x0B, 0x85, 0x86, 0x89, 0x8A)  # with gaps, so that a mix-up of indices shows
MODEL = "Tesla P100-SXM2-16GB"


class Card(NamedTuple):
    """One GPU; nvidia-smi counts in the order of `bus_id`."""

    minor: int
    uuid: str
    bus_id: str
    model: str


def cards(spec: Spec, host: str) -> tuple[Card, ...]:
    """Those of `host`, always the same for its name."""
    count = spec.gpus if host in spec.compute_nodes else 0
    buses = [*BUSES, *range(0x90, 0x90 + count)]
    return tuple(Card(i, f"GPU-{uuid.uuid5(NAMESPACE, f'{host}/{i}')}", f"00000000:{buses[i]:02X}:00.0", MODEL) for i in range(count))


def table(found: tuple[Card, ...]) -> str:
    return "".join(f"{' '.join(map(str, card))}\n" for card in found)


def cdi(found: tuple[Card, ...]) -> dict[str, Any]:
    """As nvidia-ctk writes it: each GPU by index and by UUID, and all."""

    def device(name: str, of: tuple[Card, ...]) -> dict[str, Any]:
        return {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{card.minor}"} for card in of]}}

    named = [device(name, (card,)) for index, card in enumerate(found) for name in (str(index), card.uuid)]
    smi = {"hostPath": f"{ON_NODE}/bin/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi", "options": ["ro", "nosuid", "nodev", "bind"]}
    edits = {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "mounts": [smi]}
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [*named, device("all", found)], "containerEdits": edits}


def write(spec: Spec, host: str, directory: Path) -> None:
    """The node's bin/ (on its PATH and its dockerd's) and cdi/. A host without GPUs has neither tools nor devices."""
    for name in ("bin", "cdi"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    found = cards(spec, host)
    if not found:
        return
    for name in TOOLS:
        path = directory / "bin" / name
        path.write_text((STAND_INS / name).read_text().replace("@TABLE@\n", table(found)))
        path.chmod(0o755)
    (directory / "cdi" / "nvidia.json").write_text(json.dumps(cdi(found), indent=1))
