#pragma once

#include <optional>
#include <span>
#include <string>

namespace reshard {

/// What one rank brings to a NCCL communicator.
struct NcclRankFacts {
  std::string obstacle;  ///< why this rank cannot take part, a clause that ends a sentence ("no
                         ///< NVIDIA driver is installed"); empty when it can
  std::string host;      ///< human-readable
  std::string host_identity;  ///< nccl_host_identity()
  std::string device_id;      ///< Device::id()
  std::string device_name;    ///< Device::name()
  int nccl_version = 0;       ///< as NCCL counts
  int driver_version = 0;     ///< CudaOffer
  int runtime_version = 0;    ///< CudaOffer
  friend bool operator==(NcclRankFacts const&, NcclRankFacts const&) = default;
};

/// NCCL releases before this keep the state of a group with the thread that began it, where an
/// abort cannot reach it.
inline constexpr int oldest_nccl_version = 21901;

/// Why these ranks (`all[r]` is rank r's) cannot form a communicator, as a sentence; nothing when
/// they can. To be found out before NCCL is asked: some of it would hang there, and what NCCL says
/// is not human-readable.
std::optional<std::string> nccl_problem(std::span<NcclRankFacts const> all);

/// As bytes, for other ranks.
std::string pack(NcclRankFacts const& facts);
NcclRankFacts unpack_facts(std::string const& bytes);

}  // namespace reshard
