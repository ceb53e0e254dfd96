# shellcheck shell=bash
# Sourced by the scripts that need a Debian system with nothing in it: what it takes, making it, and working in it.

# why_no_clean_root: prints why this machine cannot make one; nothing when it can.
why_no_clean_root() {
  local tool
  if [[ $(id -u) -ne 0 ]]; then
    echo "needs root (debootstrap and chroot)"
    return
  fi
  for tool in debootstrap unshare chroot apt-get dpkg-shlibdeps file; do
    if ! command -v "$tool" >/dev/null; then
      echo "$tool is not installed (apt-get install debootstrap dpkg-dev file)"
      return
    fi
  done
  if [[ -z $(debian_mirror) ]]; then
    echo "apt has no source for Debian's main archive"
  elif ! unshare --mount --pid --fork true 2>/dev/null; then
    echo "this system does not allow namespaces of its own (unshare)"
  fi
}

# debian_mirror: the mirror that apt uses here, and its release: "URL CODENAME".
debian_mirror() {
  # shellcheck disable=SC2016 # apt's placeholders
  apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(SUITE) $(SITE) $(CODENAME)' 'Created-By: Packages' 2>/dev/null |
    awk '$1 == "Debian" && $2 == "main" && $3 !~ /-/ { print $4, $5; exit }'
}

# make_clean_root FOLDER [CODENAME]: Debian's smallest system, from the mirror that apt uses here, and of the same release if no other is named.
make_clean_root() {
  local root=$1 site codename proxy
  read -r site codename <<<"$(debian_mirror)"
  codename=${2:-$codename}
  proxy=$(apt-config shell value Acquire::http::Proxy)
  eval "$proxy"
  [[ -z ${value:-} || $value == DIRECT ]] || export http_proxy=$value
  debootstrap --variant=minbase "$codename" "$root" "$site"
  # Documentation and man pages of packages shall be installed, and no service started.
  rm -f "$root"/etc/dpkg/dpkg.cfg.d/*
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod +x "$root/usr/sbin/policy-rc.d"
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  if [[ -n ${value:-} ]]; then printf 'Acquire::http::Proxy "%s";\n' "$value" >"$root/etc/apt/apt.conf.d/proxy"; fi
}

# in_root FOLDER COMMAND…: the command, in the folder, with /proc, /tmp and shared memory of its own; mounts and processes end with it.
in_root() {
  local root=$1
  shift
  # shellcheck disable=SC2016 # expanded by the inner shell
  unshare --mount --pid --fork --kill-child --propagation private bash -c '
    set -euo pipefail
    root=$1
    shift
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/tmp"
    exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
  ' in_root "$root" "$@"
}
