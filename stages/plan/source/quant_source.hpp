#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/mapping/quant_finder.hpp"
#include "stages/plan/source/dist_source.hpp"

namespace reshard {

/// The quantised weights of a source.
class QuantSource {
 public:
  /// Both outlive the object; `view` is that of a DCP source.
  QuantSource(SourceCheckpoint const& source, DistView const* view)
      : source_(source), view_(view) {}

  /// Whether a stored tensor could be part of a quantised weight: a look at the names alone.
  bool any(MapFile const& map) const;
  /// Adds the parts that are there to the model. A global side has one place; for a local one
  /// `chunks` are the pipeline chunks, in model order. Errors of kind source: QuantFinder::apply.
  void look(Model& model, Side const& side, std::vector<PipelineChunk> const& chunks = {}) const;

 private:
  SourceCheckpoint const& source_;
  DistView const* view_;
};

/// Stored tensors by name; borrow them.
FindTensor finder_over(std::span<FileTensor const> tensors);
FindTensor finder_over(HuggingFaceCheckpoint const& checkpoint);

}  // namespace reshard
