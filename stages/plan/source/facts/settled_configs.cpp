#include "stages/plan/source/facts/settled_configs.hpp"

#include "stages/plan/config/args_meaning.hpp"
#include "stages/plan/config/carried_config.hpp"
#include "stages/plan/config/config_conflicts.hpp"
#include "stages/plan/source/facts/made_config.hpp"
#include "stages/plan/source/facts/model_facts.hpp"
#include "stages/plan/source/facts/source_facts.hpp"

namespace reshard {
namespace {

class Settler {
 public:
  Settler(SourceModel& model, Checkpoint const& source, PlanRequest const& request)
      : model_(model), source_(source), request_(request) {}

  void run() {
    warn(config_warnings(source_, model_.facts.args, request_));
    warn_of_unknown_args();
    if (request_.options.huggingface.reference.empty()) return revise_by_args();
    Json const own = model_.facts.files ? model_.facts.files->config : Json();
    warn(reference_warnings({own, model_.facts.args}, *model_.facts.reference, request_));
  }

 private:
  void warn(std::vector<std::string> const& warnings) {
    model_.warnings.insert(model_.warnings.end(), warnings.begin(), warnings.end());
  }

  void warn_of_unknown_args() {
    if (!to_huggingface(request_) || source_.names != NameOwner::megatron) return;
    std::string text = unknown_args_warning(
        model_.names.maps.core, model_.names.maps.family ? &*model_.names.maps.family : nullptr,
        model_.facts.args);
    if (!text.empty()) model_.warnings.push_back(std::move(text));
  }

  bool must_agree() const {
    return format_of(request_.target.format).target().names == NameOwner::family ||
           !request_.read.config.empty();
  }

  /// Training may have continued with other settings than those of config.json.
  void revise_by_args() {
    if (model_.facts.args.is_null() || !model_.facts.files || model_.facts.files->config.is_null())
      return;
    ConfigRevision revision;
    auto const refused = refusal_of([&] { revision = compared_with_args(); });
    if (refused && must_agree()) throw *refused;
    if (refused) return warn({refused->sentence()});
    warn(revision.warnings);
    if (revision.changes.empty()) return;
    for (auto* folder : {&model_.facts.files, &model_.facts.reference}) {
      if (!*folder) continue;
      (*folder)->config_text = huggingface::patched_config_text(
          std::move((*folder)->config_text), revision.changes, config_name_of(**folder));
      (*folder)->config = huggingface::patched_config((*folder)->config, revision.changes);
    }
  }

  ConfigRevision compared_with_args() const {
    Json const& config = model_.facts.files->config;
    std::optional<MapChoice> chosen;
    auto const unknown = refusal_of([&] { chosen = maps(config); });
    if (unknown && !request_.read.config.empty())
      return {{},
              {},
              {fmt::format("{} was not compared with the checkpoint's args: {}", place(),
                           unknown->sentence())}};
    if (unknown || chosen->family->args.empty()) return {};
    check_sizes(*chosen, config);
    return revised_config(*chosen->family, chosen->core, config,
                          completed_args(model_.facts.args, *chosen, config), place());
  }

  /// Where the config comes from, for messages.
  std::string place() const {
    return request_.read.config.empty() ? model_.facts.files->path.string()
                                        : request_.read.config.string();
  }

  MapChoice maps(Json const& config) const {
    if (model_.names.maps.family) return model_.names.maps;
    return request_.read.library.choose("auto", config, Json(), true);
  }

  void check_sizes(MapChoice const& maps, Json const& config) const {
    auto const by_args_with = [&](Index vocab) {
      return Model(maps.core, maps.core, {model_.facts.args, "args", vocab});
    };
    Json const layers = by_args_with(request_.read.true_vocab_size).value("M");
    Model const by_config(*maps.family, maps.core,
                          {config, "config.json", request_.read.true_vocab_size,
                           layers.integer() == nullptr ? 0 : *layers.integer()});
    Model const by_args =
        by_args_with(vocab_of_args_beside(by_config.value("vocab"), source_, request_, model_));
    if (auto const conflict = axis_conflict(by_config, by_args, model_.facts.args))
      fail(ErrorKind::source,
           "{} is {} in {} and {} in args. They describe two different models: check {}.",
           conflict->axis, conflict->by_config, place(), conflict->by_args,
           request_.read.config.empty() ? "that config.json" : "source.config");
  }

  SourceModel& model_;
  Checkpoint const& source_;
  PlanRequest const& request_;
};

}  // namespace

void settle_configs(SourceModel& model, Checkpoint const& source, PlanRequest const& request) {
  Settler(model, source, request).run();
}

}  // namespace reshard
