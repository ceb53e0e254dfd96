#include "core/transport/nccl/rank_facts.hpp"

#include <map>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/text/wire.hpp"
#include "core/transport/nccl/nccl_api.hpp"

namespace reshard {
namespace {

constexpr std::string_view way_out = "or set run.transport = \"mpi\"";

std::string place_of(std::span<NcclRankFacts const> all, std::size_t rank) {
  return fmt::format("rank {} on host {}", rank, all[rank].host);
}

std::optional<std::string> obstacle_problem(std::span<NcclRankFacts const> all) {
  std::size_t first = all.size();
  std::size_t count = 0;
  for (std::size_t r = 0; r < all.size(); ++r)
    if (!all[r].obstacle.empty()) {
      first = std::min(first, r);
      ++count;
    }
  if (count == 0) return std::nullopt;
  return fmt::format(
      "{} cannot use NCCL: {}. NCCL needs a GPU and its library on every rank, {} of {} ranks "
      "lack them. Correct that, {}.",
      place_of(all, first), all[first].obstacle, count, all.size(), way_out);
}

std::optional<std::string> shared_device_problem(std::span<NcclRankFacts const> all) {
  std::map<std::pair<std::string, std::string>, std::size_t> first_users;
  for (std::size_t r = 0; r < all.size(); ++r) {
    auto const [user, fresh] = first_users.try_emplace({all[r].host_identity, all[r].device_id}, r);
    if (fresh) continue;
    return fmt::format(
        "ranks {} and {} on host {} would share one GPU ({}, {}), NCCL needs one for each rank. Start at most as many ranks on a host as it "
        "has GPUs, {}.",
        user->second, r, all[r].host, all[r].device_name, all[r].device_id, way_out);
  }
  return std::nullopt;
}

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// The first rank that differs from rank 0 in a version.
std::optional<std::string> version_problem(std::span<NcclRankFacts const> all,
                                           std::string_view what, int NcclRankFacts::*version,
                                           std::string (*text)(int)) {
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r].*version != all[0].*version)
      return fmt::format(
          "{} has {} {}, {} has {}. NCCL needs the same on every rank: make them equal, {}.",
          place_of(all, 0), what, text(all[0].*version), place_of(all, r), text(all[r].*version),
          way_out);
  return std::nullopt;
}

std::optional<std::string> old_version_problem(std::span<NcclRankFacts const> all) {
  if (all.empty() || all[0].nccl_version >= oldest_nccl_version) return std::nullopt;
  return fmt::format(
      "{} has NCCL {}, {} or newer is needed. Install a newer one, name its file in RESHARD_NCCL_LIBRARY, {}.",
      place_of(all, 0), nccl_version_text(all[0].nccl_version),
      nccl_version_text(oldest_nccl_version), way_out);
}

}  // namespace

std::optional<std::string> nccl_problem(std::span<NcclRankFacts const> all) {
  if (auto problem = obstacle_problem(all)) return problem;
  if (auto problem = version_problem(all, "NCCL", &NcclRankFacts::nccl_version, nccl_version_text))
    return problem;
  if (auto problem = old_version_problem(all)) return problem;
  if (auto problem =
          version_problem(all, "CUDA runtime", &NcclRankFacts::runtime_version, cuda_version_text))
    return problem;
  if (auto problem = version_problem(all, "a driver for CUDA", &NcclRankFacts::driver_version,
                                     cuda_version_text))
    return problem;
  return shared_device_problem(all);
}

static constexpr auto wire_fields(NcclRankFacts const&) {
  using T = NcclRankFacts;
  return std::tuple(&T::obstacle, &T::host, &T::host_identity, &T::device_id, &T::device_name,
                    &T::nccl_version, &T::driver_version, &T::runtime_version);
}

std::string pack(NcclRankFacts const& facts) { return WireWriter().put(facts).bytes(); }

NcclRankFacts unpack_facts(std::string const& bytes) {
  WireReader in(bytes, "a rank's facts about NCCL");
  return in.all<NcclRankFacts>();
}

}  // namespace reshard
