#include "stages/plan/change/changed_model.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "core/formats/format.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "stages/plan/change/carried_parts.hpp"
#include "stages/plan/change/changed_facts.hpp"
#include "stages/plan/change/changed_pieces.hpp"
#include "stages/plan/change/changed_rows.hpp"
#include "stages/plan/change/index_list.hpp"
#include "stages/plan/config/config_conflicts.hpp"
#include "stages/plan/source/facts/draft_layers.hpp"
#include "stages/plan/source/facts/model_facts.hpp"

namespace reshard {
namespace {

constexpr char const* layers_key = "[target] keep_layers";
constexpr char const* experts_key = "[target] keep_experts";

class ModelChanger {
 public:
  ModelChanger(Checkpoint const& source, PlanRequest const& request, SourceModel& read)
      : source_(source),
        changes_(request.changes),
        target_(request.target.format),
        read_(read),
        model_(*read.model) {}

  void run() {
    check();
    check_carried_parts(read_, changes_, size("vocab"), keys());
    describe();
    if (changes_.vocab_size > 0) change_rows(source_, changes_, target_, read_);
    if (facts_.kept_expert_count > 0) keep_experts();
    if (facts_.kept_layers || facts_.drop_depths) keep_layers();
    if (facts_.kept_expert_count > 0) check_tables();
    if (changes_.mtp == PredictionLayers::draft) leave_draft();
    restate();
  }

 private:
  void check() const {
    if (source_.others.adapter || !model_.adapter_ranks().empty())
      fail(ErrorKind::usage,
           "{}: holds an adapter, whose matrices are those of the complete model. Remove {}.",
           source_.place, keys());
    bool const rows = changes_.new_rows != NewRows::refuse;
    if (rows && source_.others.new_rows)
      fail(ErrorKind::usage,
           "[target] rows_from: target.new_rows says that rows are alike, and they are those of a "
           "file. Remove one of the keys.");
    if (changes_.vocab_size == 0 && (rows || source_.others.new_rows))
      fail(ErrorKind::usage,
           "[target] {}: no rows are added. Set target.vocab_size, or remove the key.",
           rows ? "new_rows" : "rows_from");
    if (changes_.mtp == PredictionLayers::draft) check_draft();
    if (changes_.mtp == PredictionLayers::drop && count("M") == 0)
      read_.warnings.emplace_back(
          "target.mtp = \"drop\": the source has no layers for multi-token prediction, so none are "
          "left out");
  }

  void check_draft() const {
    constexpr char const* key = "[target] mtp = \"draft\"";
    if (count("M") == 0)
      fail(ErrorKind::usage,
           "{}: the source has no layers for multi-token prediction. Name a folder that has them "
           "as the source.",
           key);
    if (changes_.vocab_size > 0 || !changes_.keep_layers.empty() || !changes_.keep_experts.empty())
      fail(ErrorKind::usage,
           "{}: the draft's config.json is that of the complete model, so nothing else of it "
           "changes. Remove {}, or the key.",
           key,
           changes_.vocab_size > 0 ? "target.vocab_size" : "target.keep_layers and keep_experts");
  }

  std::string keys() const {
    std::vector<std::string> given;
    if (changes_.vocab_size > 0) given.emplace_back("target.vocab_size");
    if (!changes_.keep_layers.empty()) given.emplace_back("target.keep_layers");
    if (!changes_.keep_experts.empty()) given.emplace_back("target.keep_experts");
    if (changes_.mtp != PredictionLayers::keep) given.emplace_back("target.mtp");
    if (!changes_.mtp_from.empty()) given.emplace_back("target.mtp_from");
    return fmt::format("{}", fmt::join(given, " and "));
  }

  Index count(char const* word) const {
    Json const value = model_.value(word);
    return value.integer() == nullptr ? 0 : *value.integer();
  }

  std::optional<AxisId> axis(std::string_view name) const { return axis_of(model_, name); }
  Index size(std::string_view name) const {
    auto const found = axis(name);
    return found ? model_.axes()[*found].size : 0;
  }

  // --- The changes in numbers ---

  void describe() {
    facts_.layers = count("L");
    facts_.depth_layers = size("layer") - facts_.layers;
    facts_.drop_depths = changes_.mtp == PredictionLayers::drop && count("M") > 0;
    facts_.experts = size("expert");
    facts_.vocab = changes_.vocab_size;
    if (!changes_.keep_layers.empty())
      facts_.kept_layers =
          index_list(changes_.keep_layers, facts_.layers, layers_key, "decoder layers");
    if (changes_.keep_experts.empty()) return;
    std::vector<bool> has_experts(static_cast<std::size_t>(size("layer")));
    for (std::size_t t = 0; t < model_.tensors().size(); ++t) {
      LogicalTensor const& tensor = model_.tensors()[t];
      LogicalAxis const* of_layers = nullptr;
      bool of_experts = false;
      for (LogicalAxis const& one : tensor.axes) {
        if (model_.axes()[one.axis].name == "layer") of_layers = &one;
        of_experts = of_experts || model_.axes()[one.axis].name == "expert";
      }
      if (!of_experts || of_layers == nullptr || !model_.exists(TensorId(t))) continue;
      for (std::size_t layer = 0; layer < has_experts.size(); ++layer)
        if (model_.in_set(of_layers->set, static_cast<Index>(layer))) has_experts[layer] = true;
    }
    facts_.kept_experts =
        kept_experts(changes_.keep_experts, facts_.experts, has_experts, experts_key);
    for (auto const& kept : facts_.kept_experts)
      facts_.kept_expert_count =
          std::max(facts_.kept_expert_count, static_cast<Index>(kept.size()));
  }

  // --- Pieces ---

  void keep_experts() {
    AxisId const layer = *axis("layer");
    AxisId const expert = *axis("expert");
    each_catalog(read_, [&](Catalog& catalog) {
      select_indices_by(model_, catalog, layer, expert, facts_.kept_experts,
                        facts_.kept_expert_count);
    });
    each_model(read_, [&](Model& model) { model.resize(expert, facts_.kept_expert_count); });
  }

  /// Engines find the layers by the config.json and the names of the complete model.
  void leave_draft() {
    each_model(read_, [](Model& model) { limit_to_draft(model); });
    AxisId const layer = *axis("layer");
    each_catalog(read_, [&](Catalog& catalog) {
      select_from(model_, catalog, layer, facts_.layers);
      for (std::size_t t = 0; t < catalog.tensors.size(); ++t)
        if (!model_.exists(TensorId(t))) {
          catalog.tensors[t] = {};
          catalog.tensors[t].set_tensor(TensorId(t));
        }
    });
    read_.draft = true;
  }

  /// Tables of the experts that tokens choose, by their numbers.
  void check_tables() const {
    auto const picked = axis("pick");
    if (!picked) return;
    for (std::size_t t = 0; t < model_.tensors().size(); ++t) {
      LogicalTensor const& tensor = model_.tensors()[t];
      bool const lists =
          std::ranges::find(tensor.axes, *picked, &LogicalAxis::axis) != tensor.axes.end();
      if (lists && model_.exists(TensorId(t)))
        fail(
            ErrorKind::usage,
            "{}: '{}' holds the numbers of the experts of each token, and these change. Remove the "
            "key, or leave its layers out with target.keep_layers.",
            experts_key, tensor.name);
    }
  }

  void keep_layers() {
    AxisId const layer = *axis("layer");
    std::vector<Index> kept(static_cast<std::size_t>(facts_.layers));
    std::iota(kept.begin(), kept.end(), Index{0});
    if (facts_.kept_layers) kept = *facts_.kept_layers;
    for (Index i = facts_.layers; !facts_.drop_depths && i < size("layer"); ++i) kept.push_back(i);
    auto const depth = axis("depth");
    if (facts_.drop_depths && depth) {
      each_catalog(read_, [&](Catalog& catalog) { select_indices(model_, catalog, *depth, {}); });
      each_model(read_, [&](Model& model) { model.select(*depth, {}); });
    }
    each_catalog(read_, [&](Catalog& catalog) { select_indices(model_, catalog, layer, kept); });
    each_model(read_, [&](Model& model) { model.select(layer, kept); });
    changed_.layers = std::move(kept);
  }

  // --- Facts ---

  std::string inner() const {
    return read_.names.maps.family ? read_.names.maps.family->facts : "";
  }

  std::vector<huggingface::ConfigPatch> config_patches(Json const& config,
                                                       std::string const& place) const {
    Json const complete =
        read_.names.maps.family ? completed_config(*read_.names.maps.family, config) : config;
    auto patches = changed_facts(complete, inner(), facts_, place);
    if (!facts_.drop_depths || !read_.names.maps.family) return patches;
    for (huggingface::ConfigPatch& patch :
         prediction_layer_changes(*read_.names.maps.family, config, 0))
      if (std::ranges::find(patches, patch.path, &huggingface::ConfigPatch::path) == patches.end())
        patches.push_back(std::move(patch));
    return patches;
  }

  void restate() {
    if (!read_.facts.args.is_null()) {
      changed_.args = changed_facts(read_.facts.args, "", facts_, "args");
      read_.facts.args = huggingface::patched_config(read_.facts.args, changed_.args);
    }
    std::set<std::string> told;
    for (auto* folder : {&read_.facts.files, &read_.facts.reference}) {
      if (!*folder || (*folder)->config.is_null()) continue;
      auto const patches = config_patches((*folder)->config, config_name_of(**folder));
      for (huggingface::ConfigPatch const& patch : patches) told.insert(sentence(patch));
      if (folder == &read_.facts.files) changed_.config = patches;
      (*folder)->config_text = huggingface::patched_config_text(std::move((*folder)->config_text),
                                                                patches, config_name_of(**folder));
      (*folder)->config = huggingface::patched_config((*folder)->config, patches);
      (*folder)->indexed = false;  // its index is of the source's tensors
    }
    if (!read_.facts.config.is_null()) {
      auto const patches = config_patches(read_.facts.config, "config.json");
      read_.facts.config = huggingface::patched_config(read_.facts.config, patches);
      if (!read_.facts.config_text.empty())
        read_.facts.config_text = huggingface::patched_config_text(
            std::move(read_.facts.config_text), patches, "config.json");
      if (changed_.config.empty()) changed_.config = patches;
    }
    if (facts_.vocab > 0) read_.facts.recorded_vocab = facts_.vocab;
    prove();
    if (!told.empty())
      read_.warnings.push_back(fmt::format(
          "the target's config.json is changed, as {} {}: {}", keys(),
          keys().find(" and ") == std::string::npos ? "says" : "say", fmt::join(told, ", ")));
    read_.changed = std::move(changed_);
  }

  static std::string sentence(huggingface::ConfigPatch const& patch) {
    std::string const value = patch.value ? patch.value->dump() : "removed";
    return fmt::format("{} = {}", fmt::join(patch.path, "."),
                       value.size() > 60 ? value.substr(0, 57) + "..." : value);
  }

  /// The facts must state the kind that each remaining layer has.
  void prove() {
    Index const vocab = size("vocab");
    std::optional<Model> stated;
    if (read_.names.maps.family && !read_.facts.config.is_null()) {
      ModelFacts facts{read_.facts.config, "config.json", vocab,
                       facts_.drop_depths ? 0 : count("M")};
      Json const divisor = model_.value("make_vocab_size_divisible_by");
      if (!divisor.is_null()) facts.facts.set("make_vocab_size_divisible_by", divisor);
      stated.emplace(*read_.names.maps.family, read_.names.maps.core, facts);
    } else {
      stated.emplace(read_.names.maps.core, read_.names.maps.core,
                     ModelFacts{read_.facts.args, "args", vocab});
    }
    stated->set_schemes(model_.schemes());
    if (read_.unquantised) (void)read_.unquantised->restate(*stated);
    std::string const fault = model_.restate(*stated);
    if (fault.empty()) return;
    fail(ErrorKind::usage,
         "{}: the target's {} would say something else of '{}' than these weights are. {}.", keys(),
         stated->origin(), fault,
         facts_.kept_layers ? "Choose layers that keep the order of kinds, such as the first ones"
                            : "Remove the key");
  }

  Checkpoint const& source_;
  ModelChanges const& changes_;
  FormatId target_;
  SourceModel& read_;
  Model& model_;
  FactChanges facts_;
  StatedChanges changed_;
};

}  // namespace

void change_model(Checkpoint const& source, PlanRequest const& request, SourceModel& read) {
  ModelChanges const& changes = request.changes;
  if (changes.any() || changes.new_rows != NewRows::refuse || source.others.new_rows)
    ModelChanger(source, request, read).run();
}

}  // namespace reshard
