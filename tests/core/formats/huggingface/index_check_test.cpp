#include <gtest/gtest.h>

#include "tests/core/formats/huggingface/folder_files.hpp"

namespace reshard::huggingface {
namespace {

safetensors::Header header_with(std::vector<std::string> const& names) {
  safetensors::Header header;
  for (std::string const& name : names) {
    FileTensor tensor;
    tensor.name = name;
    header.tensors.push_back(tensor);
  }
  return header;
}

Folder indexed_folder() {
  Folder folder;
  folder.path = "/model";
  folder.files = {"a.safetensors", "b.safetensors"};
  folder.weight_map = {{"x", "a.safetensors"}, {"z", "b.safetensors"}, {"y", "a.safetensors"}};
  return folder;
}

std::string refusal_of(Folder const& folder, std::size_t file,
                       std::vector<std::string> const& names) {
  try {
    check_against_index(folder, file, header_with(names));
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::source);
    return error.sentence();
  }
  return "";
}

TEST(HuggingFaceIndexCheck, AFileWithJustItsTensorsPasses) {
  Folder const folder = indexed_folder();
  IndexCheck const index(folder);
  EXPECT_EQ(index.check(0, header_with({"x", "y"})).indexed, (std::vector<std::size_t>{0, 1}));
  EXPECT_TRUE(index.check(1, header_with({"z"})).warnings.empty());
}

TEST(HuggingFaceIndexCheck, TensorsThatTheIndexDoesNotNameAreSaidAndLeftOut) {
  FileCheck const check =
      check_against_index(indexed_folder(), 0, header_with({"old", "y", "older", "x"}));
  EXPECT_EQ(check.indexed, (std::vector<std::size_t>{1, 3}));
  ASSERT_EQ(check.warnings.size(), 1U);
  EXPECT_EQ(check.warnings[0],
            "a.safetensors: 2 tensors that the index does not name are left out: old, older");
}

TEST(HuggingFaceIndexCheck, AMissingTensorIsNamed) {
  EXPECT_NE(
      refusal_of(indexed_folder(), 0, {"x"})
          .find(
              "/model/a.safetensors: 1 of the 2 tensors that the index places here are missing: y."),
      std::string::npos)
      << refusal_of(indexed_folder(), 0, {"x"});
  EXPECT_NE(refusal_of(indexed_folder(), 1, {}).find("1 of the 1 tensors"), std::string::npos);
}

TEST(HuggingFaceIndexCheck, ATensorInASecondFileIsRefused) {
  std::string const sentence = refusal_of(indexed_folder(), 1, {"z", "x"});
  EXPECT_NE(sentence.find("/model/b.safetensors, tensor 'x': the index places it in a.safetensors"),
            std::string::npos)
      << sentence;
}

TEST(HuggingFaceIndexCheck, WithoutAnIndexEveryTensorIsTheCheckpoints) {
  Folder folder;
  folder.files = {"model.safetensors"};
  FileCheck const check = check_against_index(folder, 0, header_with({"x", "y"}));
  EXPECT_EQ(check.indexed.size(), 2U);
  EXPECT_TRUE(check.warnings.empty());
}

}  // namespace
}  // namespace reshard::huggingface
