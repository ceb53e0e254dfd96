#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/containers/torch/torch_file.hpp"
#include "core/formats/megatron/state/rank_state.hpp"
#include "core/layout/pieces/placement.hpp"

namespace reshard::fsdp_ranks {

// Tensors of torch.distributed in a pickle, read as data. Source: torch 2.6 to 2.13,
// torch/distributed/tensor/_api.py, _dtensor_spec.py, placement_types.py; distributed/
// device_mesh.py, _mesh_layout.py; distributed/_shard/sharded_tensor/api.py.

/// A mesh of ranks; each file contains the place of its own rank.
struct MeshForm {
  std::vector<Index> sizes;        ///< of its axes
  std::vector<std::string> names;  ///< parallel to `sizes`; empty if the axes have none
  friend bool operator==(MeshForm const&, MeshForm const&) = default;
};

/// A tensor of which a rank holds a part.
struct TensorForm {
  std::string name;
  DType dtype = DType::u8;
  std::vector<Index> shape;  ///< of the complete tensor
  enum class Kind {
    plain,   ///< torch.Tensor: complete on the rank
    placed,  ///< DTensor: a mesh, and a placement for each of its axes
    boxed    ///< ShardedTensor: each part has its offsets
  };
  Kind kind = Kind::plain;
  std::size_t mesh = 0;                    ///< placed: in FileForm::meshes
  std::vector<Placement> placements = {};  ///< placed
  friend bool operator==(TensorForm const&, TensorForm const&) = default;
};

/// A part of a tensor in a rank's file: one per tensor, any number of a ShardedTensor.
struct HeldPart {
  std::vector<Index> offsets;  ///< boxed: of its first element in the complete tensor
  FileTensor tensor;           ///< without name
};

constexpr auto wire_fields(MeshForm const&) {
  using T = MeshForm;
  return std::tuple(&T::sizes, &T::names);
}
constexpr auto wire_fields(TensorForm const&) {
  using T = TensorForm;
  return std::tuple(&T::name, WireEnum{&T::dtype, last_dtype}, &T::shape,
                    WireEnum{&T::kind, TensorForm::Kind::boxed}, &T::mesh, &T::placements);
}
constexpr auto wire_fields(HeldPart const&) {
  using T = HeldPart;
  return std::tuple(&T::offsets, &T::tensor);
}

struct HeldTensor {
  TensorForm form;
  std::vector<HeldPart> parts;
};

/// Reads the tensors of one document.
class HeldTensors {
 public:
  /// `rank` is that of the file. All must outlive this.
  HeldTensors(File const& file, TorchFile const& torch, Index rank);
  ~HeldTensors();
  HeldTensors(HeldTensors const&) = delete;
  HeldTensors& operator=(HeldTensors const&) = delete;

  /// The tensor that a node describes; nullopt for other values. Errors of kind source: damage,
  /// unknown tensor classes and placements.
  std::optional<HeldTensor> read(pickle::NodeId node, std::string name);

  std::vector<MeshForm> const& meshes() const;
  /// Coordinates of the rank, parallel to meshes().
  std::vector<std::vector<Index>> const& places() const;

 private:
  class Reader;
  std::unique_ptr<Reader> reader_;
};

/// The value of a tensor of one element; nullopt for another shape or a dtype that is not a number.
std::optional<double> number_in(File const& file, FileTensor const& tensor);

}  // namespace reshard::fsdp_ranks

namespace reshard {

constexpr auto wire_fields(Placement const&) {
  using T = Placement;
  return std::tuple(WireEnum{&T::kind, Placement::Kind::strided_shard}, &T::dim, &T::split_factor);
}

}  // namespace reshard
