# shellcheck shell=bash
# Sourced by the scripts that call mpirun: Open MPI in a container (root) and with more ranks than cores. No effect on other MPIs.
export OMPI_ALLOW_RUN_AS_ROOT=1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1
