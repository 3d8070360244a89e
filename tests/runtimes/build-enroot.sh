#!/usr/bin/env bash
# A real enroot from checkouts of NVIDIA/enroot and megastep/makeself, with Debian's musl-tools in place of its submodules.
# Usage: build-enroot.sh ENROOT DIR MAKESELF. Writes to these and nowhere else.
# Wants musl-tools linux-libc-dev squashfs-tools squashfuse parallel jq curl gawk uidmap ncurses-bin pigz zstd patch.
set -euo pipefail
cd "$1"
prefix=$2
rm -rf deps/makeself enroot conf/enroot.conf  # of an earlier DIR
cp -r "$3" deps/makeself
dist=$PWD/deps/dist
mkdir -p "$dist"/musl/bin "$dist"/musl/lib "$dist"/linux/include
# Debian's musl-gcc has no static-pie in its specs: enroot's deps/musl.patch, applied to what is installed.
python3 - /usr/lib/x86_64-linux-musl/musl-gcc.specs "$dist/musl/lib/musl-gcc.specs" <<'SPECS'
import re, sys
place = "/usr/lib/x86_64-linux-musl"
text = open(sys.argv[1]).read()
text = text.replace(f"%{{!shared: {place}/Scrt1.o}}", f"%{{static-pie: {place}/rcrt1.o}} %{{!static-pie: %{{!shared: {place}/Scrt1.o}}}}")
pie = r"%{static-pie:-no-dynamic-linker -static -pie} %{!static-pie:-dynamic-linker \1} -nostdlib"
open(sys.argv[2], "w").write(re.sub(r"-dynamic-linker (\S+) -nostdlib", pie, text))
SPECS
printf '#!/bin/sh\nexec gcc "$@" -specs "%s"\n' "$dist/musl/lib/musl-gcc.specs" > "$dist/musl/bin/musl-gcc"
chmod +x "$dist/musl/bin/musl-gcc"
for name in linux asm-generic; do ln -sfn "/usr/include/$name" "$dist/linux/include/$name"; done
ln -sfn /usr/include/x86_64-linux-gnu/asm "$dist/linux/include/asm"
touch deps/linux-headers/.stamp deps/musl/.stamp
make install prefix="$prefix" CC=/usr/bin/gcc
