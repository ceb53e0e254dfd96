#include "core/containers/stored_table.hpp"

#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/containers/stored_records.hpp"

namespace reshard {
namespace {

using Sizes = std::vector<Index>;

bool same(StoredChunk const& a, StoredChunk const& b) {
  return a.offsets == b.offsets && a.sizes == b.sizes && a.item == b.item;
}

TEST(StoredTable, TakesLittleForATensor) { EXPECT_LE(sizeof(StoredTensor), 24U); }

TEST(StoredChunks, ComeBackAsTheyWere) {
  std::mt19937_64 random(3);
  StoredChunks chunks;
  std::vector<StoredChunk> expected;
  for (int i = 0; i < 5000; ++i) {
    StoredChunk const chunk{static_cast<IndexLists::Id>(random() % 20),
                            static_cast<IndexLists::Id>(random() % 20),
                            {static_cast<std::uint32_t>(random()), random(), random() % 30}};
    expected.push_back(chunk);
    chunks.push_back(chunk);
  }
  chunks.set(17, expected[4]);
  expected[17] = expected[4];
  ASSERT_EQ(chunks.size(), expected.size());
  std::size_t at = 0;
  for (StoredChunk const& chunk : chunks) ASSERT_TRUE(same(chunk, expected[at++]));
  EXPECT_EQ(at, expected.size());
  StoredChunks::Run const run(chunks, 10, 3);
  at = 10;
  for (StoredChunk const& chunk : run) ASSERT_TRUE(same(chunk, expected[at++]));
  EXPECT_EQ(at, 13U);
}

/// Repetitions of repetitions and across their borders, and single chunks between them.
TEST(StoredChunks, RepeatLikeAPlainList) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 40; ++round) {
    StoredChunks chunks;
    std::vector<StoredChunk> expected;
    while (expected.size() < 600) {
      if (expected.empty() || random() % 3 == 0) {
        for (std::uint64_t more = random() % 9; more > 0; --more) {
          expected.push_back({static_cast<IndexLists::Id>(random() % 20),
                              static_cast<IndexLists::Id>(random() % 20),
                              {static_cast<std::uint32_t>(random()), random(), random() % 30}});
          chunks.push_back(expected.back());
        }
        continue;
      }
      if (random() % 2 == 0) {  // one by one, with a change here and there
        std::size_t first = expected.size() - 1;
        while (first > 0 && expected[first - 1].item.file == expected.back().item.file) --first;
        auto const other = static_cast<std::uint32_t>(random() % 1000);
        for (std::size_t i = first, end = expected.size(); i < end; ++i) {
          StoredChunk again = expected[i];
          again.item.file = other;
          if (random() % 20 == 0) again.item.offset_bytes += 8;
          expected.push_back(again);
          chunks.push_back(again);
        }
        continue;
      }
      std::size_t const first = random() % expected.size();
      std::size_t const count = random() % (expected.size() - first + 1) % 90;
      auto const file = static_cast<std::uint32_t>(random() % 1000);
      for (std::size_t i = first; i < first + count; ++i) {
        StoredChunk again = expected[i];
        again.item.file = file;
        expected.push_back(again);
      }
      chunks.repeat(first, count, file);
    }
    if (round % 4 == 0) {
      chunks.set(7, expected[7] = expected[400]);
      chunks.push_back(expected.emplace_back(expected[3]));
    }
    ASSERT_EQ(chunks.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_TRUE(same(chunks[i], expected[i]));
  }
}

TEST(StoredTable, RepeatsTheTensorsOfAFile) {
  StoredTable table;
  table.add_whole("before", DType::f32, Sizes{1}, {0, 8, 4});
  table.add_whole("a", DType::bf16, Sizes{2, 3}, {1, 64, 12});
  table.add_whole("b", DType::f32, Sizes{3, 2}, {1, 128, 24}, {1, 3});
  table.add_whole("other", DType::f32, Sizes{}, {2, 8, 4});
  table.repeat(1, 2, 5);
  StoredTable expected;
  expected.add_whole("before", DType::f32, Sizes{1}, {0, 8, 4});
  expected.add_whole("a", DType::bf16, Sizes{2, 3}, {1, 64, 12});
  expected.add_whole("b", DType::f32, Sizes{3, 2}, {1, 128, 24}, {1, 3});
  expected.add_whole("other", DType::f32, Sizes{}, {2, 8, 4});
  expected.add_whole("a", DType::bf16, Sizes{2, 3}, {5, 64, 12});
  expected.add_whole("b", DType::f32, Sizes{3, 2}, {5, 128, 24}, {1, 3});
  ASSERT_EQ(table.tensors.size(), expected.tensors.size());
  for (std::size_t t = 0; t < expected.tensors.size(); ++t) {
    StoredTensor const& a = table.tensors[t];
    StoredTensor const& b = expected.tensors[t];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.dtype, b.dtype);
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_EQ(a.first_chunk, b.first_chunk);
    EXPECT_EQ(a.chunk_count, b.chunk_count);
    EXPECT_TRUE(same(table.chunks_of(a).front(), expected.chunks_of(b).front())) << t;
    EXPECT_EQ(table.payload_offset_bytes(t), expected.payload_offset_bytes(t));
  }
  EXPECT_EQ(table.strides, expected.strides);
}

TEST(StoredTensors, ComeBackAsTheyWere) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 20; ++round) {
    StoredTensors tensors;
    std::vector<StoredTensor> expected;
    auto const add = [&](StoredTensor const& tensor, std::uint32_t file) {
      expected.push_back(tensor);
      tensors.push_back(tensor, file);
    };
    std::uint32_t chunk = 0;
    for (std::uint32_t file = 0; file < 50; ++file) {
      std::uint32_t const cut = round % 2 == 0 ? 1 : 1 + static_cast<std::uint32_t>(random() % 2);
      for (std::uint32_t t = 0; t < 3 + (random() % 8 == 0 ? 1 : 0); ++t) {
        add({std::to_string(t), DType::bf16, Sizes{2, t}, chunk, cut}, file);
        chunk += cut;
      }
      if (round % 2 == 0 && random() % 8 == 0) {
        std::size_t const first = random() % expected.size();
        std::size_t const count = random() % (expected.size() - first + 1);
        std::uint32_t const shift = file == 49 ? 3 : 0;
        tensors.repeat(first, count, chunk + shift, 1000 + file);
        for (std::size_t t = first; t < first + count; ++t) {
          expected.push_back(expected[t]);
          expected.back().first_chunk = chunk++ + shift;
        }
      }
      if (file == 40 && round % 4 == 0) {
        expected[20].name = "changed";
        tensors.change(20, [](StoredTensor& one) { one.name = "changed"; });
      }
    }
    ASSERT_EQ(tensors.size(), expected.size());
    for (std::size_t t = 0; t < expected.size(); ++t) {
      StoredTensor const tensor = tensors[t];
      ASSERT_EQ(tensor.name, expected[t].name) << t;
      ASSERT_EQ(tensor.shape, expected[t].shape) << t;
      ASSERT_EQ(tensor.chunk_count, expected[t].chunk_count) << t;
      ASSERT_EQ(tensor.first_chunk, expected[t].first_chunk) << t;
    }
  }
}

TEST(StoredTable, PayloadsBeginWhereTheirItemsDoUnlessItSaysWhere) {
  StoredTable table;
  table.add_whole("a", DType::f32, Sizes{1}, {0, 8, 4});
  EXPECT_EQ(table.payload_offset_bytes(0), 8U);
  table.payload_offsets = {72};
  table.add_whole("b", DType::f32, Sizes{1}, {0, 100, 4});
  EXPECT_EQ(table.payload_offset_bytes(0), 72U);
  EXPECT_EQ(table.payload_offset_bytes(1), 100U);
}

TEST(StoredRecords, ComeBackAsTheyWere) {
  std::mt19937_64 random(4);
  StoredRecords records;
  std::vector<StoredRecord> expected;
  for (int i = 0; i < 5000; ++i) {
    StoredRecord record;
    record.file = static_cast<std::uint32_t>(random() % 10);
    record.size_bytes = random() % 40;
    if (random() % 2 == 0) {  // the file is the archive
      record.offset_bytes = random();
      record.archive_bytes = 1'000'000 + record.file;
    } else {  // it is at the start, or somewhere else
      record.archive_offset_bytes = random() % 3 == 0 ? 0 : random() % 1'000'000;
      record.offset_bytes = record.archive_offset_bytes + random() % 100;
      record.archive_bytes = 1 + random() % 500;
    }
    if (i > 100 && random() % 4 != 0) record.crc32 = static_cast<std::uint32_t>(random() % 3);
    expected.push_back(record);
    records.push_back(record);
  }
  ASSERT_EQ(records.size(), expected.size());
  std::size_t at = 0;
  for (StoredRecord const& record : records) ASSERT_EQ(record, expected[at++]) << at;
}

}  // namespace
}  // namespace reshard
