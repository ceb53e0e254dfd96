#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/layout/axis.hpp"

namespace reshard {

/// Sizes of the parallel axes of a Megatron checkpoint. etp 0 stands for "equal to tp".
struct MeshSizes {
  int tp = 1;
  int pp = 1;
  int vpp = 1;  ///< model chunks per pipeline rank
  int ep = 1;
  int etp = 1;
  friend bool operator==(MeshSizes const&, MeshSizes const&) = default;
};

/// The (tp, ep) pairs that some global rank has, in order of tp, then ep: {(r mod tp, (r div etp)
/// mod ep) : 0 <= r < lcm(tp, ep * etp)}. The grid has holes when etp != tp: sizes 2, 4, 1 give
/// (0,0)(0,2)(1,1)(1,3).
std::vector<std::pair<int, int>> reachable_tp_ep(int tp, int ep, int etp);

/// What one model chunk (pipeline rank p, virtual stage v) holds.
struct PipelineChunk {
  int pp_rank = 0;
  int vpp_rank = 0;
  std::vector<Run> decoder;  ///< global decoder positions, in stored order; may be empty
  std::vector<Run> mtp;      ///< multi-token-prediction depths
  bool embedding = false;
  bool head = false;  ///< output layer (and final norm)
};

/// How decoder layers are spread over pipeline chunks; exactly one mode is used.
struct PipelineSpec {
  int pp = 1;
  int vpp = 1;
  int decoder_layers = 0;
  int mtp_layers = 0;
  int first_stage_layers = -1;  ///< -1: not set
  int last_stage_layers = -1;
  bool account_for_embedding = false;
  bool account_for_loss = false;
  std::string layout{};  ///< "Ettt|(tt|)*29,m|L"; "" for none
};

/// The chunks in model order s = v * pp + p. Sizes that do not divide, a layout whose stage or
/// layer count disagrees, are Errors of kind usage that name both numbers. MTP depths sit in the
/// chunk with the head unless a layout string says otherwise.
std::vector<PipelineChunk> pipeline_chunks(PipelineSpec const& spec);

}  // namespace reshard
