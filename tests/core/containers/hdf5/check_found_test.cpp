#include <functional>
#include <limits>

#include "tests/core/containers/hdf5/container_files.hpp"

namespace reshard::hdf5 {
namespace {

constexpr std::uint64_t file_bytes = 1000;

Found good() {
  Found found;
  found.container = true;
  found.attributes = {{"model", "x\ny"}};
  found.tensors = {{"b", DType::f32, {2, 3}, {"out", "in"}, "layer 0:1", 200, 24, 1},
                   {"a", DType::bf16, {4}, {}, "", 100, 8, 2}};
  found.objects = {{"o", DType::u8, {10}, {}, "", 300, 10, 3}};
  return found;
}

std::string damaged_by(std::function<void(Found&)> const& damage) {
  Found found = good();
  damage(found);
  return refusal([&] { check_found(found, file_bytes, "x.h5"); });
}

TEST(Hdf5CheckFound, GoodOnesPassInTheOrderOfTheirOffsets) {
  Found found = good();
  check_found(found, file_bytes, "x.h5");
  EXPECT_EQ(found.tensors[0].name, "a");
  EXPECT_EQ(found.tensors[1].name, "b");
  EXPECT_EQ(damaged_by([](Found& f) { f.objects[0].offset_bytes = 990; }), "");
  EXPECT_EQ(damaged_by([](Found& f) { f.objects[0].offset_bytes = 224; }), "");
}

TEST(Hdf5CheckFound, TheSameNameMayBeATensorAndAnObject) {
  EXPECT_EQ(damaged_by([](Found& f) { f.objects[0].name = "a"; }), "");
}

TEST(Hdf5CheckFound, EachLieIsRefusedWithItsValues) {
  struct Case {
    std::function<void(Found&)> damage;
    std::vector<std::string> says;
  };
  std::vector<Case> const cases = {
      {[](Found& f) { f.tensors[0].name = "a"; }, {"'a'", "appears twice"}},
      {[](Found& f) { f.tensors[0].name = ""; }, {"empty"}},
      {[](Found& f) { f.tensors[0].name = "x/../y"; }, {"'..' is one of its parts"}},
      {[](Found& f) { f.tensors[0].name = "x\x1b"; }, {"'x\\x1b'", "control character"}},
      {[](Found& f) { f.tensors[0].size_bytes = 25; },
       {"'b'", "shape [2, 3] of F32 needs 24 bytes, 25 are stored"}},
      {[](Found& f) {
         f.tensors[0].shape = {2, -3};
       },
       {"[2, -3]", "below 2^61"}},
      {[](Found& f) { f.tensors[0].shape.assign(33, 1); }, {"33 dimensions, more than 32"}},
      {[](Found& f) {
         f.tensors[0].shape = {Index{1} << 40, Index{1} << 40};
       },
       {"below 2^61"}},
      {[](Found& f) {
         f.tensors[0].dtype = DType::f4, f.tensors[0].shape = {16, 3};
       },
       {"[16, 3] of F4 is not a whole number of bytes"}},
      {[](Found& f) { f.tensors[0].offset_bytes = 977; },
       {"its 24 bytes begin at 977, the file ends at 1000", "truncated"}},
      {[](Found& f) { f.tensors[0].offset_bytes = std::numeric_limits<std::uint64_t>::max(); },
       {"the file ends at 1000"}},
      {[](Found& f) { f.tensors[0].offset_bytes = 107; },
       {"'b'", "begins at byte 107, where 'a' ends at 108", "overlap"}},
      {[](Found& f) { f.tensors[0].offset_bytes = 100; }, {"overlap"}},
      {[](Found& f) { f.objects[0].offset_bytes = 223; }, {"'o'", "'b' ends at 224"}},
      {[](Found& f) { f.tensors[0].axes = {"one"}; }, {"dimension labels"}},
      {[](Found& f) {
         f.tensors[0].axes = {"one", ""};
       },
       {"dimension labels"}},
      {[](Found& f) {
         f.tensors[0].axes = {"one", "t\two"};
       },
       {"dimension labels"}},
      {[](Found& f) { f.tensors[0].domain = "a\nb"; }, {"'domain'"}},
      {[](Found& f) { f.objects[0].dtype = DType::i8; }, {"'o'", "an object is U8"}},
      {[](Found& f) {
         f.objects[0].shape = {2, 5};
       },
       {"an object is U8 with one dimension"}},
      {[](Found& f) { f.attributes[0].second = "\xff"; }, {"root attribute 'model'"}},
      {[](Found& f) { f.attributes[0].first = "a\n"; }, {"root attribute 'a\\x0a'"}},
  };
  for (Case const& each : cases) {
    std::string const sentence = damaged_by(each.damage);
    expect_says(sentence, each.says);
    EXPECT_TRUE(sentence.starts_with("3: x.h5")) << sentence;
  }
}

TEST(Hdf5CheckFound, BytesOfShapes) {
  EXPECT_EQ(tensor_bytes(DType::f32, {}), 4U);
  EXPECT_EQ(tensor_bytes(DType::f4, std::vector<Index>{3, 4}), 6U);
  EXPECT_EQ(tensor_bytes(DType::f6_e3m2, std::vector<Index>{5, 4}), 15U);
  EXPECT_EQ(tensor_bytes(DType::f6_e3m2, std::vector<Index>{4, 2}),
            std::nullopt);  // whole bytes, but not in the last dimension
  EXPECT_EQ(tensor_bytes(DType::f4, {}), std::nullopt);
  EXPECT_EQ(tensor_bytes(DType::f4_x2, std::vector<Index>{3}), 3U);
  EXPECT_EQ(tensor_bytes(DType::c128, std::vector<Index>{3}), 48U);
  EXPECT_EQ(tensor_bytes(DType::f64, std::vector<Index>{Index{1} << 62, 0, Index{1} << 62}), 0U);
  EXPECT_EQ(tensor_bytes(DType::u8, std::vector<Index>{(Index{1} << 61) - 1}),
            (std::uint64_t{1} << 61U) - 1);
  EXPECT_EQ(tensor_bytes(DType::u8, std::vector<Index>{Index{1} << 61}), std::nullopt);
}

}  // namespace
}  // namespace reshard::hdf5
