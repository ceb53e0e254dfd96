#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/text/json.hpp"
#include "core/containers/torch/pickle/pickle.hpp"
#include "core/formats/megatron/headers/shard_name.hpp"
#include "core/layout/pipeline_chunks.hpp"

namespace reshard::megatron {

/// Attributes of argparse.Namespace, in order.
using ArgValues = std::vector<std::pair<std::string, Json>>;

/// The attributes of a Namespace as facts: None is null; bool, int, float, str unchanged; list and
/// tuple as arrays; dicts with string keys as objects; torch dtypes "torch.bfloat16"; enum members
/// "module.Class.member" (or its value). Attributes of any other kind are left out. `args` no_node
/// gives null. Arguments that newer releases renamed have their older names, too: "norm_epsilon" as
/// well as "layernorm_epsilon".
Json args_as_json(pickle::Document const& document, pickle::NodeId args);

/// Sets attributes of a Namespace: null, bool, int, float, string and lists of these. A string
/// "torch.<name>" under a key that ends in "dtype" becomes that torch dtype. Other attributes of
/// the Namespace are unchanged.
void set_args(pickle::Document& document, pickle::NodeId args, ArgValues const& values);

/// The additional attributes of releases since 0.17: values of args_as_json() under their new
/// names.
ArgValues newer_args(ArgValues const& values);

/// A new argparse.Namespace with these attributes; returns its node.
pickle::NodeId add_namespace(pickle::Document& document, ArgValues const& values);

/// The sizes that args record; a member is nullopt if its attribute is missing (or None, unless
/// None has a meaning).
struct ArgsSizes {
  std::optional<int> tp = {};
  std::optional<int> pp = {};
  std::optional<int> vpp = {};  ///< None counts as 1
  std::optional<int> ep = {};   ///< 1 if args name no experts and no size
  std::optional<int> etp = {};
  std::optional<int> experts = {};  ///< num_experts; 0 for None
  std::optional<Index> moe_fc1_rows =
      {};  ///< rows of one expert's unsplit fc1: moe_ffn_hidden_size, doubled if gated
  friend bool operator==(ArgsSizes const&, ArgsSizes const&) = default;
};

constexpr auto wire_fields(ArgsSizes const&) {
  using T = ArgsSizes;
  return std::tuple(&T::tp, &T::pp, &T::vpp, &T::ep, &T::etp, &T::experts, &T::moe_fc1_rows);
}

/// Reads them from args_as_json's result. A size that is not a positive integer is an Error of kind
/// source that begins with `place`.
ArgsSizes args_sizes(Json const& args, std::string_view place);
/// args_sizes() as the sizes of a mesh: sizes that args do not state are 1, and etp is tp.
MeshSizes stated_sizes(Json const& args, std::string_view place);

/// The newest release of Megatron-Core in the tests: 19 for 0.19.
inline constexpr int newest_release = 19;
/// The release of the run that saved these args (null for none), as far as they show it: 19 if they
/// count the shards of a weight, as since 0.19; otherwise 18, also for older ones.
int release_of(Json const& args);

/// Whether experts have an optimizer of their own in a run of these sizes: with expert parallelism,
/// and since Megatron-Core 0.19 if they are cut in another way than dense weights.
bool are_experts_apart(MeshSizes const& sizes, int release);

/// The arg that states a further axis of sharding (GTP, since 0.19): "args.X is 2"; nullopt if
/// there is none.
std::optional<std::string> weight_sharding(Json const& args);
/// Throws an Error of kind source that begins with `place` if weight_sharding() finds an arg: the
/// names of shards have no number for that axis, so no rank's file has the missing rows of a
/// tensor.
void refuse_weight_sharding(Json const& args, std::string_view place);

/// The distribution of decoder layers over pipeline chunks in args.
PipelineSpec pipeline_spec(Json const& args, MeshSizes const& sizes);

/// Sizes and pipeline settings that a written checkpoint's args state.
struct TargetArgs {
  MeshSizes sizes;
  PipelineSpec pipeline;
  Index padded_vocab = 0;  ///< 0: unchanged
  int release = 0;         ///< as release_of(); 0: version-dependent args are unchanged
};

/// The attributes to change so that args describe the target: parallel sizes, pipeline settings,
/// vocabulary padding, ckpt_format "torch", the smallest world that has all shards. `source_args`
/// (null if there are none) decide which version-dependent attributes are set.
ArgValues target_args(TargetArgs const& target, Json const& source_args);

}  // namespace reshard::megatron
