#include "stages/verify/master_check.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include <fmt/ranges.h>

#include "core/base/json.hpp"
#include "core/layout/join.hpp"
#include "core/plan/replicas.hpp"
#include "core/quant/rounded.hpp"
#include "stages/verify/compare_stats.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t window_bytes = std::uint64_t{1} << 20;
constexpr std::size_t most_windows = 32;
constexpr std::uint64_t master_bytes = 4;

/// Elements of files, read in windows of some size: neighbours are asked for one after the other.
class Elements {
 public:
  explicit Elements(CatalogReader const& read) : read_(read) {}

  /// The element at `place` of a blob whose last element is before `end_bytes` of its file.
  std::uint32_t at(Blob const& blob, Index place, std::uint64_t bytes, std::uint64_t end_bytes) {
    std::uint64_t const offset = blob.offset_bytes + static_cast<std::uint64_t>(place) * bytes;
    std::uint64_t const window = (offset - blob.offset_bytes) / window_bytes;
    auto& held = window_of(blob, window, end_bytes);
    std::uint32_t value = 0;
    std::memcpy(&value, held.data() + (offset - blob.offset_bytes - window * window_bytes), bytes);
    return value;
  }

 private:
  std::vector<std::byte>& window_of(Blob const& blob, std::uint64_t window,
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

  using Key = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;
  CatalogReader const& read_;
  std::map<Key, std::vector<std::byte>> windows_;
  Key last_{0, 0, ~std::uint64_t{0}};
  std::vector<std::byte>* last_window_ = nullptr;
};

/// Behind the last element that any piece of a blob has.
std::map<std::uint32_t, std::uint64_t> ends_of(Distinct const& distinct, Catalog const& catalog,
                                               std::uint64_t element) {
  std::map<std::uint32_t, std::uint64_t> ends;
  for (std::size_t p = 0; p < distinct.pieces.size(); ++p) {
    Index last = distinct.pieces[p].offset;
    for (PieceDigit const& digit : distinct.pieces[p].digits)
      last += (digit.count - 1) * digit.stride;
    std::uint32_t const blob = distinct.blobs[p];
    std::uint64_t& end = ends[blob];
    end = std::max(
        end, catalog.blobs[blob].offset_bytes + static_cast<std::uint64_t>(last + 1) * element);
  }
  return ends;
}

class Comparer {
 public:
  Comparer(Model const& model, Catalog const& source, StateCheck const& check,
           CatalogReader const& read)
      : model_(model),
        source_(source),
        check_(check),
        masters_(distinct_pieces(source.tensors[index(check.state)], source)),
        weights_(distinct_pieces(source.tensors[index(check.weight)], source)),
        master_ends_(ends_of(masters_, source, master_bytes)),
        weight_bytes_(static_cast<std::uint64_t>(bits(check.weight_dtype)) / 8),
        weight_ends_(ends_of(weights_, source, weight_bytes_)),
        elements_(read) {}

  MasterFindings run() {
    std::vector<Piece> masters(masters_.pieces.begin(), masters_.pieces.end());
    for (Piece& piece : masters) piece.tensor = check_.weight;
    std::vector<AxisId> order;
    for (LogicalAxis const& axis : model_.tensor(check_.weight).axes) order.push_back(axis.axis);
    join_ = join(masters, weights_.pieces, order, model_.axes());
    for (std::size_t o = 0; o < join_.overlaps.size(); ++o) {
      overlap_ = &join_.overlaps[o];
      auto const span = join_.span_of(o);
      part_.assign(span.begin(), span.end());
      walk(0, overlap_->src_offset, overlap_->dst_offset);
    }
    if (findings_.differing > 0) findings_.first = first_text();
    return findings_;
  }

 private:
  void walk(std::size_t digit, Index src, Index dst) {
    if (digit == part_.size()) return look(src, dst);
    OverlapDigit const whole = part_[digit];
    part_[digit].count = 1;
    for (Index i = 0; i < whole.count; ++i) {
      part_[digit].first = whole.first + i;
      walk(digit + 1, src + i * whole.src_stride, dst + i * whole.dst_stride);
    }
    part_[digit] = whole;
  }

  void look(Index src, Index dst) {
    std::uint32_t const master_blob = masters_.blobs[overlap_->src];
    std::uint32_t const weight_blob = weights_.blobs[overlap_->dst];
    std::uint32_t const master =
        elements_.at(source_.blobs[master_blob], src, master_bytes, master_ends_.at(master_blob));
    std::uint32_t const weight =
        elements_.at(source_.blobs[weight_blob], dst, weight_bytes_, weight_ends_.at(weight_blob));
    ++findings_.elements;
    std::uint32_t const rounded = check_.weight_dtype == DType::f32    ? master
                                  : check_.weight_dtype == DType::bf16 ? quant::bf16_of(master)
                                                                       : quant::f16_of(master);
    if (rounded == weight) return;
    ++findings_.differing;
    std::vector<Index> at = place();
    if (findings_.differing > 1 && !(at < first_)) return;
    first_ = std::move(at);
    first_master_ = master;
    first_weight_ = weight;
    first_blobs_ = {master_blob, weight_blob};
  }

  /// The indices of the element along the axes of the tensor.
  std::vector<Index> place() const {
    std::vector<Index> result;
    for (LogicalAxis const& axis : model_.tensor(check_.weight).axes) {
      result.push_back(0);
      for (std::size_t d = 0; d < part_.size(); ++d)
        if (join_.digits[d].axis == axis.axis)
          result.back() += part_[d].first * join_.digits[d].div;
    }
    return result;
  }

  std::string first_text() const {
    std::vector<std::string> places;
    auto const& axes = model_.tensor(check_.weight).axes;
    for (std::size_t a = 0; a < axes.size(); ++a)
      places.push_back(fmt::format("{} {}", model_.axes()[axes[a].axis].name, first_[a]));
    auto const where = [&](std::uint32_t blob) {
      Blob const& one = source_.blobs[blob];
      return fmt::format("{} of {}", json_quoted(one.name), source_.files[one.file]);
    };
    return fmt::format("{}: master {} in {}, weight {} in {}", fmt::join(places, ", "),
                       value_text(DType::f32, std::as_bytes(std::span(&first_master_, 1))),
                       where(first_blobs_.first),
                       value_text(check_.weight_dtype,
                                  std::as_bytes(std::span(&first_weight_, 1)).first(weight_bytes_)),
                       where(first_blobs_.second));
  }

  Model const& model_;
  Catalog const& source_;
  StateCheck const& check_;
  Distinct masters_;
  Distinct weights_;
  std::map<std::uint32_t, std::uint64_t> master_ends_;
  std::uint64_t weight_bytes_;
  std::map<std::uint32_t, std::uint64_t> weight_ends_;
  Elements elements_;
  Join join_;
  Overlap const* overlap_ = nullptr;
  std::vector<OverlapDigit> part_;
  MasterFindings findings_;
  std::vector<Index> first_;
  std::uint32_t first_master_ = 0;
  std::uint32_t first_weight_ = 0;
  std::pair<std::uint32_t, std::uint32_t> first_blobs_;
};

}  // namespace

MasterFindings compare_masters(Model const& model, Catalog const& source, StateCheck const& check,
                               CatalogReader const& read) {
  return Comparer(model, source, check, read).run();
}

}  // namespace reshard
