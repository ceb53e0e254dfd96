#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/files/file_paths.hpp"
#include "core/formats/deepspeed/folder.hpp"
#include "core/formats/deepspeed/rank_header.hpp"

namespace reshard::deepspeed {

/// The headers of a checkpoint's files.
struct Headers {
  std::vector<ModelStates> models;          ///< parallel to Folder::model_files
  std::vector<OptimizerStates> optimizers;  ///< parallel to Folder::optimizer_files; of a universal
                                            ///< checkpoint to the files of all parameters
  OptimizerStates settings;                 ///< of a universal checkpoint
  std::vector<std::uint64_t> file_bytes;    ///< parallel to Checkpoint::files
};

/// Elements [begin, end) of a parameter: those of a vector from `at` on.
struct HeldPart {
  std::uint32_t file = 0;
  FileTensor const* vector = nullptr;  ///< of the headers
  Index begin = 0;
  Index end = 0;
  Index at = 0;
};

/// A trained parameter with the parts of its states.
struct HeldParameter {
  std::string name;
  std::vector<Index> shape;
  Index elements = 0;
  /// By slot ("fp32", "exp_avg"): the parts in order, which cover the complete parameter.
  std::map<std::string, std::vector<HeldPart>> slots;
  FileTensor const* step = nullptr;  ///< of the headers; nullptr if the step is not a tensor
  std::uint32_t step_file = 0;
};

/// All parameters of `param_shapes`, in its order, with their parts in the files of ranks or of a
/// universal checkpoint; those of a weights-only checkpoint have no slots. Pointers are into
/// `headers`. `files` are the model files, then those of Headers::optimizers. Errors of kind
/// source: incomplete parameters, a number of files that differs from the stated ranks.
std::vector<HeldParameter> held_parameters(Folder const& folder, Headers const& headers,
                                           FilePaths const& files);

}  // namespace reshard::deepspeed
