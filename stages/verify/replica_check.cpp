#include "stages/verify/replica_check.hpp"

#include <algorithm>
#include <array>
#include <compare>
#include <cstring>
#include <map>

#include <fmt/ranges.h>

#include "core/base/text/json.hpp"
#include "core/layout/pieces/join.hpp"
#include "core/plan/equal/replicas.hpp"
#include "stages/verify/paired_elements.hpp"
#include "stages/verify/surveys/compare_stats.hpp"

namespace reshard {
namespace {

/// From the first to the last element of a piece.
using Span = CopySpan;

struct Pair {
  std::uint32_t tensor = 0;
  Replica pieces;
  Span taken;
  Span left_out;
};

/// The differences between two pieces.
struct Differences {
  std::uint64_t elements = 0;
  std::uint64_t differing = 0;
  std::vector<OverlapDigit> first;  ///< where: each digit has one value
  std::array<std::byte, 16> a{};
  std::array<std::byte, 16> b{};
};

class Comparer {
 public:
  Comparer(Model const& model, Catalog const& catalog, CatalogReader const& read)
      : model_(model), catalog_(catalog), read_(read) {}

  /// Small pairs of all tensors, by the file of the piece that is left out: neighbours there are
  /// read one after the other.
  std::vector<Pair> pairs() const {
    std::vector<Pair> found;
    for (std::uint32_t t = 0; t < catalog_.tensors.size() && t < model_.tensors().size(); ++t) {
      TensorPieces const& all = catalog_.tensors[t];
      if (!model_.exists(TensorId(t)) || all.size() < 2) continue;
      for (Replica const& replica : replicas(all, catalog_)) {
        if (replica.declared) continue;
        Pair const pair{t, replica, span_of(all, replica.taken), span_of(all, replica.left_out)};
        if (std::max(pair.taken.bytes, pair.left_out.bytes) < largest_small_replica_bytes &&
            pair.taken.bytes > 0)
          found.push_back(pair);
      }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](Pair const& a, Pair const& b) { return a.left_out < b.left_out; });
    return found;
  }

  void compare(Pair const& pair) {
    TensorPieces const& all = catalog_.tensors[pair.tensor];
    if (pair.taken != held_) read(pair.taken, taken_);
    held_ = pair.taken;
    read(pair.left_out, left_out_);
    if (taken_ == left_out_ && all[pair.pieces.taken].digits == all[pair.pieces.left_out].digits)
      return;
    Differences const found = differences(pair);
    if (found.differing > 0) faults_.push_back(fault(pair, found));
  }

  std::vector<std::string> const& faults() const { return faults_; }

 private:
  Blob blob_of(Pair const& pair, std::uint32_t piece) const {
    return catalog_.blobs[catalog_.tensors[pair.tensor].blob(piece)];
  }

  std::uint64_t element_bytes(Pair const& pair) const {
    return static_cast<std::uint64_t>(bits(blob_of(pair, pair.pieces.taken).dtype)) / 8;
  }

  Span span_of(TensorPieces const& all, std::uint32_t piece) const {
    Blob const& blob = catalog_.blobs[all.blob(piece)];
    std::uint64_t elements = 1;
    for (PieceDigit const& digit : form_digits(all.form(piece))) {
      if (digit.count == 0) return {};
      elements += static_cast<std::uint64_t>((digit.count - 1) * digit.stride);
    }
    auto const element = static_cast<std::uint64_t>(bits(blob.dtype)) / 8;
    return {blob.file, blob.offset_bytes + static_cast<std::uint64_t>(all.offset(piece)) * element,
            elements * element};
  }

  void read(Span const& span, std::vector<std::byte>& into) {
    into.resize(span.bytes);
    read_(span.file, span.offset_bytes, into);
  }

  std::vector<AxisId> order(std::uint32_t tensor) const {
    std::vector<AxisId> axes;
    for (LogicalAxis const& axis : model_.tensors()[tensor].axes) axes.push_back(axis.axis);
    return axes;
  }

  Differences differences(Pair const& pair) {
    TensorPieces const& all = catalog_.tensors[pair.tensor];
    Piece const taken = all[pair.pieces.taken];
    Piece const left_out = all[pair.pieces.left_out];
    join_ = join(std::span(&taken, 1), std::span(&left_out, 1), order(pair.tensor), model_.axes());
    Differences found;
    element_ = element_bytes(pair);
    for (std::size_t o = 0; o < join_.overlaps.size(); ++o) {
      auto const span = join_.span_of(o);
      part_.assign(span.begin(), span.end());
      walk(0, join_.overlaps[o].src_offset - taken.offset,
           join_.overlaps[o].dst_offset - left_out.offset, found);
    }
    return found;
  }

  /// The elements of an overlap in the order of the logical tensor; `src` and `dst` are element
  /// offsets in the bytes read.
  void walk(std::size_t digit, Index src, Index dst, Differences& found) {
    if (digit == part_.size())
      return look(static_cast<std::uint64_t>(src) * element_,
                  static_cast<std::uint64_t>(dst) * element_, found);
    OverlapDigit const whole = part_[digit];
    part_[digit].count = 1;
    for (Index i = 0; i < whole.count; ++i) {
      part_[digit].first = whole.first + i;
      walk(digit + 1, src + i * whole.src_stride, dst + i * whole.dst_stride, found);
    }
    part_[digit] = whole;
  }

  void look(std::uint64_t src, std::uint64_t dst, Differences& found) const {
    ++found.elements;
    if (std::memcmp(taken_.data() + src, left_out_.data() + dst, element_) == 0) return;
    if (++found.differing > 1) return;
    found.first = part_;
    std::memcpy(found.a.data(), taken_.data() + src, element_);
    std::memcpy(found.b.data(), left_out_.data() + dst, element_);
  }

  std::vector<Index> place(std::uint32_t tensor, Differences const& found) const {
    std::vector<Index> indices;
    for (LogicalAxis const& axis : model_.tensors()[tensor].axes) {
      indices.push_back(0);
      for (std::size_t d = 0; d < found.first.size(); ++d)
        if (join_.digits[d].axis == axis.axis)
          indices.back() += found.first[d].first * join_.digits[d].div;
    }
    return indices;
  }

  std::string fault(Pair const& pair, Differences const& found) const {
    Blob const& taken = blob_of(pair, pair.pieces.taken);
    Blob const& left_out = blob_of(pair, pair.pieces.left_out);
    auto const value = [&](std::array<std::byte, 16> const& bytes) {
      return value_text(taken.dtype, std::span(bytes).first(element_));
    };
    return fmt::format(
        "'{}': {} in {} and {} in {} should be the same: {} of {} elements differ, first at {} ({} and {})",
        model_.tensors()[pair.tensor].name, json_quoted(taken.name), catalog_.files[taken.file],
        json_quoted(left_out.name), catalog_.files[left_out.file], found.differing, found.elements,
        place_text(model_, TensorId(pair.tensor), place(pair.tensor, found)), value(found.a),
        value(found.b));
  }

  Model const& model_;
  Catalog const& catalog_;
  CatalogReader const& read_;
  Join join_;
  std::uint64_t element_ = 1;
  std::vector<OverlapDigit> part_;
  Span held_;
  std::vector<std::byte> taken_;
  std::vector<std::byte> left_out_;
  std::vector<std::string> faults_;
};

constexpr std::uint64_t slice_bytes = std::uint64_t{4} << 20;

/// Two stored tensors that should have the same bytes.
struct StoredCopy {
  Blob taken;
  Blob copy;
  std::uint64_t taken_at = 0;  ///< bytes behind the beginnings of the blobs
  std::uint64_t copy_at = 0;
  std::uint64_t bytes = 0;

  CopySpan taken_span() const { return {taken.file, taken.offset_bytes + taken_at, bytes}; }
  CopySpan copy_span() const { return {copy.file, copy.offset_bytes + copy_at, bytes}; }
};

/// A declared copy that is cut or stored in another way than its original.
struct OtherCopy {
  TensorId tensor{};
  std::uint32_t piece = 0;
};

struct DeclaredCopies {
  std::vector<StoredCopy> alike;
  std::vector<OtherCopy> others;
};

class CopyFinder {
 public:
  CopyFinder(Model const& model, Catalog const& catalog) : model_(model), catalog_(catalog) {}

  DeclaredCopies run() {
    for (std::size_t t = 0; t < catalog_.tensors.size() && t < model_.tensors().size(); ++t)
      if (model_.exists(TensorId(t)) && catalog_.tensors[t].has_copies() &&
          model_.tensors()[t].slot == SlotId::weight)
        find(TensorId(t));
    return std::move(found_);
  }

 private:
  void find(TensorId tensor) {
    TensorPieces const& all = catalog_.tensors[index(tensor)];
    std::map<std::uint32_t, std::uint32_t> taken;  // by copy
    for (Replica const& replica : replicas(all, catalog_))
      if (replica.declared) taken.emplace(replica.left_out, replica.taken);
    for (std::uint32_t i = 0; i < all.size(); ++i) {
      if (!all.is_copy(i) || bits(blob(all, i).dtype) < 8) continue;
      auto const one = taken.find(i);
      if (one == taken.end() || !add_alike(all, one->second, i))
        found_.others.push_back({tensor, i});
    }
  }

  Blob blob(TensorPieces const& all, std::uint32_t piece) const {
    return catalog_.blobs[all.blob(piece)];
  }

  /// Whether the elements of both are in the same order, without gaps.
  bool add_alike(TensorPieces const& all, std::uint32_t of, std::uint32_t copied) {
    Piece const taken = all[of];
    Piece const copy = all[copied];
    Blob const& a = blob(all, of);
    Blob const& b = blob(all, copied);
    if (a.dtype != b.dtype || taken.digits != copy.digits) return false;
    std::uint64_t elements = 1;
    std::uint64_t reach = 1;
    for (PieceDigit const& digit : taken.digits) {
      elements *= static_cast<std::uint64_t>(digit.count);
      reach += static_cast<std::uint64_t>((digit.count - 1) * digit.stride);
    }
    auto const element = static_cast<std::uint64_t>(bits(a.dtype)) / 8;
    StoredCopy const pair{a, b, static_cast<std::uint64_t>(taken.offset) * element,
                          static_cast<std::uint64_t>(copy.offset) * element, elements * element};
    if (elements != reach) return false;
    if (pair.taken_span() != pair.copy_span()) found_.alike.push_back(pair);
    return true;
  }

  Model const& model_;
  Catalog const& catalog_;
  DeclaredCopies found_;
};

/// The sentence about a copy that differs. `first` describes the first difference.
std::string copy_fault(Catalog const& catalog, Blob const& copy, Blob const& taken,
                       std::uint64_t differing, std::uint64_t elements, std::string const& first) {
  return fmt::format("{} in {} should be a copy of {}, but {} of {} elements differ, first {}",
                     json_quoted(copy.name), catalog.files[copy.file], json_quoted(taken.name),
                     differing, elements, first);
}

/// Compares a copy with all other pieces of its tensor.
std::string compare_other(Model const& model, Catalog const& catalog, OtherCopy const& other,
                          CatalogReader const& read) {
  TensorPieces const& all = catalog.tensors[index(other.tensor)];
  Distinct const taken = distinct_pieces(all, catalog);
  Blob const& copy = catalog.blobs[all.blob(other.piece)];
  std::vector<std::uint32_t> const blobs = taken.blobs();
  if (std::ranges::any_of(
          blobs, [&](std::uint32_t one) { return catalog.blobs[one].dtype != copy.dtype; }))
    return "";
  auto const element = static_cast<std::uint64_t>(bits(copy.dtype)) / 8;
  std::vector<Piece> const originals = taken.made();
  Piece const piece = all[other.piece];
  PairedElements pairs(model, catalog, other.tensor, {originals, blobs, element},
                       {std::span(&piece, 1), all.blobs().subspan(other.piece, 1), element}, read);
  std::uint64_t elements = 0;
  std::uint64_t differing = 0;
  std::uint32_t original = 0;
  std::string first;
  pairs.each([&](std::byte const* a, std::byte const* b) {
    ++elements;
    if (std::memcmp(a, b, element) == 0 || differing++ > 0) return;
    original = pairs.blobs().first;
    first = fmt::format("at {} ({} and {})", place_text(model, other.tensor, pairs.place()),
                        value_text(copy.dtype, std::span(a, element)),
                        value_text(copy.dtype, std::span(b, element)));
  });
  return differing == 0
             ? ""
             : copy_fault(catalog, copy, catalog.blobs[original], differing, elements, first);
}

/// This rank's slices of one pair: elements that differ, and the first.
struct SliceFindings {
  std::uint64_t differing = 0;
  std::uint64_t first = std::uint64_t(-1);  ///< element
  std::string values;                       ///< of the first, as text
};

SliceFindings compare_slices(StoredCopy const& pair, CatalogReader const& read, Comm const& comm) {
  auto const element = static_cast<std::uint64_t>(bits(pair.taken.dtype)) / 8;
  std::vector<std::byte> a;
  std::vector<std::byte> b;
  SliceFindings found;
  auto const step = slice_bytes * static_cast<std::uint64_t>(comm.size());
  for (std::uint64_t at = slice_bytes * static_cast<std::uint64_t>(comm.rank()); at < pair.bytes;
       at += step) {
    a.resize(std::min(slice_bytes, pair.bytes - at));
    b.resize(a.size());
    read(pair.taken.file, pair.taken.offset_bytes + pair.taken_at + at, a);
    read(pair.copy.file, pair.copy.offset_bytes + pair.copy_at + at, b);
    if (a == b) continue;
    for (std::uint64_t e = 0; e < a.size(); e += element) {
      if (std::memcmp(a.data() + e, b.data() + e, element) == 0 || found.differing++ > 0) continue;
      found.first = (at + e) / element;
      auto const value = [&](std::vector<std::byte> const& bytes) {
        return value_text(pair.taken.dtype, std::span(bytes).subspan(e, element));
      };
      found.values = fmt::format("{} and {}", value(a), value(b));
    }
  }
  return found;
}

/// The sentences of every rank, on every rank.
std::vector<std::string> gathered(std::vector<std::string> const& mine, Comm const& comm) {
  std::vector<std::string> all;
  for (std::string const& packed :
       comm.all_gather(Json(Json::Array(mine.begin(), mine.end())).dump())) {
    Json const list = parse_json(packed, "sentences of a rank");
    for (Json const& item : *list.items()) all.push_back(*item.text());
  }
  return all;
}

}  // namespace

ReplicaFindings compare_small_replicas(Model const& model, Catalog const& catalog,
                                       CatalogReader const& read, Comm const& comm) {
  Comparer comparer(model, catalog, read);
  ReplicaFindings findings;
  together(comm, [&] {
    std::vector<Pair> const pairs = comparer.pairs();
    findings.compared = pairs.size();
    auto const first_of = [&](int rank) {
      return pairs.size() * static_cast<std::size_t>(rank) / static_cast<std::size_t>(comm.size());
    };
    for (std::size_t p = first_of(comm.rank()); p < first_of(comm.rank() + 1); ++p)
      comparer.compare(pairs[p]);
  });
  findings.faults = gathered(comparer.faults(), comm);
  return findings;
}

bool has_copies(Catalog const& catalog) {
  return std::ranges::any_of(catalog.tensors, &TensorPieces::has_copies);
}

ReplicaFindings compare_copies(Model const& model, Catalog const& catalog,
                               CatalogReader const& read, Comm const& comm,
                               KnownEqual const& known_equal) {
  DeclaredCopies const copies = CopyFinder(model, catalog).run();
  ReplicaFindings findings;
  findings.compared = copies.alike.size() + copies.others.size();
  for (StoredCopy const& pair : copies.alike) {
    if (known_equal(pair.taken_span(), pair.copy_span())) continue;
    SliceFindings mine;
    together(comm, [&] { mine = compare_slices(pair, read, comm); });
    std::uint64_t differing = 0;
    std::uint64_t first = std::uint64_t(-1);
    std::string values;
    for (std::string const& numbers :
         comm.all_gather(fmt::format("{} {} {}", mine.differing, mine.first, mine.values))) {
      std::size_t const blank = numbers.find(' ');
      std::size_t const next = numbers.find(' ', blank + 1);
      differing += std::stoull(numbers.substr(0, blank));
      std::uint64_t const its = std::stoull(numbers.substr(blank + 1, next - blank - 1));
      if (its >= first) continue;
      first = its;
      values = numbers.substr(next + 1);
    }
    if (differing == 0) continue;
    findings.faults.push_back(
        copy_fault(catalog, pair.copy, pair.taken, differing,
                   pair.bytes * 8 / static_cast<std::uint64_t>(bits(pair.taken.dtype)),
                   fmt::format("number {} ({})", first, values)));
  }
  std::vector<std::string> mine;
  together(comm, [&] {
    for (std::size_t i = static_cast<std::size_t>(comm.rank()); i < copies.others.size();
         i += static_cast<std::size_t>(comm.size()))
      if (std::string fault = compare_other(model, catalog, copies.others[i], read); !fault.empty())
        mine.push_back(std::move(fault));
  });
  if (!copies.others.empty())
    for (std::string& fault : gathered(mine, comm)) findings.faults.push_back(std::move(fault));
  return findings;
}

}  // namespace reshard
