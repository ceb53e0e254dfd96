#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/files/file.hpp"
#include "core/base/member_file.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/safetensors/header_frame.hpp"
#include "core/formats/huggingface/config/adapter_config.hpp"
#include "core/formats/huggingface/config/quant_config.hpp"
#include "core/formats/huggingface/reference_weights.hpp"
#include "core/formats/huggingface/shards.hpp"
#include "core/formats/huggingface/source.hpp"
#include "core/formats/model_files.hpp"
#include "core/formats/targets/target_parts.hpp"
#include "core/mapping/adapter.hpp"
#include "core/mapping/maps/config_defaults.hpp"

namespace reshard {

void add_sidecars(TargetDraft& job, HuggingFaceTarget const& target) {
  if (!target.reference) {
    if (!target.config_text.empty())
      job.texts.push_back({std::string(huggingface::config_name), target.config_text, false, {}});
    return;
  }
  if (!target.reference->config.is_null())
    job.texts.push_back(
        {std::string(huggingface::config_name), target.reference->config_text, false, {}});
  job.reference = target.reference;
  job.reference->weight_map = {};  // of a target, too, an index says that
}

void add_file_metadata(TargetDraft& job, std::optional<huggingface::Folder> const& files,
                       std::filesystem::path const& folder) {
  if (!files || files->file_metadata.empty()) return;
  if (files->config.is_null()) {
    job.warnings.push_back(fmt::format(
        "{}: the headers of its files have more metadata than \"format\" ({}), and without a "
        "config.json it does not come along. On the way back to safetensors give target.reference, "
        "this folder",
        files->path.string(), files->file_metadata.front().entries.front().first));
    return;
  }
  job.texts.push_back({folder / huggingface::metadata_file_name,
                       huggingface::metadata_text(files->file_metadata),
                       false,
                       {}});
}

void add_carried(TargetDraft& job, std::optional<huggingface::Folder> const& files) {
  std::filesystem::path const folder = huggingface::carried_name;
  add_file_metadata(job, files, folder);
  if (!files || files->config.is_null()) return;
  job.texts.push_back({folder / huggingface::config_name, files->config_text, false, {}});
  if (!files->adapter.is_null())
    job.texts.push_back(
        {folder / huggingface::adapter_config_name, files->adapter_text, false, {}});
  if (files->indexed && files->adapter.is_null()) {
    auto const index = readable_member(files->path, huggingface::index_name);
    job.texts.push_back({folder / huggingface::index_name, {}, false, [index] {
                           return read_text_file(index, huggingface::largest_index_bytes);
                         }});
  }
  job.reference = files;
  job.reference_to = folder;
}

namespace {

/// That of the reference as it is, where it says the same.
void add_index(TargetDraft& job, std::span<huggingface::ShardFile const> shards,
               std::span<TensorSpec const> specs, HuggingFaceTarget const& target,
               huggingface::ReferenceWeights& reference) {
  std::unordered_map<SharedText, SharedText> file_of;
  std::uint64_t bytes = 0;
  for (huggingface::ShardFile const& shard : shards) {
    SharedText const name = shard.name;
    for (std::size_t const t : shard.tensors) {
      file_of.emplace(specs[t].name, name);
      bytes += safetensors::tensor_bytes(specs[t]);
    }
  }
  if (reference.has_index_of(file_of, bytes)) {
    auto const index = readable_member(target.reference->path, huggingface::index_name);
    job.texts.push_back({std::string(huggingface::index_name), {}, true, [index] {
                           return read_text_file(index, huggingface::largest_index_bytes);
                         }});
    return;
  }
  if (!huggingface::needs_index(shards, target.stem)) return;
  Json const metadata = target.reference ? target.reference->index_metadata : Json();
  job.texts.push_back({target.stem + ".safetensors.index.json",
                       huggingface::index_json(shards, specs, metadata),
                       true,
                       {}});
}

/// Entries that have several values in the source's files, for a file that is none of these.
void warn_of_lost_metadata(TargetDraft& job, std::span<huggingface::ShardFile const> shards,
                           HuggingFaceTarget const& target) {
  std::vector<std::string> lost;
  for (huggingface::ShardFile const& shard : shards)
    huggingface::metadata_of(target.metadata, shard.name, lost);
  if (!lost.empty())
    job.warnings.push_back(fmt::format(
        "the headers of the source's files say different things of {}, and the target's files have "
        "other tensors: these entries are left out. Give target.reference, the folder whose files "
        "the target shall have",
        listed(lost)));
}

/// An index that is followed says which tensors share a file.
void warn_of_larger_shards(TargetDraft& job, std::span<huggingface::ShardFile const> shards,
                           std::uint64_t shard_bytes, HuggingFaceTarget const& target) {
  auto const largest = std::ranges::max_element(
      shards, {}, [](huggingface::ShardFile const& shard) { return shard.plan.size_bytes; });
  bool const stated = shard_bytes != huggingface::default_largest_shard_bytes;
  if (!stated || !target.reference || largest == shards.end() || largest->tensors.size() < 2 ||
      largest->plan.size_bytes <= shard_bytes + largest->plan.header.size())
    return;
  job.warnings.push_back(fmt::format(
      "target.shard_bytes = {} is not followed, because the tensors lie in files as in {}: {} has "
      "{}",
      human_bytes(shard_bytes), target.reference->path.string(), largest->name,
      human_bytes(largest->plan.size_bytes)));
}

}  // namespace

void place_in_shards(TargetDraft& job, std::span<TensorSpec const> specs, std::uint64_t shard_bytes,
                     HuggingFaceTarget const& target,
                     std::function<std::vector<Piece>(std::size_t)> const& pieces,
                     std::vector<bool> const& copies) {
  huggingface::ReferenceWeights reference(target.reference);
  auto shards = huggingface::plan_shards(specs, shard_bytes, reference, job.data_layout,
                                         target.metadata, target.stem);
  warn_of_lost_metadata(job, shards, target);
  warn_of_larger_shards(job, shards, shard_bytes, target);
  for (std::uint32_t f = 0; f < shards.size(); ++f) {
    job.files.push_back({shards[f].name,
                         shards[f].plan.size_bytes,
                         {},
                         std::make_shared<safetensors::HeaderFrame const>(
                             std::exchange(shards[f].plan.header, {}))});
    job.target.files.push_back(shards[f].name);
    for (std::size_t i = 0; i < shards[f].tensors.size(); ++i) {
      std::size_t const t = shards[f].tensors[i];
      job.target.add({f, shards[f].plan.offset_bytes[i], specs[t].dtype, specs[t].name}, pieces(t),
                     !copies.empty() && copies[t]);
      job.shapes.emplace_back(specs[t].shape);
    }
  }
  add_sidecars(job, target);
  add_index(job, shards, specs, target, reference);
}

void plan_huggingface_target(TargetDraft& job, TargetParts const& parts,
                             HuggingFaceTarget const& target) {
  std::vector<StoredName> const names = parts.side->names(nullptr);
  std::vector<TensorSpec> specs;
  std::vector<bool> copies;
  for (StoredName const& name : names) {
    specs.push_back(
        {name.name, stored_dtype(parts, name), parts.side->layout(name.entry, {}).file_shape});
    copies.push_back(name.copy);
  }
  auto const pieces = [&](std::size_t t) { return parts.side->pieces(names[t], {}); };
  place_in_shards(job, specs, parts.request->options.huggingface.shard_bytes, target, pieces,
                  copies);
}

}  // namespace reshard

namespace reshard::huggingface {
namespace {

/// Files that some tokenizer of transformers loads: tokenizer.json, tokenizer.model, vocab.json,
/// spiece.model, qwen.tiktoken, tekken.json.
bool is_of_tokenizer(std::string const& file) {
  constexpr std::array<std::string_view, 6> patterns = {"*tokenizer*", "*.tiktoken", "vocab.*",
                                                        "*.model",     "*.spm",      "tekken.json"};
  return std::ranges::any_of(patterns,
                             [&](std::string_view one) { return matches_glob(one, file); });
}

/// The weights alone are no model that can be used. Without a config.json there is more to say.
void add_tokenizer(Checkpoint const& source, std::string const& reference, TargetDraft& draft) {
  bool const has_config = std::ranges::any_of(
      draft.texts, [](TextFile const& text) { return text.path == config_name; });
  if (!has_config ||
      (draft.reference && std::ranges::any_of(draft.reference->sidecars, is_of_tokenizer)))
    return;
  if (auto const found = tokenizer_of(source)) {
    for (std::string const& name : found->sidecars)
      if (name != config_name &&
          (!draft.reference ||
           std::ranges::find(draft.reference->sidecars, name) == draft.reference->sidecars.end()))
        draft.side_copies.push_back({found->path / name, name});
    return;
  }
  std::string const place = reference.empty() ? "the source" : reference;
  draft.warnings.push_back(fmt::format(
      "the target gets no tokenizer, because {} has none. Copy the model's tokenizer files into the "
      "target, or set target.reference to a folder of this model that has them",
      place));
}

/// A folder of peft: one file, adapter_config.json, and what came with the adapter.
void lay_out_adapter(MappedTarget const& job, TargetDraft& draft) {
  SideOptions options;
  options.adapter = "peft";
  options.has = [&job](std::string_view name) {
    return means_module_of(job.read.facts.packed_parameters, name);
  };
  Side const side(job.model, *job.read.names.maps.family, std::move(options));
  std::vector<StoredName> names = side.names(nullptr);
  std::ranges::sort(names, {}, &StoredName::name);  // as safetensors writes what peft gives it
  std::vector<TensorSpec> specs;
  std::vector<bool> copies;
  TargetParts const parts{&job.model, &side, job.dtypes, &job.request};
  for (StoredName const& name : names) {
    specs.push_back({name.name, stored_dtype(parts, name), side.layout(name.entry, {}).file_shape});
    copies.push_back(name.copy);
  }
  auto const pieces = [&](std::size_t t) { return side.pieces(names[t], {}); };
  place_in_shards(draft, specs, std::numeric_limits<std::uint64_t>::max(), {}, pieces, copies);
  RESHARD_EXPECT(draft.files.size() == 1);
  draft.files.front().path = adapter_file_name;
  draft.target.files.front() = adapter_file_name;
  draft.texts.push_back(
      {std::string(adapter_config_name), adapter_config_text(job, side, names), false, {}});
  draft.reference = job.read.facts.reference;
  if (draft.reference) std::erase(draft.reference->sidecars, std::string(adapter_config_name));
}

/// transformers loads weights in the dtype that config.json names, except scales of
/// quantised ones.
void warn_of_dtype(Checkpoint const& source, PlanRequest const& request, TargetDraft& draft,
                   bool quantised) {
  TextFile const* config = config_text(draft);
  if (config == nullptr || request.target.cast ||
      dynamic_cast<HuggingFaceFormat const*>(source.format) != nullptr)
    return;
  Json const read = parse_config(config->text, config_name);
  if (quantised || !fact(read, "quantization_config").is_null()) return;
  Json named = fact(read, "dtype");
  if (named.is_null()) named = fact(read, "torch_dtype");
  constexpr std::array<std::tuple<std::string_view, DType, std::string_view>, 3> known = {
      {{"bfloat16", DType::bf16, "bf16"},
       {"float16", DType::f16, "fp16"},
       {"float32", DType::f32, "f32"}}};
  auto const stated = std::ranges::find_if(known, [&](auto const& one) {
    return named.text() != nullptr && *named.text() == std::get<0>(one);
  });
  if (stated == known.end()) return;
  for (auto const& [word, dtype, key] : known) {
    auto const count = std::ranges::count(draft.target.blobs, dtype, &Blob::dtype);
    if (dtype == std::get<1>(*stated) || 2 * count <= std::ssize(draft.target.blobs)) continue;
    draft.warnings.push_back(fmt::format(
        "{} of the {} in the target are {}, as in the source, and its config.json says dtype = "
        "\"{}\": transformers converts them when it loads them. Set target.dtype = \"{}\" to write "
        "{}, or target.dtype = \"{}\" to have config.json say {}",
        count, counted(draft.target.blobs.size(), "tensor"), name(dtype), std::get<0>(*stated),
        std::get<2>(*stated), name(std::get<1>(*stated)), key, word));
  }
}

/// Of the source's safetensors files, else of those that a reference folder tells of.
std::vector<FileMetadata> known_metadata(Checkpoint const& source,
                                         std::optional<Folder> const& reference) {
  auto files = files_of(source);
  if (files && !files->file_metadata.empty()) return std::move(files->file_metadata);
  return reference ? reference->file_metadata : std::vector<FileMetadata>();
}

/// Whether config.json's description of quantised weights came with the source's: it is the
/// source's own, or says the same.
bool describes_source(MappedTarget const& job) {
  if (job.request.options.huggingface.reference.empty() || !job.read.facts.reference) return true;
  auto const own = files_of(job.source, job.request.read.config);
  auto const said = [&](Json const& config) {
    std::string const& inner = job.read.names.maps.family->facts;
    Json const top = fact(config, "quantization_config");
    return top.is_null() && !inner.empty() ? fact(config, inner + ".quantization_config") : top;
  };
  return own && said(own->config) == said(job.read.facts.reference->config);
}

}  // namespace

FormatOptions<TargetOptions> target_options() {
  return {
      {{FormatId::huggingface, FormatId::mistral, FormatId::dcp},
       keys::text(
           "reference", &TargetOptions::reference,
           "Hugging Face, Mistral, and DCP with target.map: a folder of the same model; its config and tokenizer files go into the target.")},
      {{FormatId::huggingface, FormatId::mistral},
       keys::size(
           "shard_bytes", &TargetOptions::shard_bytes,
           "Hugging Face, and Mistral, whose files are else one: the maximum size of a safetensors file. A larger tensor gets its own file. "
           "Files of a source or reference with the same tensors stay as they are.")},
      {{FormatId::huggingface},
       keys::choice(
           "quant", &TargetOptions::quant,
           {"none", "fp8-block", "fp8-channel", "mxfp8", "int4-group", "int8-group", "int8-channel",
            "mxfp4", "nvfp4"},
           "Hugging Face only: quantise the weights of linear layers, to nearest and without "
           "calibration. Activations are quantised by the\nengine while it runs, or stay as they are (int4-group, int8-group, mxfp4, nvfp4).")},
      {{FormatId::huggingface},
       keys::choice(
           "quant_for", &TargetOptions::quant_for,
           {"auto", "compressed-tensors", "transformers", "modelopt"},
           "The library whose names, config.json and arithmetic a target with target.quant "
           "has. \"auto\": transformers for fp8-block, and for\nmxfp4 of gpt-oss; else "
           "compressed-tensors.")},
      {{FormatId::huggingface},
       keys::text(
           "quant_block", &TargetOptions::quant_block,
           "Rows and columns of a block of fp8-block, such as \"1x32\", or columns of a group of "
           "int4-group and int8-group; \"\" means: 128x128, and 128.")},
      {{FormatId::huggingface},
       keys::choice("quant_scales", &TargetOptions::quant_scales, {"auto", "f32", "e8m0"},
                    "Scales of fp8-block for transformers: F32, or powers of two (\"e8m0\").")},
      {{FormatId::huggingface},
       keys::text(
           "quant_ignore", &TargetOptions::quant_ignore,
           "Modules that target.quant leaves as they are, besides those that no engine reads "
           "quantised: \"*.o_proj; model.layers.0.*\".")},
  };
}

TargetTraits HuggingFaceFormat::target() const { return {.any_names = true, .published = true}; }

void HuggingFaceFormat::lay_out(MappedTarget const& job, TargetDraft& draft) const {
  if (!job.model.adapter_ranks().empty()) return lay_out_adapter(job, draft);
  ReferenceWeights reference(job.read.facts.reference,
                             job.read.changed ? job.read.changed->layers : std::vector<Index>());
  SideOptions options;
  // Quantised experts have tensors of their own in every library, except those of gpt-oss.
  bool const apart = job.request.options.huggingface.quant != MadeQuant::none;
  options.has = [&reference, apart](std::string_view name) {
    if (!apart) return reference.has(name);
    if (name == "*.experts.0.up_proj.weight*") return true;
    return reference.has(name) && name.find("experts.gate_up_proj") == name.npos &&
           name != "*.input_linear.weight*";
  };
  Side const side(job.model, *job.read.names.maps.family, std::move(options));
  draft.target_adds = side.adds();
  HuggingFaceTarget target{job.read.facts.reference, job.read.facts.config_text,
                           known_metadata(job.source, job.read.facts.reference)};
  if (job.read.changed) {  // the files are not those of the reference
    add_sidecars(draft, target);
    if (draft.reference) std::erase(draft.reference->sidecars, std::string(params_name));
    target = {std::nullopt, {}, std::move(target.metadata)};
  }
  bool const as_stored = job.source.names != NameOwner::megatron && !job.request.target.cast;
  plan_huggingface_target(draft, {&job.model, &side, job.dtypes, &job.request, as_stored}, target);
  for (ConfigPatch const& change : job.read.facts.config_changes) patch_config(draft, change);
  std::vector<StoredName> names;
  if (!job.model.schemes().empty()) names = side.names(nullptr);  // else nothing is quantised
  describe_quantised(draft, job.model, side, names,
                     fact(job.read.facts.args, "quantization_config"),
                     job.read.names.maps.family->facts, describes_source(job));
  warn_of_dtype(job.source, job.request, draft,
                std::ranges::any_of(
                    names, [&](StoredName const& name) { return !side.part(name.entry).empty(); }));
  add_tokenizer(job.source, job.request.options.huggingface.reference, draft);
}

void HuggingFaceFormat::lay_out_named(NamedTarget const& job, TargetDraft& draft) const {
  std::vector<TensorSpec> specs;
  for (NamedTensor const& tensor : job.tensors)
    specs.push_back({job.target_key(tensor.key), tensor.dtype, tensor.shape});
  if (!job.reference)
    draft.warnings.push_back(
        "the target gets neither config.json nor tokenizer, because the source has none: transformers cannot load it without them. Give target.reference, the folder "
        "of the model's config and tokenizer");
  auto const pieces = [&job](std::size_t t) {
    std::vector<Index> const& shape = job.tensors[t].shape;
    TensorBox const whole{std::vector<Index>(shape.size(), 0), shape};
    return std::vector<Piece>{job.piece(t, whole, row_major(whole))};
  };
  place_in_shards(draft, specs, job.request.options.huggingface.shard_bytes,
                  {job.reference, {}, known_metadata(job.source, job.reference)}, pieces);
  if (job.reference && !job.reference->adapter.is_null() && draft.files.size() == 1) {
    draft.files.front().path = adapter_file_name;
    draft.target.files.front() = adapter_file_name;
    draft.texts.push_back(
        {std::string(adapter_config_name), job.reference->adapter_text, false, {}});
  }
  warn_of_dtype(job.source, job.request, draft,
                std::ranges::any_of(job.tensors, [](NamedTensor const& tensor) {
                  return tensor.dtype == DType::f8_e4m3 || tensor.dtype == DType::f8_e5m2;
                }));
  add_tokenizer(job.source, job.request.options.huggingface.reference, draft);
}

}  // namespace reshard::huggingface
