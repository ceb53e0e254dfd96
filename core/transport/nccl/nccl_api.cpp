#include "core/transport/nccl/nccl_api.hpp"

#include <string_view>

#include <fmt/format.h>

namespace reshard {
namespace {

std::string_view name_of(NcclResult result) {
  switch (result) {
    case NcclResult::success: return "ncclSuccess";
    case NcclResult::unhandled_cuda_error: return "ncclUnhandledCudaError";
    case NcclResult::system_error: return "ncclSystemError";
    case NcclResult::internal_error: return "ncclInternalError";
    case NcclResult::invalid_argument: return "ncclInvalidArgument";
    case NcclResult::invalid_usage: return "ncclInvalidUsage";
    case NcclResult::remote_error: return "ncclRemoteError";
    case NcclResult::in_progress: return "ncclInProgress";
  }
  return "an unknown result";
}

}  // namespace

std::string nccl_version_text(int version) {
  // Up to 2.8 the major number stood for thousands.
  int const major_unit = version < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", version / major_unit, version % major_unit / 100, version % 100);
}

std::string describe(NcclApi& nccl, NcclResult result) {
  std::string const complaint = nccl.last_error();
  return fmt::format("{} ({}){}", nccl.text(result), name_of(result),
                     complaint.empty() ? "" : ": " + complaint);
}

}  // namespace reshard
