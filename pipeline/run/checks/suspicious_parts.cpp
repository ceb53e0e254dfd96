#include "pipeline/run/checks/suspicious_parts.hpp"

#include <algorithm>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/base/text/shown_name.hpp"
#include "core/base/text/text.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/verify/suspects/suspect_tensors.hpp"

namespace reshard {
namespace {

/// Rows of a warning.
constexpr std::size_t most_shown = 3;

enum class Which { all, judged };

/// Calls `take` for each tensor whose slices have sums, or also for those that no sum can make a
/// suspect: there may be a million of them.
void for_each_sliced(PlannedJob const& job, Which which,
                     std::function<void(TensorId, SlicedTensor)> const& take) {
  Model const& model = *job.plan.model;
  Catalog const& source = job.plan.source;
  std::vector<std::uint64_t> const& bytes_of = job.plan.plan.tensor_bytes;
  for (std::size_t t = 0; t < model.tensors().size() && t < bytes_of.size(); ++t) {
    auto const id = TensorId(t);
    auto const blobs = source.tensors[t].blobs();
    std::uint64_t const bytes = bytes_of[index(digest_of(id))];
    if (bytes == 0 || blobs.empty() || model.tensor(id).slot != SlotId::weight) continue;
    if (which == Which::judged && !can_be_suspect(model, id)) continue;
    DType const dtype = source.blobs[blobs.front()].dtype;
    if (bits(dtype) % 8 != 0) continue;
    SlicedTensor one = sliced_tensor(model, id, dtype);
    if (one.slice_bytes * one.tensor.slices.size() == bytes) take(id, std::move(one));
  }
}

/// By the names of all tensors: those that are judged alone are not the model.
void note_repeated_of(PlannedJob const& job, MapLibrary const& library,
                      std::vector<SuspectTensor>& tensors) {
  std::vector<SuspectTensor> all;
  for_each_sliced(job, Which::all,
                  [&](TensorId, SlicedTensor one) { all.push_back(std::move(one.tensor)); });
  note_repeated(job.plan, library, all);
  std::unordered_map<std::string_view, SuspectTensor const*> by_name;
  for (SuspectTensor const& one : all) by_name.emplace(one.name, &one);
  for (SuspectTensor& tensor : tensors) tensor.repeated = by_name.at(tensor.name)->repeated;
}

std::string shown(Suspect const& one) {
  return fmt::format("{}: {}: {}", word_of(one.kind), shown_name(one.tensor), one.found);
}

}  // namespace

std::unique_ptr<PartSums> part_sums_of(PlannedJob const& job) {
  if (job.plan.plan.shape_digests.empty()) return nullptr;
  std::vector<PartedTensor> parted;
  for_each_sliced(job, Which::judged, [&](TensorId id, SlicedTensor const& one) {
    parted.resize(index(id) + 1);
    parted.back() = {one.slice_bytes, one.tensor.slices.size()};
  });
  return std::make_unique<PartSums>(std::move(parted));
}

std::string suspicious_parts(PlannedJob const& job, PartSums const* sums, MapLibrary const& library,
                             Comm const& comm) {
  if (sums == nullptr) return "";
  std::vector<PartSum> const parts = sums->merged(comm);
  std::vector<SuspectTensor> tensors;
  std::vector<SliceValues> slices(parts.size());
  for_each_sliced(job, Which::judged, [&](TensorId id, SlicedTensor one) {
    SuspectTensor& tensor = tensors.emplace_back(std::move(one.tensor));
    tensor.first_slice = sums->first_part(digest_of(id));
    std::uint64_t const element = static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
    for (std::size_t s = 0; s < tensor.slices.size(); ++s) {
      PartSum const& sum = parts[tensor.first_slice + s];
      if (sum.bytes != one.slice_bytes) continue;  // then it has no elements: nothing is said of it
      SliceValues& is = slices[tensor.first_slice + s];
      is.elements = one.slice_bytes / element;
      is.zero = sum.crc64 == 0 ? is.elements : 0;
      is.uniform = sum.crc64 == 0 ? 1 : 0;
      is.crc64 = sum.crc64;
    }
  });
  std::vector<Suspect> found = suspects_in(tensors, slices);
  if (found.empty()) return "";
  if (std::ranges::find(found, SuspectKind::equal, &Suspect::kind) != found.end()) {
    together_seeing(comm, [&] { note_repeated_of(job, library, tensors); });
    found = suspects_in(tensors, slices);
    if (found.empty()) return "";
  }
  std::vector<std::string> rows;
  for (std::size_t i = 0; i < found.size() && i < most_shown; ++i) rows.push_back(shown(found[i]));
  if (found.size() > most_shown) rows.push_back(fmt::format("{} more", found.size() - most_shown));
  return fmt::format(
      "a sound model does not have {} of what was converted ({}). The conversion is exact; look at "
      "the source with `reshard suspects`, which says what usually causes it.",
      found.size() == 1 ? "one part" : fmt::format("{} parts", found.size()),
      fmt::join(rows, "; "));
}

}  // namespace reshard
