# shellcheck shell=bash disable=SC2154
# Sourced by run.sh: builds the whole program and compares its paths, byte for byte and in time.

small_gib=4
large_gib=16
background=()
data=

stop_background() {
  local pid
  for pid in "${background[@]}"; do kill -- "-$pid" 2>/dev/null; done
  background=()
  [[ -z $data ]] || rm -rf "$data"
}

# in_background COMMAND…: in a process group of its own, with its own log.
in_background() {
  local output=$1
  shift
  setsid "$@" >"$output" 2>&1 &
  background+=($!)
}

free_gib() { df -BG --output=avail "$1" 2>/dev/null | tail -n1 | tr -dc 0-9; }

# Where source, reference and a target fit: memory when there is enough of it, else the disk. Sets data and data_name.
choose_data_folder() {
  local need=$1 memory
  memory=$(awk '/MemAvailable/ {printf "%d", $2 / 1048576}' /proc/meminfo)
  if [[ $(free_gib /dev/shm) -ge $need && $memory -ge $((need + 24)) ]]; then
    data=$(mktemp -d /dev/shm/reshard-gpu.XXXXXX)
    data_name="memory (/dev/shm)"
  elif [[ $(free_gib "$work") -ge $need ]]; then
    data=$work/data
    mkdir -p "$data"
    data_name="the disk of $work"
  else
    return 1
  fi
}

begin_sources() {
  local python=${PYTHON:-python3} sizes=(--layers 4 --experts)
  if [[ -n $rehearse ]]; then
    small_gib=0
    large_gib=0
    sizes=(--layers 4 --hidden 256 --heads 4 --groups 2 --inter 128 --vocab 1024 --experts)
  fi
  wanted_job large || large_gib=0
  # At most three times the large size at a time: the small one has gone before its targets come. Where that is too much, less.
  if ! choose_data_folder $((3 * large_gib + 4)); then
    large_gib=8
    if ! choose_data_folder $((3 * large_gib + 6)); then
      large_gib=0
      choose_data_folder $((3 * small_gib + 6)) || return 0
    fi
  fi
  # 32 experts make 4 GiB.
  if wanted_job small || wanted_job moved; then
    in_background "$work/source-small.txt" "$python" tests/bench/make_megatron.py "$data/small" "${sizes[@]}" 32
    small_maker=$!
  fi
  if [[ $large_gib -gt 0 ]]; then
    in_background "$work/source-large.txt" "$python" tests/bench/make_megatron.py "$data/large" "${sizes[@]}" $((large_gib * 8))
    large_maker=$!
  fi
  local fp8=(--layers 24)  # 5.6 GiB
  [[ -z $rehearse ]] || fp8=(--layers 2 --hidden 512 --heads 4 --groups 2 --inter 1024 --vocab 1024)
  if wanted_job fp8; then
    in_background "$work/source-fp8.txt" "$python" tests/gpu/make_fp8_folder.py "$data/fp8" "${fp8[@]}"
    fp8_maker=$!
  fi
}

# Nothing else may run while speeds are measured.
let_sources_finish() {
  local pid end=$((SECONDS + 240))
  for pid in ${small_maker:-} ${large_maker:-} ${fp8_maker:-}; do
    while kill -0 "$pid" 2>/dev/null && [[ $SECONDS -lt $end ]]; do sleep 0.5; done
  done
}

# The packages that were carried here, or those of the system.
use_packages() {
  export RESHARD_MAPS=$root/configs/models
  whole_options=(-DCMAKE_BUILD_TYPE=Release -DRESHARD_TESTS=ON -DRESHARD_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$architecture"
    -DCMAKE_CUDA_COMPILER="$(command -v nvcc)" ${nccl_include:+-DNCCL_INCLUDE_DIR="$nccl_include"})
  # shellcheck source=scripts/mpi_environment.sh
  source scripts/mpi_environment.sh
  [[ -n $packages ]] || return 0
  local libraries=$packages/usr/lib/x86_64-linux-gnu
  export PATH=$packages/usr/bin:$PATH
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PKG_CONFIG_LIBDIR=$libraries/pkgconfig
  # Open MPI and PMIx look for their plugins where they were built to be.
  export OPAL_PREFIX=$packages/usr OPAL_LIBDIR=$libraries OPAL_PKGLIBDIR=$libraries/openmpi/lib/openmpi3 OPAL_PKGDATADIR=$packages/usr/share/openmpi
  export OPAL_SYSCONFDIR=$packages/etc PMIX_INSTALL_PREFIX=$libraries/pmix2 PMIX_LIBDIR=$libraries/pmix2/lib
  # One machine: nothing is started on others.
  export OMPI_MCA_plm=isolated OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1
  # Containers often forbid what it would use else.
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
  # HDF5 needs twenty more libraries, and no job here.
  whole_options+=(-DCMAKE_DISABLE_FIND_PACKAGE_HDF5=TRUE -DCMAKE_PREFIX_PATH="$packages/usr" -DPKG_CONFIG_EXECUTABLE="$packages/usr/bin/pkgconf" -DMPI_SKIP_COMPILER_WRAPPER=ON
    -DMPIEXEC_EXECUTABLE="$packages/usr/bin/mpirun" -DMPI_ASSUME_NO_BUILTIN_MPI=ON
    -DMPI_C_HEADER_DIR="$libraries/openmpi/include" -DMPI_CXX_HEADER_DIR="$libraries/openmpi/include"
    -DMPI_C_LIB_NAMES=mpi -DMPI_CXX_LIB_NAMES=mpi -DMPI_mpi_LIBRARY="$libraries/libmpi.so.40"
    -DCMAKE_EXE_LINKER_FLAGS="-Wl,-rpath-link,$libraries" -DCMAKE_SHARED_LINKER_FLAGS="-Wl,-rpath-link,$libraries")
}

begin_build() {
  use_packages
  if ! command -v mpirun >/dev/null; then
    row program build "no MPI here: give --packages FOLDER (tests/gpu/packages.sh)" skipped
    return 0
  fi
  say "build of the whole program, beside the checks"
  if was_built reshard --version; then
    mkdir -p "$work"/whole/{pipeline,tests/core/transport}
    cp "$built/reshard" "$work/whole/pipeline/"
    cp "$built/transport_gpu_test" "$work/whole/tests/core/transport/"
    row program build "that of $built" ok
    return 0
  fi
  cat >"$work/build.sh" <<'SCRIPT'
folder=$1 root=$2
shift 2
cmake -S "$root" -B "$folder" "$@" || exit 1
cmake --build "$folder" --parallel "$(nproc)" --target reshard || exit 1
cmake --build "$folder" --parallel "$(nproc)" --target transport_gpu_test
SCRIPT
  in_background "$work/build.txt" bash "$work/build.sh" "$work/whole" "$root" "${generator[@]}" "${whole_options[@]}"
  builder=$!
}

# wait_for PID SECONDS: its exit code; 124 when it takes longer.
wait_for() {
  local pid=$1 end=$((SECONDS + $2))
  while kill -0 "$pid" 2>/dev/null; do
    [[ $SECONDS -lt $end && $(left) -gt 20 ]] || return 124
    sleep 0.5
  done
  wait "$pid"
}

end_build() {
  local code=0
  [[ -n ${builder:-} ]] || return 0
  say "the rest of that build"
  wait_for "$builder" "$([[ -n $keep ]] && echo 3000 || echo 300)" || code=$?
  cat "$work/build.txt" >>"$log"
  if [[ $code -eq 0 ]]; then
    keep "$work"/whole/{pipeline/reshard,tests/core/transport/transport_gpu_test}
    row program build "$("$work/whole/pipeline/reshard" --version 2>&1 | tr '\n' ' ' | cut -c1-160)" ok
  else
    row program build "exit code $code: $(grep -m1 -iE '(error|FAILED)' "$work/build.txt" | cut -c1-200)" FAILED
  fi
}

# write_job JOB: small and large cut tensors along rows and columns, so that bytes are rearranged; moved only has other EP and PP; fp8 computes.
write_job() {
  if [[ $1 == moved ]]; then
    printf '[source]\npath = "%s"\noptimizer = "drop"\nrng = "drop"\n[target]\npath = "%s"\nformat = "megatron"\nlayout.pp = 2\nlayout.ep = 4\n' \
      "$data/small" "$data/target"
  elif [[ $1 == fp8 ]]; then
    printf '[source]\npath = "%s"\n[target]\npath = "%s"\nformat = "megatron"\nlayout.tp = 2\n[model]\nmap = "llama"\nquant = "dequantise-bf16"\n' \
      "$data/fp8" "$data/target"
  else
    printf '[source]\npath = "%s"\noptimizer = "drop"\nrng = "drop"\n[target]\npath = "%s"\nformat = "megatron"\nlayout.tp = 2\nlayout.pp = 2\nlayout.ep = 4\n' \
      "$data/$1" "$data/target"
  fi
}

# convert JOB RANKS DEVICE TRANSPORT [TRACE]: sets seconds, or returns the exit code; the target is $data/target.
convert() {
  local job=$1 ranks=$2 device=$3 transport=$4 trace=${5:-} code=0
  local report=$work/report.json
  write_job "$job" >"$work/job.toml"
  # Ranks that share a GPU pose as hosts of their own for NCCL, which then goes over sockets on loopback.
  cat >"$work/rank.sh" <<'RANK'
export NCCL_HOSTID=reshard-$OMPI_COMM_WORLD_RANK NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
# To a file: at this level NCCL prints its version to stdout, which is the report's.
export NCCL_DEBUG=WARN NCCL_DEBUG_FILE=$NCCL_LOGS/nccl.%h.%p.txt
exec "$@"
RANK
  local wrap=()
  [[ $transport != nccl ]] || wrap=(bash "$work/rank.sh")
  rm -rf "$data/target" "$data/.target".*
  export NCCL_LOGS=$work
  rm -f "$work"/nccl.*.txt
  printf '$ %s ranks, job %s, device %s, transport %s\n' "$ranks" "$job" "$device" "$transport" >>"$log"
  local limit=150
  [[ $(left) -gt $limit ]] || limit=$(left)
  [[ $limit -gt 10 ]] || return 125
  timeout --kill-after=10 "$limit" mpirun -n "$ranks" --bind-to none "${wrap[@]}" "$work/whole/pipeline/reshard" run "$work/job.toml" --json \
    --set run.device="$device" --set run.transport="$transport" ${trace:+--trace "$trace"} >"$report" 2>>"$log" || code=$?
  cat "$report" >>"$log"
  cat "$work"/nccl.*.txt >>"$log" 2>/dev/null || true
  [[ $code -eq 0 ]] || return "$code"
  seconds=$(python3 -c 'import json, sys; print("%.2f" % json.load(open(sys.argv[1]))["run"]["seconds"]["total"])' "$report") || return 1
}

ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", (b > 0 ? a / b : 0) }'; }

# compared JOB SIZE RANKS DEVICE TRANSPORT BASE_SECONDS [TRACE]: a row; the target must be the reference's bytes.
compared() {
  local job=$1 size=$2 ranks=$3 device=$4 transport=$5 base=$6 trace=${7:-} code=0
  [[ -z $rehearse || $device != cuda ]] || device=emulated
  local name="$size, $ranks rank(s), device $device, transport $transport" note=""
  [[ -z $rehearse || $transport != nccl ]] || return 0  # there is no NCCL for an emulated device
  [[ $transport != nccl ]] || note="; functional check, not bandwidth"
  say "$name"
  convert "$job" "$ranks" "$device" "$transport" "$trace" || code=$?
  if [[ $code -eq 125 ]]; then
    row program "$name" "no time left" "not run"
  elif [[ $transport == nccl && ($code -eq 124 || $code -eq 137) ]]; then
    row program "$name" "too slow here: ranks take turns on the GPU" "not run"
  elif [[ $code -ne 0 ]]; then
    row program "$name" "exit code $code: $(grep -E '^error|error:' "$log" | tail -n1 | cut -c1-200)" FAILED
  elif ! limited 120 diff -rq "$data/reference-$job" "$data/target"; then
    row program "$name" "$seconds s; other bytes than on the host" FAILED
  else
    row program "$name" "$seconds s${base:+, $(ratio "$seconds" "$base") of $base s on the host}$note" "same bytes"
  fi
}

# host JOB SIZE RANKS: a row of the host path; the first makes the reference. Sets host_seconds[RANKS].
host() {
  local job=$1 size=$2 ranks=$3 code=0
  if [[ -d $data/reference-$job ]]; then
    compared "$job" "$size" "$ranks" host auto ""
  else
    say "$size, $ranks rank(s), host: the reference"
    convert "$job" "$ranks" host auto || code=$?
    if [[ $code -ne 0 ]]; then
      row program "$size, $ranks rank(s), device host" "exit code $code: $(grep -E '^error|error:' "$log" | tail -n1 | cut -c1-200)" FAILED
      return 1
    fi
    mv "$data/target" "$data/reference-$job"
    row program "$size, $ranks rank(s), device host, transport auto" "$seconds s; the reference" ok
  fi
  host_seconds[ranks]=${seconds:-}
}

# pairs JOB SIZE RANKS: the host path and the GPU path in turn, five times: medians, and the range of the ratio.
pairs() {
  local job=$1 size=$2 ranks=$3 turn device times=() code=0
  local name="$size, $ranks rank(s), five pairs"
  [[ -z $rehearse ]] || return 0
  say "$name"
  for turn in 1 2 3 4 5; do
    for device in host cuda; do
      convert "$job" "$ranks" "$device" auto || code=$?
      if [[ $code -eq 125 ]]; then row program "$name" "no time left" "not run" && return 0; fi
      if [[ $code -ne 0 ]]; then row program "$name" "exit code $code in turn $turn on $device" FAILED && return 0; fi
      times+=("$seconds")
    done
  done
  row program "$name" "$(printf '%s %s\n' "${times[@]}" | awk '
    function median(values, count,   i, j, low) {
      for (i = 1; i <= count; ++i)
        for (j = i + 1; j <= count; ++j)
          if (values[j] < values[i]) { low = values[j]; values[j] = values[i]; values[i] = low }
      return values[int((count + 1) / 2)]
    }
    { host[NR] = $1; gpu[NR] = $2; ratio[NR] = $2 / $1 }
    END {
      middle = median(ratio, NR)
      printf "host %.2f s, GPU %.2f s; GPU / host %.2f (%.2f to %.2f)", median(host, NR), median(gpu, NR), middle, ratio[1], ratio[NR]
    }')" -
}

# keep_trace NAME: with what comes back of this run.
keep_trace() {
  [[ ! -f $work/trace-$1.json ]] || gzip -c "$work/trace-$1.json" >"${OUT:-$work}/trace-$1.json.gz"
}

run_small() {
  local ranks transport host_seconds=()
  local size="$small_gib GiB"
  host small "$size" 1 || return 0
  for ranks in 2 4; do host small "$size" "$ranks"; done
  compared small "$size" 2 cuda auto "${host_seconds[2]}" "$work/trace-cuda.json"
  compared small "$size" 2 cuda nccl "${host_seconds[2]}" "$work/trace-nccl.json"
  compared small "$size" 2 host mpi "${host_seconds[2]}" "$work/trace-host-mpi.json"
  for ranks in 1 4; do compared small "$size" "$ranks" cuda auto "${host_seconds[ranks]}"; done
  compared small "$size" 2 auto auto "${host_seconds[2]}"
  for ranks in 2 4; do compared small "$size" "$ranks" cuda mpi "${host_seconds[ranks]}"; done
  for ranks in 1 4; do compared small "$size" "$ranks" cuda nccl "${host_seconds[ranks]}"; done
  for ranks in 1 2 4; do pairs small "$size" "$ranks"; done
  for transport in cuda nccl host-mpi; do keep_trace "$transport"; done
  rm -rf "$data/reference-small"
}

run_moved() {
  local host_seconds=() size="$small_gib GiB, EP and PP only"
  host moved "$size" 2 || return 0
  compared moved "$size" 2 cuda auto "${host_seconds[2]}"
  compared moved "$size" 2 cuda mpi "${host_seconds[2]}"
  compared moved "$size" 2 auto auto "${host_seconds[2]}"
  pairs moved "$size" 2
  rm -rf "$data/small" "$data/reference-moved"
}

run_fp8() {
  local ranks device host_seconds=()
  host fp8 "FP8 to BF16" 2 || return 0
  compared fp8 "FP8 to BF16" 2 host auto "${host_seconds[2]}" "$work/trace-fp8-host.json"
  compared fp8 "FP8 to BF16" 2 cuda auto "${host_seconds[2]}" "$work/trace-fp8-cuda.json"
  compared fp8 "FP8 to BF16" 2 cuda mpi "${host_seconds[2]}"
  compared fp8 "FP8 to BF16" 2 cuda nccl "${host_seconds[2]}"
  compared fp8 "FP8 to BF16" 2 auto auto "${host_seconds[2]}"
  for ranks in 2 1 4; do pairs fp8 "FP8 to BF16" "$ranks"; done
  for device in host cuda; do keep_trace "fp8-$device"; done
  rm -rf "$data/fp8" "$data/reference-fp8"
}

run_large() {
  local host_seconds=() size="$large_gib GiB" ranks
  host large "$size" 4 || return 0
  compared large "$size" 4 cuda auto "${host_seconds[4]}"
  host large "$size" 1
  compared large "$size" 1 cuda auto "${host_seconds[1]}"
  for ranks in 4 2; do compared large "$size" "$ranks" cuda nccl ""; done
}

# source_is_there PID NAME: waits for a checkpoint to be written.
source_is_there() {
  local code=0
  wait_for "$1" 200 || code=$?
  [[ $code -ne 0 ]] || return 0
  cat "$work/source-$2.txt" >>"$log"
  row program "source $2" "exit code $code: $(tail -n1 "$work/source-$2.txt" | cut -c1-160)" FAILED
  return 1
}

# The suite that every transport must pass, on NCCL.
run_conformance() {
  local ranks code
  [[ -x $work/whole/tests/core/transport/transport_gpu_test && -z $rehearse ]] || return 0
  for ranks in 1 2 4; do
    say "transport suite on NCCL, $ranks ranks"
    code=0
    limited 100 mpirun -n "$ranks" --bind-to none "$work/whole/tests/core/transport/transport_gpu_test" --gtest_color=no || code=$?
    if [[ $code -eq 125 ]]; then
      row program "transport suite on NCCL, $ranks ranks" "no time left" "not run"
    elif [[ $code -eq 0 ]]; then
      row program "transport suite on NCCL, $ranks ranks" "$(grep -oE '\[  (PASSED|SKIPPED) *\] [0-9]+ tests?' "$log" | tail -n1)" ok
    else
      row program "transport suite on NCCL, $ranks ranks" "exit code $code: $(grep -E 'FAILED|Failure' "$log" | tail -n1 | cut -c1-160)" FAILED
    fi
  done
}

run_program() {
  [[ -x $work/whole/pipeline/reshard ]] || return 0
  if [[ -z $data ]]; then
    row program "4 and 16 GiB" "too little free space for any" "not run"
    return 0
  fi
  row program "sources and targets" "in $data_name" -
  if [[ -n ${small_maker:-} ]] && source_is_there "$small_maker" small; then
    ! wanted_job small || run_small
    ! wanted_job moved || run_moved
  fi
  [[ -z ${fp8_maker:-} ]] || ! source_is_there "$fp8_maker" fp8 || run_fp8
  ! wanted_job suite || run_conformance
  [[ -z ${large_maker:-} ]] || ! source_is_there "$large_maker" large || run_large
}
