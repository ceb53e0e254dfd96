#pragma once

#include <memory>
#include <string>

#include "core/transport/nccl/nccl_api.hpp"

namespace reshard {

/// NCCL of this machine: the file in the variable RESHARD_NCCL_LIBRARY, else libnccl.so.2 as the
/// loader finds it. Opened at the first call, until the process ends: a program that was built with
/// NCCL starts on machines without it. An Error of kind resources with the reason if it cannot be
/// opened.
std::shared_ptr<NcclApi> open_nccl();

/// Whether open_nccl() works here.
struct NcclOffer {
  bool built = false;    ///< the program was built with NCCL
  int version = 0;       ///< in NCCL's encoding, 22809 for 2.28.9; 0 if it cannot be opened
  std::string why_none;  ///< a clause that ends a sentence, if version is 0
};

/// Never fails.
NcclOffer nccl_offer();

}  // namespace reshard
