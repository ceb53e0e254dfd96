#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/plan/blob_table.hpp"
#include "core/plan/cells/cell_table.hpp"
#include "core/plan/file_places.hpp"

namespace reshard {
namespace {

bool same(FilePlace const& a, FilePlace const& b) {
  return a.file == b.file && a.offset_bytes == b.offset_bytes;
}

/// Offsets around 1 TiB and files around 2^23, which are stored in two ways.
std::vector<FilePlace> places_around_the_limits() {
  std::mt19937_64 random(2);
  std::vector<FilePlace> places;
  for (std::uint64_t const offset :
       {0ULL, 1ULL, (1ULL << 40U) - 1, 1ULL << 40U, 1ULL << 63U, ~0ULL})
    for (std::uint32_t const file : {0U, 7U, (1U << 23U) - 1, 1U << 23U, 0xffffffffU})
      places.push_back({offset, file});
  std::shuffle(places.begin(), places.end(), random);
  return places;
}

TEST(FilePlaces, ComeBackAsTheyWere) {
  std::vector<FilePlace> expected = places_around_the_limits();
  FilePlaces places;
  places.add(expected);
  FilePlaces more;
  more.add(std::span(expected).subspan(3));
  places.add(more);
  expected.insert(expected.end(), expected.begin() + 3, expected.end());
  ASSERT_EQ(places.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(same(places[i], expected[i])) << i;
    std::size_t const other = (i * 7) % expected.size();
    FilePlaces changed = places;
    changed.set(i, expected[other]);
    ASSERT_TRUE(same(changed[i], expected[other])) << i;
    ASSERT_TRUE(same(changed[(i + 1) % expected.size()], expected[(i + 1) % expected.size()]));
  }
}

TEST(BlobTable, KeepsNamesAndDtypesApart) {
  BlobTable blobs;
  std::vector<Blob> expected;
  for (FilePlace const& place : places_around_the_limits())
    for (DType const dtype : {DType::bf16, DType::f32})
      expected.emplace_back(place.file, place.offset_bytes, dtype,
                            "layer " + std::to_string(expected.size() % 5));
  auto const check = [&] {
    ASSERT_EQ(blobs.size(), expected.size());
    for (std::size_t b = 0; b < expected.size(); ++b) {
      Blob const blob = blobs[b];
      EXPECT_EQ(blob.file, expected[b].file);
      EXPECT_EQ(blob.offset_bytes, expected[b].offset_bytes);
      EXPECT_EQ(blob.dtype, expected[b].dtype);
      EXPECT_EQ(blob.name, expected[b].name);
      EXPECT_EQ(blobs.file(b), blob.file);
      EXPECT_EQ(blobs.dtype(b), blob.dtype);
      EXPECT_EQ(blobs.name(b), blob.name);
    }
  };
  for (std::size_t b = 0; b < expected.size(); ++b) EXPECT_EQ(blobs.add(expected[b]), b);
  check();
  blobs.shrink();
  expected.emplace_back(3, 4, DType::u8, "layer 1");
  blobs.add(expected.back());
  expected[0] = {1, 2, DType::i64, "other"};
  blobs.set(0, expected[0]);
  expected[1].dtype = DType::f16;
  blobs.change(1, [](Blob& blob) { blob.dtype = DType::f16; });
  check();
}

TEST(BlobTable, HasThoseOfFilesThatRepeatTheFileBefore) {
  BlobTable blobs;
  std::vector<Blob> expected;
  for (std::uint32_t file = 0; file < 40; ++file)  // each third file has one less, and other places
    for (std::uint32_t t = 0; t < (file % 3 == 2 ? 4U : 5U); ++t)
      expected.emplace_back(file, 64 * t + file / 10, t == 3 ? DType::f32 : DType::bf16,
                            "layer " + std::to_string(t));
  auto const check = [&] {
    ASSERT_EQ(blobs.size(), expected.size());
    for (std::size_t b = 0; b < expected.size(); ++b) {
      Blob const blob = blobs[b];
      EXPECT_EQ(blob.file, expected[b].file) << b;
      EXPECT_EQ(blob.offset_bytes, expected[b].offset_bytes) << b;
      EXPECT_EQ(blob.dtype, expected[b].dtype) << b;
      EXPECT_EQ(blob.name, expected[b].name) << b;
      EXPECT_EQ(blobs.place(b).file, expected[b].file) << b;
    }
  };
  for (Blob const& blob : expected) blobs.add(blob);
  blobs.shrink();
  check();
  expected.emplace_back(40, 0, DType::bf16, "layer 0");
  blobs.add(expected.back());
  expected[17].dtype = DType::f16;
  blobs.change(17, [](Blob& blob) { blob.dtype = DType::f16; });
  check();
  expected.emplace_back(41, 0, DType::bf16, "layer 0");
  blobs.add(expected.back());
  check();
}

TEST(CellTable, HasAShapeForEachStagingMemory) {
  CellTable cells;
  std::vector<CellShape> shapes(2);
  shapes[0].source_places = 3;
  shapes[0].staging_bytes = 100;
  shapes[1].target_bytes = 50;
  cells.add_shapes(shapes);
  for (std::uint32_t i = 0; i < 6; ++i)
    cells.add(i % 2, 10 * i, DigestId{i}, (std::uint64_t{1} << 40U) + i);
  cells.set_staging(2, 70);
  cells.set_staging(4, 70);
  cells.set_staging(0, 100);
  EXPECT_EQ(cells.shapes().size(), 3U);
  EXPECT_EQ(cells[4].staging_bytes, 70U);
  EXPECT_EQ(cells[4].shape, cells[2].shape);
  EXPECT_EQ(cells[4].first_source, 40U);
  EXPECT_EQ(cells[4].first_target, 43U);
  EXPECT_EQ(cells[4].digest, DigestId{4});
  EXPECT_EQ(cells[4].digest_bytes, (std::uint64_t{1} << 40U) + 4);
  EXPECT_EQ(cells[0].staging_bytes, 100U);
  EXPECT_EQ(cells[5].target_bytes, 50U);
  EXPECT_EQ(cells[5].first_target, 50U);
  cells.set(1, cells.record(5));
  cells.truncate(2);
  ASSERT_EQ(cells.size(), 2U);
  EXPECT_EQ(cells[1].digest, DigestId{5});
}

}  // namespace
}  // namespace reshard
