#!/bin/bash
# Downloads what the whole program needs beyond a compiler and CUDA, and unpacks it into one folder that tests/gpu/run.sh takes along to a machine
# without a network:
#   tests/gpu/packages.sh FOLDER      FOLDER is new or empty; on Debian 12 with its package lists up to date (apt-get update)
# Nothing is installed here. What no build and no run needs is left out (about 15 MiB stay); links are relative, so the folder may be moved.
# RESHARD_NCCL_WHEEL names a wheel of nvidia-nccl-cu13 that is there already; without it pip downloads one, of which only nccl.h is kept.
set -euo pipefail

packages=(
  libopenmpi3 openmpi-bin openmpi-common libopenmpi-dev libhwloc15 libevent-core-2.1-7 libevent-pthreads-2.1-7 libpmix2 libmunge2 libudev1
  zlib1g zlib1g-dev libfmt9 libfmt-dev libspdlog1.10 libspdlog-dev libtomlplusplus3 libtomlplusplus-dev libcli11-dev libsimdjson14 libsimdjson-dev
  libxxhash0 libxxhash-dev libyaml-0-2 libyaml-dev libisal2 libisal-dev libssl3 libssl-dev libgtest-dev pkgconf-bin libpkgconf3
)
nccl_requirement=nvidia-nccl-cu13==2.28.9
multiarch=lib/x86_64-linux-gnu

stop() {
  echo "packages.sh: $*" >&2
  exit 1
}

[[ $# -eq 1 ]] || stop "usage: tests/gpu/packages.sh FOLDER"
mkdir -p "$1"
folder=$(realpath "$1")
[[ -z $(ls -A "$folder") ]] || stop "$folder is not empty"
[[ $(dpkg --print-architecture) == amd64 ]] || stop "the packages are those of amd64, this is $(dpkg --print-architecture)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

download() {
  # As root apt would download as another user, who cannot write here.
  (cd "$work" && apt-get -o APT::Sandbox::User=root download -q "${packages[@]}" >/dev/null) || stop "apt-get download failed: run apt-get update first"
  local package
  for package in "$work"/*.deb; do dpkg-deb -x "$package" "$folder"; done
  # Some packages still put files into /lib.
  if [[ -d $folder/lib ]]; then
    cp -a "$folder/lib/." "$folder/usr/lib/"
    rm -r "${folder:?}/lib"
  fi
}

leave_out() {
  cd "$folder"
  rm -rf etc/init.d usr/share/doc usr/share/man usr/share/lintian usr/share/bash-completion usr/share/bug usr/src usr/share/vim* \
    usr/"$multiarch"/fortran usr/"$multiarch"/openmpi/lib/fortran usr/"$multiarch"/*fortran* usr/"$multiarch"/libmpi_{mpifh,use,java}* \
    usr/"$multiarch"/lib{osh,mpi_cxx}* usr/include/gmock
  # Of OpenSSL only libcrypto; its headers in one folder, because compilers know Debian's second one as part of the system only.
  rm -rf usr/"$multiarch"/libssl* usr/"$multiarch"/libcrypto.a usr/"$multiarch"/pkgconfig/{libssl,openssl}.pc usr/"$multiarch"/{engines-3,ossl-modules}
  mv usr/include/x86_64-linux-gnu/openssl/* usr/include/openssl/
  # Networks and schedulers that one machine does not have: their libraries are not here.
  local plugins=usr/$multiarch/openmpi/lib/openmpi3 name
  for name in atomic_ucx btl_ofi btl_openib mtl_ofi mtl_psm mtl_psm2 osc_ucx pml_ucx spml_ucx sshmem_ucx reachable_netlink; do
    rm -f "$plugins/mca_$name.so"
  done
  rm -f usr/"$multiarch"/libmca_common_{ucx,verbs,ofi}* "$plugins"/mca_{atomic,memheap,scoll,spml,sshmem}_*
  find usr/bin ! -type d ! -name 'orte*' ! -name 'mpirun*' ! -name 'pkgconf' ! -name 'ompi_info' -delete
}

# Links of Debian's root become relative, or would point to the machine's own files.
repair_links() {
  cd "$folder"
  local link target
  while IFS= read -r link; do
    target=$(readlink "$link")
    [[ $target == /* ]] || continue
    [[ $target == /lib/* ]] && target=/usr$target
    if [[ -e $folder$target ]]; then
      ln -sfn "$(realpath --relative-to="$(dirname "$link")" "$folder$target")" "$link"
    else
      rm "$link"
    fi
  done < <(find . -type l)
  # Without Debian's alternatives; and what points to something left out goes.
  ln -sfn orterun usr/bin/mpirun
  ln -sfn pkgconf usr/bin/pkg-config
  find . -xtype l -delete
}

# pkg-config's files find themselves.
relocate_pkgconfig() {
  cd "$folder"
  local file
  for file in usr/"$multiarch"/pkgconfig/*.pc; do
    # shellcheck disable=SC2016  # ${pcfiledir} is for pkg-config
    sed -i -E -e 's|^prefix ?=.*|prefix=${pcfiledir}/../../..|' -e 's|^exec_prefix ?=.*|exec_prefix=${prefix}|' \
      -e 's|^(includedir ?=).*/usr/include|\1${prefix}/include|' -e "s|^(libdir ?=).*|\\1\${prefix}/$multiarch|" "$file"
  done
}

take_nccl_header() {
  local wheel=${RESHARD_NCCL_WHEEL:-}
  if [[ -z $wheel ]]; then
    python3 -m pip download -q --no-deps --only-binary=:all: --platform manylinux_2_18_x86_64 -d "$work" "$nccl_requirement" ||
      echo "packages.sh: $nccl_requirement cannot be downloaded: the machine with the GPU must have nccl.h" >&2
    wheel=$(find "$work" -name '*.whl')
  fi
  [[ -n $wheel ]] || return 0
  mkdir -p "$folder/nccl/include"
  python3 -c 'import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read("nvidia/nccl/include/nccl.h"))' "$wheel" \
    >"$folder/nccl/include/nccl.h"
}

# Every library that a program or a library of the folder needs is in it, or is one that every machine has.
check_needs() {
  cd "$folder"
  local everywhere='^(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux-x86-64)\.so' missing
  missing=$(find usr/bin usr/lib -type f -exec sh -c 'head -c4 "$1" | grep -q ELF' _ {} \; -print0 | xargs -0 objdump -p 2>/dev/null |
    awk '$1 == "NEEDED" {print $2}' | sort -u | grep -vE "$everywhere" | while IFS= read -r name; do
    [[ -n $(find usr/lib -name "$name") ]] || echo "$name"
  done)
  [[ -z $missing ]] || stop "not here, and needed by something: ${missing//$'\n'/ }"
}

download
leave_out
repair_links
relocate_pkgconfig
take_nccl_header
check_needs
size=$(du -sm "$folder" | cut -f1)
echo "$folder: $size MiB"
[[ $size -lt 55 ]] || stop "$size MiB are too many to carry"
