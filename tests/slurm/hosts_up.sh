#!/bin/bash
# Makes pretend hosts on this machine: h0, h1, … and "login", joined by a bridge that has a network namespace of its own, so that nothing leaves the
# machine. A host has its own network (10.77.0.10 + its number), host name, mounts (/dev/shm, /var/tmp and /etc/hosts are its own) and processes: a SIGKILL
# to its first process, whose number is in FOLDER/h0.pid, is pulling its plug. login (10.77.0.9) shares the outer processes; mpirun, slurmctld and
# clients run there.
#   tests/slurm/hosts_up.sh FOLDER COUNT
#   FOLDER/on HOST COMMAND…    runs a command on a host
#   FOLDER/agent               is a launch agent for Open MPI (plm_rsh_agent)
#   FOLDER/wire COMMAND…       runs ip or tc in the bridge's network, where the other end of h0's cable is called v-h0
# hosts_down.sh FOLDER ends them all. Needs root and iproute2.
set -euo pipefail
folder=${1:?usage: hosts_up.sh FOLDER COUNT}
count=${2:?usage: hosts_up.sh FOLDER COUNT}
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
mkdir -p "$folder"
folder=$(realpath "$folder")
if [[ -e $folder/started ]]; then
  echo "hosts_up.sh: $folder already holds hosts; run hosts_down.sh $folder first" >&2
  exit 1
fi
trap '[[ $? -eq 0 ]] || "$here/hosts_down.sh" "$folder"' EXIT

{
  echo "127.0.0.1 localhost"
  echo "10.77.0.9 login"
  for ((i = 0; i < count; i++)); do echo "10.77.0.$((10 + i)) h$i"; done
} >"$folder/hosts"

until_true() { # until_true COMMAND…: five seconds at most
  local try
  for ((try = 0; try < 250; try++)); do
    if "$@"; then return; fi
    sleep 0.02
  done
  echo "hosts_up.sh: gave up waiting for: $*" >&2
  return 1
}

record() { # record PID NAME: with the time at which the process began, so that no later process of this number is taken for it
  echo "$1 $(cut -d ' ' -f 22 "/proc/$1/stat") $2" >>"$folder/started"
}

in_network_of() { nsenter --target "$1" --net "${@:2}"; }

connect() { # connect NAME PID ADDRESS
  in_network_of "$bridge" ip link add "v-$1" type veth peer name eth0 netns "/proc/$2/ns/net"
  in_network_of "$bridge" ip link set "v-$1" master br0 up
  in_network_of "$2" ip address add "$3/24" dev eth0
  in_network_of "$2" ip link set eth0 up
  echo "$2" >"$folder/$1.pid"
}

# shellcheck disable=SC2016
setsid unshare --net bash -c 'set -e
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
touch "$1/bridge.ready"
exec sleep infinity' _ "$folder" </dev/null >"$folder/bridge.log" 2>&1 &
bridge=$!
record "$bridge" bridge
until_true test -e "$folder/bridge.ready"

# What a host does at its start; its first process must reap and must end at a signal.
# shellcheck disable=SC2016
first_process='set -e
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mkdir -p "$2/$1.tmp"
mount --bind "$2/$1.tmp" /var/tmp
mount -t tmpfs -o size=8g tmpfs /dev/shm
ip link set lo up
touch "$2/$1.ready"
while :; do sleep 3600 & wait $!; done'

setsid unshare --net --uts --mount --propagation private bash -c "$first_process" _ login "$folder" </dev/null >"$folder/login.log" 2>&1 &
record "$!" login
login=$!
until_true test -e "$folder/login.ready"
connect login "$login" 10.77.0.9

child=
find_child() { child=$(cut -d ' ' -f 1 "/proc/$1/task/$1/children" 2>/dev/null) && [[ -n $child ]]; }
for ((i = 0; i < count; i++)); do
  setsid unshare --net --uts --mount --pid --fork --kill-child --mount-proc --propagation private bash -c "$first_process" _ "h$i" "$folder" \
    </dev/null >"$folder/h$i.log" 2>&1 &
  until_true find_child "$!"
  record "$child" "h$i"
  until_true test -e "$folder/h$i.ready"
  connect "h$i" "$child" "10.77.0.$((10 + i))"
done

cat >"$folder/on" <<SCRIPT
#!/bin/bash
host=\$1
shift
spaces=(--net --uts --mount)
[[ \$host == login ]] || spaces+=(--pid)
exec nsenter --target "\$(cat "$folder/\$host.pid")" "\${spaces[@]}" --wd="\$PWD" "\$@"
SCRIPT
cat >"$folder/agent" <<SCRIPT
#!/bin/bash
# As ssh does: the words are joined and given to a shell.
host=\$1
shift
exec nsenter --target "\$(cat "$folder/\$host.pid")" --net --uts --mount --pid /bin/sh -c "\$*"
SCRIPT
cat >"$folder/wire" <<SCRIPT
#!/bin/bash
exec nsenter --target $bridge --net "\$@"
SCRIPT
chmod +x "$folder/on" "$folder/agent" "$folder/wire"
echo "hosts: login and $count more; $folder/on HOST COMMAND…"
