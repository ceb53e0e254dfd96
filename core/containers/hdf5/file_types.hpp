#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/tables/integers.hpp"
#include "core/containers/hdf5/child/calls.hpp"

namespace reshard::hdf5 {

/// The HDF5 types of datasets, made once each. docs/formats/hdf5.md, 2 has the table.
class FileTypes {
 public:
  explicit FileTypes(Calls const& calls) : calls_(calls) {}
  /// Valid while this object lives.
  hid_t of(DType dtype);

 private:
  Handle make(DType dtype) const;
  Handle make_half(DType dtype) const;
  Handle make_complex(hid_t part) const;

  Calls calls_;
  std::array<std::optional<Handle>, static_cast<std::size_t>(last_dtype) + 1> made_;
};

/// The dtype of a dataset by its HDF5 type.
struct TypeFound {
  std::optional<DType> dtype;
  std::string problem;  ///< without a dtype: the reason ("it is a big-endian number")
};
TypeFound dtype_of_type(hid_t type);

/// Whether elements of this HDF5 type can be the carrier of such values: numbers of the same width,
/// little endian.
bool carries(hid_t type, DType dtype);

/// The extents of the dataset of a tensor. Elements narrower than a byte are stored as bytes: the
/// last extent counts those. Pre: tensor_bytes() has a value for it.
std::vector<hsize_t> stored_extents(DType dtype, std::vector<Index> const& shape);
/// The inverse; nullopt if the last extent's bytes are not a multiple of the element size.
std::optional<std::vector<Index>> shape_from_extents(DType dtype,
                                                     std::vector<hsize_t> const& extents);

}  // namespace reshard::hdf5
