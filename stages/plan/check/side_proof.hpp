#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/mapping/sides/side.hpp"

namespace reshard {

/// Stored tensors of one entry whose names differ in numbers only:
/// "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight".
struct NamePattern {
  std::string text;
  std::vector<Index> shape;
  std::uint64_t count = 0;
  bool copy = false;              ///< they hold what others hold, too
  std::string place;              ///< "qwen3_moe.toml:12"
  std::vector<TensorId> tensors;  ///< the logical tensors in it
};

/// A logical tensor that the stored tensors of a side do not hold exactly once.
struct CoverageFault {
  TensorId tensor{};
  bool nowhere = false;  ///< no stored tensor holds any of it
  std::string sentence;
};

/// A side's stored tensors of a model, and whether they are every element once.
struct SideProof {
  std::vector<NamePattern> patterns;                               ///< where they were asked for
  std::vector<std::pair<std::string, std::vector<Index>>> stored;  ///< names and shapes, likewise
  std::uint64_t stored_tensors = 0;                                ///< over all places
  std::vector<CoverageFault> faults;
};

/// The report about a side beside the proof.
enum class Detail { none, stored, patterns };

/// Goes through every stored tensor of these places. Each element of each logical tensor that
/// exists must be held exactly once, not counting copies and replicas. Mistakes of the map, a name
/// that two entries could mean, are Errors of kind usage.
SideProof prove_side(Model const& model, Side const& side, std::span<SidePlace const> places,
                     Detail detail);

}  // namespace reshard
