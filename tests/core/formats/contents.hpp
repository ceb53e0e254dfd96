#pragma once

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/formats/format.hpp"
#include "tests/support/sample_checkpoints.hpp"
#include "tests/support/written_target.hpp"

/// What a checkpoint holds against what its sample's maker put into it.
namespace reshard::test {

inline Checkpoint opened(std::filesystem::path const& path) {
  return open_checkpoint(path, FormatId::automatic, {}, LoneReader());
}

/// As a sample names a tensor: of a share, with the share's label in front.
inline std::string sample_name(Checkpoint const& checkpoint, std::size_t tensor) {
  for (SharePlace const& place : checkpoint.shares.places)
    if (tensor >= place.first_tensor && tensor < place.first_tensor + place.tensor_count)
      return place.label + "/" + checkpoint.stored.tensors[tensor].name;
  return checkpoint.stored.tensors[tensor].name;
}

/// What is stored where it is said to be, by name.
inline std::map<std::string, SampleTensor> contents(Checkpoint const& checkpoint) {
  auto const files = bytes_of_files(checkpoint.files);
  std::map<std::string, SampleTensor> result;
  for (std::size_t t = 0; t < checkpoint.stored.tensors.size(); ++t) {
    StoredTensor const& tensor = checkpoint.stored.tensors[t];
    GatheredTensor found = gathered(checkpoint.stored, t, files);
    EXPECT_TRUE(found.once) << tensor.name.text() << ": its chunks do not tile it";
    std::string const name = sample_name(checkpoint, t);
    EXPECT_TRUE(
        result.emplace(name, SampleTensor{name, tensor.dtype, tensor.shape, std::move(found.bytes)})
            .second)
        << name << " is there twice";
  }
  return result;
}

inline std::map<std::string, SampleTensor> by_name(std::vector<SampleTensor> const& tensors) {
  std::map<std::string, SampleTensor> result;
  for (SampleTensor const& tensor : tensors) result.emplace(tensor.name, tensor);
  return result;
}

inline void expect_same(std::map<std::string, SampleTensor> const& found,
                        std::map<std::string, SampleTensor> const& expected) {
  std::vector<std::string> names, wanted;
  for (auto const& [name, tensor] : found) names.push_back(name);
  for (auto const& [name, tensor] : expected) wanted.push_back(name);
  ASSERT_EQ(names, wanted);
  for (auto const& [name, tensor] : expected) EXPECT_EQ(found.at(name), tensor) << name;
}

}  // namespace reshard::test
