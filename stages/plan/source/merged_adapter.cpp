#include "stages/plan/source/merged_adapter.hpp"

#include <algorithm>
#include <set>

#include "core/base/sight.hpp"
#include "core/formats/huggingface/lora_config.hpp"
#include "core/formats/manifest/file_records.hpp"
#include "stages/plan/source/adapter_pairs.hpp"
#include "stages/plan/source/peft_adapter.hpp"
#include "stages/plan/source/source_model.hpp"

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

/// The adapter as a source of its own, of the same model.
SourceModel read_adapter(Checkpoint const& source, TargetRequest const& request,
                         SourceModel const& read) {
  Checkpoint described = *source.adapter;
  if (described.config.is_null()) described.config = read.config;
  TargetRequest own;
  own.format = FormatId::megatron;
  own.map = request.map;
  own.map_folders = request.map_folders;
  own.true_vocab_size = request.true_vocab_size;
  own.drop_optimizer = true;
  own.drop_rng = true;
  return read_source_model(described, own, false);
}

/// The scale of an adapter in Megatron's names: adapter_config.json lies beside it, or the job says
/// alpha.
std::function<float(Index)> scale_of(SourceModel const& adapter, std::string const& place,
                                     TargetRequest const& request) {
  Json const config = adapter.files ? adapter.files->adapter : Json();
  if (config.is_null() && request.adapter_alpha.empty())
    fail(ErrorKind::usage,
         "[model] lora_alpha: {} does not state the alpha of its adapter, which scales it. Set "
         "model.lora_alpha.",
         place);
  Json stated = config;
  if (config.is_null())
    stated.set("peft_type", "LORA")
        .set("lora_alpha", parse_json(request.adapter_alpha, "[model] lora_alpha"));
  huggingface::LoraConfig const lora(stated, place);
  if (!lora.same_alpha())
    fail(
        ErrorKind::source,
        "{}: alpha_pattern names modules of peft, and this adapter has Megatron's names. Convert it "
        "to a folder of peft first (target.format = \"huggingface\"), and merge that.",
        place);
  return [lora](Index rank) { return lora.scale("", rank); };
}

LowRankPairs pairs_of(Checkpoint const& source, TargetRequest const& request,
                      SourceModel const& read) {
  auto const first_file = narrow<std::uint32_t>(source.own_files());
  if (source.adapter->names == NameOwner::megatron) {
    SourceModel const adapter = read_adapter(source, request, read);
    return adapter_pairs(adapter, *read.model, scale_of(adapter, source.adapter->place, request),
                         first_file);
  }
  auto const has = [&](std::string_view name) {
    return source.names == NameOwner::family && read.view.weights.contains(std::string(name));
  };
  return peft_pairs(*source.adapter, *read.model, *read.maps.family, has, first_file);
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
  if (!read.maps.family && adapter.names != NameOwner::megatron)
    fail(ErrorKind::usage,
         "[model] map = \"{}\": the adapter's names are those of the model's family, and it is not "
         "known which one that is. Name its map with model.map, or its config.json with "
         "source.config.",
         request.map);
  LowRankPairs const pairs = pairs_of(source, request, read);
  pairs.merge_into(read.catalog);
  read.merged_adapter = adapter_record(adapter, pairs);
}

}  // namespace reshard
