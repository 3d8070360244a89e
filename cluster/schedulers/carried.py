"""Which environment variables a job takes along from the shell that submits it. A scheduler would take all of them: they would lie on its
server's disk and in the environment of every process of the job, with the keys and passwords of that shell.

So it gets what is named here, and nothing else: where things are, who and in which language, what modules, Python, the network
libraries and the engines of containers read, and the options of Slurm's own commands. Lines of the site's `setup` set what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_NAMED: Final = """
PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR LD_LIBRARY_PATH LD_PRELOAD BASH_ENV KRB5CCNAME SSL_CERT_FILE SSL_CERT_DIR
PYTHONPATH PYTHONSAFEPATH VIRTUAL_ENV CONDA_PREFIX CUDA_HOME
MODULEPATH MODULESHOME MODULES_CMD LOADEDMODULES _LMFILES_ BASH_FUNC_module%% BASH_FUNC_ml%%
DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG CONTAINER_HOST REGISTRY_AUTH_FILE APPTAINER_CACHEDIR APPTAINER_TMPDIR APPTAINER_CONFIGDIR
ENROOT_LIBRARY_PATH ENROOT_SYSCONF_PATH
"""
NAMES: Final = frozenset(_NAMED.split())
_NETWORK: Final = ("NCCL_", "GLOO_", "UCX_", "FI_")
PREFIXES: Final = ("LC_", "XDG_", "LMOD_", "__LMOD", "_ModuleTable", "__MODULES_", *_NETWORK, "SLIPWAY_", "SLURM_", "SBATCH_")
SECRET: Final = re.compile(r"TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIAL|API_?KEY", re.IGNORECASE)
"""In a name that only its beginning lets through."""


def carried(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: of `environ`, what the scheduler gets and the job inherits."""
    return {name: value for name, value in environ.items() if name in NAMES or (name.startswith(PREFIXES) and not SECRET.search(name))}


def carried_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Pure: the same as names for `sbatch --export`, for a script that is submitted from a whole environment. Slurm's own go along anyway;
    functions have no name that it takes, and come from the login shell that Slurm starts for such a job."""
    return tuple(sorted(name for name in carried(environ) if name.isidentifier() and not name.startswith(("SLURM_", "SBATCH_"))))
