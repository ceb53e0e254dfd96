#include "stages/verify/paired_elements.hpp"

#include <algorithm>
#include <cstring>

#include "stages/verify/surveys/compare_stats.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t window_bytes = std::uint64_t{1} << 20;
constexpr std::size_t most_windows = 32;

/// By blob: the end of the last element of all pieces, in bytes.
std::map<std::uint32_t, std::uint64_t> ends_of(ElementSide const& side, Catalog const& catalog) {
  std::map<std::uint32_t, std::uint64_t> ends;
  for (std::size_t p = 0; p < side.pieces.size(); ++p) {
    Index last = side.pieces[p].offset;
    for (PieceDigit const& digit : side.pieces[p].digits) last += (digit.count - 1) * digit.stride;
    std::uint32_t const blob = side.blobs[p];
    std::uint64_t& end = ends[blob];
    end = std::max(end, catalog.blobs[blob].offset_bytes +
                            static_cast<std::uint64_t>(last + 1) * side.element_bytes);
  }
  return ends;
}

std::vector<AxisId> axis_order(LogicalTensor const& tensor) {
  std::vector<AxisId> order;
  for (LogicalAxis const& axis : tensor.axes) order.push_back(axis.axis);
  return order;
}

}  // namespace

std::byte const* ElementWindows::at(Blob const& blob, Index place, std::uint64_t bytes,
                                    std::uint64_t end_bytes) {
  std::uint64_t const inside = static_cast<std::uint64_t>(place) * bytes;
  std::uint64_t const window = inside / window_bytes;
  return window_of(blob, window, end_bytes).data() + (inside - window * window_bytes);
}

std::vector<std::byte>& ElementWindows::window_of(Blob const& blob, std::uint64_t window,
                                                  std::uint64_t end_bytes) {
  Key const key{blob.file, blob.offset_bytes, window};
  if (key == last_) return *last_window_;
  if (windows_.size() > most_windows) windows_.clear();
  auto const [slot, is_new] = windows_.try_emplace(key);
  if (is_new) {
    std::uint64_t const begin = blob.offset_bytes + window * window_bytes;
    slot->second.resize(std::min(window_bytes, end_bytes - begin));
    read_(blob.file, begin, slot->second);
  }
  last_ = key;
  last_window_ = &slot->second;
  return slot->second;
}

PairedElements::PairedElements(Model const& model, Catalog const& catalog, TensorId tensor,
                               ElementSide const& a, ElementSide const& b,
                               CatalogReader const& read)
    : model_(model),
      catalog_(catalog),
      tensor_(tensor),
      a_(a),
      b_(b),
      ends_a_(ends_of(a, catalog)),
      ends_b_(ends_of(b, catalog)),
      windows_a_(read),
      windows_b_(read),
      join_(join(a.pieces, b.pieces, axis_order(model.tensor(tensor)), model.axes())) {}

void PairedElements::each(std::function<void(std::byte const*, std::byte const*)> const& look) {
  look_ = &look;
  for (std::size_t o = 0; o < join_.overlaps.size(); ++o) {
    Overlap const& overlap = join_.overlaps[o];
    blobs_now_ = {a_.blobs[overlap.src], b_.blobs[overlap.dst]};
    end_a_ = ends_a_.at(blobs_now_.first);
    end_b_ = ends_b_.at(blobs_now_.second);
    auto const span = join_.span_of(o);
    part_.assign(span.begin(), span.end());
    walk(0, overlap.src_offset, overlap.dst_offset);
  }
}

void PairedElements::walk(std::size_t digit, Index a, Index b) {
  if (digit == part_.size())
    return (*look_)(windows_a_.at(catalog_.blobs[blobs_now_.first], a, a_.element_bytes, end_a_),
                    windows_b_.at(catalog_.blobs[blobs_now_.second], b, b_.element_bytes, end_b_));
  OverlapDigit const whole = part_[digit];
  part_[digit].count = 1;
  for (Index i = 0; i < whole.count; ++i) {
    part_[digit].first = whole.first + i;
    walk(digit + 1, a + i * whole.src_stride, b + i * whole.dst_stride);
  }
  part_[digit] = whole;
}

std::vector<Index> PairedElements::place() const {
  std::vector<Index> result;
  for (LogicalAxis const& axis : model_.tensor(tensor_).axes) {
    result.push_back(0);
    for (std::size_t d = 0; d < part_.size(); ++d)
      if (join_.digits[d].axis == axis.axis) result.back() += part_[d].first * join_.digits[d].div;
  }
  return result;
}

std::string place_text(Model const& model, TensorId tensor, std::span<Index const> indices) {
  std::vector<std::string> names;
  bool named = !indices.empty();
  auto const& axes = model.tensor(tensor).axes;
  for (std::size_t a = 0; a < indices.size(); ++a) {
    std::string const& name = model.axes()[axes[a].axis].name;
    named = named && !(name.front() >= '0' && name.front() <= '9');
    names.push_back(fmt::format("{} {}", name, indices[a]));
  }
  return named ? fmt::format("{}", fmt::join(names, ", "))
               : fmt::format("[{}]", fmt::join(indices, ", "));
}

CopyDifference compare_copy(Model const& model, Catalog const& catalog, TensorId tensor,
                            std::uint32_t a, std::uint32_t b, CatalogReader const& read) {
  TensorPieces const& all = catalog.tensors[index(tensor)];
  DType const dtype = catalog.blobs[all.blob(a)].dtype;
  std::uint64_t const element = static_cast<std::uint64_t>(bits(dtype)) / 8;
  Piece const piece_a = all[a];
  Piece const piece_b = all[b];
  PairedElements pairs(model, catalog, tensor,
                       {std::span(&piece_a, 1), all.blobs().subspan(a, 1), element},
                       {std::span(&piece_b, 1), all.blobs().subspan(b, 1), element}, read);
  CopyDifference found;
  pairs.each([&](std::byte const* left, std::byte const* right) {
    ++found.elements;
    if (std::memcmp(left, right, element) == 0) return;
    ++found.differing;
    std::vector<Index> at = pairs.place();
    if (found.differing > 1 && !(at < found.first)) return;
    found.first = std::move(at);
    found.values = fmt::format("{} and {}", value_text(dtype, std::span(left, element)),
                               value_text(dtype, std::span(right, element)));
  });
  return found;
}

}  // namespace reshard
