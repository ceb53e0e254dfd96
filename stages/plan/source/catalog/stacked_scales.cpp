#include "stages/plan/source/catalog/stacked_scales.hpp"

#include <array>
#include <charconv>

namespace reshard {
namespace {

struct Projection {
  std::string_view word;
  std::string_view stacked;
  Index part;
  Index parts;
};

constexpr std::array<Projection, 6> projections{{{"gate_proj", "gate_up_proj", 0, 2},
                                                 {"w1", "gate_up_proj", 0, 2},
                                                 {"up_proj", "gate_up_proj", 1, 2},
                                                 {"w3", "gate_up_proj", 1, 2},
                                                 {"down_proj", "down_proj", 0, 1},
                                                 {"w2", "down_proj", 0, 1}}};

}  // namespace

std::optional<StackedScale> stacked_scale(std::string_view scale) {
  constexpr std::string_view experts = "experts.";
  constexpr std::string_view ending = ".weight_scale_inv";
  auto const at = scale.rfind(experts);
  if (at == std::string_view::npos || !scale.ends_with(ending)) return std::nullopt;
  std::string_view const prefix = scale.substr(0, at + experts.size());
  std::string_view rest = scale.substr(prefix.size());
  rest.remove_suffix(ending.size());
  Index expert = 0;
  auto const [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), expert);
  if (error != std::errc{} || expert < 0) return std::nullopt;
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  for (Projection const& projection : projections)
    if (rest.starts_with('.') && rest.substr(1) == projection.word)
      return StackedScale{std::string(prefix) + std::string(projection.stacked) + "_scale_inv",
                          expert, projection.part, projection.parts};
  return std::nullopt;
}

std::optional<StoredPlace> place_in_stack(StoredPlace stored, StackedScale const& scale, Index rows,
                                          Json const& blocks) {
  constexpr Index usual_block = 128;
  auto const* const items = blocks.items();
  auto const* const stated =
      items == nullptr || items->empty() ? nullptr : items->front().integer();
  Index const block = stated == nullptr ? usual_block : *stated;
  if (stored.shape.size() != 3 || scale.expert >= stored.shape.front() || block < 1 ||
      stored.shape[1] % scale.parts != 0 || (scale.parts > 1 && rows % block != 0))
    return std::nullopt;
  Index const rows_here = stored.shape[1] / scale.parts;
  Index const before = (scale.expert * scale.parts + scale.part) * rows_here * stored.shape[2];
  stored.offset_bytes += static_cast<std::uint64_t>(before * (bits(stored.dtype) / 8));
  stored.shape = {rows_here, stored.shape[2]};
  return stored;
}

}  // namespace reshard
