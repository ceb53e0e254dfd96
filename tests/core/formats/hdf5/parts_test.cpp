// Which files of an HDF5 checkpoint of several parts are missing, or too many.

#include "core/formats/hdf5/parts.hpp"

#include <gtest/gtest.h>

#include "core/base/capture.hpp"

namespace reshard::hdf5 {
namespace {

class Hdf5Parts : public testing::Test {
 protected:
  void add(std::string const& file, std::string part, std::string parts,
           std::string const& map = "") {
    Found found;
    found.container = true;
    found.attributes = {
        {"map", map}, {"names", "stored"}, {"part", std::move(part)}, {"parts", std::move(parts)}};
    parts_.push_back(std::move(found));
    files_.push_back("/folder/" + file);
  }

  /// Parts of so many, under the names of a target.
  void add_parts(std::initializer_list<Index> numbers, Index of) {
    for (Index const number : numbers)
      add(part_file_name(number, of), std::to_string(number), std::to_string(of));
  }

  /// What these files are refused with; "" where they are not.
  std::string refused() const {
    auto const error = capture([&] { check_parts(parts_, files_, "/folder"); });
    if (!error) return "";
    EXPECT_EQ(error->kind(), ErrorKind::source);
    return error->sentence();
  }

  void expect_refused(std::string const& sentence) const { EXPECT_EQ(refused(), sentence); }

 private:
  std::vector<Found> parts_;
  std::vector<std::filesystem::path> files_;
};

TEST_F(Hdf5Parts, ThatAreAllThereAreTaken) {
  add_parts({1, 2, 3}, 3);
  EXPECT_EQ(refused(), "");
}

TEST_F(Hdf5Parts, InAnyOrderAndUnderAnyNameAreTaken) {
  add("a.h5", "2", "2");
  add("b.h5", "1", "2");
  EXPECT_EQ(refused(), "");
}

TEST_F(Hdf5Parts, ThatIsMissingIsNamed) {
  add_parts({1, 3}, 3);
  expect_refused(
      "/folder: part 2 (part-00002-of-00003.h5) of 3 is missing. Restore it from the original, or "
      "write the checkpoint again.");
}

TEST_F(Hdf5Parts, TheFirstOrTheLastOfWhichIsMissingSayIt) {
  add_parts({2}, 3);
  expect_refused(
      "/folder: parts 1 (part-00001-of-00003.h5), 3 (part-00003-of-00003.h5) of 3 are missing. "
      "Restore them from the original, or write the checkpoint again.");
}

TEST_F(Hdf5Parts, OfOtherNamesHaveTheirNumbersAlone) {
  add("b.h5", "2", "2");
  expect_refused(
      "/folder: part 1 of 2 is missing. Restore it from the original, or write the checkpoint "
      "again.");
}

TEST_F(Hdf5Parts, ThatAreManyAreCounted) {
  add("a.h5", "3", "4000000000000000000");  // the file says so: no list of all of them is made
  expect_refused(
      "/folder: parts 1, 2, 4, 5, 6, 7 and 3999999999999999993 more of 4000000000000000000 are "
      "missing. Restore them from the original, or write the checkpoint again.");
}

TEST_F(Hdf5Parts, ThatAreThereTwiceNameBothFiles) {
  add_parts({1, 2}, 3);
  add("zz.h5", "1", "3");
  expect_refused(
      "/folder/zz.h5: is part 1 of 3, and so is /folder/part-00001-of-00003.h5. Move files of "
      "other checkpoints elsewhere.");
}

TEST_F(Hdf5Parts, OfAnotherCheckpointAreRefused) {
  add_parts({1, 2}, 2);
  add("zz.h5", "1", "3");
  expect_refused(
      "/folder/zz.h5: is part 1 of 3, and /folder/part-00001-of-00002.h5 is one of 2. The files "
      "belong to several checkpoints: move those of other checkpoints elsewhere.");
}

TEST_F(Hdf5Parts, OfAnotherMapAreRefused) {
  add_parts({1}, 2);
  add("zz.h5", "2", "2", "other");
  EXPECT_NE(refused().find("attribute 'map' is 'other'"), std::string::npos) << refused();
}

TEST_F(Hdf5Parts, WithANumberThatCannotBeAreRefused) {
  add_parts({1}, 2);
  add("zz.h5", "3", "2");
  expect_refused(
      "/folder/zz.h5: its attribute 'part' is 3, expected 1 to 2. The file is damaged: write it "
      "again.");
}

}  // namespace
}  // namespace reshard::hdf5
