#include "stages/plan/adapter/merged_adapter.hpp"

#include <algorithm>
#include <set>

#include "core/base/files/sight.hpp"
#include "core/formats/huggingface/config/lora_config.hpp"
#include "core/formats/manifest/file_records.hpp"
#include "stages/plan/adapter/adapter_pairs.hpp"
#include "stages/plan/adapter/adapter_terms.hpp"
#include "stages/plan/adapter/magnitudes.hpp"
#include "stages/plan/adapter/peft_adapter.hpp"
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
                   .set("size_bytes", static_cast<std::uint64_t>(adapter.stamps.taken[f].bytes))
                   .set("xxh3", fingerprint));
  }
  return files;
}

/// The adapter as a source of its own, of the same model.
SourceModel read_adapter(Checkpoint const& source, PlanRequest const& request,
                         SourceModel const& read) {
  Checkpoint described = *source.others.adapter;
  if (described.model.config.is_null()) described.model.config = read.facts.config;
  PlanRequest own;
  own.target.format = FormatId::megatron;
  own.read.map = request.read.map;
  own.read.library = request.read.library;
  own.read.true_vocab_size = request.read.true_vocab_size;
  own.read.drop_optimizer = true;
  own.read.drop_rng = true;
  return read_source_model(described, own, false);
}

/// The settings in adapter_config.json, or the job's in its place.
huggingface::LoraConfig config_of(std::optional<huggingface::Folder> const& files,
                                  Checkpoint const& adapter, PlanRequest const& request) {
  if (files)
    if (auto config = huggingface::lora_config(*files, huggingface::LoraUse::merge))
      return *std::move(config);
  Json stated = Json::object();
  stated.set("peft_type", "LORA")
      .set("lora_alpha",
           huggingface::stated_alpha(
               request.read.lora_alpha, adapter.shares.shape ? adapter.shares.shape->alpha : Json(),
               adapter.place + " does not state the alpha of its adapter, which scales it. Set "
                               "model.lora_alpha."));
  return {stated, "[model] lora_alpha", huggingface::LoraUse::merge};
}

LowRankPairs pairs_of(Checkpoint const& source, PlanRequest const& request,
                      SourceModel const& read) {
  Checkpoint const& adapter = *source.others.adapter;
  auto const first_file = source.adapter_inside() ? 0 : narrow<std::uint32_t>(source.own_files());
  MapFile const* const family = read.names.maps.family ? &*read.names.maps.family : nullptr;
  auto const pairs = [&](SourceModel const& from, huggingface::LoraConfig const& config,
                         Magnitudes const* magnitudes = nullptr) {
    if ((magnitudes == nullptr) == config.normalised())
      fail(ErrorKind::source,
           "{}: states use_dora = {}, and the adapter has {} (lora_magnitude_vector). The two "
           "files belong to different adapters: copy both from one.",
           config.place(), config.normalised(),
           magnitudes == nullptr ? "no magnitudes" : "magnitudes");
    return adapter_pairs(from, *read.model, AdapterTerms(config, *read.model, family), first_file,
                         magnitudes);
  };
  if (adapter.names == NameOwner::megatron) {
    SourceModel const from = read_adapter(source, request, read);
    return pairs(from, config_of(from.facts.files, adapter, request));
  }
  huggingface::LoraConfig const config = config_of(adapter.model.beside, adapter, request);
  auto const has = [&](std::string_view name) {
    return source.names == NameOwner::family && read.facts.view.weights.contains(std::string(name));
  };
  Magnitudes const magnitudes(adapter);
  if (magnitudes.none()) return pairs(peft_adapter(adapter, read, config, has), config);
  return pairs(peft_adapter(magnitudes.others(), read, config, has), config, &magnitudes);
}

}  // namespace

Json adapter_record(Checkpoint const& source, LowRankPairs const& pairs) {
  Checkpoint const& adapter = *source.others.adapter;
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
      .set("files", source.adapter_inside() ? Json::array() : files_json(adapter));
}

void merge_adapter(Checkpoint const& source, PlanRequest const& request, SourceModel& read) {
  if (!source.others.adapter) return;
  Checkpoint const& adapter = *source.others.adapter;
  if (read.model->slots().size() > 1)
    fail(
        ErrorKind::source,
        "{}: holds optimizer state, which belongs to the weights before the adapter is merged. Set "
        "source.optimizer = \"drop\".",
        source.place);
  RESHARD_EXPECT(read.names.maps.family ||
                 adapter.names == NameOwner::megatron);  // make_model() chose
  LowRankPairs const pairs = pairs_of(source, request, read);
  pairs.merge_into(read.stored.catalog);
  read.stored.merged_adapter = adapter_record(source, pairs);
}

}  // namespace reshard
