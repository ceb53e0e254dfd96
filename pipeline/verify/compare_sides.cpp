#include "pipeline/verify/compare_sides.hpp"

#include <algorithm>
#include <map>

#include "core/base/counted.hpp"
#include "core/base/sight.hpp"
#include "core/base/text.hpp"
#include "core/formats/model_files.hpp"
#include "core/plan/state_checks.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/job/option_words.hpp"
#include "pipeline/job/target_request.hpp"
#include "pipeline/target/own_manifest.hpp"
#include "stages/plan/source/master_weights.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Nothing in it says what model it holds.
bool is_plain(Checkpoint const& checkpoint) {
  return checkpoint.storage == Storage::chunks && checkpoint.names == NameOwner::family;
}
bool is_megatron(Checkpoint const& checkpoint) { return checkpoint.names == NameOwner::megatron; }

/// A Hugging Face folder without its config.json.
bool is_bare(Checkpoint const& checkpoint) {
  return checkpoint.names == NameOwner::family && checkpoint.config.is_null();
}

/// The folder of a checkpoint that has a config.json; "" for others.
fs::path config_beside(ComparedSide const& side) {
  Checkpoint const& checkpoint = side.checkpoint;
  if (is_plain(checkpoint)) {
    auto const files = files_of(checkpoint);
    return files && checkpoint.config.is_null() ? files->path : fs::path();
  }
  if (is_megatron(checkpoint)) return {};  // its args say more
  return sees_file(checkpoint.folder / huggingface::config_name) ? checkpoint.folder : fs::path();
}

/// The same, or where a Megatron checkpoint carries one.
fs::path any_config_of(ComparedSide const& side) {
  if (!is_megatron(side.checkpoint)) return config_beside(side);
  auto const files = files_of(side.checkpoint);
  return files && !files->config.is_null() ? files->path : fs::path();
}

Index vocab_of(JobPlan const& catalogue) {
  int const axis = catalogue.model->axes().find("vocab");
  return axis < 0 ? 0 : catalogue.model->axes()[static_cast<AxisId>(axis)].size;
}

/// F32 weights of the plain optimizer are their own masters.
bool has_state_without_masters(StoredView const& view) {
  return !view.states.empty() && std::ranges::none_of(view.states, is_master_slot);
}

/// Rows of a padded vocabulary that its own manifest counts; 0 where there is none.
Index recorded_rows(ComparedSide const& side) {
  if (!is_megatron(side.checkpoint)) return 0;
  std::vector<std::string> ignored;  // `digest` explains what is not followed
  auto const manifest = own_manifest(side.path, side.checkpoint, ignored);
  return manifest ? vocab_in(*manifest) : 0;
}

class SidesOpener {
 public:
  SidesOpener(CompareRequest const& request, ComparedSides& sides)
      : request_(request), sides_(sides) {}

  void run() {
    StoredView const a = sides_.a.checkpoint.format->view(sides_.a.checkpoint, request_.prefix_a);
    StoredView const b = sides_.b.checkpoint.format->view(sides_.b.checkpoint, request_.prefix_b);
    bool const alone_a = holds_masters_alone(sides_.a.checkpoint, a);
    if (alone_a != holds_masters_alone(sides_.b.checkpoint, b) &&
        !has_state_without_masters(alone_a ? b : a))
      masters_ = Masters::apart;
    bool const merges = !request_.adapter.empty();
    if (request_.map == "none" && !merges) return open_by_names();
    if (merges) {
      open_by_maps();
      return match_vocabularies();
    }
    if (request_.map == "auto" && names_can_do() && same_names() && !request_.by_maps) return;
    sides_.by_names = false;
    auto const failed = capture([&] { open_by_maps(); });
    if (!failed) return match_vocabularies();
    if (request_.map != "auto" || !share_names_) throw *failed;
    sides_.notes.push_back("compared by stored names, because no map describes both: " +
                           failed->sentence());
    open_by_names();
  }

 private:
  /// Logical tensors have axes, which a comparison by names does not look at.
  bool names_can_do() const {
    auto const whole = [](Checkpoint const& checkpoint) {
      return checkpoint.storage != Storage::shares && checkpoint.names != NameOwner::logical;
    };
    return whole(sides_.a.checkpoint) && whole(sides_.b.checkpoint);
  }

  void open_by_names() {
    for (ComparedSide* side : {&sides_.a, &sides_.b}) {
      if (side->checkpoint.storage == Storage::shares)
        fail(
            ErrorKind::usage,
            "{}: the files of a Megatron checkpoint hold parts that only a map can put together. Leave out --map none.",
            side->path.string());
      TargetRequest by_name;
      by_name.map = "none";
      by_name.source_prefix = prefix_of(*side);
      side->request = by_name;
      side->catalogue = catalogue(side->checkpoint, by_name);
    }
    sides_.by_names = true;
  }

  /// Opens both by their names, and says whether these and all shapes agree.
  bool same_names() {
    open_by_names();
    auto const shapes = [](JobPlan const& job) {
      std::map<std::string, std::vector<std::string>> result;
      for (LogicalTensor const& tensor : job.model->tensors()) {
        std::vector<std::string>& shape = result[tensor.name];
        for (LogicalAxis const& axis : tensor.axes)
          shape.push_back(job.model->axes()[axis.axis].name);
      }
      return result;
    };
    auto const a = shapes(sides_.a.catalogue);
    auto const b = shapes(sides_.b.catalogue);
    sides_.by_names = a == b;
    share_names_ = std::any_of(a.begin(), a.end(),
                               [&b](auto const& tensor) { return b.contains(tensor.first); });
    return sides_.by_names;
  }

  void open_by_maps() {
    with_option_words("--config-a", [&] {
      open_by_map(sides_.a, request_.config_a, sides_.b, request_.config_b);
    });
    with_option_words("--config-b", [&] {
      open_by_map(sides_.b, request_.config_b, sides_.a, request_.config_a);
    });
  }

  void open_by_map(ComparedSide& side, fs::path const& own_config, ComparedSide const& other,
                   fs::path const& other_config) const {
    fs::path config = own_config;
    if (config.empty() && is_plain(side.checkpoint)) config = config_beside(side);
    bool const bare = is_bare(side.checkpoint);
    if (config.empty() && (bare || is_plain(side.checkpoint) || is_megatron(side.checkpoint)))
      config = !other_config.empty() ? other_config
               : bare                ? any_config_of(other)
                                     : config_beside(other);
    if (is_plain(side.checkpoint) && config.empty())
      fail(ErrorKind::usage,
           "{}: does not state which model it holds, and neither does the other checkpoint. Give "
           "its config.json with --config-{}.",
           side.path.string(), &side == &sides_.a ? "a" : "b");
    TargetRequest& request = side.request;
    request = by_map(side, config);
    request.source_prefix = prefix_of(side);
    if (!is_megatron(side.checkpoint) || config.empty()) {
      side.catalogue = catalogue(side.checkpoint, request, masters_);
      return;
    }
    request.axes_by_config = true;  // as on the other side
    auto const failed =
        capture([&] { side.catalogue = catalogue(side.checkpoint, request, masters_); });
    if (!failed) return;
    // A config of another model: what the checkpoint's own args say shows the difference tensor by
    // tensor.
    request = by_map(side, {});
    if (!own_config.empty() ||
        capture([&] { side.catalogue = catalogue(side.checkpoint, request, masters_); }))
      throw *failed;
  }

  std::string const& prefix_of(ComparedSide const& side) const {
    return &side == &sides_.a ? request_.prefix_a : request_.prefix_b;
  }

  TargetRequest by_map(ComparedSide const& side, fs::path const& config) const {
    bool const other = &side == &sides_.b && !request_.map_b.empty();
    return request_without_target(other ? request_.map_b : request_.map, config,
                                  request_.map_folders);
  }

  /// Args that do not count the vocabulary leave padded rows in it.
  void match_vocabularies() {
    if (request_.vocab > 0) {
      for (ComparedSide* side : {&sides_.a, &sides_.b})
        (void)shorten(*side, side->request, request_.vocab);
      return;
    }
    if (vocab_of(sides_.a.catalogue) == vocab_of(sides_.b.catalogue)) return;
    for (ComparedSide* side : {&sides_.a, &sides_.b})
      if (side->recorded_rows > 0) (void)shorten(*side, side->request, side->recorded_rows);
    Index const a = vocab_of(sides_.a.catalogue);
    Index const b = vocab_of(sides_.b.catalogue);
    if (a == b || a == 0 || b == 0) return;
    ComparedSide& larger = a > b ? sides_.a : sides_.b;
    if (!is_megatron(larger.checkpoint)) return;
    Index const rows = std::min(a, b);
    if (!shorten(larger, by_map(larger, {}), rows)) return;
    sides_.notes.push_back(fmt::format(
        "{} does not state how many of its {} embedding rows are vocabulary: the first {} are "
        "compared",
        larger.path.string(), std::max(a, b), rows));
  }

  /// Counts these rows as the vocabulary of a side; false, and nothing is changed, where they
  /// cannot be.
  bool shorten(ComparedSide& side, TargetRequest request, Index rows) const {
    request.true_vocab_size = rows;
    JobPlan shorter;
    if (capture([&] { shorter = catalogue(side.checkpoint, request, masters_); })) return false;
    side.catalogue = std::move(shorter);
    side.request = std::move(request);
    return true;
  }

  CompareRequest const& request_;
  ComparedSides& sides_;
  bool share_names_ = false;
  Masters masters_ = Masters::as_stored;  ///< apart where one side alone has no others
};

bool has_states_in_rank_files(Checkpoint const& checkpoint) {
  return checkpoint.storage == Storage::shares && bool(checkpoint.state.optimizer);
}

/// Optimizer state in rank files is read where the other side has state that it can be compared
/// with.
bool may_compare_states(Checkpoint const& other) {
  if (has_states_in_rank_files(other)) return true;
  StateForm const form = other.format->inventory(other, view_of(other)).optimizer.form;
  return other.format->target().rank_states &&
         (form == StateForm::by_weight || form == StateForm::in_buffers);
}

void open_again(ComparedSide& side, bool rank_states, Comm const& comm) {
  OpenChoice choice;
  choice.rank_states = rank_states;
  side.checkpoint = open_source(side.path, FormatId::automatic, choice, comm);
}

void read_rank_states(ComparedSides& sides, Comm const& comm) {
  bool const of_a =
      has_states_in_rank_files(sides.a.checkpoint) && may_compare_states(sides.b.checkpoint);
  bool const of_b =
      has_states_in_rank_files(sides.b.checkpoint) && may_compare_states(sides.a.checkpoint);
  if (of_a) open_again(sides.a, true, comm);
  if (of_b) open_again(sides.b, true, comm);
  if (!of_a || !of_b) return;
  bool const read_a = sides.a.checkpoint.rank_states != nullptr;
  bool const read_b = sides.b.checkpoint.rank_states != nullptr;
  if (read_a != read_b) open_again(read_a ? sides.a : sides.b, false, comm);
}

}  // namespace

ComparedSides open_sides(CompareRequest const& request, Comm const& comm) {
  ComparedSides sides;
  sides.a.path = request.a;
  sides.b.path = request.b;
  for (ComparedSide* side : {&sides.a, &sides.b}) {
    OpenChoice choice;
    choice.prefix = side == &sides.a ? request.prefix_a : request.prefix_b;
    side->checkpoint = open_source(side->path, FormatId::automatic, choice, comm);
  }
  if (!request.adapter.empty()) add_adapter(sides.a.checkpoint, request.adapter, comm);
  if (request.adapter.empty() && !request.weights_only) read_rank_states(sides, comm);
  together_seeing(comm, [&] {
    for (ComparedSide* side : {&sides.a, &sides.b}) side->recorded_rows = recorded_rows(*side);
    SidesOpener(request, sides).run();
    ModelDescription a;
    ModelDescription b;
    with_option_words("--config-a", [&] {
      a = describe_model(sides.a.checkpoint, request.config_a, request.map_folders);
    });
    with_option_words("--config-b", [&] {
      b = describe_model(sides.b.checkpoint, request.config_b, request.map_folders);
    });
    sides.configs = compare_configs(a, b, request.map_folders);
  });
  std::vector<std::string> const& warnings = sides.a.catalogue.warnings;  // of b, copies are read
  sides.notes.insert(sides.notes.end(), warnings.begin(), warnings.end());
  return sides;
}

std::string not_compared(ComparedSide const& side, bool by_names) {
  Checkpoint const& checkpoint = side.checkpoint;
  StateInventory const state = checkpoint.format->inventory(checkpoint, view_of(checkpoint));
  std::vector<std::string> parts;
  std::size_t objects = checkpoint.stored.objects.size();
  for (ModuleStates const& states : checkpoint.module_states) objects += states.entries->size();
  if (objects > 0)
    parts.push_back(fmt::format("{} that {}", counted(objects, "object"),
                                agreeing(objects, "is not a tensor", "are not tensors")));
  if (state.optimizer.form == StateForm::by_layout && !by_names)
    parts.emplace_back("optimizer state that is bound to its layout");
  if (state.optimizer.form == StateForm::in_model_files) parts.emplace_back("optimizer state");
  if (state.rng.form == StateForm::in_model_files) parts.emplace_back("random-generator state");
  return listed(parts);
}

}  // namespace reshard
