"""Read the energy that GPUs have used since their driver was loaded, by NVML's counter.

`nvmlDeviceGetTotalEnergyConsumption` tells millijoules, on Volta and newer (NVML API reference, "Device Queries"). nvidia-smi has no field
for it, so the library of the driver is asked, in the child that watches GPUs alone: it may hang as the driver does. Not yet run on a GPU.
"""

import ctypes
import logging
from typing import Any, Final

logger = logging.getLogger(__name__)

LIBRARY: Final = "libnvidia-ml.so.1"
SUCCESS: Final = 0
INSTANCE: Final = "MIG-"
JOULES: Final = 1e-3


class EnergyCounters:
    """The counters of this machine's GPUs. Without a library, or where it says no, nobody is asked again."""

    def __init__(self, library: Any = None) -> None:
        self._handles: dict[str, ctypes.c_void_p | None] = {}
        try:
            self._nvml = ctypes.CDLL(LIBRARY) if library is None else library
            begun = self._nvml.nvmlInit_v2()
        except (OSError, AttributeError) as error:
            logger.debug("no energy counter of GPUs: %s", error)
            begun = None
        self._is_open = begun == SUCCESS

    def joules(self, uuid: str) -> float | None:
        """Return the counter of a GPU; None where it has none, and of a MIG instance, which has no counter of its own."""
        if not self._is_open:
            return None
        if uuid not in self._handles:
            self._handles[uuid] = self._handle(uuid)
        handle = self._handles[uuid]
        if handle is None:
            return None
        told = ctypes.c_ulonglong()
        try:
            answer = self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(told))
        except AttributeError:  # a driver older than the function
            self._is_open = False
            return None
        if answer != SUCCESS:  # such as NOT_SUPPORTED, or a GPU that is lost
            self._handles[uuid] = None
            return None
        return told.value * JOULES

    def _handle(self, uuid: str) -> ctypes.c_void_p | None:
        if uuid.startswith(INSTANCE) or not uuid.isascii():
            return None
        handle = ctypes.c_void_p()
        found = self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
        return handle if found == SUCCESS else None
