#include "stages/plan/source/merged_adapter.hpp"

#include <algorithm>
#include <set>

#include "core/base/sight.hpp"
#include "core/formats/manifest/file_records.hpp"
#include "stages/plan/source/peft_adapter.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Each file with a fingerprint of its bytes.
Json files_json(Checkpoint const& adapter) {
  Json files = Json::array();
  for (std::size_t f = 0; f < adapter.files.size(); ++f) {
    fs::path const& file = adapter.files[f];
    std::string const fingerprint =
        seen("fingerprint", file, [&] { return hex64(record_of(file, file.parent_path()).xxh3); });
    files.push(Json()
                   .set("path", file.filename().string())
                   .set("size_bytes", static_cast<std::uint64_t>(adapter.stamps[f].bytes))
                   .set("xxh3", fingerprint));
  }
  return files;
}

Json adapter_record(Checkpoint const& adapter, LowRankPairs const& pairs) {
  std::set<std::string> modules;
  std::set<float> scales;
  for (LowRankPair const& pair : pairs.pairs()) {
    modules.insert(pair.name);
    scales.insert(pair.scale);
  }
  Json shown = Json::array();
  for (float const scale : scales) shown.push(static_cast<double>(scale));
  return Json()
      .set("path", adapter.root.string())
      .set("modules", static_cast<std::int64_t>(modules.size()))
      .set("scale", scales.size() == 1 ? shown.items()->front() : shown)
      .set("files", files_json(adapter));
}

}  // namespace

void merge_adapter(Checkpoint const& source, TargetRequest const& request, SourceModel& read) {
  if (!source.adapter) return;
  Checkpoint const& adapter = *source.adapter;
  if (read.model->slots().size() > 1)
    fail(
        ErrorKind::source,
        "{}: holds optimizer state, which belongs to the weights before the adapter is merged. Set "
        "source.optimizer = \"drop\".",
        source.place);
  if (!read.maps.family)
    fail(ErrorKind::usage,
         "[model] map = \"{}\": the adapter's names are those of the model's family, and it is not "
         "known which one that is. Name its map with model.map, or its config.json with "
         "source.config.",
         request.map);
  auto const has = [&](std::string_view name) {
    return source.names == NameOwner::family && read.view.weights.contains(std::string(name));
  };
  LowRankPairs const pairs = peft_pairs(adapter, *read.model, *read.maps.family, has,
                                        narrow<std::uint32_t>(source.own_files()));
  pairs.merge_into(read.catalog);
  read.merged_adapter = adapter_record(adapter, pairs);
}

}  // namespace reshard
