#include "core/formats/megatron/state/flat_buffer.hpp"

namespace reshard::megatron {
namespace {

Index rounded_up(Index number, Index multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

/// Fills one bucket after the other.
class Buckets {
 public:
  explicit Buckets(Index alignment) : alignment_(alignment) {}

  /// Where the next parameter of this bucket begins; the gap before it belongs to the bucket.
  void align() { end_ = rounded_up(end_, alignment_); }
  FlatSlot take(Index elements) {
    FlatSlot const slot{sizes_.size(), end_};
    end_ += elements;
    holds_any_ = true;
    return slot;
  }
  void close() {
    if (!holds_any_) return;
    sizes_.push_back(end_);
    end_ = 0;
    holds_any_ = false;
  }

  Index end() const { return end_; }
  std::vector<Index> sizes() && { return std::move(sizes_); }

 private:
  Index alignment_;
  Index end_ = 0;
  bool holds_any_ = false;
  std::vector<Index> sizes_;
};

}  // namespace

Index FlatLayout::in_file(FlatSlot const& slot) const {
  Index at = slot.at;
  for (std::size_t b = 0; b < slot.bucket; ++b) at += buckets[b];
  return at;
}

FlatLayout flat_layout(std::span<FlatParameter const> parameters, FlatRule const& rule) {
  FlatLayout layout;
  layout.slots.resize(parameters.size());
  Buckets buckets(rule.alignment);
  for (std::size_t p = parameters.size(); p-- > 0;) {
    FlatParameter const& parameter = parameters[p];
    buckets.align();
    if (parameter.own_bucket) buckets.close();
    layout.slots[p] = buckets.take(parameter.elements);
    bool const full = rule.bucket_elements > 0 && buckets.end() >= rule.bucket_elements;
    if (parameter.own_bucket || full) buckets.close();
  }
  buckets.close();
  layout.buckets = std::move(buckets).sizes();
  return layout;
}

std::optional<FlatLayout> fitted_layout(std::span<FlatParameter const> parameters,
                                        std::span<Index const> buckets, Index alignment) {
  FlatLayout layout;
  layout.slots.resize(parameters.size());
  layout.buckets.assign(buckets.begin(), buckets.end());
  FlatSlot next;
  auto const close_full = [&] {
    if (next.bucket < buckets.size() && next.at == buckets[next.bucket]) next = {next.bucket + 1};
  };
  for (std::size_t p = parameters.size(); p-- > 0;) {
    next.at = rounded_up(next.at, alignment);
    close_full();  // an own bucket may begin behind the gap
    if (next.bucket == buckets.size() || next.at + parameters[p].elements > buckets[next.bucket])
      return std::nullopt;
    layout.slots[p] = next;
    next.at += parameters[p].elements;
    close_full();
  }
  if (next != FlatSlot{buckets.size()}) return std::nullopt;
  return layout;
}

}  // namespace reshard::megatron
