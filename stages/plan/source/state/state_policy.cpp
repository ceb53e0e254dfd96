#include "stages/plan/source/state/state_policy.hpp"

#include "core/base/text/text.hpp"
#include "core/formats/format.hpp"

namespace reshard {
namespace {

/// One kind of state, in the words of messages.
struct Kind {
  std::string_view what;  ///< "optimizer"
  std::string_view key;   ///< of [source]
};
constexpr Kind optimizer{"optimizer", "optimizer"};
constexpr Kind rng{"random-generator", "rng"};

class Policy {
 public:
  Policy(Checkpoint const& source, PlanRequest const& request, std::vector<std::string>& warnings)
      : place_(source.folder.string()),
        in_rank_files_(source.storage == Storage::shares),
        to_dist_(format_of(request.target.format).target().rank_states),
        carried_(carries_state(source, request)),
        with_objects_(source.format->id() == request.target.format),
        to_family_(format_of(request.target.format).target().names == NameOwner::family &&
                   request.target.format == FormatId::huggingface),
        warnings_(warnings) {}

  void refuse(Kind const& kind, HeldState const& state, bool drop) const {
    if (drop) return;
    switch (state.form) {
      case StateForm::none: return;
      case StateForm::by_weight:
      case StateForm::in_buffers:
        if (!carried_ && in_rank_files_) refuse_model_files(kind, state);
        if (!carried_) refuse_form(kind);
        return;
      case StateForm::by_layout: return refuse_layout(kind, state);
      case StateForm::in_rank_files: return refuse_rank_files(kind, state);
      case StateForm::in_model_files: return refuse_model_files(kind, state);
    }
  }

  void warn(Kind const& kind, HeldState const& state, bool drop) const {
    // A Hugging Face folder is no run that could continue, and the job asked for it.
    if (!state || !drop || to_family_) return;
    warnings_.push_back(
        fmt::format("{} state is dropped (source.{} = \"drop\")", kind.what, kind.key));
  }

 private:
  [[noreturn]] void refuse_form(Kind const& kind) const {
    if (kind.key == optimizer.key)
      fail(ErrorKind::source,
           "{}: holds optimizer state, which the target's format cannot hold. Set source.optimizer "
           "= \"drop\" to continue without it.",
           place_);
    fail(ErrorKind::source,
         "{}: holds random-generator state, which the target's format cannot hold. Set source.rng "
         "= \"drop\" to continue without it.",
         place_);
  }

  /// Optimizer state may be bound to its layout; generators of ranks only to a format.
  void refuse_layout(Kind const& kind, HeldState const& state) const {
    if (kind.key == rng.key) {
      if (!carried_ || !with_objects_) refuse_form(kind);
      return;
    }
    if (!state.fault.empty())
      fail(ErrorKind::source,
           "{}: {}; or set source.optimizer = \"drop\" to continue without optimizer state.",
           place_, state.fault);
    fail(ErrorKind::source,
         "{}: optimizer state is stored under keys that this version does not know ('{}'). Load it "
         "in Megatron at the old sizes and save again as torch_dist, or set source.optimizer = "
         "\"drop\". Where only data parallelism changes, Megatron loads the checkpoint as it is.",
         place_, state.example);
  }

  [[noreturn]] void refuse_rank_files(Kind const& kind, HeldState const& state) const {
    fail(ErrorKind::source,
         "{}: holds {} state in files of single ranks ('{}'), which fit only the layout they were "
         "saved in. Set source.{} = \"drop\" to continue without it.",
         place_, kind.what, state.example, kind.key);
  }

  [[noreturn]] void refuse_model_files(Kind const& kind, HeldState const& state) const {
    if (kind.key == optimizer.key && to_dist_)
      fail(
          ErrorKind::source,
          "{}: holds optimizer state in a form that this version cannot reshard ('{}'). Load it in "
          "Megatron at the old sizes and save again as torch_dist, or set source.optimizer = "
          "\"drop\" to continue without it.",
          place_, state.example);
    if (kind.key == optimizer.key)
      fail(
          ErrorKind::source,
          "{}: holds optimizer state in files of single ranks, which this version reshards into "
          "Megatron's formats and HDF5 only. Set target.format = \"torch_dist\" or \"megatron\", or "
          "source.optimizer = \"drop\" to continue without it.",
          place_);
    fail(ErrorKind::source,
         "{}: holds random-generator state, which belongs to the old layout. Set source.rng = "
         "\"drop\" to continue without it (start training with --no-load-rng).",
         place_);
  }

  std::string place_;
  bool in_rank_files_;
  bool to_dist_;
  bool carried_;
  bool with_objects_;  ///< of the source
  bool to_family_;     ///< into a Hugging Face folder
  std::vector<std::string>& warnings_;
};

}  // namespace

bool carries_state(Checkpoint const& source, PlanRequest const& request) {
  bool const any = source.state.rank_states || source.format->target().carries_state;
  return any && format_of(request.target.format).target().rank_states;
}

void check_unread_state(Checkpoint const& source, PlanRequest const& request,
                        std::vector<std::string>& warnings) {
  HeldState const& state = source.state.inventory.optimizer;
  if (state.fault.empty()) return;
  Policy const policy(source, request, warnings);
  policy.refuse(optimizer, state, request.read.drop_optimizer);
  policy.warn(optimizer, state, request.read.drop_optimizer);
}

void check_state(Checkpoint const& source, StoredView const& view, PlanRequest const& request,
                 std::vector<std::string>& warnings) {
  if (!source.shares.defects.empty()) throw Error(ErrorKind::source, source.shares.defects.front());
  StateInventory const state = source.format->inventory(source, view);
  Policy const policy(source, request, warnings);
  // Generators go along as objects. With the optimizer in a new layout there is nothing to decide.
  bool const loses_rng = carries_state(source, request) && state.optimizer &&
                         !request.read.drop_optimizer &&
                         (source.state.rank_states || source.format->id() != request.target.format);
  policy.refuse(optimizer, state.optimizer, request.read.drop_optimizer);
  policy.refuse(rng, state.rng, request.read.drop_rng || loses_rng);
  policy.warn(optimizer, state.optimizer, request.read.drop_optimizer);
  policy.warn(rng, state.rng, request.read.drop_rng);
  if (state.rng && loses_rng && !request.read.drop_rng)
    warnings.push_back(
        format_of(request.target.format).target().needs_masters
            ? std::string(rng_stays_behind)
            : fmt::format("{}: start training with --no-load-rng", rng_stays_behind));
  if (state.others.empty()) return;
  if (source.storage == Storage::shares)
    warnings.push_back("dropped, because it belongs to one run or layout: " + listed(state.others));
  else
    warnings.push_back("dropped, because the target's format cannot hold them: " +
                       listed(state.others, 6));
}

}  // namespace reshard
