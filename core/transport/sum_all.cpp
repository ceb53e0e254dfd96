#include "core/transport/sum_all.hpp"

#include "core/base/tables/integers.hpp"

namespace reshard {

void sum_all(Comm const& comm, std::span<std::uint64_t> values) {
  if (values.empty() || comm.handle() == MPI_COMM_NULL) return;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, values.data(), narrow<int>(values.size()), MPI_UINT64_T,
                          MPI_SUM, comm.handle()),
            "MPI_Allreduce");
}

}  // namespace reshard
