#include "pipeline/records/own_manifest.hpp"

#include <map>
#include <string_view>

#include <fmt/ranges.h>

#include "core/base/capture.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/shown_name.hpp"
#include "pipeline/records/source_manifest.hpp"

namespace reshard {
namespace {

/// How the tensors of a name differ: the first of each kind, and how many there are.
struct Differences {
  std::size_t missing = 0;                        ///< recorded, not found
  std::size_t unknown = 0;                        ///< found, not recorded
  TensorDigest const* unlike_recorded = nullptr;  ///< of another shape or dtype
  TensorDigest const* unlike_found = nullptr;
  std::size_t changed = 0;
  TensorDigest const* first_changed = nullptr;
};

Differences differences(Manifest const& manifest, std::span<TensorDigest const> found) {
  Differences result;
  std::map<std::string_view, TensorDigest const*> there;
  for (TensorDigest const& tensor : found) there.emplace(tensor.name, &tensor);
  for (TensorDigest const& recorded : manifest.tensors) {
    auto const at = there.find(recorded.name);
    if (at == there.end()) {
      ++result.missing;
      continue;
    }
    TensorDigest const& tensor = *at->second;
    there.erase(at);
    if (tensor.shape != recorded.shape || tensor.dtype != recorded.dtype) {
      if (result.unlike_found != nullptr) continue;
      result.unlike_recorded = &recorded;
      result.unlike_found = &tensor;
    } else if (tensor.crc64 != recorded.crc64) {
      if (result.changed++ == 0) result.first_changed = &tensor;
    }
  }
  result.unknown = there.size();
  return result;
}

}  // namespace

std::optional<Manifest> own_manifest(std::filesystem::path const& path, Checkpoint const& source,
                                     std::vector<std::string>& notes) {
  std::optional<Manifest> manifest;
  auto const error = capture([&] { manifest = manifest_of(path, source, notes); });
  if (error && error->kind() != ErrorKind::source) throw *error;
  if (error) notes.push_back(error->sentence());
  return manifest;
}

Index vocab_in(Manifest const& manifest) {
  for (TensorDigest const& tensor : manifest.tensors)
    for (std::size_t d = 0; d < tensor.axes.size(); ++d)
      if (tensor.axes[d] == "vocab") return tensor.shape[d];
  return manifest.vocab;
}

std::string why_other_total(Manifest const& manifest, std::span<TensorDigest const> found,
                            std::string const& place) {
  if (manifest.total.empty() || manifest.total == total_digest(found)) return "";
  std::string const records = fmt::format("{} records the total {}", place, manifest.total);
  Differences const differ = differences(manifest, found);
  if (differ.unknown > 0)
    return fmt::format(
        "{}: it names the tensors by the map {}, here {} of {} have other names. Leave out --map, "
        "or give --map {}.",
        records, manifest.map.empty() ? "of its format" : json_quoted(manifest.map), differ.unknown,
        found.size(), manifest.map.empty() ? "auto" : manifest.map);
  if (differ.unlike_found != nullptr)
    return fmt::format(
        "{}: there '{}' is {} [{}], here it is {} [{}]. Leave out --map and --config to count as "
        "it does.",
        records, shown_name(differ.unlike_recorded->name), differ.unlike_recorded->dtype,
        fmt::join(differ.unlike_recorded->shape, ", "), differ.unlike_found->dtype,
        fmt::join(differ.unlike_found->shape, ", "));
  if (differ.changed > 0)
    return fmt::format(
        "{}: {} of its {} tensors have other values now, the first is '{}'. `reshard verify` names "
        "the files that changed.",
        records, differ.changed, manifest.tensors.size(), shown_name(differ.first_changed->name));
  return fmt::format("{}: it has {}, {} of which {} left out here.", records,
                     counted(manifest.tensors.size(), "tensor"), differ.missing,
                     differ.missing == 1 ? "is" : "are");
}

}  // namespace reshard
