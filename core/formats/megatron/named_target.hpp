#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/formats/targets/target_job.hpp"

namespace reshard::megatron {

inline constexpr char const* renumbered_states_warning =
    "states of modules (FP8 scales of Transformer Engine) are left out, because the target's "
    "layers have other numbers. Its loader creates them";

/// Whether a source has states of modules.
bool has_module_states(Checkpoint const& source);

/// The common part of all targets with Megatron's names: the kind of layers, the form of experts,
/// and the args.
class MegatronNames {
 public:
  using Args = std::vector<std::pair<std::string, Json>>;

  /// `job` outlives this.
  explicit MegatronNames(MappedTarget const& job);

  std::string spec;  ///< of its modules: "te", "local"
  std::string form;  ///< of its experts: "grouped", "sequential"

  /// Options of the target's side; `local`: each file has the content of one rank.
  SideOptions side_options(bool local) const;
  /// Attributes to set in addition to the parallel sizes.
  Args args() const;
  /// Every argument that the target will have.
  Json all_args(Side const& side) const;
  /// The source_args for target_args(): those of the source, with the pattern of a hybrid target.
  Json args_before() const;
  /// Whether attention and MLP of a layer are two layers of the target.
  bool paired() const { return paired_; }
  /// Whether the target is a model of Megatron-Core's HybridStack, which has a layer for each
  /// letter of its pattern.
  bool is_hybrid() const;
  /// Whether the target's layers have other numbers than the source's.
  bool renumbers() const { return paired_ != job_.read.facts.traits.paired; }
  /// all_args() of the model, in the numbers of its own layers.
  Json stated_args(Side const& side) const;
  /// Whether the source shows its Megatron release's name for the layer inside multi-token
  /// prediction; torch_dist has one name for it.
  bool source_names_prediction() const;
  /// Warns where padding and vocabulary cannot be distinguished.
  void warn_of_unknown_padding(std::vector<std::string>& warnings) const;

  /// Whether the source has no args that describe the model, so that the target's are made.
  bool makes_args() const;
  /// The release of Megatron-Core that the target is written for: 19 for 0.19.
  int release() const;

 private:
  std::string default_form() const;
  void name_adapters(SideOptions& options) const;
  std::string source_form() const;
  bool all_rows_are_data() const;
  std::optional<Index> repadded() const;
  static Args dtype_args(DType dtype);
  Args made_args() const;
  Args class_args() const;
  void check_counted_layers(Json const& args) const;

  MappedTarget const& job_;
  bool paired_ = false;
};

}  // namespace reshard::megatron
