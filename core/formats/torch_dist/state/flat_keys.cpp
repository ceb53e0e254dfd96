#include "core/formats/torch_dist/state/flat_keys.hpp"

#include <algorithm>
#include <charconv>

namespace reshard::dcp {
namespace {

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

/// Consumes `word`, the number after it and the following dot; returns the number.
std::optional<Index> take_number(std::string_view& text, std::string_view word) {
  std::string_view rest = text;
  if (!take(rest, word)) return std::nullopt;
  Index number = 0;
  auto const [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  if (error != std::errc() || number < 0 || !take(rest, ".")) return std::nullopt;
  text = rest;
  return number;
}

}  // namespace

std::optional<GroupKey> parse_group_key(std::string_view key) {
  GroupKey result;
  result.chain = take_number(key, "chained_").value_or(0);
  if (!take(key, "optimizer.distributed.")) return std::nullopt;
  auto const group = take_number(key, "dp_group_idx_");
  if (!group) return std::nullopt;
  result.group = *group;
  result.rest = key;
  return result;
}

std::optional<BucketKey> parse_bucket_key(std::string_view key) {
  auto const group = parse_group_key(key);
  if (!group) return std::nullopt;
  BucketKey result;
  result.group = *group;
  std::string_view rest = group->rest;
  result.joined = take(rest, gathered_name) && take(rest, ".");
  auto const buffer = take_number(rest, "gbuf_idx_");
  if (!buffer || !take(rest, "dtype_(torch.")) return std::nullopt;
  std::size_t const closed = rest.find(").");
  if (closed == std::string_view::npos) return std::nullopt;
  std::size_t const comma = rest.substr(0, closed).find(", torch.");
  if (!result.joined && comma == std::string_view::npos) return std::nullopt;
  result.weights = std::string(rest.substr(0, std::min(comma, closed)));
  rest.remove_prefix(closed + 2);
  auto const bucket = result.joined ? Index{0} : take_number(rest, "bucket_idx_");
  if (!bucket || rest.empty() || rest.find('.') != std::string_view::npos) return std::nullopt;
  result.buffer = *buffer;
  result.bucket = *bucket;
  result.slot = rest;
  return result;
}

std::string_view settings_name(GroupKey const& key) {
  return key.rest.substr(0, key.rest.find('/'));
}

}  // namespace reshard::dcp
