#pragma once

#include <memory>
#include <string>

#include "core/transport/nccl/nccl_api.hpp"

namespace reshard {

/// NCCL of this machine: the file that RESHARD_NCCL_LIBRARY names, else libnccl.so.2 where the
/// loader finds it. Opened at the first call, for good: a program that was built with NCCL starts
/// on machines without it. Error: resources when it cannot be had, with the reason.
std::shared_ptr<NcclApi> open_nccl();

/// Whether open_nccl() works here.
struct NcclOffer {
  bool built = false;    ///< the program was built with NCCL
  int version = 0;       ///< as NCCL counts, 22809 for 2.28.9; 0 when it cannot be had
  std::string why_none;  ///< a clause that ends a sentence, when version is 0
};

/// Never fails.
NcclOffer nccl_offer();

}  // namespace reshard
