#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/containers/hdf5/container.hpp"
#include "core/formats/targets/target.hpp"
#include "core/formats/targets/target_job.hpp"

namespace reshard {

/// An object of the target: known bytes, or bytes of a source file.
struct Hdf5Object {
  std::string name;
  std::string bytes;
  std::optional<ItemPlace> copied;
};

/// The content of an HDF5 target. Dataset `specs[i]` is the row-major array of logical tensor
/// `tensors[i]`.
struct Hdf5Target {
  std::vector<hdf5::DatasetSpec> specs;
  std::vector<TensorId> tensors;
  std::vector<Hdf5Object> objects;
  hdf5::RootAttributes attributes;
  std::uint64_t part_bytes = 0;
};

/// Lays out the parts of an HDF5 target and fills files, texts and the target catalogue; returns
/// the objects to copy.
std::vector<OpaqueCopy> plan_hdf5_target(TargetDraft& job, Model const& model, Hdf5Target target);

/// The datasets of a model's logical tensors, its description and the copied files. `dtypes` by
/// logical tensor, as the source has them. Errors of kind usage: tensors that a container with
/// logical names cannot contain (parts of quantised weights, tensors kept unchanged).
Hdf5Target logical_hdf5_target(Model const& model, SourceModel const& source,
                               std::vector<std::optional<DType>> const& dtypes);

/// The names of a tensor's axes, as labels of dimensions: "layer", "hidden/32".
std::vector<std::string> axis_labels(Model const& model, TensorId tensor);

/// The indices of its axes that a tensor has: "layer 3:61"; "" for all. With `half`, in the layers
/// of a hybrid model of pairs (paired_layers.hpp): layer i is 2i + half.
std::string domain_text(Model const& model, TensorId tensor,
                        std::optional<Index> half = std::nullopt);

}  // namespace reshard
