#include "core/formats/torch_dist/dist_files.hpp"

#include "core/base/files/file.hpp"
#include "core/formats/dcp/keys.hpp"
#include "core/formats/format.hpp"
#include "core/formats/megatron/headers/directory.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/mcore/optimizer_groups.hpp"
#include "core/formats/megatron/writer.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using pickle::NodeId;

/// The largest common.pt that is read: it contains settings, no weights.
constexpr std::uint64_t largest_common_bytes = std::uint64_t{512} << 20;
constexpr double written_version = 3.0;

/// Builds the dict of common.pt.
class CommonBuilder {
 public:
  CommonBuilder(DistRecord const& dist, bool keep_all) : dist_(dist), keep_all_(keep_all) {}

  std::string build() {
    if (keep_all_)
      copy_all();
    else
      make();
    if (dist_.new_keys) set("content_metadata", content_metadata());
    return dcp::torch_file_bytes(document_, "common", [this](std::size_t tensor) {
      return tensor_bytes(*dist_.record, tensors_.at(tensor));
    });
  }

  /// The dict of make(), each value as a separate file.
  std::vector<dcp::PlacedObject> objects() {
    make();
    for (auto const& [key, node] : document_.members(document_.root)) {
      bool const nested = document_.at(node).kind == pickle::Kind::dict;
      if (!nested) add_object(key, {key}, node);
      if (nested)
        for (auto const& [inner, value] : document_.members(node))
          add_object(key + "." + inner, {key, inner}, value);
    }
    return std::move(objects_);
  }

 private:
  void set(std::string_view key, NodeId value) { document_.set(document_.root, key, value); }

  void add_object(std::string const& key, dcp::Path path, NodeId node) {
    pickle::Document single;
    single.root = single.add_copy(document_, node);
    if (single.tensors.empty())
      objects_.push_back({key, std::move(path), dcp::torch_file_bytes(single, "archive")});
  }

  void copy_all() {
    pickle::Document const& from = dist_.record->document();
    check_carried(*dist_.record, from.root, "common state");
    document_.root = document_.add_copy(from, from.root);
    if (dist_.drop_states) {
      document_.erase(document_.root, "optimizer");
      if (NodeId const metadata = document_.find(document_.root, "content_metadata");
          metadata != pickle::no_node)
        for (std::string_view const key :
             {"distrib_optim_sharding_type", "distrib_optim_fully_reshardable_mem_efficient"})
          document_.erase(metadata, key);
    }
    if (dist_.has_states)
      split_optimizers(document_, document_.root, dist_.record->document(), dist_.experts_apart,
                       dist_.expert_biases);
    tensors_ = document_.tensors;
    if (NodeId const args = document_.find(document_.root, "args"); args != pickle::no_node)
      megatron::set_args(document_, args, dist_.args);
    else if (!dist_.args.empty())
      set("args", megatron::add_namespace(document_, dist_.args));
  }

  void make() {
    document_.root = document_.add_dict();
    set("args", make_args());
    set("checkpoint_version", document_.add_real(written_version));
    set("iteration", document_.add_int(dist_.record == nullptr ? 0 : dist_.record->iteration));
    if (dist_.record == nullptr) return;
    for (megatron::Carried const& carried : megatron::carried_values(dist_.record->document())) {
      check_carried(*dist_.record, carried.node, carried.key);
      set(carried.key, document_.add_copy(*carried.from, carried.node));
    }
    if (dist_.settings != nullptr) add_settings();
    tensors_ = document_.tensors;
  }

  void add_settings() {
    pickle::Document const& from = *dist_.settings;
    pickle::NotCarried const found = pickle::not_to_carry(from, from.root);
    if (!may_be_carried(found, dist_.record->foreign_classes))
      refuse_to_carry(fmt::format("{}: 'optimizer'", dist_.record->file), found);
    set("optimizer", document_.add_copy(from, from.find(from.root, "optimizer")));
    if (dist_.has_states)
      split_optimizers(document_, document_.root, from, dist_.experts_apart, dist_.expert_biases);
  }

  NodeId make_args() {
    NodeId const source =
        dist_.record == nullptr ? pickle::no_node : megatron::find_args(dist_.record->document());
    if (source == pickle::no_node) return megatron::add_namespace(document_, dist_.args);
    check_carried(*dist_.record, source, "args");
    NodeId const args = document_.add_copy(dist_.record->document(), source);
    megatron::set_args(document_, args, dist_.args);
    return args;
  }

  /// Megatron's loader makes the names it expects from this.
  NodeId content_metadata() {
    NodeId metadata = document_.find(document_.root, "content_metadata");
    if (metadata == pickle::no_node || document_.at(metadata).kind != pickle::Kind::dict)
      metadata = document_.add_dict();
    document_.set(metadata, "singleton_local_shards", document_.add_bool(dist_.singleton));
    document_.set(metadata, "chained_optim_avoid_prefix", document_.add_bool(true));
    if (dist_.has_states && !dist_.plain_states) {
      mark_reshardable(document_.find(document_.root, "optimizer"), 0);
      document_.set(metadata, "distrib_optim_sharding_type",
                    document_.add_string("fully_reshardable"));
      document_.set(metadata, "distrib_optim_fully_reshardable_mem_efficient",
                    document_.add_bool(false));
    }
    return metadata;
  }

  /// {"param_state_sharding_type": …}, or such dicts by number for several optimizers in one.
  void mark_reshardable(NodeId optimizer, int depth) {
    constexpr std::string_view key = "param_state_sharding_type";
    if (optimizer == pickle::no_node || document_.at(optimizer).kind != pickle::Kind::dict ||
        depth > 1)
      return;
    if (document_.find(optimizer, key) != pickle::no_node)
      document_.set(optimizer, key, document_.add_string("fully_reshardable"));
    std::vector<NodeId> const items = document_.at(optimizer).items;
    for (std::size_t i = 1; i < items.size(); i += 2) mark_reshardable(items[i], depth + 1);
  }

  DistRecord const& dist_;
  bool keep_all_;
  pickle::Document document_;
  std::vector<pickle::TensorRef> tensors_;  ///< as the record has them
  std::vector<dcp::PlacedObject> objects_;
};

std::string common_bytes(DistRecord const& dist, Checkpoint const& source) {
  bool const from_dist = source.format->id() == FormatId::torch_dist && dist.record != nullptr;
  bool const regroup = from_dist && dist.has_states &&
                       has_several_optimizers(dist.record->document()) != dist.experts_apart;
  if (from_dist && !regroup && !dist.new_keys && dist.args.empty() &&
      source.chunked.has_common_file) {
    check_carried(*dist.record, dist.record->document().root, "common state");
    if (may_copy_file(*dist.record))
      return read_text_file(source.folder / dcp::common_name, largest_common_bytes);
  }
  return CommonBuilder(dist, from_dist).build();
}

}  // namespace

void add_dist_files(TargetDraft& job, DistRecord const& dist, Checkpoint const& source) {
  fs::path const folder = run_folder(dist.record, dist.numbered);
  job.texts.push_back({folder / dcp::common_name, common_bytes(dist, source), false, {}});
  for (std::string const& name : source.chunked.side_files)
    if (!dcp::is_rank_optimizer(name) && !dcp::is_rank_rng(name) && name != dist.without &&
        !(name == huggingface::carried_name && job.reference))
      job.side_copies.push_back({source.folder / name, folder / name});
  job.texts.push_back({folder / dcp::backend_name, dcp::backend_json(), true, {}});
  add_tracker(job, dist.record, dist.numbered);
}

void add_tracker(TargetDraft& job, RunRecord const* record, bool numbered) {
  job.texts.push_back(
      {std::string(megatron::tracker_name), run_tracker(record, numbered), true, {}});
}

std::string made_common_text(DistRecord const& dist) { return CommonBuilder(dist, false).build(); }

std::vector<dcp::PlacedObject> fsdp_objects(DistRecord const& dist) {
  return CommonBuilder(dist, false).objects();
}

}  // namespace reshard
