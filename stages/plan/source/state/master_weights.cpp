#include "stages/plan/source/state/master_weights.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "core/base/tables/counted.hpp"
#include "core/formats/format.hpp"
#include "core/plan/equal/state_checks.hpp"
#include "stages/plan/value_changes.hpp"

namespace reshard {
namespace {

bool flag(Json const& facts, std::string_view key) {
  Json const value = fact(facts, key);
  return value.boolean() != nullptr && *value.boolean();
}

/// The dtype that a run computes in: from args, else from the config.
std::optional<DType> computing_dtype(SourceModel const& read) {
  if (flag(read.facts.args, "bf16")) return DType::bf16;
  if (flag(read.facts.args, "fp16")) return DType::f16;
  if (!read.facts.args.is_null()) return std::nullopt;
  for (std::string_view const key : {"torch_dtype", "dtype"}) {
    Json const named = fact(read.facts.config, key);
    if (named.text() == nullptr) continue;
    if (*named.text() == "bfloat16") return DType::bf16;
    if (*named.text() == "float16") return DType::f16;
  }
  return std::nullopt;
}

std::optional<SlotId> master_slot(Model const& model) {
  auto const& slots = model.slots();
  for (std::size_t s = 1; s < slots.size(); ++s)
    if (is_master_slot(slots[s])) return SlotId(s);
  return std::nullopt;
}

bool has_state(Model const& model, TensorId weight) {
  for (std::size_t s = 1; s < model.slots().size(); ++s)
    if (model.exists(model.in_slot(weight, SlotId(s)))) return true;
  return false;
}

/// The weights of a model that exist and have pieces.
std::vector<TensorId> weights_of(SourceModel const& read) {
  std::vector<TensorId> result;
  for (std::size_t t = 0; t < read.model->tensors().size(); ++t) {
    auto const weight = TensorId(t);
    if (read.model->tensor(weight).slot == SlotId::weight && read.model->exists(weight) &&
        !read.stored.catalog.tensors[t].empty())
      result.push_back(weight);
  }
  return result;
}

/// Other dtypes hold no whole value: the precision-aware optimizer keeps in I16 what BF16 weights
/// lack.
void check_masters(Checkpoint const& source, SourceModel const& read, SlotId masters) {
  for (TensorId const weight : weights_of(read)) {
    TensorId const master = read.model->in_slot(weight, masters);
    auto const blobs = read.stored.catalog.tensors[index(master)].blobs();
    if (!read.model->exists(master) || blobs.empty()) continue;
    DType const dtype = read.stored.catalog.blobs[blobs.front()].dtype;
    if (dtype != DType::f32)
      fail(
          ErrorKind::source,
          "{}: the master weights of '{}' are {}, expected F32: {}. This version cannot reshard "
          "them. Set source.optimizer = \"drop\" to continue without the optimizer.",
          source.place, read.model->tensor(weight).name, name(dtype),
          dtype == DType::i16
              ? "they are the remainders that a precision-aware optimizer keeps beside BF16 weights"
              : "a precision-aware optimizer keeps them in fewer bits");
  }
}

/// Of a source without further masters: its weights must be masters.
void check_dtypes(Checkpoint const& source, SourceModel const& read) {
  for (TensorId const weight : weights_of(read)) {
    TensorPieces const& pieces = read.stored.catalog.tensors[index(weight)];
    DType const dtype = read.stored.catalog.blobs[pieces.blob(0)].dtype;
    if (dtype != DType::f32 && has_state(*read.model, weight))
      fail(ErrorKind::source,
           "{}: '{}' is {} and has optimizer state, but no F32 master weight, which Megatron's "
           "optimizers need: the run trained only in {}. Continue it in its own program, or "
           "set source.optimizer = \"drop\".",
           source.place, read.model->tensor(weight).name, name(dtype), name(dtype));
  }
}

/// Gives every trained weight its values as the master, and itself those rounded.
class Splitter {
 public:
  Splitter(SourceModel& read, SlotId masters, bool round)
      : read_(read), masters_(masters), dtype_(round ? computing_dtype(read) : std::nullopt) {}

  /// How many stored tensors of weights are rounded, to which dtype.
  std::size_t rounded() const { return rounded_.size(); }
  std::optional<DType> dtype() const { return dtype_; }

  void run() {
    for (TensorId const weight : weights_of(read_)) {
      TensorPieces& pieces = read_.stored.catalog.tensors[index(weight)];
      if (dtype_of(pieces) != DType::f32 || !has_state(*read_.model, weight)) continue;
      TensorId const master = read_.model->in_slot(weight, masters_);
      TensorPieces copy = pieces;
      copy.set_tensor(master);
      read_.stored.catalog.tensors[index(master)] = std::move(copy);
      read_.model->set_exists(master, true);
      if (dtype_) round(pieces, *dtype_);
    }
  }

 private:
  DType dtype_of(TensorPieces const& pieces) const {
    return read_.stored.catalog.blobs[pieces.blob(0)].dtype;
  }

  void round(TensorPieces& pieces, DType dtype) {
    std::map<std::uint32_t, Index> length;
    for (std::size_t i = 0; i < pieces.size(); ++i)
      length[pieces.blob(i)] = std::max(length[pieces.blob(i)], pieces.reach_of(i));
    std::map<std::uint32_t, std::uint32_t> rounded;
    for (auto const& [blob, elements] : length)
      rounded_.insert(read_.stored.catalog.blobs[blob].name);
    for (auto const& [blob, elements] : length)
      rounded[blob] = read_.stored.catalog.add_computed(blob, elements, ViewKind::round, dtype);
    for (std::size_t i = 0; i < pieces.size(); ++i) pieces.set_blob(i, rounded.at(pieces.blob(i)));
  }

  SourceModel& read_;
  SlotId masters_;
  std::optional<DType> dtype_;
  std::set<SharedText> rounded_;
};

/// Warns those who save F32 weights alone of the rounding.
void warn_of_rounded(SourceModel& read, Splitter const& splitter) {
  if (splitter.rounded() == 0) return;
  read.warnings.push_back(fmt::format(
      "{} of the source {} F32, and the target's weights are these rounded to {}, in which the "
      "model computes by its {}. The target's master weights have the F32 values",
      counted(splitter.rounded(), "weight"), splitter.rounded() == 1 ? "is" : "are",
      name(*splitter.dtype()), read.facts.args.is_null() ? "config.json" : "args"));
}

/// For a target that has masters alone.
void put_masters_in_place(SourceModel& read) {
  std::optional<SlotId> const masters = master_slot(*read.model);
  if (!masters) return;
  Catalog weights = read.stored.catalog;
  Catalog& catalog = read.stored.catalog;
  for (TensorId const weight : weights_of(read)) {
    TensorId const master = read.model->in_slot(weight, *masters);
    if (!read.model->exists(master)) continue;
    DType const dtype = catalog.blobs[catalog.tensors[index(weight)].blob(0)].dtype;
    if (dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::f32)
      fail(ErrorKind::source,
           "source: '{}' is {}, and cannot be compared with its master weight, and the target "
           "would hold only that. Choose target.format = \"torch_dist\", or set "
           "source.optimizer = \"drop\".",
           read.model->tensor(weight).name, name(dtype));
    catalog.tensors[index(weight)] = std::move(catalog.tensors[index(master)]);
    catalog.tensors[index(master)] = {};
    catalog.tensors[index(weight)].set_tensor(weight);
    read.model->set_exists(master, false);
    read.stored.computing = dtype;
    catalog.masters.emplace_back(weight, dtype);
  }
  if (!catalog.masters.empty()) read.stored.weights = std::move(weights);
}

/// Without its state a run's F32 masters are the weights that there are.
void warn_of_bare_masters(Checkpoint const& source, PlanRequest const& request, SourceModel& read) {
  if (!request.read.drop_optimizer || source.names != NameOwner::megatron ||
      !holds_masters_alone(source, read.facts.view))
    return;
  std::optional<DType> const computing = computing_dtype(read);
  if (!computing) return;
  read.warnings.push_back(fmt::format(
      "the source has F32 master weights alone, and without its optimizer state the target's "
      "weights are these, although the run computes in {} by its args: Megatron rounds them when "
      "it loads them",
      name(*computing)));
}

/// Whether training has F32 masters of such weights.
bool is_trainable(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32;
}

}  // namespace

void add_masters(SourceModel& read) {
  std::vector<TensorId> const weights = weights_of(read);
  std::string const slot(own_master_slot);
  read.model->add_slots(std::span(&slot, 1));
  read.stored.catalog.tensors.resize(read.model->tensors().size());
  for (TensorId const weight : weights) {
    TensorPieces copy = read.stored.catalog.tensors[index(weight)];
    DType const dtype = read.stored.catalog.blobs[copy.blob(0)].dtype;
    if (!is_trainable(dtype)) continue;
    TensorId const master = read.model->in_slot(weight, *master_slot(*read.model));
    copy.set_tensor(master);
    read.stored.catalog.tensors[index(master)] = std::move(copy);
    read.model->set_exists(master, true);
    if (dtype != DType::f32)
      change_values_of(*read.model, read.stored.catalog, master, DType::f32, 0);
  }
}

bool holds_masters_alone(Checkpoint const& source, StoredView const& view) {
  // torch's own optimizers step the weights themselves, in whatever container.
  bool const may = source.format->target().masters_alone || source.names == NameOwner::family;
  return may && !view.states.empty() && std::ranges::none_of(view.states, is_master_slot);
}

void split_masters(Checkpoint const& source, SourceModel& read, bool warn, bool round) {
  if (read.model->slots().size() == 1 || !holds_masters_alone(source, read.facts.view)) return;
  Splitter splitter(read, *master_slot(*read.model), round);
  splitter.run();
  if (warn) warn_of_rounded(read, splitter);
}

void settle_masters(Checkpoint const& source, PlanRequest const& request, SourceModel& read) {
  if (read.model->slots().size() == 1) return warn_of_bare_masters(source, request, read);
  bool const alone = format_of(request.target.format).target().masters_alone;
  if (auto const masters = master_slot(*read.model)) check_masters(source, read, *masters);
  bool const held_alone = holds_masters_alone(source, read.facts.view);
  // A target that is made of another program's checkpoint says in args what its run computes in.
  bool const made = source.state.torch_optimizer != nullptr;
  if (held_alone && made) check_dtypes(source, read);
  if (!alone || made) split_masters(source, read, made && !alone);
  if (alone && (!held_alone || made)) put_masters_in_place(read);
}

}  // namespace reshard
