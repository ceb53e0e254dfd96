#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/mapping/maps/map_file.hpp"

namespace reshard {

class Model;

/// MapQuantPart, evaluated for a model.
struct QuantPart {
  std::string name;
  std::string stored;
  std::vector<DType> dtypes;
  std::vector<PartDim> dims;
  std::vector<PartDim> global_dims;  ///< in Megatron's global formats
  Index vector = 0;
  bool optional = false;
  /// Of the stored tensor that weights are fused in, not of each of them. It stands beside that
  /// tensor also where each weight has a name of its own (…_w, …_v). Where it keeps no dimension
  /// that tells the weights apart, they have one together. In global formats its rows lie rank by
  /// rank.
  bool fused = false;
};

/// A way to store weights in fewer bits, evaluated for a model. parts[0] stands for the weight
/// itself, unless the scheme is `beside` weights that are stored as they are. Then each part may be
/// there or not, and of parts with one name it is the first that fits.
struct QuantScheme {
  std::string name;
  QuantDecode decode;
  QuantLabel label;
  std::vector<QuantPart> parts;
  bool beside = false;
  bool only_values = false;  ///< not for tensors that are moved as they are stored
};

/// Whether the stored tensors have a row for each column of the weight.
bool is_stored_transposed(QuantScheme const& scheme);

/// The schemes of a map that can be meant for this model, in the order in which they are looked
/// for.
std::vector<QuantScheme> evaluate_schemes(MapFile const& map, Model const& model);

/// The stored name of a part beside that of its weight: "weight", where it stands last, makes room
/// for the part's word. Also for names with fields.
///
///   mlp.up_proj.weight,     weight_scale  ->  mlp.up_proj.weight_scale
///   linear_fc1.weight3,     input_scale   ->  linear_fc1.input_scale3
///   experts.gate_up_proj,   weight_blocks ->  experts.gate_up_proj_blocks       (no "weight" in
///   the last word)
///   experts.gate_up_proj,   _weight_scale ->  experts.gate_up_proj_weight_scale
///   mlp.up_proj.weight,     ._weight_scale -> mlp.up_proj._weight_scale
std::string part_name(std::string_view weight, std::string_view part);

/// The logical tensor that a part of a weight is: "attn.q.fp8_block.scale".
std::string part_tensor(std::string_view weight, QuantScheme const& scheme, QuantPart const& part);

}  // namespace reshard
