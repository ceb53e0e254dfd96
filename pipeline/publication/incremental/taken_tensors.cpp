#include "pipeline/publication/incremental/taken_tensors.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>

#include "core/base/hash/xxh3.hpp"
#include "core/base/range.hpp"
#include "core/base/tables/integers.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "core/plan/equal/unread.hpp"
#include "pipeline/records/target_check.hpp"

namespace reshard {
namespace {

/// A number for what the bytes of a tensor of the target mean.
std::uint64_t meaning_of(JobPlan const& plan, PieceShare const& share) {
  std::size_t const digest = index(share.digest);
  std::string text;
  if (digest < plan.model->tensors().size()) {
    text = fmt::format("{} {} [{}]", plan.model->tensors()[digest].name,
                       name(plan.target.blobs[share.blob].dtype),
                       fmt::join(logical_shape(*plan.model, TensorId(digest)), ", "));
  } else {
    text = fmt::format("object {}", plan.plan.tensor_bytes[digest]);
  }
  Xxh3 hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.value();
}

class Layouts {
 public:
  explicit Layouts(JobPlan const& plan) : plan_(plan), work_(target_digest_work(plan)) {}

  std::vector<std::uint64_t> of_files() {
    std::vector<std::uint32_t> order(work_.regions.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return place_of(work_.regions[a]) < place_of(work_.regions[b]);
    });
    std::vector<std::uint64_t> layouts(plan_.files.size(), Xxh3().value());
    for (auto first = order.begin(); first != order.end();) {
      std::uint32_t const file = work_.regions[*first].src_file;
      auto const last = std::find_if(
          first, order.end(), [&](std::uint32_t r) { return work_.regions[r].src_file != file; });
      Xxh3 hash;
      for (; first != last; ++first) add(hash, work_.regions[*first]);
      layouts[file] = hash.value();
    }
    return layouts;
  }

 private:
  static std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, ShareId> place_of(
      ShareRegion const& region) {
    return {region.src_file, region.src_offset_bytes, region.dst_offset_bytes, region.to};
  }

  void add(Xxh3& hash, ShareRegion const& region) {
    words_ = {meaning(region.to), region.src_offset_bytes, region.dst_offset_bytes,
              region.run_bytes, region.dim_count};
    for (std::uint32_t d = 0; d < region.dim_count; ++d) {
      ByteDim const& dim = work_.dims[region.first_dim + d];
      words_.insert(words_.end(), {dim.count, static_cast<std::uint64_t>(dim.from_stride),
                                   static_cast<std::uint64_t>(dim.to_stride)});
    }
    hash.add(std::as_bytes(std::span(words_)));
  }

  /// Regions of a tensor are neighbours.
  std::uint64_t meaning(ShareId id) {
    if (id != share_) meaning_ = meaning_of(plan_, work_.share(id));
    share_ = id;
    return meaning_;
  }

  JobPlan const& plan_;
  DigestWork work_;
  ShareId share_{UINT32_MAX};
  std::uint64_t meaning_ = 0;
  std::vector<std::uint64_t> words_;
};

/// Takes tensors out of a choice until the rest can be taken.
class Chooser {
 public:
  Chooser(JobPlan const& plan, std::span<std::optional<std::uint64_t> const> same,
          std::vector<bool> const& usable)
      : plan_(plan), usable_(usable), chosen_(plan.plan.tensor_bytes.size(), false) {
    for (std::size_t t = 0; t < plan.target.tensors.size() && t < same.size(); ++t)
      chosen_[t] = same[t].has_value() && !plan.target.tensors[t].empty() &&
                   padding_pieces(*plan.model, TensorId(t)).empty();
    for (StateCheck const& check : plan.plan.checks) chosen_[index(digest_of(check.state))] = false;
    for (std::size_t f = 0; f < usable_.size(); ++f)
      if (!plan.files[f].frame->records().empty()) usable_[f] = false;
  }

  std::vector<bool> run() {
    do {
      changed_ = false;
      refuse_in_files();
      refuse_in_mixed_blobs();
      if (!changed_) refuse_gaps();
    } while (changed_);
    return chosen_;
  }

  std::vector<FileSpan> places() const {
    std::vector<std::uint64_t> bytes(plan_.target.blobs.size(), 0);
    for (std::size_t t = 0; t < plan_.target.tensors.size(); ++t) {
      if (!chosen_[t]) continue;
      TensorPieces const& pieces = plan_.target.tensors[t];
      for (std::size_t p = 0; p < pieces.size(); ++p) {
        std::uint32_t const b = pieces.blob(p);
        auto const width = static_cast<Index>(bits(plan_.target.blobs[b].dtype));
        bytes[b] =
            std::max(bytes[b], static_cast<std::uint64_t>((pieces.reach_of(p) * width + 7) / 8));
      }
    }
    std::vector<FileSpan> places;
    for (std::size_t b = 0; b < bytes.size(); ++b) {
      Blob const& blob = plan_.target.blobs[b];
      if (bytes[b] > 0)
        places.push_back({blob.file, blob.offset_bytes, blob.offset_bytes + bytes[b]});
    }
    return united(std::move(places));
  }

 private:
  /// Bytes of the chosen tensors, by target file.
  std::vector<std::uint64_t> written() const {
    std::vector<std::uint64_t> bytes(plan_.files.size(), 0);
    for (Cell const& cell : plan_.plan.cells) {
      DigestId const digest = plan_.plan.digest_of(cell);
      if (digest == DigestId::none || !chosen_[index(digest)]) continue;
      for (Region const& region : plan_.plan.regions_of(cell))
        bytes[region.to] += bytes_of(region, plan_.plan.dims_of(region));
    }
    return bytes;
  }

  template <class Refused>
  void refuse_if(Refused const& refused) {
    for (std::size_t t = 0; t < plan_.target.tensors.size(); ++t) {
      if (!chosen_[t] || std::ranges::none_of(plan_.target.tensors[t].blobs(), refused)) continue;
      chosen_[t] = false;
      changed_ = true;
    }
  }
  void refuse_in_files() {
    refuse_if([&](std::uint32_t b) { return !usable_[plan_.target.blobs[b].file]; });
  }
  void refuse_in_mixed_blobs() {
    std::vector<bool> mixed(plan_.target.blobs.size(), false);
    for (std::size_t t = 0; t < plan_.target.tensors.size(); ++t)
      if (!chosen_[t])
        for (std::uint32_t const b : plan_.target.tensors[t].blobs()) mixed[b] = true;
    refuse_if([&](std::uint32_t b) { return mixed[b]; });
  }
  /// Files in which the plan does not bring every byte of the places.
  void refuse_gaps() {
    std::vector<std::uint64_t> left = written();
    for (FileSpan const& place : places()) left[place.file] -= place.end - place.begin;
    for (std::size_t f = 0; f < left.size(); ++f) {
      if (left[f] == 0) continue;
      usable_[f] = false;
      changed_ = true;
    }
  }

  JobPlan const& plan_;
  std::vector<bool> usable_;  ///< by file
  std::vector<bool> chosen_;  ///< by DigestId
  bool changed_ = false;
};

}  // namespace

std::vector<std::uint64_t> file_layouts(JobPlan const& plan) { return Layouts(plan).of_files(); }

TakenTensors choose_taken(JobPlan const& plan, std::span<std::optional<std::uint64_t> const> same,
                          std::vector<bool> const& usable) {
  Chooser chooser(plan, same, usable);
  TakenTensors taken{chooser.run(), {}, {}};
  taken.places = chooser.places();
  if (taken.empty()) return {};
  taken.digests.resize(taken.tensors.size(), 0);
  for (std::size_t t = 0; t < taken.tensors.size(); ++t)
    if (taken.tensors[t]) taken.digests[t] = *same[t];
  return taken;
}

JournalEntry work_of_taken(JobPlan const& plan, TakenTensors const& taken) {
  JournalEntry work;
  std::vector<std::uint64_t> written(plan.files.size(), 0);
  for (std::size_t i = 0; i < plan.plan.cells.size(); ++i) {
    DigestId const digest = plan.plan.digest_of(plan.plan.cells[i]);
    if (digest != DigestId::none && taken.tensors[index(digest)]) work.cells.push_back({i, i + 1});
  }
  work.cells = united(std::move(work.cells));
  for (FileSpan const& place : taken.places) written[place.file] += place.end - place.begin;
  for (std::size_t f = 0; f < written.size(); ++f)
    if (written[f] > 0) work.written.push_back({f, written[f]});
  for (std::size_t t = 0; t < taken.tensors.size(); ++t)
    if (taken.tensors[t]) work.digested.push_back({t, plan.plan.tensor_bytes[t]});
  return work;
}

BlockParts in_blocks(std::span<FileSpan const> places, std::uint64_t block_bytes,
                     std::uint64_t size_bytes) {
  BlockParts parts;
  for (FileSpan const& place : places) {
    std::uint64_t const begin = (place.begin + block_bytes - 1) / block_bytes * block_bytes;
    std::uint64_t const end =
        place.end == size_bytes ? size_bytes : place.end / block_bytes * block_bytes;
    if (begin >= end) {
      parts.rest.push_back(place);
      continue;
    }
    if (place.begin < begin) parts.rest.push_back({place.file, place.begin, begin});
    parts.blocks.push_back({place.file, begin, end});
    if (end < place.end) parts.rest.push_back({place.file, end, place.end});
  }
  return parts;
}

}  // namespace reshard
