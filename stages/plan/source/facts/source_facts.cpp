#include "stages/plan/source/facts/source_facts.hpp"

#include <algorithm>
#include <array>

#include "core/formats/model_files.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "stages/plan/adapter/adapter_source.hpp"
#include "stages/plan/source/catalog/source_names.hpp"
#include "stages/plan/source/facts/stated_args.hpp"
#include "stages/plan/source/facts/vocabulary.hpp"
#include "stages/plan/source/logical_source.hpp"

namespace reshard {
namespace {

class FactsReader {
 public:
  FactsReader(Checkpoint const& source, PlanRequest const& request, SourceModel& result)
      : source_(source), request_(request), result_(result) {}

  void run() {
    result_.facts.view = source_.format->view(source_, request_.read.prefix);
    result_.facts.files = files_of(source_, request_.read.config);
    if (source_.names == NameOwner::logical)
      read_logical_facts(source_, result_);
    else
      adapter_ = holds_adapter(source_, result_.facts.view);
    if (source_.names == NameOwner::megatron) find_args();
    if (!source_.model.config.is_null()) result_.facts.config = source_.model.config;
    if (!request_.read.config.empty()) result_.facts.config = result_.facts.files->config;
    if (adapter_)
      find_base();
    else if (result_.facts.files &&
             !result_.facts.files->adapter.is_null())  // of a kind that is not read
      (void)huggingface::lora_config(*result_.facts.files, huggingface::LoraUse::carry);
    if ((unknown() || without_args()) && result_.facts.files)
      result_.facts.config = result_.facts.files->config;
    if (unknown() && !in_chunks())
      fail(ErrorKind::source,
           "{}: has no config.json, so the sizes of the model are not known. Put it beside the "
           "weights{}.",
           place(),
           request_.target.folder.empty() || format_of(request_.target.format).target().any_names
               ? ", set source.config, or keep the stored names with model.map = \"none\""
               : ", or set source.config");
    find_reference();
    if (to_hdf5() && !result_.facts.config.is_null() && result_.facts.config_text.empty())
      result_.facts.config_text = result_.facts.config.dump(2) + "\n";
    if (unknown())
      fail(ErrorKind::usage,
           "[source] config: {} does not state which model it holds. Set source.config to its "
           "config.json.",
           place());
  }

 private:
  bool to_hdf5() const {
    return format_of(request_.target.format).target().names == NameOwner::logical;
  }
  bool family_names() const { return source_.names == NameOwner::family; }
  bool unknown() const { return family_names() && result_.facts.config.is_null(); }
  /// A Megatron checkpoint whose model only its config.json describes.
  bool without_args() const {
    return source_.names == NameOwner::megatron && result_.facts.args.is_null();
  }
  bool in_chunks() const { return source_.storage == Storage::chunks; }
  bool in_shares() const { return source_.storage == Storage::shares; }
  std::string place() const { return source_.folder.string(); }

  /// Finds the adapter's description, and the config.json of the model that it belongs to.
  void find_base() {
    result_.names.adapter = "?";  // which names it has is found with the map
    if (!result_.facts.files) result_.facts.files.emplace();
    huggingface::Folder& files = *result_.facts.files;
    if (auto const config = huggingface::lora_config(files, huggingface::LoraUse::carry))
      result_.warnings.insert(result_.warnings.end(), config->warnings().begin(),
                              config->warnings().end());
    std::filesystem::path const base = base_of_adapter(files.adapter);
    if (files.config.is_null() && !base.empty()) {
      huggingface::Folder const described = described_by(base);
      files.config = described.config;
      files.config_text = described.config_text;
    }
    if (files.config.is_null() && !request_.read.base_config.is_null()) {
      files.config = request_.read.base_config;
      files.config_text = request_.read.base_config.dump(2) + "\n";
    }
    Json const stated = fact(files.adapter, "base_model_name_or_path");
    if (unknown() && files.config.is_null())
      fail(
          ErrorKind::usage,
          "[source] config: {} holds an adapter (LoRA), and the config.json of its base model{} is "
          "not known here. Set source.config to that file.",
          place(), stated.text() == nullptr ? "" : " (" + stated.dump() + ")");
  }

  /// The files that lie beside the weights of the target: those of target.reference, else the
  /// source's.
  void find_reference() {
    if (!request_.options.huggingface.reference.empty())
      result_.facts.reference = huggingface::open_reference(request_.options.huggingface.reference);
    else if (to_huggingface(request_) || to_hdf5())
      result_.facts.reference = result_.facts.files;
    if (result_.facts.reference && result_.facts.config.is_null())
      result_.facts.config = result_.facts.reference->config;
    if (result_.facts.files)
      result_.facts.files->weight_map = huggingface::WeightMap();  // the reference's counts
  }

  void find_args() {
    result_.facts.args = stated_args(source_, request_.read.library);
    result_.facts.traits = result_.facts.view.traits;
    note_spec();
    bool const configured = result_.facts.files && !result_.facts.files->config.is_null();
    if (result_.facts.args.is_null() && (in_shares() || !configured))
      fail(ErrorKind::source, "{}: {}, so the sizes of the model are not known. {}.", place(),
           args_of(source_).is_null() ? "has no args" : "its args do not describe the model",
           in_shares() ? "Use a checkpoint that Megatron saved itself" : way_to_a_config(source_));
    Json const* padded = result_.facts.args.find("padded_vocab_size");
    if (result_.facts.traits.padded_vocab > 0 && !result_.facts.args.is_null() &&
        (padded == nullptr || padded->is_null()))
      result_.facts.args.set("padded_vocab_size", result_.facts.traits.padded_vocab);
    result_.facts.recorded_vocab = recorded_vocab(source_, result_);
  }

  /// Whose layers they are: args say so, else the states that Transformer Engine keeps. Names in
  /// shares tell, too, except for latent attention, which has the same names in both.
  void note_spec() {
    Json const stated = fact(result_.facts.args, "transformer_impl");
    Json const latent = fact(result_.facts.args, "multi_latent_attention");
    bool const names_tell = in_shares() && (latent.boolean() == nullptr || !*latent.boolean());
    if (in_chunks()) {
      // Of the modules that torch_dist has states of, local ones have none in norms.
      bool const te = std::ranges::any_of(source_.stored.objects, [](StoredObject const& object) {
        return std::ranges::any_of(
            std::array{"core_attention._extra_state", "final_layernorm._extra_state",
                       "final_norm._extra_state"},
            [&](char const* state) { return object.name.find(state) != std::string::npos; });
      });
      result_.facts.traits.spec = te ? "te" : "local";
    }
    if (!names_tell && stated.text() != nullptr)
      result_.facts.traits.spec = *stated.text() == "local" ? "local" : "te";
  }

  Checkpoint const& source_;
  PlanRequest const& request_;
  SourceModel& result_;
  bool adapter_ = false;
};

}  // namespace

void read_facts(Checkpoint const& source, PlanRequest const& request, SourceModel& result) {
  FactsReader(source, request, result).run();
}

bool to_huggingface(PlanRequest const& request) {
  return request.read.axes_by_config ||
         format_of(request.target.format).target().names == NameOwner::family;
}

}  // namespace reshard
