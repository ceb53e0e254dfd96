#include "core/formats/megatron/state/flat_rules.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include <fmt/ranges.h>

namespace reshard::megatron {
namespace {

constexpr Index default_bucket = 40'000'000;
constexpr Index default_bucket_of_rank = 1'000'000;
constexpr Index most_ranks = 1'000'000;
/// Alignments of parameters in a bucket: since Megatron 0.8, and before.
constexpr std::array<Index, 2> alignments{64, 1};

Json fact(Json const& args, std::string_view key) {
  Json const* const found = args.members() == nullptr ? nullptr : args.find(key);
  return found == nullptr ? Json() : *found;
}

bool flag(Json const& args, std::string_view key) {
  Json const value = fact(args, key);
  return value.boolean() != nullptr && *value.boolean();
}

/// A positive number.
std::optional<Index> number(Json const& args, std::string_view key) {
  Json const value = fact(args, key);
  if (value.integer() == nullptr || *value.integer() <= 0) return std::nullopt;
  return *value.integer();
}

/// The possible sizes of buckets, in elements; 0: one bucket.
std::vector<Index> bucket_sizes(Json const& args, FlatChunk const& chunk) {
  if (!chunk.first || !flag(args, "overlap_grad_reduce") ||
      flag(args, "overlap_param_gather_with_optimizer_step"))
    return {0};
  if (auto const size = number(args, "ddp_bucket_size")) return {*size, 0};
  if (auto const count = number(args, "ddp_num_buckets"))
    return {std::max<Index>(chunk.rank_elements / *count, 1), 0};
  Index const data = std::min(number(args, "data_parallel_size").value_or(1), most_ranks);
  Index const context = std::min(number(args, "context_parallel_size").value_or(1), most_ranks);
  // Up to 0.9 ranks along the context did not count.
  std::vector<Index> sizes{std::max(default_bucket, default_bucket_of_rank * data * context),
                           std::max(default_bucket, default_bucket_of_rank * data), 0};
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace

std::vector<FlatRule> flat_rules(Json const& args, FlatChunk const& chunk) {
  std::vector<FlatRule> rules;
  for (Index const alignment : alignments)
    for (Index const size : bucket_sizes(args, chunk)) rules.push_back({size, alignment});
  return rules;
}

std::string flat_rule_text(Json const& args) {
  std::vector<std::string> facts;
  for (std::string_view const key : {"overlap_grad_reduce", "ddp_bucket_size", "ddp_num_buckets"})
    if (Json const value = fact(args, key); !value.is_null())
      facts.push_back(fmt::format("{} = {}", key, value.dump()));
  return facts.empty() ? "no overlap_grad_reduce" : fmt::format("{}", fmt::join(facts, ", "));
}

}  // namespace reshard::megatron
