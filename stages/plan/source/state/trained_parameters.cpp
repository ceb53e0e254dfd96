#include "stages/plan/source/state/trained_parameters.hpp"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"
#include "core/formats/run/torch_optimizer.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "core/plan/equal/state_checks.hpp"

namespace reshard {
namespace {

class TrainedCheck {
 public:
  TrainedCheck(Checkpoint const& source, PlanRequest const& request, SourceModel const& read)
      : source_(source),
        request_(request),
        read_(read),
        optimizer_(*source.state.torch_optimizer) {}

  void run(std::vector<std::string>& warnings) {
    for (auto const& members : optimizer_.members)
      for (std::string const& member : members)
        if (member.starts_with(request_.read.prefix)) check(member);
    if (format_of(request_.target.format).target().needs_masters) return;
    warnings.push_back(
        "the learning-rate schedule is not converted: give Megatron's own "
        "(--override-opt_param-scheduler)");
    warn_of_decay(warnings);
  }

 private:
  std::string key(std::string const& member) const {
    return member.substr(request_.read.prefix.size());
  }

  bool is_frozen(std::string const& member) const {
    return std::ranges::any_of(request_.read.frozen, [&](std::string const& pattern) {
      return matches_glob(pattern, key(member));
    });
  }

  void check(std::string const& member) const {
    StoredView const& view = read_.facts.view;
    if (!view.weights.contains(key(member)) || is_frozen(member)) return;
    for (std::size_t s = 0; s < view.states.size(); ++s)
      if (!view.state_tables[s].contains(key(member)))
        fail(ErrorKind::source,
             "{}: '{}' is in a parameter group of the optimizer and has no {}, which other "
             "parameters have. If it was not trained, name it in model.frozen. If it was, the "
             "save is incomplete: restore it, or set source.optimizer = \"drop\".",
             source_.place, member, view.states[s]);
  }

  /// Matrices of Megatron's runs decay, norms and biases do not.
  void warn_of_decay(std::vector<std::string>& warnings) const {
    if (optimizer_.settings.empty()) return;
    pickle::Document const settings = settings_of(optimizer_);
    auto const& groups = settings.at(settings.root).items;
    std::vector<std::string> vectors;   // that decay
    std::vector<std::string> matrices;  // that do not
    bool any = false;
    for (std::size_t g = 0; g < groups.size() && g < optimizer_.members.size(); ++g) {
      pickle::NodeId const decay = settings.find(groups[g], "weight_decay");
      bool const decays = decay != pickle::no_node && settings.at(decay).real != 0;
      any = any || decays;
      for (std::string const& member : optimizer_.members[g])
        if (auto const dimensions = dimensions_of(member);
            dimensions && (*dimensions < 2) == decays)
          (decays ? vectors : matrices).push_back(member);
    }
    warn(vectors, "decayed, and Megatron's norms and biases do not", warnings);
    if (any) warn(matrices, "did not decay, and Megatron's matrices do", warnings);
  }

  static void warn(std::vector<std::string>& names, std::string_view what,
                   std::vector<std::string>& warnings) {
    std::ranges::sort(names);
    if (!names.empty())
      warnings.push_back(fmt::format("{} {}: {}. Their weight decay changes",
                                     counted(names.size(), "parameter"), what, listed(names, 3)));
  }

  /// Nothing for what the job leaves out.
  std::optional<std::size_t> dimensions_of(std::string const& member) const {
    if (!member.starts_with(request_.read.prefix)) return std::nullopt;
    auto const found = read_.facts.view.weights.find(key(member));
    if (found == read_.facts.view.weights.end()) return std::nullopt;
    return source_.stored.tensors.shape(found->second).size();
  }

  Checkpoint const& source_;
  PlanRequest const& request_;
  SourceModel const& read_;
  TorchOptimizer const& optimizer_;
};

}  // namespace

void check_moments(Checkpoint const& source, SourceModel const& read,
                   std::vector<std::string>& warnings) {
  Model const& model = *read.model;
  auto const number = [&](std::string_view slot) {
    return static_cast<std::size_t>(std::ranges::find(model.slots(), slot) - model.slots().begin());
  };
  std::size_t const first = number("exp_avg");
  std::size_t const second = number("exp_avg_sq");
  std::size_t const slots = model.slots().size();
  if (slots == 1 || first == slots || second == slots) return;
  bool any = false;
  std::vector<std::string> without;  // moments, beside a master weight
  auto const has_slot = [&](TensorId weight, bool master) {
    for (std::size_t s = 1; s < slots; ++s)
      if (is_master_slot(model.slots()[s]) == master && model.state_of(weight, SlotId(s)))
        return true;
    return false;
  };
  // Lion has the first moment alone; a run may have it for some weights and Adam for others.
  Json const stated = fact(read.facts.args, "optimizer");
  bool const adam = stated.text() == nullptr || *stated.text() == "adam";
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    auto const weight = TensorId(t);
    if (model.tensor(weight).slot != SlotId::weight || !model.exists(weight)) continue;
    bool const has_first = model.state_of(weight, SlotId(first)).has_value();
    bool const has_second = model.state_of(weight, SlotId(second)).has_value();
    any = any || has_first || has_second;
    if (has_slot(weight, true) && !has_slot(weight, false))
      without.push_back(model.tensor(weight).name);
    if (has_first != has_second && adam)
      fail(ErrorKind::source,
           "{}: '{}' has {} and lacks {}, which Adam keeps together. Restore the checkpoint "
           "from the original, or set source.optimizer = \"drop\".",
           source.place, model.tensor(weight).name, has_first ? "exp_avg" : "exp_avg_sq",
           has_first ? "exp_avg_sq" : "exp_avg");
  }
  if (any && !without.empty())
    warnings.push_back(fmt::format(
        "{} {} a master weight and no moments ({}): they had no gradient before the save, or their "
        "state was lost",
        counted(without.size(), "parameter"), agreeing(without.size(), "has", "have"),
        listed(without, 4)));
  if (!any)
    fail(ErrorKind::source,
         "{}: lists optimizer state ({}) and holds none of any parameter of the model. Restore the "
         "checkpoint from the original, or set source.optimizer = \"drop\".",
         source.place, fmt::join(read.facts.view.states, ", "));
}

void check_trained(Checkpoint const& source, PlanRequest const& request, SourceModel const& read,
                   std::vector<std::string>& warnings) {
  TrainedCheck(source, request, read).run(warnings);
}

}  // namespace reshard
