#pragma once

#include <string>
#include <vector>

#include "core/mapping/sides/side.hpp"
#include "stages/plan/check/side_proof.hpp"

namespace reshard {

/// One way in which Megatron stores a model.
struct CoreForm {
  /// The demand on a form: that it is possible and holds everything once, the latter where it is
  /// possible, or neither.
  enum class Demand { proof, proof_where_possible, nothing };

  std::string title;
  SideOptions options;
  bool uneven_pipeline = false;  ///< pp > 1: the first stage has the layers that are left over
  Demand demand = Demand::proof;
};

/// Every way that a map is checked for: mp_rank files with grouped and sequential experts, both
/// specs, larger meshes; torch_dist and fsdp_dtensor.
std::vector<CoreForm> core_forms(Model const& model, MapFile const& core);

/// Proves one of them. Sizes that a mesh does not divide are Errors of kind usage.
SideProof prove_form(Model const& model, MapFile const& core, CoreForm const& form, Detail detail);

/// A count that a map defines, such as L; 0 when it has none.
Index model_count(Model const& model, char const* word);

}  // namespace reshard
