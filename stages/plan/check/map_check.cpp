#include "stages/plan/check/map_check.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "core/base/text/shape_text.hpp"
#include "core/base/text/text.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "core/mapping/sides/side_scope.hpp"
#include "stages/plan/check/args_proof.hpp"
#include "stages/plan/check/core_forms.hpp"
#include "stages/plan/source/facts/megatron_form.hpp"
#include "stages/plan/source/facts/model_facts.hpp"
#include "stages/plan/source/names/mlite_options.hpp"
#include "stages/plan/source/names/tower_entries.hpp"

namespace reshard {
namespace {

using Stored = std::vector<std::pair<std::string, std::vector<Index>>>;

/// The first thing that one list has and the other lacks, or has in another shape.
std::optional<std::string> difference(Stored left, Stored right, std::string const& of_left,
                                      std::string const& of_right) {
  std::sort(left.begin(), left.end());
  std::sort(right.begin(), right.end());
  auto const [a, b] = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  if (a == left.end() && b == right.end()) return std::nullopt;
  if (a != left.end() && b != right.end() && a->first == b->first)
    return fmt::format("'{}' is {} {} and {} {}", a->first, shape_text(a->second), of_left,
                       shape_text(b->second), of_right);
  bool const only_left = b == right.end() || (a != left.end() && a->first < b->first);
  return fmt::format("'{}' is expected {} and not {}", only_left ? a->first : b->first,
                     only_left ? of_left : of_right, only_left ? of_right : of_left);
}

/// A family's side, and the model that its entries make.
struct FamilyProof {
  std::unique_ptr<Model> model;
  SideProof proof;
};

class MapChecker {
 public:
  explicit MapChecker(MapCheckRequest const& request) : request_(request) {}

  MapCheck run() {
    load();
    result_.words = check_map_syntax(*map_, maps_.core);
    result_.drop = map_->drop;
    result_.keep = map_->keep;
    if (request_.config.is_null() && request_.args.is_null()) return std::move(result_);
    result_.on_model = true;
    if (map_ == &maps_.core) {
      describe_by_args();
    } else {
      check_family();
    }
    if (names_alone_) {
      result_.notes.push_back(
          fmt::format("{} defines stored names only; axes, sets and args are those of {}",
                      map_->name, family_->name));
    } else if (std::string const reason = reason_against_megatron(); !reason.empty()) {
      result_.no_megatron = reason;
      list_tensors();
      return std::move(result_);
    } else {
      check_core();
    }
    if (map_ != &maps_.core && !names_alone_ && model_) {
      try {
        check_args();
      } catch (Error const& error) {
        if (error.kind() == ErrorKind::internal) throw;
        result_.errors.push_back(
            fmt::format("{} [args], evaluated again: {}", map_->name, error.sentence()));
      }
      note_choice();
    }
    list_tensors();
    return std::move(result_);
  }

 private:
  void load() {
    maps_ = request_.library.choose(request_.map, request_.config, request_.args,
                                    request_.map != "mcore");
    map_ = maps_.family && maps_.family->name != maps_.core.name ? &*maps_.family : &maps_.core;
    family_ = map_;
    result_.map = map_->name;
    result_.core = maps_.core.name;
    config_ = request_.config;
    if (map_ == &maps_.core && !request_.config.is_null())
      fail(
          ErrorKind::usage,
          "--config: {} describes Megatron's checkpoints, which have args. Give --args with a JSON file of them.",
          map_->name);
    if (map_ != &maps_.core && config_.is_null() && !request_.args.is_null()) {
      if (map_->config.empty())
        fail(ErrorKind::usage,
             "--args: {} has no [config], so no config.json can be made from args. Give --config.",
             map_->name);
      config_ = config_from_args(*map_, Model(maps_.core, maps_.core, {request_.args, "args"}));
    }
    names_alone_ = map_ != &maps_.core && map_->axes.empty();
    if (map_ != &maps_.core && !names_alone_ && !config_.is_null() &&
        !TowerEntries(maps_, config_).empty())
      TowerEntries::switch_on(maps_);
    if (!names_alone_ || config_.is_null()) return;
    others_ = request_.library.choose("auto", config_, Json(), true).family;
    family_ = &*others_;
  }

  std::string reason_against_megatron() const {
    return model_ ? no_megatron_reason(*model_) : std::string();
  }

  /// Megatron's map alone: what args decide; tensors that a model may lack are left out.
  void describe_by_args() {
    model_ = std::make_unique<Model>(maps_.core, maps_.core, ModelFacts{request_.args, "args"});
    apply_present(*model_, maps_.core);
    for (TensorId const tensor :
         Side(*model_, maps_.core, core_forms(*model_, maps_.core).front().options)
             .optional_tensors())
      model_->set_exists(tensor, false);
    check_whole_model(*model_, "args");
  }

  void check_whole_model(Model const& model, std::string_view facts) const {
    for (NamedExpression const& let : family_->let)
      if (let.name == "L" && model_count(model, "L") <= 0)
        fail(
            ErrorKind::usage,
            "{}: the model has no layers: L = '{}' is {} by {}. Check [let] and the names of facts.",
            map_->name, let.expression.text(), model.value("L").dump(), facts);
    std::optional<TensorId> const embed = model.find_tensor("embed");
    if (embed && model.exists(*embed)) return;
    fail(ErrorKind::usage,
         "{}: the model has no 'embed', so the map describes no part of {}. Check [axes], and that "
         "an entry stores 'embed'.",
         map_->name, facts);
  }

  SideOptions family_options(Model const& model, std::string const& present) {
    SideOptions options;
    options.has = [this, present](std::string_view name) {
      asked_.emplace(name);
      return name == present;
    };
    if (names_alone_ && has_mlite_names(*map_))
      options.options = mlite_target_options(*map_, model, {});
    return options;
  }

  /// The family's side where of all names that it asks for only `present` is stored.
  FamilyProof prove_family(Json const& config, std::string const& present) {
    FamilyProof result;
    result.model = std::make_unique<Model>(*family_, maps_.core, ModelFacts{config, "config.json"});
    Side const side(*result.model, *map_, family_options(*result.model, present));
    apply_family(*result.model, side);
    if (!names_alone_)
      for (TensorId const tensor : side.optional_tensors())
        result.model->set_exists(tensor, false);  // no part of a model by its config
    check_whole_model(*result.model, "config.json");
    SidePlace const whole;
    result.proof = prove_side(*result.model, side, {&whole, 1}, Detail::patterns);
    return result;
  }

  void check_family() {
    take_family(check_family_form(""));
    std::set<std::string> done{""};
    for (auto next = asked_.begin();
         next != asked_.end();) {  // each form may ask for further names
      if (done.insert(*next).second) {
        check_family_form(*next);
        next = asked_.begin();
      } else {
        ++next;
      }
    }
    note_unused();
    for (std::string const& fact : result_.words.facts)
      if (model_->value(fact).is_null()) result_.absent.push_back(fact);
    for (NamedExpression const& axis : family_->axes)
      if (model_->axes().find(axis.name) < 0)
        result_.no_axes.push_back(fmt::format("{} ('{}')", axis.name, axis.expression.text()));
  }

  void take_family(FamilyProof plain) {
    model_ = std::move(plain.model);
    stored_ = std::move(plain.proof.stored);
    result_.family = std::move(plain.proof.patterns);
    check_keep();
  }

  FamilyProof check_family_form(std::string const& present) {
    FormCheck form{
        present.empty() ? "Hugging Face" : fmt::format("Hugging Face with '{}'", present), 0, "",
        true};
    FamilyProof result = prove_family(config_, present);
    form.stored = result.proof.stored_tensors;
    for (NamePattern const& pattern : result.proof.patterns) used_.insert(pattern.place);
    for (CoverageFault const& fault : result.proof.faults) {
      if (form.refused.empty()) form.refused = fault.sentence;
      result_.errors.push_back(fmt::format(
          "{}{}: {}. Correct the entries that name it, or its axes.", map_->name,
          present.empty() ? "" : fmt::format(", with '{}' stored", present), fault.sentence));
    }
    check_complete(*result.model, present, form);
    // A name may mean nothing where the config has none of its facts.
    if (present.empty() || !form.refused.empty() || !same_names(result.proof.patterns))
      result_.forms.push_back(std::move(form));
    return result;
  }

  /// Whether they are those of the form without such names.
  bool same_names(std::vector<NamePattern> const& patterns) const {
    return std::ranges::equal(patterns, result_.family, {}, &NamePattern::place,
                              &NamePattern::place);
  }

  /// A form may store a weight in parts ("experts.gate" as "experts.gate.mxfp4.blocks"), but not
  /// leave it out.
  void check_complete(Model const& of_form, std::string const& present, FormCheck& form) {
    if (!model_) return;
    for (std::size_t t = 0; t < model_->tensors().size(); ++t) {
      std::string const& name = model_->tensors()[t].name;
      bool stored = false;
      for (std::size_t u = 0; u < of_form.tensors().size() && !stored; ++u) {
        std::string const& other = of_form.tensors()[u].name;
        stored = of_form.exists(TensorId(u)) && (other == name || other.starts_with(name + "."));
      }
      if (!model_->exists(TensorId(t)) || stored) continue;
      if (form.refused.empty()) form.refused = fmt::format("no entry stores '{}'", name);
      result_.errors.push_back(fmt::format(
          "{}, with '{}' stored: no entry stores '{}'. Give that form an entry for it, or correct the conditions with has().",
          map_->name, present, name));
    }
  }

  void note_unused() {
    for (MapName const& name : map_->stored)
      if (std::none_of(name.entries.begin(), name.entries.end(),
                       [&](MapEntry const& entry) { return used_.contains(entry.place); }))
        result_.unused.push_back(fmt::format("{} ({})", name.name, name.entries.front().place));
  }

  void check_keep() {
    for (std::string const& pattern : map_->keep)
      for (auto const& [name, shape] : stored_)
        if (matches_glob(pattern, name) && !is_of_tower(name)) {
          result_.errors.push_back(fmt::format(
              "{}: keep = \"{}\" matches '{}', which an entry describes. Make the pattern "
              "narrower.",
              map_->name, pattern, name));
          return;
        }
  }

  /// Whether all that a stored tensor holds is part of a vision tower with axes.
  bool is_of_tower(std::string const& name) const {
    TowerEntries const tower(maps_, config_);
    return tower.describes(name);
  }

  void check_core() {
    std::map<TensorId, std::size_t> nowhere;  // tensor -> required forms without a place for it
    std::size_t required = 0;
    std::vector<std::string> partly;
    for (CoreForm const& form : core_forms(*model_, maps_.core)) {
      FormCheck check{form.title, 0, "", form.demand == CoreForm::Demand::proof};
      try {
        bool const shown =
            form.options.local ? result_.megatron.empty() : result_.torch_dist.empty();
        SideProof proof =
            prove_form(*model_, maps_.core, form, shown ? Detail::patterns : Detail::none);
        check.stored = proof.stored_tensors;
        required += check.required ? 1 : 0;
        for (CoverageFault const& fault : proof.faults) {
          if (check.refused.empty()) check.refused = fault.sentence;
          if (check.required && fault.nowhere) ++nowhere[fault.tensor];
          if (form.demand != CoreForm::Demand::nothing)
            partly.push_back(
                fmt::format("{}, {}: {}", maps_.core.name, form.title, fault.sentence));
        }
        keep_patterns(form, std::move(proof));
      } catch (Error const& error) {
        if (error.kind() == ErrorKind::internal) throw;
        check.refused = error.sentence();
        if (check.required) partly.push_back(fmt::format("{}: {}", form.title, error.sentence()));
      }
      result_.forms.push_back(std::move(check));
    }
    for (auto const& [tensor, forms] : nowhere)
      if (forms == required) result_.errors.push_back(no_place(tensor));
    if (nowhere.empty() || result_.errors.empty())
      result_.errors.insert(result_.errors.end(), partly.begin(), partly.end());
  }

  std::string no_place(TensorId tensor) const {
    std::string const& name = model_->tensor(tensor).name;
    std::string place;
    for (NamePattern const& pattern : result_.family)
      if (std::find(pattern.tensors.begin(), pattern.tensors.end(), tensor) !=
          pattern.tensors.end())
        place = " (" + pattern.place + ")";
    return fmt::format(
        "'{}'{} has no stored name in {}: no Megatron checkpoint can hold it. Use a logical name "
        "of {}, or list its stored names under `keep`.",
        name, place, maps_.core.name, maps_.core.name);
  }

  void keep_patterns(CoreForm const& form, SideProof proof) {
    if (form.options.local && result_.megatron.empty()) {
      for (NamePattern& pattern : proof.patterns) {
        std::vector<std::string> cuts = cuts_of(pattern, form.options);
        result_.megatron.push_back({std::move(pattern), std::move(cuts)});
      }
    } else if (form.options.in_front && result_.torch_dist.empty()) {
      result_.torch_dist = std::move(proof.patterns);
    }
  }

  std::vector<std::string> cuts_of(NamePattern const& pattern, SideOptions const& options) const {
    std::vector<std::string> whole;
    std::vector<std::string> at;
    SideScope const words(*model_, maps_.core, options);
    for (MapName const& name : maps_.core.stored)
      for (MapEntry const& entry : name.entries) {
        if (entry.place != pattern.place ||
            (!entry.when.empty() && !entry.when.holds(words.with(nullptr))))
          continue;
        whole.insert(whole.end(), entry.whole.begin(), entry.whole.end());
        if (at.empty()) at = entry.at;
      }
    std::set<std::string> axes;
    for (TensorId const tensor : pattern.tensors)
      for (LogicalAxis const& axis : model_->tensor(tensor).axes)
        axes.insert(model_->axes()[axis.axis].name);
    std::vector<std::string> cuts;
    for (AxisRule const& rule : maps_.core.rules)
      if (axes.contains(rule.axis) &&
          std::find(whole.begin(), whole.end(), rule.axis) == whole.end())
        cuts.push_back(rule.mesh + " " + rule.axis);
    std::string const pipeline = pipeline_axis(maps_.core);
    for (char const* dealt : {"layer", "depth"})
      if (axes.contains(dealt)) cuts.push_back(fmt::format("{} {}", pipeline, dealt));
    if (!at.empty()) cuts.push_back(pipeline + " at " + listed(at));
    return cuts;
  }

  /// Proves the family's args: Megatron makes the same axes and the same stored tensors of them.
  void check_args() {
    if (family_->args.empty())
      return result_.notes.push_back(
          "no [args]: a Megatron checkpoint cannot be made from only a config.json");
    result_.args = model_->evaluate(family_->args);
    Json const args{Json::Object(result_.args)};
    Model described(maps_.core, maps_.core, {args, "args"});
    if (auto const conflict = axis_conflict(*model_, described, args))
      result_.errors.push_back(fmt::format(
          "{} [args]: axis '{}' is {} by config.json and {} by the args that are made from it. "
          "Correct [args].",
          map_->name, conflict->axis, conflict->by_config, conflict->by_args));
    check_described(args);
    if (family_->config.empty())
      return result_.notes.push_back("no [config]: a Hugging Face target needs target.reference");
    result_.config = described.evaluate(family_->config);
    check_config(config_from_args(*family_, described));
  }

  /// A job makes the same check of the args that its target will have.
  void check_described(Json const& args) {
    SideOptions const options = core_forms(*model_, maps_.core).front().options;
    ArgsDifference const differs =
        args_difference(*model_, maps_.core, args, options, ArgsReader::map);
    if (!differs.empty())
      result_.errors.push_back(fmt::format(
          "{} [args], read again by {}: {}. Correct [args]; where Megatron has no argument for it, one of own_args in {}.",
          map_->name, maps_.core.name, first_difference(differs), maps_.core.name));
    std::string note = strict_load_note(*model_, maps_.core, args, options);
    if (!note.empty()) result_.notes.push_back(std::move(note));
  }

  /// Args say nothing of vision towers.
  Stored without_kept(Stored stored) const {
    std::erase_if(stored, [&](auto const& one) {
      return std::ranges::any_of(
          map_->keep, [&](std::string const& pattern) { return matches_glob(pattern, one.first); });
    });
    return stored;
  }

  void check_config(Json const& made) {
    Stored const again = without_kept(prove_family(made, "").proof.stored);
    auto const differs = difference(without_kept(stored_), again, "for config.json",
                                    "for the one that [config] makes from its args");
    if (differs)
      result_.errors.push_back(
          fmt::format("{} [config]: {}. Correct [config].", map_->name, *differs));
  }

  /// Whether "auto" would find this map again.
  void note_choice() {
    Json const* type = config_.find("model_type");
    if (type != nullptr && type->text() != nullptr && !map_->model_types.empty() &&
        std::find(map_->model_types.begin(), map_->model_types.end(), *type->text()) ==
            map_->model_types.end())
      result_.notes.push_back(fmt::format(
          "match.model_type does not list '{}': \"auto\" does not choose this map for it",
          *type->text()));
    if (map_->match_args.empty() || result_.args.empty()) return;
    try {
      auto const found =
          request_.library.choose("auto", Json(), Json(Json::Object(result_.args)), true).family;
      if (found->name != map_->name)
        result_.notes.push_back(
            fmt::format("from args without a config.json, \"auto\" chooses "
                        "{}",
                        found->name));
    } catch (Error const& error) {
      result_.notes.push_back("from args without a config.json: " +
                              error.sentence().substr(0, error.sentence().find(". ")));
    }
  }

  void list_tensors() {
    if (!model_) return;
    for (std::size_t t = 0; t < model_->tensors().size(); ++t) {
      if (!model_->exists(TensorId(t))) continue;
      LogicalTensor const& logical = model_->tensors()[t];
      CheckedTensor tensor{logical.name, {}, model_->domain(logical), model_->volume(logical),
                           {},           {}};
      for (LogicalAxis const& axis : logical.axes) {
        Axis const& known = model_->axes()[axis.axis];
        tensor.axes.emplace_back(
            axis.div > 1 ? fmt::format("{}/{}", known.name, axis.div) : known.name,
            (known.size + axis.div - 1) / axis.div);
      }
      auto const holds = [&](NamePattern const& pattern) {
        return std::ranges::find(pattern.tensors, TensorId(t)) != pattern.tensors.end();
      };
      for (std::size_t i = 0; i < result_.family.size(); ++i)
        if (holds(result_.family[i])) tensor.family.push_back(i);
      for (std::size_t i = 0; i < result_.megatron.size(); ++i)
        if (holds(result_.megatron[i].names)) tensor.core.push_back(i);
      result_.tensors.push_back(std::move(tensor));
    }
  }

  MapCheckRequest const& request_;
  MapChoice maps_;
  std::optional<MapFile> others_;  ///< the family of a map with names alone
  MapFile const* map_ = nullptr;
  MapFile const* family_ = nullptr;
  bool names_alone_ = false;
  Json config_;
  std::set<std::string, std::less<>> asked_;  ///< stored names that conditions ask for
  std::set<std::string> used_;                ///< places of entries that made names
  std::unique_ptr<Model> model_;
  Stored stored_;
  MapCheck result_;
};

}  // namespace

MapCheck check_map(MapCheckRequest const& request) { return MapChecker(request).run(); }

}  // namespace reshard
