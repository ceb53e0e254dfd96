#include <algorithm>
#include <array>
#include <limits>

#include "core/base/files/file.hpp"
#include "core/base/member_file.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/huggingface/config/config.hpp"
#include "core/formats/huggingface/shards.hpp"
#include "core/formats/mistral/params.hpp"
#include "core/formats/mistral/source.hpp"
#include "core/formats/targets/target_parts.hpp"
#include "core/mapping/maps/config_defaults.hpp"

namespace reshard::mistral {
namespace {

namespace fs = std::filesystem;
using huggingface::params_name;

/// Of parts beside the language model.
constexpr std::array<std::string_view, 2> of_parts = {"vision_encoder", "multimodal"};

/// The params.json that came with the model; null where there is none.
Json own_params(std::optional<huggingface::Folder> const& files) {
  if (!files || std::ranges::find(files->sidecars, params_name) == files->sidecars.end()) return {};
  fs::path const path = readable_member(files->path, params_name);
  return huggingface::parse_config(read_text_file(path, huggingface::largest_config_bytes),
                                   path.string());
}

bool says_the_same(Json const& own, MapFile const& family, Json const& made) {
  try {
    Json const stated = config_of_params(own, params_name);
    return params_of_config(completed_config(family, stated), params_name) == made;
  } catch (Error const&) {
    return false;  // of another model
  }
}

/// Whether parts beside the language model are in the target.
bool holds_parts(Model const& model) {
  return std::ranges::any_of(model.tensors(), [](LogicalTensor const& tensor) {
    return std::string_view(tensor.name).starts_with("kept.");
  });
}

/// One file, as Mistral's own program reads, unless the job says how large files may be.
std::uint64_t largest_file(PlanRequest const& request) {
  std::uint64_t const stated = request.options.huggingface.shard_bytes;
  return stated == huggingface::default_largest_shard_bytes
             ? std::numeric_limits<std::uint64_t>::max()
             : stated;
}

void add_params(MappedTarget const& job, TargetDraft& draft) {
  TextFile const* const text = config_text(draft);
  MapFile const& family = *job.read.names.maps.family;
  Json const config =
      text == nullptr
          ? Json::object()
          : completed_config(family, huggingface::parse_config(text->text, text->path.string()));
  Json const made = params_of_config(config, "config.json");
  Json const own = own_params(draft.reference);
  bool const parts = holds_parts(job.model);
  Json params = made;
  if (!own.is_null() && says_the_same(own, family, made)) {
    Json::Object rest = *own.members();
    std::erase_if(rest, [&](auto const& member) {
      return member.first == "quantization" ||
             (!parts && std::ranges::count(of_parts, member.first) > 0);
    });
    if (rest.size() == own.members()->size()) return;  // it is copied
    params = Json(std::move(rest));
  } else if (parts) {
    for (std::string_view const name : of_parts)
      if (Json const* const described = own.find(name)) params.set(name, *described);
  }
  if (draft.reference) std::erase(draft.reference->sidecars, std::string(params_name));
  draft.texts.push_back({std::string(params_name), params.dump(4) + "\n", false, {}});
}

void warn_without_tokenizer(TargetDraft& draft) {
  bool const found = draft.reference &&
                     std::ranges::any_of(draft.reference->sidecars, [](std::string const& name) {
                       return name == "tekken.json" || matches_glob("tokenizer.model*", name);
                     });
  if (!found)
    draft.warnings.push_back(
        "the target gets neither tekken.json nor tokenizer.model, which Mistral's programs read. "
        "Copy the model's into it, or set target.reference to a folder that has it");
}

}  // namespace

TargetTraits MistralFormat::target() const { return {}; }

void MistralFormat::lay_out(MappedTarget const& job, TargetDraft& draft) const {
  if (!job.model.adapter_ranks().empty())
    fail(ErrorKind::usage,
         "[target] format = \"mistral\": a LoRA adapter has no form in Mistral's files. Choose "
         "huggingface, a folder of peft.");
  SideOptions options;
  options.options = job.read.names.target_names->options;
  Side const side(job.model, job.read.names.target_names->map, std::move(options));
  draft.target_adds = side.adds();
  add_sidecars(draft, {job.read.facts.reference, job.read.facts.config_text});
  std::vector<StoredName> const names = side.names(nullptr);
  if (std::ranges::any_of(names,
                          [&](StoredName const& name) { return !side.part(name.entry).empty(); }))
    fail(
        ErrorKind::usage,
        "[target] format = \"mistral\": the weights are quantised in a form that is not Mistral's. "
        "Set model.quant = \"dequantise-bf16\", or choose huggingface.");
  TargetParts const parts{&job.model, &side, job.dtypes, &job.request};
  std::vector<TensorSpec> specs;
  std::vector<bool> copies;
  for (StoredName const& name : names) {
    specs.push_back({name.name, stored_dtype(parts, name), side.layout(name.entry, {}).file_shape});
    copies.push_back(name.copy);
  }
  auto const pieces = [&](std::size_t t) { return side.pieces(names[t], {}); };
  place_in_shards(draft, specs, largest_file(job.request),
                  {.reference = std::nullopt,
                   .config_text = {},
                   .stem = std::string(huggingface::consolidated_stem)},
                  pieces, copies);
  for (huggingface::ConfigPatch const& change : job.read.facts.config_changes)
    patch_config(draft, change);
  add_params(job, draft);
  warn_without_tokenizer(draft);
}

void MistralFormat::lay_out_named(NamedTarget const& job, TargetDraft& draft) const {
  Format::lay_out_named(job, draft);
}

}  // namespace reshard::mistral
