#pragma once

#include <optional>
#include <span>
#include <string>

namespace reshard {

/// The facts of one rank that decide whether it can join a NCCL communicator.
struct NcclRankFacts {
  std::string obstacle;  ///< why this rank cannot take part, a clause that ends a sentence ("no
                         ///< NVIDIA driver is installed"); empty if it can
  std::string host;      ///< human-readable
  std::string host_identity;  ///< nccl_host_identity()
  std::string device_id;      ///< Device::id()
  std::string device_name;    ///< Device::name()
  int nccl_version = 0;       ///< in NCCL's encoding
  int driver_version = 0;     ///< CudaOffer
  int runtime_version = 0;    ///< CudaOffer
  friend bool operator==(NcclRankFacts const&, NcclRankFacts const&) = default;
};

/// Older NCCL releases keep the state of a group with the thread that began it, where an abort
/// cannot reach it.
inline constexpr int oldest_nccl_version = 21901;

/// The reason for which these ranks (`all[r]` is rank r's) cannot form a communicator, as a
/// sentence; nullopt if they can. To be checked before NCCL is called, which would hang in some
/// cases and has unclear errors in others.
std::optional<std::string> nccl_problem(std::span<NcclRankFacts const> all);

/// Serialises facts for other ranks.
std::string pack(NcclRankFacts const& facts);
NcclRankFacts unpack_facts(std::string const& bytes);

}  // namespace reshard
