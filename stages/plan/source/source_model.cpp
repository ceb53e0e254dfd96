#include "stages/plan/source/source_model.hpp"

#include <algorithm>

#include "core/base/text/text.hpp"
#include "core/formats/megatron/mcore/hybrid_pattern.hpp"
#include "core/formats/megatron/mcore/root.hpp"
#include "core/formats/megatron/mcore/traits.hpp"
#include "core/mapping/quant_finder.hpp"
#include "stages/plan/adapter/adapter_source.hpp"
#include "stages/plan/config/args_meaning.hpp"
#include "stages/plan/source/catalog/core_side.hpp"
#include "stages/plan/source/catalog/lacking_tensor.hpp"
#include "stages/plan/source/catalog/quant_source.hpp"
#include "stages/plan/source/catalog/source_names.hpp"
#include "stages/plan/source/facts/draft_layers.hpp"
#include "stages/plan/source/facts/family_choice.hpp"
#include "stages/plan/source/facts/family_model.hpp"
#include "stages/plan/source/facts/made_config.hpp"
#include "stages/plan/source/facts/megatron_form.hpp"
#include "stages/plan/source/facts/model_class.hpp"
#include "stages/plan/source/facts/other_form.hpp"
#include "stages/plan/source/facts/source_facts.hpp"
#include "stages/plan/source/facts/vocabulary.hpp"
#include "stages/plan/source/logical_source.hpp"
#include "stages/plan/source/names/kept_tensors.hpp"
#include "stages/plan/source/names/mlite_keys.hpp"
#include "stages/plan/source/names/mlite_options.hpp"
#include "stages/plan/source/state/flat_states.hpp"
#include "stages/plan/source/state/master_weights.hpp"

namespace reshard {
namespace {

std::string joined_names(MapChoice const& maps) {
  return maps.family ? maps.core.name + " and " + maps.family->name : maps.core.name;
}

class SourceReader {
 public:
  SourceReader(Checkpoint const& source, PlanRequest const& request, LookAtSide const& look)
      : source_(source), request_(request), look_(look) {}

  SourceModel run(bool carry_states) {
    try {
      return read(carry_states);
    } catch (Error const& error) {
      if (ignored_map_.empty() || error.kind() == ErrorKind::internal) throw;
      throw Error(error.kind(), error.sentence() + " Note: " + ignored_map_ + ".");
    }
  }

 private:
  SourceModel read(bool carry_states) {
    read_facts(source_, request_, result_);
    make_model();
    if (!logical()) {
      find_adapter_names();
      apply_maps();
      if (result_.draft) limit_to_draft(*result_.model);
      if (names_of_adapter_)
        find_adapters();
      else
        find_quantised();
    }
    if (carry_states && !request_.read.drop_optimizer && !result_.facts.view.states.empty()) {
      std::vector<std::string> slots = result_.facts.view.states;
      if (holds_masters_alone(source_, result_.facts.view)) slots.emplace_back(own_master_slot);
      result_.model->add_slots(slots);
    }
    if (logical()) return with_logical_catalogue(std::move(result_), source_);
    catalogue();
    if (result_.model->slots().size() > 1 &&
        (!result_.facts.view.buffers.empty() || !result_.facts.view.lists.empty()))
      add_flat_states(source_, request_.read.frozen, result_);
    return std::move(result_);
  }

  bool to_huggingface() const { return reshard::to_huggingface(request_); }
  /// Whether the source has the stored names of its family.
  bool family_names() const { return source_.names == NameOwner::family; }
  bool logical() const { return source_.names == NameOwner::logical; }
  bool in_chunks() const { return source_.storage == Storage::chunks; }
  bool in_shares() const { return source_.storage == Storage::shares; }
  std::string place() const { return source_.folder.string(); }

  void make_model() {
    bool const named = request_.read.map != "auto" && request_.read.map != "mcore";
    bool const need_family = to_huggingface() || family_names() || result_.facts.args.is_null() ||
                             (logical() && !source_.logical.map.empty()) || source_.others.adapter;
    auto const choose = [&](bool need) {
      result_.names.maps = request_.read.library.choose(
          request_.read.map, result_.facts.config, result_.facts.args, need,
          source_.shares.shape ? source_.shares.shape->origin : "");
    };
    choose(need_family);
    bool const parts = take_config_of_parts();
    if (parts) choose(true);
    if (source_.names == NameOwner::megatron) {
      refuse_other_rows(result_.names.maps.core, result_.facts.args, place());
      settle_family();
    }
    // A family's copy that a job names leaves out what it wants, whatever names the source has.
    if (source_.names == NameOwner::megatron && result_.names.maps.family)
      result_.names.maps.core.drop.insert(result_.names.maps.core.drop.end(),
                                          result_.names.maps.family->drop.begin(),
                                          result_.names.maps.family->drop.end());
    if (result_.names.maps.family && result_.names.maps.family->axes.empty())
      take_names_alone();
    else if (std::string_view const own = source_.format->names_map(); !own.empty())
      take_names(own_names(source_, result_.facts.view, request_), "[source] format");
    for (auto const& [key, size] :
         {std::pair("tp", request_.read.tp), std::pair("etp", request_.read.etp)})
      if (size != 1 && !(names_ && has_mlite_names(*names_)))
        fail(
            ErrorKind::usage,
            "[source] {} = {}: this key applies only to a source with Megatron Lite's names. Leave "
            "it out, or name its map with model.map.",
            key, size);
    MapChoice const& maps = result_.names.maps;
    if (!logical()) settle_parts();
    if (names_) {
      names_->drop.insert(names_->drop.end(), maps.family->drop.begin(), maps.family->drop.end());
      add_kept(*maps.family, *names_);
    }
    settle_unread(result_.names.maps, result_.facts.view, !family_names(), request_,
                  result_.warnings);
    check_pattern();
    settle_model_class(request_, place(), result_);
    // From Megatron to Megatron args describe the model; the family was named for what its map
    // keeps.
    if (maps.family && result_.facts.config.is_null() && maps.family->config.empty() &&
        !to_huggingface() && !family_names() && !source_.others.adapter) {
      if (named && maps.family->keep.empty()) {
        ignored_map_ = fmt::format(
            "model.map = \"{}\" is not used: {} has no [config], so only the checkpoint's args "
            "describe the model. Set source.config to the model's config.json",
            request_.read.map, maps.family->name);
        result_.warnings.push_back(ignored_map_);
      }
      result_.names.maps.family.reset();
    }
    if (maps.family && result_.facts.config.is_null()) make_config(source_, request_, result_);
    if (maps.family) {
      make_family_model(
          source_, request_, names_ ? &*names_ : nullptr,
          [this](std::string_view name) { return has(name); }, result_);
      if (source_.names == NameOwner::megatron)
        require_megatron_form(*result_.model, maps.family->name, "[source] path");
      if (!result_.facts.args.is_null() && (named || parts || to_huggingface()))
        compare_facts(source_, request_, result_);
      carry_vocab_rows(source_, request_, result_);
    } else {
      result_.model = std::make_unique<Model>(
          maps.core, maps.core,
          ModelFacts{result_.facts.args, "args", carried_vocab(source_, request_, result_)});
    }
  }

  /// Where args alone chose the family whose config.json the target gets.
  void settle_family() {
    if (request_.read.map != "auto" || !to_huggingface() || !result_.facts.config.is_null() ||
        result_.facts.args.is_null() || !result_.names.maps.family ||
        result_.names.maps.family->config.empty())
      return;
    FamilyChoice choice =
        settled_family(result_.names.maps, request_, args_that_say(source_, result_.facts.args),
                       source_.shares.shape ? source_.shares.shape->origin : "");
    if (choice.family) result_.names.maps.family = std::move(choice.family);
    if (!choice.warning.empty()) result_.warnings.push_back(std::move(choice.warning));
  }

  /// Whether a Megatron source has parts beside its language model that args say nothing of: then
  /// a config.json describes the model, that of the job or the one that was copied with it.
  bool take_config_of_parts() {
    bool const copied = result_.facts.files && !result_.facts.files->config.is_null();
    if (source_.names != NameOwner::megatron || (result_.facts.config.is_null() && !copied) ||
        request_.read.unmapped == Unmapped::drop)
      return false;
    bool found = false;
    each_stored(
        source_, result_.facts.view, [&](std::string const& name, std::vector<Index> const&) {
          found = found ||
                  (megatron::behind_root(name, result_.facts.traits.names.root).empty() &&
                   std::ranges::none_of(result_.names.maps.core.drop, [&](auto const& pattern) {
                     return matches_glob(pattern, name);
                   }));
        });
    if (found && result_.facts.config.is_null()) result_.facts.config = result_.facts.files->config;
    return found;
  }

  void settle_parts() {
    SettledParts parts = settle_unmapped(result_.names.maps, source_, result_.facts.view,
                                         result_.facts.config, request_, result_.warnings);
    if (source_.names == NameOwner::megatron) result_.facts.traits.names = parts.source;
    result_.names.target_trainer = std::move(parts.target);
    result_.names.parts = std::move(parts.note);
  }

  /// Letters that no layer has, and a pattern of another length than the model.
  void check_pattern() const {
    for (NamedExpression const& let : result_.names.maps.core.let)
      if (let.name == "letters")
        megatron::check_hybrid_pattern(result_.facts.args, *let.expression.evaluate({}).text(),
                                       place());
  }

  /// A map without axes gives other stored names to the tensors of a family: the source's names.
  /// All else is the family's that config.json names.
  void take_names_alone() {
    names_ = std::move(result_.names.maps.family);
    bool const lite = has_mlite_names(*names_);
    if (!family_names() || (lite && !in_chunks()))
      fail(ErrorKind::usage,
           "[model] map = \"{}\": {} gives names to a plain DCP checkpoint{}, and {} is not one. "
           "Set map to \"auto\" or name a family.",
           request_.read.map, names_->name, lite ? "" : " or a Hugging Face folder", place());
    result_.names.maps.family =
        request_.read.library.choose("auto", result_.facts.config, Json(), true).family;
    take_names(*std::move(names_), "[model] map");
    if (lite) result_.facts.view.weights = without_stages(result_.facts.view.weights, place());
  }

  void take_names(MapFile names, std::string_view key) {
    names_ = std::move(names);
    check_names_of(key, *names_, *result_.names.maps.family);
    result_.names.maps.family->name += " with the names of " + names_->name;
    result_.names.maps.family->keep = names_->keep;  // the family's own are of other stored names
  }

  void apply_maps() {
    if (!result_.names.maps.family) return apply_present(*result_.model, result_.names.maps.core);
    if (names_ && has_mlite_names(*names_)) return apply_mlite();
    make_family_side({});
    Json const untied = fact(result_.facts.args, "untie_embeddings_and_output_weights");
    std::optional<TensorId> const head = result_.model->find_tensor("lm_head");
    if (untied.boolean() != nullptr && *untied.boolean() && head && !result_.model->exists(*head))
      fail(ErrorKind::source,
           "the checkpoint has its own output layer (args.untie_embeddings_and_output_weights), "
           "and config.json ties it to the embedding. Its weights would be lost: set "
           "tie_word_embeddings = false in a copy of target.reference.");
  }

  void make_family_side(std::map<std::string, Json> values, bool decide = true) {
    SideOptions options;
    options.options = std::move(values);
    family_options_ = options.options;
    options.has = [this](std::string_view name) { return has(name); };
    options.adapter = family_names() ? result_.names.adapter : "";
    result_.names.family_side = std::make_unique<Side>(
        *result_.model, names_ ? *names_ : *result_.names.maps.family, std::move(options));
    if (decide) apply_family(*result_.model, *result_.names.family_side);
  }

  void apply_mlite() {
    MliteSource const source{source_.stored, result_.facts.view.weights, place(),
                             *names_,        request_.read.tp,           request_.read.etp};
    make_family_side(mlite_options(source, *result_.model, result_.warnings));
    check_whole(source, *result_.names.family_side);
  }

  void find_adapter_names() {
    if (result_.names.adapter.empty()) return;
    std::vector<MapAdapter> const& forms = result_.names.maps.core.adapters;
    if (result_.facts.files)
      adapter_config_ = huggingface::lora_config(*result_.facts.files, huggingface::LoraUse::carry);
    if (adapter_config_) result_.facts.packed_parameters = adapter_config_->parameters();
    names_of_adapter_ =
        adapter_names(source_, result_.facts.view, forms, result_.facts.packed_parameters);
    result_.model->set_adapter_forms(forms);
    result_.names.adapter.clear();
  }

  /// The model is the adapters alone.
  void find_adapters() {
    find_chunks();
    StoredShares const shares(source_, result_.facts.view, result_.stored.chunks);
    LinearWeights const linear = adaptable_weights(result_.names.maps, family_names());
    auto const add = [&](Side const& side) {
      // Patterns mean the family's names.
      bool const fits = adapter_config_ && (family_names() || adapter_config_->uniform());
      auto const* const config = fits ? &*adapter_config_ : nullptr;
      add_adapters(*result_.model, side, linear, *names_of_adapter_, shares, source_, config);
    };
    if (family_names())
      add(*result_.names.family_side);
    else
      add(core_side());
    result_.names.adapter = names_of_adapter_->form;
    result_.names.adapters_apart = names_of_adapter_->apart;
    if (family_names()) make_family_side(family_options_, false);
  }

  bool has_like(std::string_view pattern) const {
    bool found = false;
    each_stored(source_, result_.facts.view,
                [&](std::string const& name, std::vector<Index> const&) {
                  found = found || matches_glob(pattern, name);
                });
    return found;
  }

  /// Whether the source has a stored tensor of this name, or one that fits it as a pattern.
  bool has(std::string_view name) const {
    if (!family_names()) return false;
    if (names_of_adapter_)
      return has_adapter_of(result_.facts.view, *names_of_adapter_,
                            adapter_form(result_.names.maps.core.adapters, names_of_adapter_->form),
                            name);
    if (name.find_first_of("*?") != std::string_view::npos) return has_like(name);
    return result_.facts.view.weights.contains(std::string(name));
  }

  /// Weights that are stored as parts become further logical tensors.
  void find_quantised() {
    if (!may_be_quantised(source_, result_.facts.view, result_.names.maps.core)) return;
    result_.unquantised = *result_.model;
    result_.model->set_schemes(evaluate_schemes(result_.names.maps.core, *result_.model));
    if (request_.read.dequantise) {
      if (in_chunks() && !to_huggingface())
        fail(
            ErrorKind::usage,
            "[model] quant = \"dequantise-bf16\": {} holds boxes of tensors. Dequantise the Hugging Face or mp_rank folder.",
            place());
      return;
    }
    find_chunks();
    StoredShares const shares(source_, result_.facts.view, result_.stored.chunks);
    if (family_names()) {
      add_quantised(*result_.model, *result_.names.family_side, shares, source_.stored);
      make_family_side(family_options_, false);
    } else {
      add_quantised(*result_.model, core_side(), shares, source_.stored);
      check_fused_rows();
    }
  }

  /// Rows of these parts lie rank by rank.
  void check_fused_rows() const {
    std::optional<TensorId> const part = find_fused_part(*result_.model, true);
    if (!in_chunks() || !part ||
        fact(result_.facts.args, "tensor_model_parallel_size").integer() != nullptr)
      return;
    fail(ErrorKind::source,
         "{}: the order of the rows of '{}' depends on the tensor parallelism of the run that "
         "saved them, and no settings state it. Save the checkpoint with args "
         "(tensor_model_parallel_size).",
         place(), result_.model->tensor(*part).name);
  }

  void find_chunks() {
    if (in_shares())
      result_.stored.chunks = source_chunks(source_, result_.facts.args, count("L"), count("M"));
  }

  /// The source as the core map reads it.
  Side core_side() const {
    return {*result_.model, result_.names.maps.core, core_side_options(source_, result_)};
  }

  void catalogue() {
    find_chunks();
    if (family_names()) {
      std::vector<TensorId> const lacking = names_ ? existing_optional() : std::vector<TensorId>();
      catalogue(*result_.names.family_side,
                names_ ? names_->name : result_.names.maps.family->name);
      warn_of_lacking(lacking);
      if (!in_chunks()) warn_of_copies(result_.stored.catalog, result_.warnings);
    } else {
      check_vocab(source_, request_, result_);
      catalogue(core_side(), joined_names(result_.names.maps));
    }
  }

  void catalogue(Side const& side, std::string const& map_names) {
    SourceCatalog found =
        source_catalog(*result_.model, side, source_, result_.facts.view, result_.stored.chunks,
                       {.settles = settling(side),
                        .map_names = map_names,
                        .dequantise = request_.read.dequantise,
                        .prefix = request_.read.prefix,
                        .method = quantised_by(result_.facts.config)});
    result_.stored.catalog = std::move(found.catalog);
    result_.stored.left_out = std::move(found.left_out);
    result_.stored.padding = std::move(found.padding);
    result_.stored.adds = side.adds();
    result_.stored.casts = side.casts();
    if (look_) look_(result_, side);
  }

  std::vector<TensorId> existing_optional() const {
    std::vector<TensorId> tensors = result_.names.family_side->optional_tensors();
    std::erase_if(tensors, [this](TensorId tensor) { return !result_.model->exists(tensor); });
    return tensors;
  }

  /// Warns of tensors that a program does not save, though a model of the family has them.
  void warn_of_lacking(std::vector<TensorId> const& asked) {
    std::vector<std::string> lacking;
    for (TensorId const tensor : asked)
      if (!result_.model->exists(tensor)) lacking.push_back(result_.model->tensor(tensor).name);
    result_.names.incomplete = !lacking.empty();
    if (result_.names.incomplete)
      result_.warnings.push_back(fmt::format(
          "{} does not hold {}, which models of {} have, so the target lacks it too. Take it "
          "from the checkpoint that the run started from",
          place(), listed(lacking, 6), result_.model->origin()));
  }

  /// The side that settles what must be there: a family may require tensors that Megatron models in
  /// general may lack.
  Side const& settling(Side const& side) const {
    return result_.names.family_side ? *result_.names.family_side : side;
  }

  Index count(char const* word) const {
    Json const value = result_.model->value(word);
    return value.integer() == nullptr ? 0 : *value.integer();
  }

  Checkpoint const& source_;
  PlanRequest const& request_;
  LookAtSide const& look_;
  std::map<std::string, Json> family_options_;
  std::optional<MapFile>
      names_;  ///< whose stored names the source has, where it is not the family's map
  SourceModel result_;
  std::optional<AdapterNames> names_of_adapter_;
  std::optional<huggingface::LoraConfig> adapter_config_;
  std::string ignored_map_;  ///< why a map that was named is not used
};

}  // namespace

SourceModel read_source_model(Checkpoint const& source, PlanRequest const& request,
                              bool carry_states, LookAtSide const& look) {
  return SourceReader(source, request, look).run(carry_states);
}

}  // namespace reshard
