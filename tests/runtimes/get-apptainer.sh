#!/usr/bin/env bash
# A real Apptainer on Debian 12, which has none: sid's package, with trixie's libc beside it, from the mirror that this machine uses
# already. Nothing of the system is changed, and nobody need be root. Usage: get-apptainer.sh DIR
# Wants patchelf; to start containers also squashfuse, squashfs-tools and, for others than root, uidmap.
set -euo pipefail
dir=$(readlink -m "$1")
if "$dir/usr/bin/apptainer" --version 2>/dev/null; then exit 0; fi
rm -rf "$dir"
apt=$dir/.apt
mkdir -p "$apt"/lists/partial "$apt"/cache/archives/partial "$apt/debs" "$apt/x" "$dir/lib" "$dir/var/lib/apptainer/mnt/session"
mirror=$(apt-cache policy | awk '$2 ~ /^http/ && $2 !~ /security/ {print $2; exit}')
for suite in trixie sid; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
done > "$apt/sources.list"
cat > "$apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt/cache";
APT::Sandbox::User "";
CONF
export APT_CONFIG=$apt/apt.conf
apt-get update -qq
cd "$apt/debs"
apt-get download -qq apptainer/sid libc6/trixie libseccomp2/trixie libsqlite3-0/trixie
for deb in *.deb; do dpkg-deb -x "$deb" "$apt/x"; done
libraries=usr/lib/x86_64-linux-gnu
mkdir -p "$dir/$libraries"
cp -a "$apt/x/usr/bin" "$dir/usr/"
cp -a "$apt/x/$libraries/apptainer" "$dir/$libraries/"
cp -a "$apt/x/etc" "$dir/"
for file in ld-linux-x86-64.so.2 lib{c,m}.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2 libseccomp.so.2 libsqlite3.so.0; do
    cp -L "$apt/x/$libraries/$file" "$dir/lib/"
done
for program in "$dir/usr/bin/apptainer" "$dir/$libraries/apptainer/bin/starter"; do
    patchelf --set-interpreter "$dir/lib/ld-linux-x86-64.so.2" --set-rpath "$dir/lib" "$program"
done
patchelf --set-rpath "$dir/lib" "$dir/lib/libsqlite3.so.0" "$dir/lib/libseccomp.so.2"
# It finds its files from its own place, with two ideas of where that is.
ln -sfn ../etc "$dir/usr/etc"
ln -sfn ../var "$dir/usr/var"
ln -sfn ../../etc "$dir/usr/lib/etc"
ln -sfn ../../var "$dir/usr/lib/var"
rm -rf "$apt"
"$dir/usr/bin/apptainer" --version
