#!/bin/bash
# Installs the Debian packages that are missing, and nothing when none is.
#   scripts/install_packages.sh build   what the program needs (the default)
#   scripts/install_packages.sh test    also what its tests need
#   scripts/install_packages.sh fuzz    what scripts/fuzz.sh needs
#   scripts/install_packages.sh package what the program and its Debian package need
#   scripts/install_packages.sh wheel   what the program and its Python wheel need
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libhdf5-openmpi-dev libtomlplusplus-dev libspdlog-dev libfmt-dev libcli11-dev
  libsimdjson-dev libxxhash-dev libisal-dev libseccomp-dev liburing-dev libssl-dev libyaml-dev zlib1g-dev)
case "${1:-build}" in
  build) ;;
  package) packages+=(dpkg-dev file) ;;
  wheel) packages+=(python3 python3-venv binutils) ;;
  fuzz) packages+=(libgtest-dev clang-16 libclang-rt-16-dev llvm-16 python3) ;;
  test) packages+=(libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev hdf5-tools ccache strace git chromium
    python3 python3-pytest python3-venv ca-certificates man-db mandoc groff zsh fish
    slurmctld slurmd slurm-client munge iproute2 shellcheck xfsprogs btrfs-progs) ;;
  *)
    echo "install_packages.sh: '$1' is not a set of packages: choose build, test, fuzz, package or wheel" >&2
    exit 2
    ;;
esac

# The same of Rocky Linux 9, AlmaLinux 9 and RHEL 9.
rhel=(openmpi-devel hdf5-openmpi-devel tomlplusplus-devel fmt-devel spdlog-devel cli11-devel simdjson-devel zlib-devel openssl-devel xxhash-devel libyaml-devel
  isa-l-devel libseccomp-devel liburing-devel pkgconf-pkg-config gcc-toolset-13-gcc-c++ cmake ninja-build)
if command -v dnf >/dev/null && ! command -v apt-get >/dev/null; then
  cat >&2 <<TEXT
install_packages.sh: this system has dnf. As root, with EPEL and CRB (dnf install epel-release; dnf config-manager --set-enabled crb):
  dnf install ${rhel[*]}
and then in this shell:
  . /opt/rh/gcc-toolset-13/enable; module load mpi/openmpi-x86_64
TEXT
  exit 0 # CMake names what it does not find
fi
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install_packages.sh: this is not a Debian system. Provide what these packages hold by other means: ${packages[*]}" >&2
  exit 0 # CMake names what it does not find
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null) || status=
  [[ $status == ii* ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "packages: all ${#packages[@]} are installed"
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "install_packages.sh: missing packages and neither root nor sudo. Ask for: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "packages: installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
