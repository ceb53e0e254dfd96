#include "core/base/error.hpp"
#include "core/transport/nccl/nccl_library.hpp"

namespace reshard {

std::shared_ptr<NcclApi> open_nccl() {
  fail(ErrorKind::resources,
       "NCCL cannot be used: this program was built without it. Set run.transport to auto or mpi, "
       "or build where nccl.h is installed.");
}

NcclOffer nccl_offer() {
  return {.built = false, .version = 0, .why_none = "this program was built without NCCL"};
}

}  // namespace reshard
