#!/bin/bash
# hdf5_sink_matrix.sh PROGRAM MPIEXEC: hdf5_sink_test by every MPI-IO implementation of this Open MPI, independent and collective, at 1 to 7 ranks.
# Each run has 60 s. Prints a line for each; the exit code is 1 when one failed or was not ready in time.
set -uo pipefail
program=$1
mpiexec=$2
failed=0

try() {
  local how=$1 ranks=$2 mode=$3 begin=$SECONDS
  timeout --kill-after=5 60 "$mpiexec" -n "$ranks" --oversubscribe --bind-to none "$program" --gtest_filter="*/$mode" >"$log" 2>&1
  local code=$?
  echo "$how, $mode, $ranks ranks: exit code $code after $((SECONDS - begin)) s"
  if [ "$code" -ne 0 ]; then
    failed=1
    tail -n 20 "$log"
  fi
}

components() {
  ompi_info --parsable | sed -n "s/^mca:$1:\([a-z0-9_]*\):version:.*/\1/p" | sort -u
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
aggregations=$(components fcoll)
[ -n "$aggregations" ] || { echo "ompi_info lists no fcoll component" >&2; exit 1; }
for ranks in 1 2 3 4 7; do
  for mode in independent collective; do
    for aggregation in $aggregations; do
      OMPI_MCA_io=ompio OMPI_MCA_fcoll=$aggregation try "ompio with $aggregation" "$ranks" "$mode"
    done
    for io in $(components io | grep -v ompio); do
      OMPI_MCA_io=$io try "$io" "$ranks" "$mode"
    done
  done
done
exit "$failed"
