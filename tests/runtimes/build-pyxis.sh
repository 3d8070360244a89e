#!/usr/bin/env bash
# A real pyxis from a checkout of NVIDIA/pyxis, for the Slurm of this machine. Usage: build-pyxis.sh PYXIS DIR. Writes to these only.
# Wants gcc, make, libslurm-dev.
set -euo pipefail
make -C "$1"
mkdir -p "$2/lib"
install -m 644 "$1/spank_pyxis.so" "$2/lib/"
