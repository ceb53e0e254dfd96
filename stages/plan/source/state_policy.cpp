#include "stages/plan/source/state_policy.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "core/base/text.hpp"
#include "stages/plan/source/mlite_keys.hpp"

namespace reshard {
namespace {

/// What the source's files hold besides weights that this version cannot carry.
void check_megatron(MegatronCheckpoint const& checkpoint, TargetRequest const& request,
                    std::vector<std::string>& warnings) {
  static std::vector<std::string> const kept = {"opt_param_scheduler", "lr_scheduler",
                                                "num_floating_point_operations_so_far"};
  std::string const place = checkpoint.directory.iteration_dir.string();
  bool optimizer = !checkpoint.directory.optimizer_only.empty();
  bool rng = false;
  std::vector<std::string> others;
  std::set<std::string_view> seen(kept.begin(), kept.end());
  for (std::size_t f = 0; f < checkpoint.headers.size(); ++f) {
    megatron::ShardHeader const& header = checkpoint.headers[f];
    optimizer = optimizer || header.has_optimizer;
    rng = rng || header.has_rng;
    for (std::string const& file : checkpoint.directory.shards[f].files)
      optimizer = optimizer || file.find("optim.pt") != std::string::npos ||
                  file.starts_with("layer_wise_optimizer");
    for (std::string const& key : header.other_keys)
      if (seen.insert(key).second) others.push_back(key);
    if (!header.unplaced.empty())
      fail(ErrorKind::source,
           "{}: '{}' holds no tensor, where the model needs one. Save the checkpoint again.",
           checkpoint.directory.shards[f].model_path().string(), header.unplaced.front());
  }
  if (optimizer && !request.drop_optimizer)
    fail(
        ErrorKind::source,
        "{}: holds optimizer state, which this version cannot reshard. Set source.optimizer = \"drop\" to go on without it.",
        place);
  if (rng && !request.drop_rng)
    fail(
        ErrorKind::source,
        "{}: holds random-generator state, which belongs to the old layout. Set source.rng = \"drop\" to go on without it "
        "(start training with --no-load-rng).",
        place);
  if (optimizer)
    warnings.push_back(
        "optimizer state is dropped (source.optimizer = \"drop\"): start training with --no-load-optim");
  if (rng)
    warnings.push_back(
        "random-generator state is dropped (source.rng = \"drop\"): start training with --no-load-rng");
  if (!others.empty())
    warnings.push_back("dropped, because it belongs to one run or layout: " + listed(others));
}

void check_dcp(DcpCheckpoint const& checkpoint, TargetRequest const& request, bool carried,
               std::vector<std::string>& warnings) {
  DistView const view = look_at(checkpoint, request.source_prefix);
  std::string const place = checkpoint.directory.folder.string();
  bool const optimizer = !view.states.empty() || !view.fixed_state.empty();
  bool const rng =
      std::any_of(checkpoint.metadata.objects.begin(), checkpoint.metadata.objects.end(),
                  [](dcp::StoredObject const& object) { return is_run_state(object.name); });
  if (!view.fixed_state.empty() && !request.drop_optimizer)
    fail(
        ErrorKind::source,
        "{}: optimizer state is bound to the layout it was saved in ('{}'): the order of its buffers is known to the running Megatron alone, so it "
        "cannot follow a change of tp, pp or ep. Load it in Megatron at the old sizes and save again with --dist-ckpt-optim-fully-reshardable, or "
        "set source.optimizer = \"drop\". Where only data parallelism changes, Megatron loads the checkpoint as it is.",
        place, view.fixed_state.front());
  if (optimizer && !carried && !request.drop_optimizer)
    fail(
        ErrorKind::source,
        "{}: holds optimizer state, which the target's format cannot take over. Set source.optimizer = \"drop\" to go on without it.",
        place);
  if (rng && !carried && !request.drop_rng)
    fail(
        ErrorKind::source,
        "{}: holds random-generator state, which the target's format cannot take over. Set source.rng = \"drop\" to go on without it.",
        place);
  if (optimizer && request.drop_optimizer)
    warnings.push_back(
        "optimizer state is dropped (source.optimizer = \"drop\"): start training with --no-load-optim");
  if (rng && request.drop_rng)
    warnings.push_back(
        "random-generator state is dropped (source.rng = \"drop\"): start training with --no-load-rng");
}

/// Objects and files of single ranks beside the weights of a plain checkpoint: names of a map have
/// no place for them.
void check_plain(DcpCheckpoint const& checkpoint, TargetRequest const& request,
                 std::vector<std::string>& warnings) {
  std::string const place = checkpoint.directory.folder.string();
  auto const settle = [&](bool (*is_one)(std::string_view), std::string_view what,
                          std::string_view key, bool drop) {
    auto const& files = checkpoint.directory.side_files;
    auto const found = std::find_if(files.begin(), files.end(), is_one);
    if (found == files.end()) return;
    if (!drop)
      fail(
          ErrorKind::source,
          "{}: holds {} state in files of single ranks ('{}'), which fit only the layout they were saved in. Set source.{} = \"drop\" to go on "
          "without it.",
          place, what, *found, key);
    warnings.push_back(fmt::format("{} state is dropped (source.{} = \"drop\")", what, key));
  };
  settle(is_mlite_optimizer, "optimizer", "optimizer", request.drop_optimizer);
  settle(is_mlite_rng, "random-generator", "rng", request.drop_rng);
  std::vector<std::string> objects;
  for (dcp::StoredObject const& object : checkpoint.metadata.objects)
    objects.push_back(object.name);
  if (!objects.empty())
    warnings.push_back("dropped, because the target's format has no place for them: " +
                       listed(objects, 6));
}

}  // namespace

bool is_run_state(std::string_view key) {
  return key.starts_with("rng_state") || key.starts_with("rerun_state_machine_state");
}

bool carries_state(SourceCheckpoint const& source, TargetRequest const& request) {
  return source.dcp && source.dcp->flavour == dcp::Flavour::torch_dist &&
         request.format == TargetRequest::Format::torch_dist;
}

void check_state(SourceCheckpoint const& source, TargetRequest const& request,
                 std::vector<std::string>& warnings) {
  if (source.megatron) check_megatron(*source.megatron, request, warnings);
  if (source.dcp && source.dcp->flavour == dcp::Flavour::plain)
    check_plain(*source.dcp, request, warnings);
  if (source.dcp && source.dcp->flavour != dcp::Flavour::plain)
    check_dcp(*source.dcp, request, carries_state(source, request), warnings);
}

}  // namespace reshard
