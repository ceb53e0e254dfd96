#!/bin/bash
# Brings up a Slurm cluster of its own on this machine: real slurmctld, slurmd and munged, no systemd and no cgroups, all state in one folder.
#   tests/slurm/cluster_up.sh FOLDER [--nodes N] [--cpus N] [--hosts HOSTS_FOLDER] [--conf LINE]...
# Without --hosts every node is a slurmd on 127.0.0.1 with a port of its own. With --hosts (made by hosts_up.sh) slurmctld runs on the host "login"
# and one slurmd on each of h0, h1, …; clients are run as HOSTS_FOLDER/on login COMMAND….
# --conf adds a line to slurm.conf, after the others, so that it wins.
# Afterwards `source FOLDER/env.sh` sets what srun and the others need. cluster_down.sh FOLDER ends it all. Needs root.
set -euo pipefail

usage() {
  echo "cluster_up.sh: $1. Usage: cluster_up.sh FOLDER [--nodes N] [--cpus N] [--hosts HOSTS_FOLDER] [--conf LINE]..." >&2
  exit 2
}

[[ $# -ge 1 ]] || usage "no folder given"
folder=$1
shift
nodes=1
cpus=8
hosts=
more_conf=()
while [[ $# -gt 0 ]]; do
  [[ $# -ge 2 ]] || usage "$1 needs a value"
  case "$1" in
    --nodes) nodes=$2 ;;
    --cpus) cpus=$2 ;;
    --hosts) hosts=$(realpath "$2") ;;
    --conf) more_conf+=("$2") ;;
    *) usage "unknown option '$1'" ;;
  esac
  shift 2
done

here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
mkdir -p "$folder"
folder=$(realpath "$folder")
if [[ -e $folder/slurm.conf ]]; then
  echo "cluster_up.sh: $folder already holds a cluster; run cluster_down.sh $folder first" >&2
  exit 1
fi
mkdir -p "$folder"/{munge,state,log,run}
chmod 0711 "$folder"
chmod 0700 "$folder/munge"
chmod 0755 "$folder/run"
export SLURM_CONF=$folder/slurm.conf
# Every process of the cluster, its jobs included, has this in its environment: cluster_down.sh finds them by it.
export RESHARD_TEST_CLUSTER=$folder
{
  echo "export SLURM_CONF=$SLURM_CONF"
  echo "export RESHARD_TEST_CLUSTER=$folder"
} >"$folder/env.sh"
if [[ -n $hosts ]]; then echo "$hosts" >"$folder/hosts"; fi

give_up() {
  local log
  echo "cluster_up.sh: $1" >&2
  for log in "$folder"/log/*; do
    echo "== $log" >&2
    tail -n 15 "$log" >&2
  done
  exit 1 # which takes it down
}

trap '[[ $? -eq 0 ]] || "$here/cluster_down.sh" "$folder"' EXIT

on() { # on HOST COMMAND…
  local host=$1
  shift
  if [[ -n $hosts ]]; then "$hosts/on" "$host" "$@"; else "$@"; fi
}

start() { # start HOST NAME COMMAND…: in the background, in a session of its own
  local host=$1 name=$2
  shift 2
  local prefix=()
  if [[ -n $hosts && $host != here ]]; then prefix=("$hosts/on" "$host"); fi
  setsid "${prefix[@]}" "$@" </dev/null >"$folder/log/$name.out" 2>&1 &
  echo "$!" >"$folder/run/$name.recorded"
}

free_ports() { # free_ports COUNT: the first of so many neighbouring unused TCP ports below the ephemeral range
  local try port i
  for ((try = 0; try < 100; try++)); do
    port=$((20000 + RANDOM % 10000))
    for ((i = 0; i < $1; i++)); do
      if (exec 3<>"/dev/tcp/127.0.0.1/$((port + i))") 2>/dev/null; then continue 2; fi
    done
    echo "$port"
    return
  done
  return 1
}

if [[ -n $hosts ]]; then
  node_name() { echo "h$1"; }
  node_address() { echo "NodeHostname=h$1 NodeAddr=10.77.0.$((10 + $1)) Port=6818"; }
  controller="login(10.77.0.9)"
  port=6817
else
  node_name() { echo "n$1"; }
  node_address() { echo "NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((port + 1 + $1))"; }
  controller="$(hostname -s)(127.0.0.1)"
  port=$(free_ports $((nodes + 1))) || give_up "no free ports"
fi

{
  cat <<CONF
ClusterName=pretend
SlurmctldHost=$controller
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job is held back for as long as a credential is valid (120 s when nothing is said).
AuthInfo=socket=$folder/run/munge.sock,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
# The PMIx plugin keeps a folder here; daemons on one host must not share it.
TmpFS=$folder/tmp.%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd.%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
# CPUs= below is believed, though the machine has fewer.
SlurmdParameters=config_overrides
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$folder/log/jobcomp.log
MpiDefault=pmix
MailProg=/bin/true
JobRequeue=1
MinJobAge=3600
KillWait=5
InactiveLimit=0
SlurmdTimeout=60
SlurmctldTimeout=60
MaxArraySize=1001
# A job of urgent puts jobs of main back into the queue; they get a SIGTERM and ten seconds first.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
CONF
  for ((i = 0; i < nodes; i++)); do
    echo "NodeName=$(node_name "$i") $(node_address "$i") CPUs=$cpus Boards=1 Sockets=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=16000 State=UNKNOWN"
  done
  echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=10"
  echo "PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF"
  if [[ ${#more_conf[@]} -gt 0 ]]; then printf '%s\n' "${more_conf[@]}"; fi
} >"$SLURM_CONF"
# slurmd insists on a cgroup plugin; this one mounts and changes nothing.
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$folder/cgroup.conf"

head -c 128 /dev/urandom >"$folder/munge/key"
chmod 0400 "$folder/munge/key"
# --force: FOLDER may lie below one that only root may enter.
start here munged /usr/sbin/munged --foreground --force --key-file="$folder/munge/key" --socket="$folder/run/munge.sock" \
  --pid-file="$folder/run/munged.pid" --log-file="$folder/log/munged.log" --seed-file="$folder/munge/seed"
for ((i = 0; i < 200; i++)); do
  if [[ -S $folder/run/munge.sock ]]; then break; fi
  sleep 0.05
done
if [[ ! -S $folder/run/munge.sock ]]; then give_up "munged made no socket"; fi
start login slurmctld /usr/sbin/slurmctld -D -f "$SLURM_CONF"
for ((i = 0; i < nodes; i++)); do
  name=$(node_name "$i")
  mkdir -p "$folder/spool.$name" "$folder/tmp.$name"
  start "$name" "slurmd.$name" /usr/sbin/slurmd -D -N "$name" -f "$SLURM_CONF"
done

for ((i = 0; i < 300; i++)); do
  idle=$(on login timeout 2 sinfo -h -N -p main -o '%T' 2>/dev/null | grep -cx idle || true)
  if [[ $idle == "$nodes" ]]; then
    echo "cluster: $nodes nodes with $cpus CPUs each; source $folder/env.sh"
    exit 0
  fi
  sleep 0.1
done
give_up "the nodes did not become idle within 30 s"
