#include "stages/plan/source/state/named_masters.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/base/error.hpp"
#include "core/formats/dcp/named_states.hpp"
#include "core/formats/deepspeed/rank_header.hpp"
#include "core/formats/deepspeed/run_state.hpp"
#include "core/formats/deepspeed/universal.hpp"
#include "core/formats/deepspeed/zero_table.hpp"
#include "core/formats/format.hpp"
#include "core/plan/equal/state_checks.hpp"

namespace reshard {
namespace {

using deepspeed::master_word;
using deepspeed::parse_state_name;
using deepspeed::state_name;
using deepspeed::step_slot;

class Settler {
 public:
  Settler(Checkpoint const& source, PlanRequest const& request, std::vector<NamedTensor>& tensors)
      : source_(source), request_(request), tensors_(tensors) {}

  void run() {
    if (!source_.state.deepspeed) {
      check_prefix();
      rename_states();
    }
    std::set<std::string, std::less<>> trained;
    std::set<std::string, std::less<>> held;
    for (NamedTensor const& one : tensors_)
      if (auto const state = parse_state_name(one.key)) {
        trained.emplace(state->parameter);
        if (state->slot == master_word) held.emplace(state->parameter);
      }
    if (!source_.state.deepspeed) check_weights(trained);
    if (!source_.state.deepspeed) check_steps(trained);
    std::size_t const count = tensors_.size();
    for (std::size_t t = 0; t < count; ++t) {
      NamedTensor const& weight = tensors_[t];
      if (weight.scalar || parse_state_name(weight.key) || held.contains(weight.key) ||
          is_second_name(weight.key) || (!trained.empty() && !trained.contains(weight.key)))
        continue;
      add_master(weight, !trained.empty());
    }
  }

 private:
  /// DeepSpeed looks for parameters under the names of the module.
  void check_prefix() const {
    if (!request_.read.prefix.empty()) return;
    std::string const before = dcp::named_states(source_.stored, "").trainer;
    if (!before.empty())
      fail(ErrorKind::source,
           "{}: names of weights begin with '{}', below which the trainer has saved the model, and "
           "DeepSpeed looks for those of the module. Set source.prefix = \"{}\".",
           source_.place, before, before);
  }

  /// Names of state, which each program has its own of.
  void rename_states() {
    std::erase_if(tensors_, [](NamedTensor const& one) { return one.scalar; });
    auto const names = named_states_of(source_, request_);
    if (request_.read.drop_optimizer)
      std::erase_if(tensors_, [&](NamedTensor const& one) { return names.contains(one.number); });
    for (NamedTensor& one : tensors_)
      if (auto const found = names.find(one.number); found != names.end())
        one.key = found->second;
      else if (is_optimizer_key(one.key))
        fail(ErrorKind::source,
             "{}: '{}' is optimizer state that follows no weight, and a universal checkpoint has "
             "state by weight. Set source.optimizer = \"drop\" to continue without it.",
             source_.place, one.key);
  }

  bool is_second_name(std::string const& name) const {
    return source_.state.deepspeed &&
           std::ranges::count(source_.state.deepspeed->second_names, name) > 0;
  }

  /// The state of a fused parameter follows no weight under the stored names.
  void check_weights(std::set<std::string, std::less<>> trained) const {
    for (NamedTensor const& one : tensors_)
      if (auto const found = trained.find(one.key); found != trained.end()) trained.erase(found);
    if (!trained.empty())
      fail(
          ErrorKind::source,
          "{}: '{}' has optimizer state, and its weight is stored in parts under other names. Name "
          "the map that describes both in model.map, such as \"torchtitan_qwen3\"; or set "
          "source.optimizer = \"drop\" to continue without it.",
          source_.place, *trained.begin());
  }

  /// They are a tensor for each parameter, as torch.optim has them.
  void check_steps(std::set<std::string, std::less<>> trained) const {
    for (NamedTensor const& one : tensors_)
      if (auto const state = parse_state_name(one.key); state && state->slot == step_slot)
        trained.erase(std::string(state->parameter));
    if (!trained.empty())
      fail(ErrorKind::source,
           "{}: no F32 number 'step' belongs to '{}', which has optimizer state. Set "
           "source.optimizer = \"drop\" to continue without it.",
           source_.place, *trained.begin());
  }

  void add_master(NamedTensor const& weight, bool with_state) {
    DType const dtype = weight.dtype;
    if (dtype != DType::f32 && with_state)
      fail(ErrorKind::source,
           "{}: '{}' is {} and has optimizer state, but no F32 master weight, which DeepSpeed's "
           "optimizers need: the run trained only in {}. Set source.optimizer = \"drop\" to "
           "continue without it.",
           source_.place, weight.key, name(dtype), name(dtype));
    if (dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2)
      fail(ErrorKind::usage,
           "[target] format = \"deepspeed\": '{}' is quantised, and DeepSpeed trains F32 master "
           "weights. Write the model as huggingface with model.quant = \"dequantise-bf16\" first, "
           "and convert that.",
           weight.key);
    if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) return;
    NamedTensor master = weight;
    master.key = state_name(weight.key, master_word);
    master.dtype = DType::f32;
    DType const stored = weight.stored.value_or(dtype);
    if (stored != DType::f32) {
      master.stored = stored;
      master.cast = true;
    } else {
      master.stored.reset();
    }
    tensors_.push_back(std::move(master));
  }

  Checkpoint const& source_;
  PlanRequest const& request_;
  std::vector<NamedTensor>& tensors_;
};

}  // namespace

std::map<std::size_t, std::string> named_states_of(Checkpoint const& source,
                                                   PlanRequest const& request) {
  std::map<std::size_t, std::string> names;
  if (!format_of(request.target.format).target().needs_masters || source.state.deepspeed ||
      source.format->id() == FormatId::huggingface)  // has none
    return names;
  StoredView const view = source.format->view(source, request.read.prefix);
  for (std::size_t s = 0; s < view.state_tables.size(); ++s) {
    std::string_view const slot =
        is_master_slot(view.states[s]) ? master_word : std::string_view(view.states[s]);
    for (auto const& [name, number] : view.state_tables[s])
      names.emplace(number, state_name(name, slot));
  }
  if (names.empty()) return names;
  std::string const& prefix = request.read.prefix;
  for (dcp::NamedState const& one : dcp::named_states(source.stored, prefix).steps)
    if (StoredTensor const& step = source.stored.tensors[one.tensor];
        step.shape.empty() && step.dtype == DType::f32)
      names.emplace(one.tensor, state_name(one.weight.substr(prefix.size()), step_slot));
  return names;
}

void settle_named_states(Checkpoint const& source, PlanRequest const& request,
                         std::vector<NamedTensor>& tensors) {
  Settler(source, request, tensors).run();
}

}  // namespace reshard
