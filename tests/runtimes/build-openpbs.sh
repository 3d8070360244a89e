#!/usr/bin/env bash
# A real OpenPBS for tests, from its source: a checkout or a URL that git can clone. Usage: build-openpbs.sh SOURCE DIR
# Writes to DIR and a directory beside it, which is gone afterwards; as root, since one of its programs must be setuid root. Minutes of CPU.
# Wants git gcc g++ make libtool autoconf automake pkg-config swig postgresql python3-dev and of these libraries the -dev packages:
# libhwloc libedit libical libncurses libpq libexpat1 libssl libcjson libx11 libxt libxext libxft tcl tk. A cluster of it wants postgresql.
set -euo pipefail
dir=$(readlink -m "$2")
if "$dir/bin/qstat" --version 2>/dev/null; then exit 0; fi
build=$dir.build
rm -rf "$build"
git clone -q --depth 1 "$(if [ -e "$1" ]; then echo "file://$(readlink -f "$1")"; else echo "$1"; fi)" "$build"
cd "$build"
# The system's Python and none that comes first on somebody's PATH: every command would be linked against a library of that user's.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
./autogen.sh
./configure --prefix="$dir" --with-python=/usr
make -j"$(nproc)"
make install
chmod 4755 "$dir/sbin/pbs_iff" "$dir/sbin/pbs_rcp"  # or every command says "Authentication failed"
rm -rf "$build"
"$dir/bin/qstat" --version
