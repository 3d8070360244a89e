#!/usr/bin/env bash
# OpenLava for tests, which speaks like LSF, from its source: a checkout or a URL that git can clone. Usage: build-openlava.sh SOURCE DIR
# Writes to DIR and a directory beside it, which is gone afterwards. A minute of CPU.
# Wants git gcc make libtool autoconf automake bison flex libncurses-dev tcl-dev libtirpc-dev.
set -euo pipefail
dir=$(readlink -m "$2")
if "$dir/sbin/sbatchd" -V; then exit 0; fi
build=$dir.build
rm -rf "$build"
git clone -q --depth 1 "$(if [ -e "$1" ]; then echo "file://$(readlink -f "$1")"; else echo "$1"; fi)" "$build"
cd "$build"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
sh bootstrap.sh
# Written for compilers that merged what is defined twice, and for a C library that still had RPC.
./configure --prefix="$dir" CFLAGS="-O1 -g -fPIC -rdynamic -fcommon -w -I/usr/include/tirpc" LIBS=-ltirpc
make -j"$(nproc)"
make install
rm -rf "$build"
"$dir/sbin/sbatchd" -V
