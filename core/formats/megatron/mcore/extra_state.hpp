#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/text/shared_text.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/formats/checkpoint.hpp"
#include "core/formats/megatron/writer.hpp"
#include "core/formats/stored_view.hpp"
#include "core/formats/targets/target.hpp"
#include "core/mapping/sides/side.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// `…_extra_state` entries of a Megatron checkpoint: opaque state of modules (FP8 history) under
/// keys that strict loading may ask for. They are not tensors of the model: they move with their
/// layer or expert, as bytes.
///
/// From a source with the same norms and expert form the key set is the source's; else it is made
/// from the target's modules: None for Megatron's own linears, an empty uint8 tensor for
/// Transformer Engine's.
class ExtraStates {
 public:
  /// No source: every key is made.
  ExtraStates(std::string spec, std::string form, ForeignClasses foreign_classes)
      : spec_(std::move(spec)), form_(std::move(form)), foreign_classes_(foreign_classes) {}

  /// Sets the names of source and target; without a call both have only a language model. Before
  /// take() and take_objects().
  void set_names(TrainerNames const& source, TrainerNames const& target);

  /// Takes over the entries of a source, by global layer and expert number; from tp rank 0 if each
  /// rank has one.
  void take(Checkpoint const& source, std::vector<PipelineChunk> const& chunks, Index experts);

  /// take() from the objects of a source in chunks; empty ones are skipped.
  void take_objects(Checkpoint const& source);

  /// The keys of the modules of a stored name, as far as the name shows them: linears, norms,
  /// attention, the output layer.
  std::vector<std::string> keys_of(std::string_view stored_name) const;

  /// The object of torch_dist for a module: a torch.save'd list of its state. `key` has global
  /// numbers. Non-empty state of grouped experts is an Error of kind source, as it belongs to
  /// several experts.
  SharedText object_bytes(std::string const& key);

  /// Sets whether the source's key set fits the target: same norms, same expert form.
  void use_source_keys(bool same) { from_source_ = same; }

  /// The experts of one file, and the number of ranks over which experts are distributed.
  struct HeldExperts {
    Run run;
    Index ranks = 1;
  };

  /// One entry of a target chunk.
  struct Placed {
    megatron::ChunkEntry entry;
    bool opaque = false;  ///< bytes come from source_file at source_offset_bytes
    std::uint32_t source_file = 0;
    std::uint64_t source_offset_bytes = 0;
  };

  /// The entries of one file of the target, in addition to the stored tensors `names`. Non-empty
  /// expert state that a change of ep would mix up is an Error of kind source.
  std::vector<Placed> place(PipelineChunk const& chunk, HeldExperts const& experts,
                            std::vector<StoredName> const& names);

 private:
  struct Known {
    megatron::ExtraKind kind = megatron::ExtraKind::none;
    std::uint32_t file = 0;
    std::string dict;  ///< in that file, and the key in it
    std::string key;
    FileTensor tensor;
    std::uint64_t size_bytes = 0;
    Index source_ranks = 1;  ///< over which the source distributes experts
    bool object = false;     ///< an object of a torch_dist source, and its item
    ItemPlace item = {};
  };

  std::vector<std::string> made_keys(std::vector<StoredName> const& names) const;
  bool norms_keep_state() const;
  std::string global_key(std::string const& local, PipelineChunk const& chunk,
                         Run const& experts) const;
  std::string with_root(std::string key) const;
  Placed from_known(std::string const& local, Known const& known, Index ranks);
  pickle::NodeId node_of(Known const& known, pickle::Document const** document);
  TorchFile const& document_of(Known const& known);
  void check_grouped(std::string const& key) const;
  SharedText const& object_without_state();

  std::string spec_;
  std::string form_;
  ForeignClasses foreign_classes_;
  std::string source_root_;
  std::string root_;                    ///< of the target
  bool tower_ = false;                  ///< the target has a vision tower of Megatron's own
  bool from_source_ = false;            ///< the source's key set is used
  std::map<std::string, Known> known_;  ///< by key with global numbers
  SharedText object_without_state_;     ///< "" until its first use
  FilePaths files_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::unique_ptr<TorchFile>>
      documents_;  ///< by file and place
};

}  // namespace reshard
